"""The data folder, archives and downloads."""

import gzip
import hashlib
import io
import os
import shutil
import stat
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from propfair.data import SOURCES, Remote, archives
from propfair.data.archives import unpack
from propfair.data.download import get
from propfair.data.files import cache_folder, check_official, data_folder, writable_folder
from propfair.errors import ConfigError, DataError
from tests.unit import official


def test_the_data_folder_is_the_one_given_then_the_variable_then_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("PROPFAIR_DATA", raising=False)
    assert data_folder() == tmp_path / "cache" / "propfair" == cache_folder()
    monkeypatch.setenv("PROPFAIR_DATA", str(tmp_path / "shared"))
    assert data_folder() == tmp_path / "shared"
    assert data_folder(tmp_path / "mine") == tmp_path / "mine"


def test_a_folder_that_can_not_be_written_to_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert writable_folder(tmp_path) == tmp_path
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert writable_folder(tmp_path) == cache_folder()


@pytest.mark.parametrize("name", [name for name in SOURCES.names() if SOURCES.get(name).remotes])
def test_missing_data_says_where_to_get_it(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        SOURCES.make(name).load(tmp_path)
    message = str(caught.value)
    assert f"propfair data get {name}" in message
    for remote in SOURCES.get(name).remotes:
        assert remote.url in message
        assert str(tmp_path / remote.name) in message


def pack_tar(path: Path, members: dict[str, bytes], links: dict[str, str] | None = None) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        for name, target in (links or {}).items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            tar.addfile(info)
    return path


def pack_zip(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def left_behind(folder: Path, *archives: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path not in archives)


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_unpacks_whole(tmp_path: Path, kind: str) -> None:
    members = {"top/a.txt": b"A", "top/deep/b.txt": b"B" * 100_000}
    archive = pack_tar(tmp_path / "x", members) if kind == "tar" else pack_zip(tmp_path / "x", members)
    home = unpack(archive, tmp_path / "out", "top")
    assert (home / "a.txt").read_bytes() == b"A"
    assert (home / "deep" / "b.txt").read_bytes() == b"B" * 100_000
    assert left_behind(tmp_path / "out") == ["top"]
    assert unpack(archive, tmp_path / "out", "top") == home, "again, over the first one"


HOSTILE = ["../evil", "top/../../evil", "/tmp/evil", "C:/evil", "..\\evil"]


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_members_that_point_outside_are_refused(tmp_path: Path, kind: str, name: str) -> None:
    members = {"top/a.txt": b"A", name: b"evil"}
    archive = pack_tar(tmp_path / "x", members) if kind == "tar" else pack_zip(tmp_path / "x", members)
    with pytest.raises(DataError, match="points outside"):
        unpack(archive, tmp_path, "top")
    assert left_behind(tmp_path, archive) == []


def test_links_are_refused(tmp_path: Path) -> None:
    archive = pack_tar(tmp_path / "x.tar.gz", {"top/a": b"A"}, links={"top/link": "/etc/passwd"})
    with pytest.raises(DataError, match="is a link or a device"):
        unpack(archive, tmp_path, "top")
    info = zipfile.ZipInfo("top/link")
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "y.zip", "w") as packed:
        packed.writestr(info, "/etc/passwd")
    with pytest.raises(DataError, match="is a link or a device"):
        unpack(tmp_path / "y.zip", tmp_path, "top")


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_absurd_sizes_are_refused(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MAX_UNPACKED_BYTES", 10_000)
    members = {f"top/{i}": bytes(3000) for i in range(5)}
    archive = pack_tar(tmp_path / "x", members) if kind == "tar" else pack_zip(tmp_path / "x", members)
    with pytest.raises(DataError, match="unpacks to more than"):
        unpack(archive, tmp_path, "top")
    monkeypatch.setattr(archives, "MAX_UNPACKED_BYTES", 1 << 30)
    monkeypatch.setattr(archives, "MAX_MEMBERS", 3)
    with pytest.raises(DataError, match="3 members"):
        unpack(archive, tmp_path, "top")
    assert left_behind(tmp_path, archive) == []


def test_a_tar_that_claims_terabytes_is_refused(tmp_path: Path) -> None:
    info = tarfile.TarInfo("top/huge")
    info.size = 1 << 42
    (tmp_path / "x.tar").write_bytes(info.tobuf() + bytes(10_240))
    with pytest.raises(DataError, match="unpacks to more than"):
        unpack(tmp_path / "x.tar", tmp_path, "top")


def tar_header(kind: bytes, size: int, name: str = "top/a") -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, size
    return info.tobuf(tarfile.GNU_FORMAT)


SPARSE = b"22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n25 GNU.sparse.name=top/a\n"


@pytest.mark.parametrize(
    ("start", "length", "message"),
    [
        (tar_header(tarfile.GNUTYPE_LONGNAME, 8 << 20), 8 << 20, "says more about its members"),
        (tar_header(tarfile.GNUTYPE_LONGLINK, 8 << 20), 8 << 20, "says more about its members"),
        (tar_header(tarfile.XHDTYPE, 8 << 20), 8 << 20, "says more about its members"),
        (tar_header(tarfile.XGLTYPE, 8 << 20), 8 << 20, "says more about its members"),
        (tar_header(tarfile.XHDTYPE, -1024), 8 << 20, "says more about its members"),
        (tar_header(tarfile.REGTYPE, -1024), 10_240, "claims -1024 bytes"),
        (
            tar_header(tarfile.XHDTYPE, len(SPARSE))
            + SPARSE.ljust(512, b"\0")
            + tar_header(tarfile.REGTYPE, 8 << 20)
            + b"99999999\n"
            + b"0\n" * (1 << 20),  # the places of its pieces
            0,
            "says more about its members",
        ),
    ],
)
def test_headers_that_would_take_all_memory_are_refused(
    tmp_path: Path, start: bytes, length: int, message: str
) -> None:
    archive = tmp_path / "x.tar.gz"
    with gzip.open(archive, "wb", compresslevel=1) as file:
        file.write(start)
        file.write(bytes(length))
    with pytest.raises(DataError, match=f"{archive} is refused: .*{message}"):
        unpack(archive, tmp_path, "top")
    assert left_behind(tmp_path, archive) == []


def test_a_zip_compressed_in_another_way_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w", zipfile.ZIP_LZMA) as packed:
        packed.writestr("top/a", "A")
    with pytest.raises(DataError, match="compressed in a way that no official one is"):
        unpack(tmp_path / "x.zip", tmp_path, "top")


def test_a_zip_with_an_endless_list_of_members_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = pack_zip(tmp_path / "x", {f"top/{i}": b"A" for i in range(1000)})
    monkeypatch.setattr(archives, "MAX_DIRECTORY_BYTES", 20_000)
    with pytest.raises(DataError, match="says more about its members"):
        unpack(archive, tmp_path, "top")


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_truncated_archives_leave_nothing(tmp_path: Path, kind: str) -> None:
    members = {f"top/{i}": os.urandom(5000) for i in range(4)}
    archive = pack_tar(tmp_path / "x", members) if kind == "tar" else pack_zip(tmp_path / "x", members)
    whole = archive.read_bytes()
    for part in (0, 10, len(whole) // 3, len(whole) // 2, len(whole) - 600):
        archive.write_bytes(whole[:part])
        with pytest.raises(DataError, match="damaged or cut short"):
            unpack(archive, tmp_path, "top")
        assert left_behind(tmp_path, archive) == []


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_random_damage_is_an_error_or_harmless(tmp_path: Path, kind: str) -> None:
    members = {f"top/{i}": bytes(range(40)) for i in range(3)}
    if kind == "zip":
        archive = pack_zip(tmp_path / "x", members)
    else:
        archive = tmp_path / "x"
        archive.write_bytes(gzip.decompress(pack_tar(tmp_path / "x", members).read_bytes()))
    whole = archive.read_bytes()
    rng = np.random.default_rng(0)
    refused = 0
    for attempt in range(100):
        damaged = bytearray(whole)
        for place in rng.integers(0, min(len(whole), 2000), 3):
            damaged[place] = rng.integers(0, 256)
        archive.write_bytes(damaged)
        try:
            unpack(archive, tmp_path / str(attempt), "top")
        except DataError:
            refused += 1
    assert refused > 10


def test_another_archive_is_recognised(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not the official archive"):
        unpack(pack_tar(tmp_path / "x", {"other/a": b"A"}), tmp_path, "top")


def write_archive(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An archive of CIFAR-10 that passes for the official one."""
    official.write_cifar10(home / "made")
    archive = home / "cifar-10-python.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(home / "made" / "cifar-10-batches-py", "cifar-10-batches-py")
    shutil.rmtree(home / "made")
    offer(monkeypatch, "http://127.0.0.1:9/file", archive.read_bytes())
    return archive


def test_cifar_is_read_from_its_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_archive(tmp_path, monkeypatch)
    assert len(SOURCES.make("cifar10").load(tmp_path)) == 100
    assert (tmp_path / "cifar-10-batches-py" / "data_batch_1").is_file()


def test_an_archive_that_is_not_the_official_one_is_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = write_archive(tmp_path, monkeypatch)
    pack_tar(archive, {"cifar-10-batches-py/data_batch_1": b"altered"})
    with pytest.raises(DataError, match=rf"{archive} is damaged or altered: .* unpack it yourself to {tmp_path}"):
        SOURCES.make("cifar10").load(tmp_path)
    assert left_behind(tmp_path) == [archive.name]


@pytest.mark.parametrize("kind", ["md5", "sha256"])
def test_official_checksums(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"whole")
    check_official(path, f"{kind}:{hashlib.new(kind, b'whole').hexdigest()}", "")
    path.write_bytes(b"while")
    with pytest.raises(DataError, match=f"{path} is damaged or altered: its checksum is {kind}:.* or so"):
        check_official(path, f"{kind}:{hashlib.new(kind, b'whole').hexdigest()}", "or so")
    path.unlink()
    with pytest.raises(DataError, match="can't be read"):
        check_official(path, f"{kind}:0", "")


def test_an_archive_in_a_read_only_folder_is_unpacked_into_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shared").mkdir()
    write_archive(tmp_path / "shared", monkeypatch)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    for _ in range(2):
        assert len(SOURCES.make("cifar10").load(tmp_path / "shared")) == 100
    assert left_behind(tmp_path / "shared") == ["cifar-10-python.tar.gz"]
    assert left_behind(tmp_path / "cache" / "propfair") == ["cifar-10-batches-py"]


def test_a_folder_that_can_not_take_the_files(tmp_path: Path) -> None:
    archive = pack_tar(tmp_path / "x", {"top/a": b"A"})
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="can't be unpacked into"):
        unpack(archive, tmp_path / "file" / "below", "top")


CONTENT = b"official" * 5000


class Handler(BaseHTTPRequestHandler):
    cut = False

    def do_GET(self) -> None:
        if self.path != "/file":
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        self.wfile.write(CONTENT[:1000] if Handler.cut else CONTENT)

    def log_message(self, *arguments: object) -> None: ...


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def offer(monkeypatch: pytest.MonkeyPatch, url: str, content: bytes = CONTENT) -> None:
    checksum = f"md5:{hashlib.md5(content).hexdigest()}"
    remote = Remote(url, "cifar-10-python.tar.gz", checksum, unpacks_to="cifar-10-batches-py")
    monkeypatch.setattr(SOURCES.get("cifar10"), "remotes", (remote,))


def test_download_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    offer(monkeypatch, f"{address}/file")
    (path,) = get("cifar10", tmp_path / "new")
    assert path.read_bytes() == CONTENT
    offer(monkeypatch, f"{address}/gone")
    assert get("cifar10", tmp_path / "new") == [path], "a whole file is not fetched again"
    path.write_bytes(CONTENT[:100])
    offer(monkeypatch, f"{address}/file")
    assert get("cifar10", tmp_path / "new", progress=False)[0].read_bytes() == CONTENT, "a broken one is"
    path.unlink()
    (tmp_path / "new" / "cifar-10-batches-py").mkdir()
    assert get("cifar10", tmp_path / "new") == [tmp_path / "new" / "cifar-10-batches-py"], "nor is an unpacked one"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("trouble", ["cut", "checksum", "missing", "offline"])
def test_a_broken_download_never_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str, trouble: str
) -> None:
    urls = {"missing": f"{address}/gone", "offline": "http://127.0.0.1:9/file"}
    offer(monkeypatch, urls.get(trouble, f"{address}/file"), b"other" if trouble == "checksum" else CONTENT)
    monkeypatch.setattr(Handler, "cut", trouble == "cut")
    with pytest.raises(DataError, match=r"download failed.* put it into .* as cifar-10-python\.tar\.gz \(md5:"):
        get("cifar10", tmp_path)
    assert left_behind(tmp_path) == []
    with pytest.raises(DataError, match="is not in"):
        SOURCES.make("cifar10").load(tmp_path)


def test_what_can_not_be_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="needs no download: it is bundled"):
        get("digits")
    with pytest.raises(ConfigError, match="Did you mean 'cifar10'"):
        get("cifar-10")
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="can't be made"):
        get("cifar10", tmp_path / "file" / "folder")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(DataError, match="is read-only"):
        get("cifar10", tmp_path)


def test_checksums_are_well_formed() -> None:
    for name in SOURCES.names():
        for remote in SOURCES.get(name).remotes:
            kind, _, digits = remote.checksum.partition(":")
            assert len(digits) == {"md5": 32, "sha256": 64}[kind]
            assert remote.url.startswith("http")
