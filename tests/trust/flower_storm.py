"""A Flower server that is killed: a ServerApp, and clients that live on in another process, behind a loopback socket.

Messages travel as Flower's own bytes. What differs from a deployment is who carries them: no SuperLink is started, for
that takes seconds for each kill. tests/flower/test_example.py kills servers of a real deployment.
"""

import json
import logging
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

from benchmarks.flower_grid import InProcessGrid
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.serverapp import Grid, ServerApp

from propfair.core.rounds import Rounds
from propfair.flower import FairStrategy, client_app
from tests.flower.grid import LOCAL, SEED, SIZES, network, own_data

NODES = range(10, 10 + len(SIZES))
ADDRESS, KEY = "address.json", b"storm"  # beside the homes


def serve_clients(folder: Path) -> None:
    """Answer to whichever server connects, one after the other, until this process is ended."""
    _quiet()
    grid = InProcessGrid(client_app(network, own_data), NODES)
    with Listener(("127.0.0.1", 0), authkey=KEY) as listener:
        (folder / ADDRESS).write_text(json.dumps(listener.address))
        while True:
            try:
                with listener.accept() as server:
                    while True:
                        reply = grid.reply(_received(server))
                        server.send_bytes(message_to_proto(reply).SerializeToString())
            except (EOFError, OSError):  # the server was killed
                continue


class SocketGrid(InProcessGrid):
    """The server's side of that socket."""

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__(client_app(network, own_data), NODES)
        self._clients = Client(address, authkey=KEY)

    def reply(self, message: Message) -> Message:
        self._clients.send_bytes(message_to_proto(message).SerializeToString())
        return _received(self._clients)


def _received(connection: "Connection[Any, Any]") -> Message:
    return message_from_proto(MessageProto.FromString(connection.recv_bytes()))


app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Serve in a folder, whether it was begun or not."""
    strategy = FairStrategy(
        "afl", network(), local=LOCAL, seed=SEED, rounds=Rounds(participation=0.75), patience=0.0,
        out=str(context.run_config["out"]),
    )  # fmt: skip
    strategy.start(grid=grid, initial_arrays=ArrayRecord(network().state_dict()), num_rounds=12)


def deployment(home: Path) -> None:
    """The ServerApp, started again whenever it was killed before its end."""
    _quiet()
    status = home / "served" / "status.json"
    if status.exists() and json.loads(status.read_text())["state"] == "finished":
        return  # it was killed between its end and that of the process
    address = json.loads((home.parent / ADDRESS).read_text())
    app(SocketGrid(tuple(address)), Context(1, 0, {}, RecordDict(), {"out": str(home / "served")}))


def _quiet() -> None:
    logging.getLogger("flwr").setLevel(logging.ERROR)
