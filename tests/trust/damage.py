"""Damage to files: directed and at random."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Damage(NamedTuple):
    """One thing that is done to one file."""

    file: str  # relative to the place
    kind: str
    seed: int

    def do(self, place: Path) -> None:
        """Damage the file."""
        path = place / self.file
        rng = random.Random(self.seed)
        content = bytearray(path.read_bytes())
        match self.kind:
            case "delete":
                path.unlink()
                return
            case "empty":
                content.clear()
            case "half":
                del content[len(content) // 2 :]
            case "last byte":
                del content[-1:]
            case "more":
                content += b"\0more"
            case "first bit":
                content[0] ^= 1
            case "last bit":
                content[-1] ^= 1
            case "digit":  # of a number, if there is one
                places = [i for i, byte in enumerate(content) if chr(byte).isdigit()] or [0]
                chosen = rng.choice(places)
                content[chosen] = ord("7") if content[chosen] != ord("7") else ord("3")
            case "zeros":
                start = rng.randrange(len(content))
                content[start : start + 512] = bytes(len(content[start : start + 512]))
            case _:  # a bit at random
                content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(content)


DIRECTED = ("delete", "empty", "half", "last byte", "more", "first bit", "last bit", "digit", "zeros")


def damages(place: Path, total: int, *, only: str = "**/*", seed: int = 0) -> Iterator[Damage]:
    """Every directed damage to every file, as far as the total goes, then bits at random."""
    found = (path for path in place.glob(only) if path.is_file() and path.stat().st_size)
    files = sorted(str(path.relative_to(place)) for path in found)
    rng = random.Random(seed)
    directed = [Damage(file, kind, seed) for file in files for kind in DIRECTED]
    yield from rng.sample(directed, min(total, len(directed)))
    for number in range(total - len(directed)):
        yield Damage(rng.choice(files), "bit", number)
