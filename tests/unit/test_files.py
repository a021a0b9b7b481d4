"""Writing and reading of plain files, and of nothing else."""

import errno
import os
import socket
from pathlib import Path

import pytest
import safetensors.torch
import torch
from safetensors import SafetensorError

from propfair.errors import DataError, PropFairError, WriteError
from propfair.files import check_readable, replacing, write_text


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_text(path, "old")
    write_text(path, "new")
    assert path.read_text() == "new"


def test_a_file_that_is_half_written_never_counts(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_text(path, "new")

    def fail() -> None:
        with replacing(path) as temporary:
            temporary.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_the_longest_name_that_the_disk_takes(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 255)
    write_text(path, "whole")
    assert path.read_text() == "whole"


@pytest.mark.parametrize("kind", ["link", "dangling link", "pipe", "socket", "folder"])
def test_what_is_no_plain_file_is_never_replaced(tmp_path: Path, kind: str) -> None:
    path, target = tmp_path / "out", tmp_path / "target"
    if "link" in kind:
        path.symlink_to(target)
        if kind == "link":
            target.write_text("somebody's")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(path))
    else:
        path.mkdir()
    before = path.lstat()
    with pytest.raises(WriteError, match=rf"can't write {path}: it is a {kind.split()[-1]}, and only plain files"):
        write_text(path, "new")
    assert path.lstat() == before
    assert not target.exists() or target.read_text() == "somebody's"
    assert {one.name for one in tmp_path.iterdir()} <= {"out", "target"}


def test_a_device_is_never_replaced() -> None:
    with pytest.raises(WriteError, match="can't write /dev/null: it is a device"):
        write_text(Path("/dev/null"), "new")


@pytest.mark.parametrize(
    ("path", "reason"),
    [("gone/report.html", "No such file or directory"), ("x" * 300, "File name too long"), ("a\0b", "null")],
)
def test_where_nothing_can_be_written(tmp_path: Path, path: str, reason: str) -> None:
    with pytest.raises(WriteError, match=reason) as caught:
        write_text(tmp_path / path, "text")
    assert isinstance(caught.value, PropFairError)
    assert isinstance(caught.value, OSError)


def test_a_full_disk_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.safetensors"
    write_text(path, "old")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(WriteError, match=f"can't write {path}: No space left on device") as caught:
        write_text(path, "new")
    assert caught.value.errno == errno.ENOSPC
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_error_of_safetensors_is_one_of_writing(tmp_path: Path) -> None:
    gone = tmp_path / "gone" / "model"
    with pytest.raises(SafetensorError):
        safetensors.torch.save_file({"a": torch.ones(1)}, gone)
    with pytest.raises(WriteError, match=r"can't write .*model: .*No such file"), replacing(tmp_path / "model"):
        safetensors.torch.save_file({"a": torch.ones(1)}, gone)


def test_only_files_are_read(tmp_path: Path) -> None:
    check_readable(tmp_path / "missing")
    os.mkfifo(tmp_path / "pipe")
    for path, kind in ((tmp_path / "pipe", "a pipe"), (tmp_path, "a folder"), (Path("/dev/zero"), "a device")):
        with pytest.raises(DataError, match=f"{path} is {kind}, not a file"):
            check_readable(path)
