"""`propfair watch`: the report, live."""

from pathlib import Path
from typing import Annotated

import typer

from propfair.cli.app import app


@app.command()
def watch(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders in which runs go on or will start.")],
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0: any free one.")] = 8765,
    host: Annotated[
        str,
        typer.Option(
            "--host",
            help="127.0.0.1 keeps it on this machine; 0.0.0.0, :: or another shows it to who has the link.",
        ),
    ] = "127.0.0.1",
    interval: Annotated[float, typer.Option("--interval", min=0.2, help="Seconds between looks at the folders.")] = 2.0,
    title: Annotated[str | None, typer.Option("--title", help="The title of the page.", show_default=False)] = None,
) -> None:
    """Serve the report of runs that go on; it fills while you look. Read-only; on this machine unless --host says more.

    Ctrl-C ends it.
    """
    from propfair.report.live import LiveDocument, make_server

    server = make_server(LiveDocument(runs, title), host, port, interval)
    typer.echo(f"watching {', '.join(map(str, runs))} at {server.url} (Ctrl-C ends it)")
    if host not in ("127.0.0.1", "localhost", "::1"):
        typer.echo("warning: whoever has this address can read these runs; it is not encrypted on the way", err=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        typer.echo("stopped watching; the runs go on")
    finally:
        server.server_close()
