"""The reader of CIFAR's pickles: official files in, everything else refused, nothing ever run."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from propfair.data import pickles
from propfair.data.pickles import read_pickle
from propfair.errors import DataError
from tests.unit import official


def write(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "batch"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("large", [300, 1 << 20])
def test_reads_what_python_2_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: int) -> None:
    monkeypatch.setattr(pickles, "LARGE", large)
    rows = official.images(3)
    path = write(tmp_path, official.pickled(data=official.array(rows), labels=official.numbers([1, 300, 2])))
    found = read_pickle(path)
    assert found["labels"] == [1, 300, 2]
    out = np.empty((3, 3072), dtype=np.uint8)
    with path.open("rb") as file:
        found["data"].read(file, out)
    assert np.array_equal(out, rows)
    assert pickle.loads(path.read_bytes(), encoding="bytes")[b"labels"] == [1, 300, 2], "the test's own format is real"


def test_reads_what_python_3_writes(tmp_path: Path) -> None:
    rows = official.images(2)
    path = write(tmp_path, pickle.dumps({"data": rows, "labels": [1, 2]}, protocol=4))
    found = read_pickle(path)
    out = np.empty((2, 3072), dtype=np.uint8)
    with path.open("rb") as file:
        found["data"].read(file, out)
    assert np.array_equal(out, rows)


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (exec, ("raise SystemExit('the pickle was run')",))


@pytest.mark.parametrize("protocol", range(6))
def test_a_malicious_pickle_is_refused_and_not_run(tmp_path: Path, protocol: int) -> None:
    with pytest.raises(DataError, match="refused"):
        read_pickle(write(tmp_path, pickle.dumps({"data": Evil()}, protocol=protocol)))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "ends early"),
        (b"not a pickle", "refused: the pickle uses instruction b'n'"),
        (b"\x80\x02cos\nsystem\n.", r"refused: the pickle asks for os\.system"),
        (b"\x80\x02cbuiltins\ngetattr\n.", r"refused: the pickle asks for builtins\.getattr"),
        (b"\x80\x02cnumpy\nndarray\n)R.", "refused: the pickle calls"),
        (b"\x80\x02cnumpy\ndtype\nU\x02O8\x85R.", "must hold a dict, and holds a _Type"),
        (b"\x80\x02}}b.", "refused: the pickle sets the state"),
        (b"\x80\x02](K\x01e.", "must hold a dict, and holds a list"),
        (b"\x80\x02T\xff\xff\xff\x7fabc.", "ends early"),
        (b"\x80\x02T\xff\xff\xff\xffabc.", "ends early"),
        (b"\x80\x02K\x01K\x02a.", "damaged or not a pickle"),
        (b"\x80\x02]K\x01K\x02s.", "damaged or not a pickle"),
        (b"\x80\x02t.", "damaged or not a pickle"),
        (b"\x80\x02h\x05.", "damaged or not a pickle"),
        (b"\x80\x02\x87.", "damaged or not a pickle"),
        (b"\x80\x02.", "damaged or not a pickle"),
        (b"\x80\x02M\x01", "damaged or not a pickle"),
        (b"\x80\x02X\xff\xff\xff\x00" + b"a" * 0xFFFFFF + b".", "refused: a text"),
    ],
)
def test_strange_files_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_pickle(write(tmp_path, content))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ((b"u1", b"O8"), "only rows of bytes"),
        ((b"u1", b"f4"), "only rows of bytes"),
        ((b"K\x02M\x00\x0c", b"K\x03M\x00\x0c"), "can't have 6144 bytes"),
        ((b"K\x02M\x00\x0c", b"U\x01aM\x00\x0c"), "can't have|damaged"),
    ],
)
def test_arrays_of_another_kind_are_refused(tmp_path: Path, change: tuple[bytes, bytes], message: str) -> None:
    content = official.pickled(data=official.array(official.images(2)))
    assert change[0] in content
    with pytest.raises(DataError, match=message):
        read_pickle(write(tmp_path, content.replace(*change, 1)))


def doubled(times: int) -> bytes:
    """A pair of a pair of a pair, each part the same: few bytes, 2 ** times values."""
    return b"\x80\x02)" + b"q\x00h\x00\x86" * times


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (doubled(24) + b".", "a tuple that no array has"),
        (b"\x80\x02}" + doubled(24)[2:] + b"K\x01s.", "a tuple that no array has"),
        (b"\x80\x02)" + b"\x85" * 1_000_000 + b".", "a tuple that no array has"),
        (b"\x80\x02" + b"]" * 1000 + b"a" * 999 + b".", "a list of something other"),
        (b"\x80\x02]q\x00h\x00a.", "a list of something other"),
        (b"\x80\x02}q\x00U\x01ah\x00s.", "a dict of something other"),
        (b"\x80\x02}(K\x01K\x01u.", "a dict of something other"),
        (b"\x80\x02(" + b"K\x01" * 17 + b"t.", "a tuple that no array has"),
        (b"\x80\x02" + b"]" * 10_000, "more than 9,999 instructions"),
        (b"\x80\x02" + (b"B\x00\x00\x0f\x00" + bytes(0xF0000)) * 3, "more than 2 MB of text"),
        (b"\x80\x04))\x93.", "a name that is not a text"),
        (b"\x80\x02cnumpy\ndtype\n]R.", "calls something that is not an array"),
        (b"\x80\x02cnumpy\ndtype\nN\x85R.", "calls something that is not an array"),
    ],
)
def test_files_that_would_take_for_ever_or_all_memory_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, message: str
) -> None:
    monkeypatch.setattr(pickles, "MAX_INSTRUCTIONS", 9_999)
    monkeypatch.setattr(pickles, "MAX_TEXT_BYTES", 2 << 20)
    with pytest.raises(DataError, match=message) as caught:
        read_pickle(write(tmp_path, content))
    assert len(str(caught.value)) < 400


def test_random_damage_is_an_error_or_harmless(tmp_path: Path) -> None:
    content = official.pickled(labels=official.numbers([1, 2]), data=official.array(official.images(1)[:, :64]))
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(500):
        damaged = bytearray(content)
        for place in rng.integers(0, len(content), rng.integers(1, 4)):
            damaged[place] = rng.integers(0, 256)
        try:
            read_pickle(write(tmp_path, bytes(damaged)))
        except DataError:
            refused += 1
    assert refused > 100


def test_every_cut_of_an_official_file_is_an_error(tmp_path: Path) -> None:
    content = official.pickled(labels=official.numbers([1, 2]), data=official.array(official.images(1)))
    for size in [*range(260), *range(260, len(content), 97)]:
        with pytest.raises(DataError):
            read_pickle(write(tmp_path, content[:size]))
