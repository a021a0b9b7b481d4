"""The words of 19 countries that come with faker."""

import re
from importlib import metadata

import pytest
import torch

from propfair.data import SOURCES, ArrayExamples
from propfair.data.form_fields import ALPHABET, CLIENTS, FAKER, count_grams, folded, words_of
from propfair.errors import ConfigError, MissingExtraError, PropFairWarning
from propfair.federation.federation import federate
from propfair.federation.partition import PARTITIONERS
from propfair.federation.split import Splitter


@pytest.fixture(scope="module")
def words() -> ArrayExamples:
    examples = SOURCES.make("form-fields").load(None)
    assert isinstance(examples, ArrayExamples)
    return examples


def test_the_data_are_those_that_numbers_were_made_with(words: ArrayExamples) -> None:
    assert metadata.version("faker") == FAKER, "constraints.txt pins another version than the data set names"
    assert words.digest().startswith("d515abfe74350bef")
    assert words.x.shape == (30_827, 512)
    assert set(words.labels.tolist()) == {0, 1, 2}


def test_one_named_client_per_country(words: ArrayExamples) -> None:
    protocol = SOURCES.make("form-fields").protocol
    federation = federate(words, PARTITIONERS.make(*protocol.partition), splitter=Splitter(**protocol.split))
    assert federation.names == tuple(CLIENTS.values())
    assert len(set(federation.names)) == 19
    assert max(map(len, federation.names)) <= 24
    sizes = federation.train.lengths + federation.validation.lengths + federation.test.lengths
    assert (int(sizes.min()), int(sizes.max())) == (440, 3000)
    assert int(federation.validation.lengths.min()) >= 60
    kinds = federation.label_counts("train") / federation.train.lengths[:, None]
    assert float(kinds[federation.names.index("South Africa (isiZulu)"), 1]) > 0.8, "mostly family names"


def test_every_word_has_one_kind_and_plain_letters() -> None:
    words = words_of("sk_SK")
    assert all(set(word) <= set(ALPHABET) and word == " ".join(word.split()) for word in words)
    assert [words[word] for word in ("zuzana", "kovac", "banska bystrica")] == [0, 1, 2]
    assert words_of("es_CO")["medellin"] == 2, "places that come with a number"


def test_letters_that_are_no_accents_are_spelt_out() -> None:
    assert folded(["Grøndalsvænge", "Đurđevac", "s-Hertogenbosch", "--"]) == [
        "grondalsvaenge", "durdevac", "s hertogenbosch",
    ]  # fmt: skip


def test_counts_are_those_of_the_grams() -> None:
    wide = count_grams(["anna", "an na", "b"], 1 << 20)  # so wide that no two grams share a column
    assert wide.sum(1).tolist() == [4 + 5 + 4, 4 + 6 + 5, 1 + 2 + 1]
    shared = torch.minimum(wide[0], wide[1])
    assert float(shared.sum()) == 4 + 4 + 2, "a n n a; _a an na a_; _an na_"
    narrow = count_grams(["anna", "an na", "b"], 16)
    assert narrow.sum(1).equal(wide.sum(1))


def test_long_lists_are_cut_by_a_hash_of_the_word() -> None:
    few, more = (SOURCES.make("form-fields", {"max_words": number}).load(None) for number in (50, 60))
    assert len(few) == 19 * 50
    assert few.inputs(torch.arange(50)).equal(more.inputs(torch.arange(50))), "the same words come first"


def test_another_version_warns_and_none_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    source = SOURCES.make("form-fields", {"max_words": 5})
    monkeypatch.setattr(metadata, "version", lambda name: "41.0.0")
    with pytest.warns(PropFairWarning, match=f"faker 41.0.0.*{re.escape(FAKER)}"):
        source.load(None)

    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    with pytest.raises(MissingExtraError, match=r"pip install 'propfair\[data\]'"):
        source.load(None)


def test_bad_options() -> None:
    with pytest.raises(ConfigError, match="max_words"):
        SOURCES.make("form-fields", {"max_words": 0})
