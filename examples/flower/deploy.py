"""A whole federation on this machine: SuperLink and SuperNodes with TLS and node authentication, one run, and the end.

    python deploy.py --clients 3 --run-config 'algorithm="afl" rounds=5'

On real machines the same commands run apart: the SuperLink on the server, one SuperNode at each client. They are
printed as they are run. Everything listens on 127.0.0.1.
"""

import argparse
import contextlib
import os
import shlex
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import certificates

APP = Path(__file__).parent
HOST = "127.0.0.1"
START_SECONDS = 120.0
# A process and its guard, which waits until nobody holds the other end of the pipe, and then kills all that is left.
TIED = """
import os, signal, sys
life = int(sys.argv[1])
if os.fork() == 0:
    os.closerange(0, 3)
    os.read(life, 1)
    os.killpg(0, signal.SIGKILL)
os.close(life)
os.execvp(sys.argv[2], sys.argv[2:])
"""


class DeploymentError(Exception):
    """The federation could not be started; one line says why and what to do."""


class Deployment:
    """A SuperLink and SuperNodes, stopped together.

    Args:
        folder: for credentials, Flower's home and logs.
        clients: how many SuperNodes.
        port: of the SuperLink; 0 for a free one.
        quiet: do not print the commands.
    """

    def __init__(self, folder: Path, clients: int, port: int = 0, *, quiet: bool = False) -> None:
        folder = folder.resolve()  # Flower takes paths in its config for relative to its home
        self.folder, self.clients, self.quiet = folder, clients, quiet
        self.port = port or free_port()
        self.credentials = folder / "credentials"
        self.nodes: dict[int, subprocess.Popen[bytes]] = {}
        self.link: subprocess.Popen[bytes] | None = None
        self.lifeline = Lifeline()
        commands = str(Path(sys.executable).parent)
        self.environment = {
            **os.environ,
            "FLWR_HOME": str(folder / "flower"),
            "PATH": os.pathsep.join([commands, os.environ.get("PATH", "")]),
        }

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    def _start(self) -> None:
        if shutil.which("flower-superlink", path=self.environment["PATH"]) is None:
            raise DeploymentError("Flower is not installed: pip install 'propfair[flower,data]'")
        if in_use(self.port):
            raise DeploymentError(f"port {self.port} on {HOST} is in use: choose another with --port")
        certificates.make(self.credentials, self.clients)
        home = Path(self.environment["FLWR_HOME"])
        home.mkdir(parents=True, exist_ok=True)
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "deployed"\n\n[superlink.deployed]\naddress = "{HOST}:{self.port}"\n'
            f'root-certificates = "{self.credentials / "ca.pem"}"\n'
        )
        self.link = self._spawn(
            "superlink",
            "flower-superlink", "--host", HOST, "--port", str(self.port),
            "--ssl-ca-certfile", str(self.credentials / "ca.pem"),
            "--ssl-certfile", str(self.credentials / "server.pem"),
            "--ssl-keyfile", str(self.credentials / "server.key"),
            "--enable-supernode-auth", "--disable-runtime-dependency-installation",
        )  # fmt: skip
        self._wait("the SuperLink", self.link, self._answers)
        for client in range(self.clients):
            self.register(self.credentials / f"client-{client}.pub")
            self.nodes[client] = self.start_node(client)

    def register(self, public_key: Path) -> None:
        """Let the SuperNode with this key take part."""
        self._call("flwr", "supernode", "register", str(public_key), "deployed")

    def start_node(
        self, client: int, *options: str, key: Path | None = None, ca: Path | None = None
    ) -> subprocess.Popen[bytes]:
        """Start the SuperNode of a client."""
        return self._spawn(
            f"supernode-{client}",
            "flower-supernode", "--superlink", f"{HOST}:{self.port}", "--host", HOST, "--port", str(free_port()),
            "--root-certificates", str(ca or self.credentials / "ca.pem"),
            "--auth-supernode-private-key", str(key or self.credentials / f"client-{client}"),
            "--node-config", f"partition-id={client} num-partitions={self.clients}", *options,
        )  # fmt: skip

    def run(self, run_config: str = "", app: Path = APP) -> "subprocess.Popen[str]":
        """Start a run; its log comes out of `stdout`."""
        command = ["flwr", "run", str(app), "deployed", "--stream"]
        command += ["--run-config", run_config] if run_config else []
        self._show(command)
        return self.lifeline.start(
            command, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def stop(self) -> None:
        """Stop all processes."""
        processes = [*self.nodes.values(), *([self.link] if self.link else [])]
        for process in processes:
            end(process, signal.SIGTERM)
        for process in processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                end(process, signal.SIGKILL)
                process.wait(10)
        self.nodes.clear()
        self.link = None
        self.lifeline.cut()

    def log(self, name: str) -> str:
        """What a process has written."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def _spawn(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        self._show(command)
        with (self.folder / f"{name}.log").open("wb") as output:
            return self.lifeline.start(command, env=self.environment, stdout=output, stderr=subprocess.STDOUT)

    def _call(self, *command: str) -> None:
        self._show(command)
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise DeploymentError(f"{shlex.join(command)} failed: {last_line(done.stdout + done.stderr)}")

    def _wait(self, what: str, process: subprocess.Popen[bytes], there: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not there():
            if process.poll() is not None or time.monotonic() > deadline:
                reason = last_line(self.log("superlink"))
                raise DeploymentError(f"{what} did not start on {HOST}:{self.port}: {reason} (log: {self.folder})")
            time.sleep(0.2)

    def _answers(self) -> bool:
        trust = ssl.create_default_context(cafile=str(self.credentials / "ca.pem"))
        try:
            with urllib.request.urlopen(f"https://{HOST}:{self.port}/health", timeout=2, context=trust) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def _show(self, command: list[str] | tuple[str, ...]) -> None:
        if not self.quiet:
            print(f"$ {shlex.join(command)}", flush=True)


class Lifeline:
    """Processes that end with this one, even if it is killed, and with them all that they started."""

    def __init__(self) -> None:
        self._theirs, ours = os.pipe()
        self._ends = [self._theirs, ours]

    def start(self, command: Sequence[str], **options: Any) -> subprocess.Popen[Any]:
        """As `subprocess.Popen`, in a session of its own."""
        tied = [sys.executable, "-ES", "-c", TIED, str(self._theirs), *command]
        return subprocess.Popen(tied, pass_fds=[self._theirs], start_new_session=True, **options)

    def cut(self) -> None:
        """Kill those that are left."""
        while self._ends:
            os.close(self._ends.pop())


def end(process: subprocess.Popen[bytes], how: signal.Signals) -> None:
    """Signal a process and all that it started in its session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, how)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def in_use(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return True
    return False


def last_line(text: str) -> str:
    lines: Iterator[str] = (line.strip("│╭╮╰╯─ ") for line in reversed(text.splitlines()))  # boxes, as flwr draws them
    return next((line for line in lines if line), "no reason given")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--port", type=int, default=0, help="of the SuperLink; 0 for a free one")
    parser.add_argument("--run-config", default="", help="values for [tool.flwr.app.config], as in 'rounds=5'")
    parser.add_argument("--keep", type=Path, help="a folder for credentials and logs; without it they are deleted")
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = arguments.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="propfair-flower-")))
        folder.mkdir(parents=True, exist_ok=True)
        try:
            deployment = stack.enter_context(Deployment(folder, arguments.clients, arguments.port))
            with deployment.run(arguments.run_config) as process:
                assert process.stdout is not None
                for line in process.stdout:
                    print(line, end="", flush=True)
            return process.returncode
        except DeploymentError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            return 130


if __name__ == "__main__":
    sys.exit(main())
