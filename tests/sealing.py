"""Changes to a run folder that pass for what propfair itself wrote."""

import json
from pathlib import Path

from propfair.runs.seal import digest_file, sealed


def reseal(folder: Path) -> Path:
    """Give the files of a run folder the checksums that they have now."""
    for name in ("environment.json", "clients.json"):
        if (folder / name).exists():
            (folder / name).write_text(json.dumps(sealed(json.loads((folder / name).read_text()))))
    status = json.loads((folder / "status.json").read_text())
    files = {name: digest_file(folder / name) for name in status.get("files", {}) if (folder / name).exists()}
    (folder / "status.json").write_text(json.dumps(sealed({**status, "files": files})))
    return folder
