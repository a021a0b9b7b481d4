"""`propfair watch`: what it serves, what it refuses, and that the page follows a run."""

import http.client
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from propfair.errors import ConfigError
from propfair.report import live
from propfair.report.live import LiveDocument, LiveServer, make_server
from tests.report.builders import write_run
from tests.report.conftest import eventually


@contextmanager
def serving(*places: Path, interval: float = 0.2) -> Iterator[int]:
    with started(*places, interval=interval) as server:
        yield server.server_port


@contextmanager
def started(*places: Path, interval: float = 0.2, host: str = "127.0.0.1") -> Iterator[LiveServer]:
    server = make_server(LiveDocument(places), host, 0, interval)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def ask(
    port: int, path: str = "/", method: str = "GET", headers: dict[str, str] | None = None
) -> tuple[http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request(method, path, headers=headers or {})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer, body


def test_serves_the_page_and_its_data(tmp_path: Path) -> None:
    write_run(tmp_path / "run", name="first", algorithm="first")
    with serving(tmp_path) as port:
        answer, page = ask(port)
        assert answer.status == 200
        assert b"connect-src 'self'" in page
        assert answer.headers["Cache-Control"] == "no-store"
        answer, data = ask(port, "/data.json")
        assert json.loads(data)["trials"][0]["groups"][0]["label"] == "first"
        tag = answer.headers["ETag"]
        answer, data = ask(port, "/data.json", headers={"If-None-Match": tag})
        assert (answer.status, data) == (304, b"")
        write_run(tmp_path / "more", name="second", algorithm="b")
        answer, data = ask(port, "/data.json", headers={"If-None-Match": tag})
        assert answer.status == 200
        assert len(json.loads(data)["trials"][0]["groups"]) == 2


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_can_be_written(tmp_path: Path, method: str) -> None:
    run = write_run(tmp_path / "run")
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    with serving(tmp_path) as port:
        assert ask(port, "/data.json", method)[0].status == 501
        assert ask(port, "/run/status.json", method)[0].status == 501
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before


@pytest.mark.parametrize("path", ["/run/status.json", "/../etc/passwd", "/%2e%2e/etc/passwd", "//etc/passwd", "/x"])
def test_no_file_is_served(tmp_path: Path, path: str) -> None:
    write_run(tmp_path / "run")
    with serving(tmp_path) as port:
        assert ask(port, path)[0].status == 404


def test_other_names_are_refused(tmp_path: Path) -> None:
    write_run(tmp_path / "run")
    with serving(tmp_path) as port:
        for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", ""):
            assert ask(port, "/data.json", headers={"Host": host})[0].status == 403
        for host in (f"localhost:{port}", f"127.0.0.1:{port}", f"[::1]:{port}"):
            assert ask(port, "/data.json", headers={"Host": host})[0].status == 200
        answer, body = ask(port, "/", method="HEAD")
        assert (answer.status, body) == (200, b"")


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_others_need_the_token(tmp_path: Path, host: str) -> None:
    write_run(tmp_path / "run")
    with started(tmp_path, host=host) as server:
        port = server.server_port
        found = re.fullmatch(rf"http://(?P<name>[^/]+):{port}(?P<home>/[\w-]{{22}}/)", server.url)
        assert found is not None
        assert found["name"].strip("[]") not in ("0.0.0.0", "::"), "an address that can be shared"
        assert ask(port, found["home"], headers={"Host": "my-machine.local"})[0].status == 200
        assert ask(port, f"{found['home']}data.json")[0].status == 200
        for path in ("/", "/data.json", f"/{'x' * 22}/", f"/{'x' * 22}/data.json", found["home"][:-1], "/\u00e9"):
            assert ask(port, urllib.parse.quote(path))[0].status == 404


def test_ipv6_on_this_machine(tmp_path: Path) -> None:
    with started(tmp_path, host="::1") as server:
        assert server.url == f"http://[::1]:{server.server_port}/"
        with socket.create_connection(("::1", server.server_port), timeout=30) as connection:
            connection.sendall(b"GET /data.json HTTP/1.1\r\nHost: [::1]\r\nConnection: close\r\n\r\n")
            assert connection.recv(15) == b"HTTP/1.1 200 OK"


@pytest.mark.parametrize("said", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"])
def test_half_a_request_is_hung_up_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: bytes) -> None:
    monkeypatch.setattr(live, "_SECONDS", 0.2)
    with serving(tmp_path) as port, socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(said)
        assert ask(port)[0].status == 200, "others are served meanwhile"
        assert connection.recv(1) == b"", "closed by the server"


def test_strange_runs_are_named_and_the_others_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "good", name="good", algorithm="good")
    for name in ("pipe", "link", "bit", "folder", "deep"):
        shutil.copytree(tmp_path / "good", tmp_path / name)
    for name in ("records.parquet", "status.json"):
        (tmp_path / "pipe" / name).unlink()
        os.mkfifo(tmp_path / "pipe" / name)
    (tmp_path / "link" / "clients.json").unlink()
    (tmp_path / "link" / "clients.json").symlink_to("/dev/zero")
    (tmp_path / "link" / "loop.json").symlink_to("loop.json")
    damaged = bytearray((tmp_path / "bit" / "records.parquet").read_bytes())
    damaged[len(damaged) // 2] ^= 1
    (tmp_path / "bit" / "records.parquet").write_bytes(damaged)
    (tmp_path / "folder" / "status.json").unlink()
    (tmp_path / "folder" / "status.json").mkdir()
    (tmp_path / "deep" / "environment.json").write_text("[" * 100_000)
    (tmp_path / "unwanted").mkdir()
    with serving(tmp_path) as port:
        document = json.loads(ask(port, "/data.json")[1])
    (comparison,) = document["trials"]
    assert [run["name"] for run in comparison["runs"]] == ["good"]
    said = "\n".join(document["problems"])
    for words in ("pipe", "link/clients.json is a device", "bit/records.parquet is damaged", "folder", "deep"):
        assert words in said


def test_a_run_that_can_not_be_shown_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "good", name="good", algorithm="good")
    write_run(tmp_path / "odd", name="odd", algorithm="odd", seed=7)
    from propfair.report.document import make_document as make

    def failing(runs: Any, problems: Any, title: Any = None) -> dict[str, Any]:
        if any(run.name == "odd" for run in runs):
            raise ZeroDivisionError("odd")
        return make(runs, problems, title)

    monkeypatch.setattr(live, "make_document", failing)
    document, _ = LiveDocument([tmp_path]).read()
    assert [run["name"] for one in document["trials"] for run in one["runs"]] == ["good"]
    assert "odd: it can't be shown: ZeroDivisionError: odd" in document["problems"][0]


@pytest.mark.parametrize("interval", [0.0, -1.0, float("nan"), float("inf")])
def test_an_interval_is_some_seconds(tmp_path: Path, interval: float) -> None:
    with pytest.raises(ConfigError, match="--interval must be seconds"):
        make_server(LiveDocument([tmp_path]), "127.0.0.1", 0, interval)


@pytest.mark.parametrize("host", ["no.such.name.invalid", "300.1.1.1", "1:2:3", "x" * 300, "a..b"])
def test_an_address_that_is_none(tmp_path: Path, host: str) -> None:
    with pytest.raises(ConfigError, match="can't listen on"):
        make_server(LiveDocument([tmp_path]), host, 0, 1)


def test_a_port_in_use_is_said(tmp_path: Path) -> None:
    with serving(tmp_path) as port, pytest.raises(ConfigError, match=f"can't listen on 127.0.0.1:{port}"):
        make_server(LiveDocument([tmp_path]), "127.0.0.1", port, 1)


def test_the_page_follows_what_is_written(browser: Browser, tmp_path: Path) -> None:
    with serving(tmp_path) as port:
        page = browser.new_page()
        errors: list[str] = []
        page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
        page.goto(f"http://127.0.0.1:{port}/")
        expect(page.locator("#glance")).to_contain_text("No run yet")
        write_run(tmp_path / "a", name="slow", state="running", rounds=20, eval_every=5)
        expect(page.locator("#progress")).to_contain_text("running, 10 / 20 rounds, about 10 s left", timeout=20_000)
        page.get_by_label("Filter runs").fill("slow")
        write_run(tmp_path / "b", name="quick and slow", algorithm="b", rounds=20, eval_every=5)
        expect(page.locator("#progress")).to_contain_text("finished, 20 / 20 rounds", timeout=20_000)
        expect(page.locator("#summary-table tbody tr")).to_have_count(2)
        expect(page.get_by_label("Filter runs")).to_have_value("slow")  # what the reader chose stays
        assert errors == []
        page.close()


def test_watch_shows_a_training_while_it_goes_on(browser: Browser, tmp_path: Path, artifacts: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "propfair"]
    watch = subprocess.Popen(
        [*command, "watch", str(tmp_path), "--port", "0", "--interval", "0.2"],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    training = None
    try:
        assert watch.stdout is not None
        said = re.search(r"http://127\.0\.0\.1:\d+/", watch.stdout.readline())
        assert said is not None
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(said.group())
        training = subprocess.Popen(
            [*command, "run", "-q", "-o", str(tmp_path / "live"), "algorithm=propfair", "data.num_clients=5",
             "model=logistic", "schedule.rounds=100000", "schedule.eval_every=1", "schedule.checkpoint_every=1"],
            env=environment, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        progress = page.locator("#progress progress")
        expect(progress).to_have_count(1, timeout=60_000)
        first = float(progress.get_attribute("value") or 0)
        eventually(lambda: float(progress.get_attribute("value") or 0) > first + 2)
        eventually(
            lambda: page.evaluate("document.querySelector('#curves-figure .chart')?.data?.[0]?.x.length ?? 0") > 2
        )
        page.screenshot(path=artifacts / "watch.png")
        page.close()
    finally:
        for process in (training, watch):
            if process is not None:
                process.terminate()
                process.communicate(timeout=30)
