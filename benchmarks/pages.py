"""Tables that commands write into pages of the documentation, between two comments."""

from pathlib import Path


def put(page: Path, begin: str, end: str, text: str) -> None:
    """Replace what stands between the two marks of the page."""
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    _, _, after = rest.partition(end)
    if not rest or not after:
        raise ValueError(f"{page} must have the lines {begin!r} and {end!r}, and a text after them")
    page.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}", encoding="utf-8")
