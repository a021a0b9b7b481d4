"""Shakespeare: LEAF's roles and cleaning, windows on the fly."""

import os
from pathlib import Path

import pytest
import torch

from propfair.data import SOURCES, shakespeare
from propfair.data.shakespeare import VOCABULARY, TextExamples, read_roles
from propfair.errors import ConfigError, DataError
from propfair.federation.federation import federate
from propfair.federation.partition import PARTITIONERS, Natural
from propfair.federation.split import Splitter
from tests.unit import official

LORD = "To be, or not to be: that is the question, my lord| and here is more of it, and more, and so on to the "
LORD += "hundredth letter of the speech of the lord. Again. Exeunt "


def load(home: Path | None, sequence: int = 80) -> TextExamples:
    examples = SOURCES.make("shakespeare", {"sequence": sequence}).load(home)
    assert isinstance(examples, TextExamples)
    return examples


def spell(codes: torch.Tensor) -> str:
    return "".join(VOCABULARY[code] for code in codes.flatten().tolist())


def test_roles_after_the_rules_of_leaf() -> None:
    assert read_roles(official.WORKS, "here") == {
        "THE_TRAGEDY_OF_NOBODY_FIRST_LORD": LORD,
        "THE_TRAGEDY_OF_NOBODY_SECOND_LORD": "Ay. One. Two. ",
        "THE_COMEDY_OF_ERRORS_SOLINUS": "Flat as a board and on. End ",
    }


def test_vocabulary() -> None:
    assert len(VOCABULARY) == len(set(VOCABULARY)) == 80
    assert VOCABULARY[0] == "\n"


def test_windows(tmp_path: Path) -> None:
    official.write_shakespeare(tmp_path)
    examples = load(tmp_path, sequence=10)
    said = [LORD.replace("|", " "), "Ay. One. Two. ", "Flat as a board and on. End "]
    assert len(examples) == sum(len(text) - 10 for text in said)
    assert examples.num_unknown == 1
    everything = torch.arange(len(examples))
    inputs, targets = examples.inputs(everything), examples.targets(everything)
    expected = [(text[i : i + 10], text[i + 10]) for text in said for i in range(len(text) - 10)]
    assert [(spell(x), spell(y)) for x, y in zip(inputs, targets, strict=True)] == expected
    moved = examples.with_tensors(examples.tensors())
    assert moved.inputs(everything).equal(inputs)


def test_short_roles_have_no_window(tmp_path: Path) -> None:
    official.write_shakespeare(tmp_path)
    assert load(tmp_path).user_names == ("THE_TRAGEDY_OF_NOBODY_FIRST_LORD",)
    with pytest.raises(DataError, match="no role has more than 500 characters"):
        load(tmp_path, sequence=500)


@pytest.mark.parametrize("text", ["", "by William Shakespeare\n" * 3, "ROMEO\nBut soft!\n" * 100, "\0\xff\xfe" * 50])
def test_a_text_without_roles(tmp_path: Path, text: str) -> None:
    (tmp_path / "t8.shakespeare.txt").write_text(text)
    with pytest.raises(DataError, match=r"has no speaking roles.*January 1994"):
        load(tmp_path)


def test_files_that_can_not_be_the_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "t8.shakespeare.txt"
    path.mkdir()
    with pytest.raises(DataError, match="is a folder, not a file"):
        load(tmp_path)
    path.rmdir()
    path.write_text(official.WORKS)
    monkeypatch.setattr(shakespeare, "MAX_TEXT_BYTES", 100)
    with pytest.raises(DataError, match="is refused"):
        load(tmp_path)


def test_a_split_that_leaks_is_named(tmp_path: Path) -> None:
    official.write_shakespeare(tmp_path)
    source = SOURCES.make("shakespeare", {"sequence": 10})
    examples = source.load(tmp_path)
    assert source.protocol.split["gap"] == 9
    federate(examples, Natural(), None, Splitter(**source.protocol.split))
    with pytest.warns(UserWarning, match=r"leaks into the test part.*gap=9"):
        federate(examples, Natural(), None, Splitter(order="shuffled"))


def test_bad_options() -> None:
    with pytest.raises(ConfigError, match="sequence must be >= 1"):
        SOURCES.make("shakespeare", {"sequence": 0})


def test_real_text_has_the_known_counts() -> None:
    home = os.environ.get("PROPFAIR_DATA")
    if home is None or not (Path(home) / "shakespeare").exists():
        pytest.skip("needs the real text: PROPFAIR_DATA must name a folder with shakespeare/t8.shakespeare.txt")
    text = (Path(home) / "shakespeare" / "t8.shakespeare.txt").read_text(encoding="latin-1")
    roles = read_roles(text, "here")
    assert len(roles) == 1145
    assert sum(len(said) > 80 for said in roles.values()) == 1130
    assert sum(len(said) >= 10_000 for said in roles.values()) == 133
    examples = load(Path(home))
    assert len(examples) == 4_226_206
    assert examples.user is not None
    assert int((examples.user.bincount() >= 10_000).sum()) == 132
    protocol = SOURCES.make("shakespeare").protocol
    federation = federate(
        examples, PARTITIONERS.make(*protocol.partition), protocol.num_clients, Splitter(**protocol.split)
    )
    assert federation.num_clients == 20
    assert "132" in federation.note
    difference = federation.train.lengths - federation.test.lengths
    assert set(difference.tolist()) <= {78, 79}, "LEAF's contiguous halves with a gap of 79"
    for k in range(20):
        assert int(federation.test[k][0]) == int(federation.train[k][-1]) + 80
