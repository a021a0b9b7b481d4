"""The journal: what counts is whole, what is damaged is found and what is not is saved."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from propfair.core.evaluation import Evaluation
from propfair.errors import WriteError
from propfair.runs import journal
from propfair.runs.journal import (
    DamagedError,
    Journal,
    Mark,
    check_rows,
    client_tables,
    read_rows,
    round_tables,
    salvage,
)
from propfair.runs.records import ROW, Names, Records


def evaluation(value: float) -> Evaluation:
    return Evaluation(torch.full((3,), value), torch.tensor([value, float("nan"), 1.0]), torch.ones(3))


def records(first: int, last: int) -> Records:
    made = Records("mine")
    for number in range(first, last + 1):
        made.add_evaluation(number, "test" if number % 2 else "train", evaluation(number / 7))
        made._rounds.append((number, "norm", number / 3))
    return made


def write(folder: Path, *lengths: int) -> list[Mark]:
    """Checkpoints after so many rounds each."""
    made, marks, done = Journal(folder / "journal-00000000"), [], 0
    for length in lengths:
        marks.append(made.append(records(done + 1, done + length).rows(made.names)))
        done += length
    return marks


def tables(folder: Path, mark: Mark) -> tuple[pa.Table, pa.Table]:
    check_rows(folder, mark)
    clients, rounds = (make("mine", mark.names, read_rows(folder, mark)) for make in (client_tables, round_tables))
    return pa.concat_tables(clients), pa.concat_tables(rounds)


def test_what_is_written_is_read_and_a_mark_is_plain_json(tmp_path: Path) -> None:
    *_, mark = write(tmp_path, 2, 1, 4)
    again = Mark.of(mark.as_dict())
    clients, rounds = tables(tmp_path, again)
    expected = records(1, 7)
    assert clients.equals(expected.clients)
    assert rounds.equals(expected.diagnostics)


def test_an_empty_journal(tmp_path: Path) -> None:
    clients, rounds = tables(tmp_path, Journal(tmp_path / "journal-00000000").append(Records("mine").rows(Names())))
    assert clients.equals(Records("mine").clients)
    assert rounds.equals(Records("mine").diagnostics)


@pytest.mark.parametrize("chunk", [1, 4, 7, 1000])
def test_pieces_do_not_depend_on_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(journal, "_CHUNK", chunk)
    lengths = []
    for number, parts in enumerate([(6,), (1, 5), (2, 2, 2), (1,) * 6]):
        (tmp_path / str(number)).mkdir()
        *_, mark = write(tmp_path / str(number), *parts)
        pieces = list(client_tables("mine", mark.names, read_rows(tmp_path / str(number), mark)))
        assert pa.concat_tables(pieces).equals(records(1, 6).clients)
        lengths.append([len(piece) for piece in pieces])
    assert lengths.count(lengths[0]) == 4


def test_going_on_cuts_off_what_does_not_count(tmp_path: Path) -> None:
    first, second = write(tmp_path, 2, 3)
    whole = (tmp_path / "journal-00000000").read_bytes()
    again = Journal(tmp_path / "journal-00000000", first)
    assert again.append(records(3, 5).rows(again.names)).as_dict() == second.as_dict()
    assert (tmp_path / "journal-00000000").read_bytes() == whole
    (tmp_path / "journal-00000000").write_bytes(whole + b"half a row")
    clients, _ = tables(tmp_path, second)
    assert clients.equals(records(1, 5).clients), "what lies behind the mark does not matter"


def test_every_changed_byte_is_found_and_all_other_checkpoints_are_saved(tmp_path: Path) -> None:
    marks = write(tmp_path, 1, 2, 1)
    ends = [mark.rows * ROW.itemsize for mark in marks]
    whole = (tmp_path / "journal-00000000").read_bytes()
    assert len(salvage(tmp_path, marks[-1])) == marks[-1].rows - 3
    for place in range(0, len(whole), 3):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        (tmp_path / "journal-00000000").write_bytes(damaged)
        with pytest.raises(DamagedError, match="journal-00000000 is damaged"):
            check_rows(tmp_path, marks[-1])
        hit = next(number for number, end in enumerate(ends) if place < end)
        rounds = {number for frame, rounds in enumerate([{1}, {2, 3}, {4}]) if frame != hit for number in rounds}
        saved = set(salvage(tmp_path, marks[-1])["round"].tolist())
        assert saved >= rounds, "at most the damaged one is lost"
        assert saved - rounds <= ({1}, {2, 3}, {4})[hit], "which is whole if only the number at its end is not"


@pytest.mark.parametrize("length", [0, 19, 200])
def test_a_journal_that_ends_early(tmp_path: Path, length: int) -> None:
    first, second = write(tmp_path, 1, 1)
    path = tmp_path / "journal-00000000"
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(DamagedError, match="ends early"):
        check_rows(tmp_path, second)
    assert set(salvage(tmp_path, second)["round"]) == ({1} if length >= first.rows * ROW.itemsize else set())
    path.unlink()
    assert len(salvage(tmp_path, second)) == 0
    with pytest.raises(FileNotFoundError):
        check_rows(tmp_path, second)


def test_a_folder_that_vanishes(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    made = Journal(tmp_path / "gone" / "journal-00000000")
    (tmp_path / "gone" / "journal-00000000").unlink()
    with pytest.raises(WriteError, match=r"can't write .*journal-00000000: No such file"):
        made.append(records(1, 1).rows(made.names))
    (tmp_path / "gone").rmdir()
    with pytest.raises(WriteError, match=r"can't write .*journal-00000000: No such file"):
        Journal(tmp_path / "gone" / "journal-00000000")


def test_names_keep_their_numbers() -> None:
    names = Names()
    records(1, 1).rows(names)
    later = names.copy()
    assert records(2, 2).rows(later)["name"].tolist() == [2, 2, 2, 3, 3, 0]
    assert list(names.clients) == [("test", "loss"), ("test", "accuracy")]
    assert np.array_equal(records(2, 2).rows(later.copy()), records(2, 2).rows(later))
