"""`propfair watch`: what it serves, what it refuses, and that the page follows a run."""

import http.client
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from propfair.errors import ConfigError
from propfair.report.live import LiveDocument, make_server
from tests.report.builders import write_run
from tests.report.conftest import eventually


@contextmanager
def serving(*places: Path, interval: float = 0.2) -> Iterator[int]:
    server = make_server(LiveDocument(places), "127.0.0.1", 0, interval)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server.server_port
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
