"""The character model of the paper."""

from dataclasses import dataclass

from torch import Tensor, nn

from propfair.errors import ConfigError
from propfair.models.base import ModelSpec, Shape, register


@register("lstm")
@dataclass(frozen=True)
class Lstm(ModelSpec):
    """Embedding, LSTM, and a linear layer on the last step: the next character of a text.

    With the 80 symbols of Shakespeare it has 819,920 parameters in two layers, as the authors' code and LEAF, and
    293,584 in one, as the table of the paper.

    Args:
        num_layers: of the LSTM.
        embedding: the size of a character's vector; that of symbol 0, the newline, stays zero.
        hidden: the size of the state.
    """

    num_layers: int = 2
    embedding: int = 8
    hidden: int = 256

    def __post_init__(self) -> None:
        for name in ("num_layers", "embedding", "hidden"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be >= 1; got {name}={getattr(self, name)}")

    def build(self, input_shape: Shape, num_classes: int) -> nn.Module:
        if len(input_shape) != 1:
            raise ConfigError(f"model 'lstm' needs rows of symbols [length]; got shape {list(input_shape)}")
        return NextSymbol(num_classes, self.embedding, self.hidden, self.num_layers)


class NextSymbol(nn.Module):
    """Symbols [B, length] -> scores of the next one [B, symbols]."""

    def __init__(self, symbols: int, embedding: int, hidden: int, num_layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(symbols, embedding, padding_idx=0)
        self.lstm = nn.LSTM(embedding, hidden, num_layers, batch_first=True)
        self.fc = nn.Linear(hidden, symbols)

    def forward(self, symbols: Tensor) -> Tensor:
        """The scores after the last symbol."""
        steps, _ = self.lstm(self.embedding(symbols))
        scores: Tensor = self.fc(steps[:, -1])
        return scores
