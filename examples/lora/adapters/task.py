"""The task: is a word a given name or a family name? One client for each of four languages."""

import importlib

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification

LANGUAGES = {"de_DE": "German", "it_IT": "Italian", "fi_FI": "Finnish", "zu_ZA": "isiZulu"}
LENGTH, LETTERS = 12, 27


class Network(nn.Module):
    """A transformer whose own weights stay as they are; adapters and the last layer are trained.

    Its weights are random here. The real one, where downloads are allowed, with its tokenizer in place of letters:
    `whole = BertForSequenceClassification.from_pretrained("google-bert/bert-base-uncased", num_labels=2)`
    """

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)  # the frozen weights must be the same on every machine
            whole = BertForSequenceClassification(
                BertConfig(
                    vocab_size=LETTERS + 1, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
                    intermediate_size=64, max_position_embeddings=LENGTH, num_labels=2, hidden_dropout_prob=0.0,
                    attention_probs_dropout_prob=0.0,
                )
            )  # fmt: skip
            lora = LoraConfig(r=4, lora_alpha=8, target_modules=["query", "value"], modules_to_save=["classifier"])
            self.transformer = get_peft_model(whole, lora)

    def forward(self, letters: Tensor) -> Tensor:
        return self.transformer(input_ids=letters, attention_mask=(letters > 0).long()).logits

    def adapters(self) -> dict[str, Tensor]:
        """What is trained, and what travels."""
        return {name: weight.detach().clone() for name, weight in self.named_parameters() if weight.requires_grad}


def load_data(client: int, batch_size: int) -> tuple[DataLoader, DataLoader]:
    """The training and the test batches of a language; words are rows of letters, 0 where a word has ended."""
    people = importlib.import_module(f"faker.providers.person.{list(LANGUAGES)[client]}").Provider
    given, family = ({word for word in names if word.isascii()} for names in (people.first_names, people.last_names))
    words = [(word, 0) for word in sorted(given - family)] + [(word, 1) for word in sorted(family - given)]
    rows = [{"letters": _letters(word), "label": torch.tensor(kind)} for word, kind in words]
    train, test = [row for at, row in enumerate(rows) if at % 4], rows[::4]
    return DataLoader(train, batch_size=batch_size, shuffle=True), DataLoader(test, batch_size=256)


def _letters(word: str) -> Tensor:
    codes = [ord(letter) - ord("a") + 1 if letter.isalpha() else LETTERS for letter in word.lower()[:LENGTH]]
    return torch.tensor(codes + [0] * (LENGTH - len(codes)))
