"""Shakespeare: next-character prediction, one client per speaking role, from the raw text of the complete works."""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from propfair.data.base import SOURCES, Examples, Protocol, Remote, Source
from propfair.data.files import check_official, find
from propfair.errors import ConfigError, DataError
from propfair.files import check_readable

VOCABULARY = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
UNKNOWN = 255
SEQUENCE = 80
MAX_TEXT_BYTES = 1 << 26
OFFICIAL_BYTES = 5_458_199

_AUTHOR = "by William Shakespeare"
_LAST_LINE = 124_195  # of the 1994 edition; the licence follows
_SPEECH = re.compile(r"  ([a-zA-Z][a-zA-Z ]*)\. (.*)")
_MORE = re.compile(r"    (.*)")
# One play is not indented in this edition.
_FLAT_PLAY = "THE COMEDY OF ERRORS"
_FLAT_SPEECH = re.compile(r"([a-zA-Z][a-zA-Z ]*)\. (.*)")
_FLAT_MORE = re.compile(r"(.*)")


@SOURCES.register("shakespeare")
@dataclass(frozen=True, kw_only=True)
class Shakespeare(Source):
    """The complete works (Project Gutenberg etext 100 of January 1994): 80 characters -> the next one.

    Roles, their lines and the cleaning are those of LEAF: a role of a play is a user, roles of one or two lines are
    dropped, newlines become spaces, runs of spaces one. A window of 80 characters starts at every character; windows
    are views of the text, made batch by batch. Characters outside of the 80 of the vocabulary become spaces.

    Args:
        sequence: the length of a window.

    References:
        S. Caldas et al., LEAF: A Benchmark for Federated Settings, 2018.
    """

    sequence: int = SEQUENCE

    home = "https://www.gutenberg.org/ebooks/100"
    remotes = (
        Remote(
            "https://ocw.mit.edu/ans7870/6/6.006/s08/lecturenotes/files/t8.shakespeare.txt",
            "shakespeare/t8.shakespeare.txt",
            "md5:d2028225a89d8b0b3093dddb720da91f",
        ),
    )

    def __post_init__(self) -> None:
        if self.sequence < 1:
            raise ConfigError(f"sequence must be >= 1; got sequence={self.sequence}")

    @property
    def protocol(self) -> Protocol:
        return Protocol(
            ("natural", {"min_samples": 10_000}),
            20,
            {"test": 0.5, "order": "contiguous", "gap": self.sequence - 1},
            model="lstm",
        )

    def load(self, folder: Path | None = None) -> "TextExamples":
        """Parse the text."""
        path = find(type(self), folder, "t8.shakespeare.txt")
        try:
            check_readable(path)
            size = path.stat().st_size
            if size > MAX_TEXT_BYTES:
                raise DataError(f"{path} is refused: {size:,} bytes; the works have {OFFICIAL_BYTES:,}")
            if size == OFFICIAL_BYTES:
                check_official(path, self.remotes[0].checksum, "read it with propfair.data.shakespeare.read_roles")
            roles = read_roles(path.read_bytes().decode("latin-1"), str(path))
        except OSError as error:
            raise DataError(f"{path} can't be read: {error}") from error
        return TextExamples.of(roles, self.sequence)


def read_roles(text: str, where: str) -> dict[str, str]:
    """What each role says in all, by "PLAY_ROLE", after LEAF's rules."""
    lines = text.splitlines()
    plays = [i for i, line in enumerate(lines) if _AUTHOR in line][1:]  # the first one is that of the sonnets
    spoken: dict[str, list[str]] = defaultdict(list)
    for begin, end in zip(plays, [*plays, _LAST_LINE + 2][1:], strict=True):
        title = next((lines[begin - i].strip() for i in range(2, 8) if lines[begin - i].strip()), "")
        speeches = _read_play(lines[begin + 1 : end], flat=title == _FLAT_PLAY)
        for role, said in speeches.items():
            if len(said) > 2:
                spoken[re.sub(r"\W+", "_", f"{title}_{role}")] += said
    if not spoken:
        raise DataError(
            f"{where} has no speaking roles. It must be the complete works as of January 1994 "
            f"(t8.shakespeare.txt, {Shakespeare.remotes[0].checksum}); later editions are laid out in another way."
        )
    return {role: re.sub(r"  +", " ", " ".join(said) + " ") for role, said in spoken.items()}


def _read_play(lines: list[str], flat: bool) -> dict[str, list[str]]:
    speech, more = (_FLAT_SPEECH, _FLAT_MORE) if flat else (_SPEECH, _MORE)
    said: dict[str, list[str]] = defaultdict(list)
    speaker = None
    for line in lines:
        if match := speech.match(line):
            speaker = match[1].upper()
            if flat and speaker.startswith("ACT "):
                speaker = None
            else:
                said[speaker].append(match[2])
        elif speaker is not None and (match := more.match(line)):
            if flat and match[1].startswith("<"):
                speaker = None
            else:
                said[speaker].append(match[1])
    return said


class TextExamples(Examples):
    """Windows of a text and the character that follows; only the text is stored, one byte per character.

    The roles lie end to end. A role of n characters has n - length windows, so window i of all starts at character
    i + length * (its role's number).
    """

    num_classes = len(VOCABULARY)

    def __init__(
        self, text: Tensor, user: Tensor, *, user_names: Sequence[str], sequence: int, num_unknown: int = 0
    ) -> None:
        self.text = text  # [characters], uint8
        self.user: Tensor = user  # [windows], int16
        self.user_names = user_names
        self.sequence = sequence
        self.overlap = sequence - 1
        self.num_unknown = num_unknown  # characters outside of the vocabulary

    @staticmethod
    def of(roles: dict[str, str], sequence: int) -> "TextExamples":
        """From what each role says; roles without a single window are left out."""
        long = {role: said for role, said in roles.items() if len(said) > sequence}
        if not long:
            raise DataError(f"no role has more than {sequence} characters")
        known = np.frombuffer(VOCABULARY.encode("latin-1"), dtype=np.uint8)
        table = np.full(256, UNKNOWN, dtype=np.uint8)
        table[known] = np.arange(len(known))
        codes = table[np.frombuffer("".join(long.values()).encode("latin-1"), dtype=np.uint8)]
        unknown = codes == UNKNOWN
        codes[unknown] = VOCABULARY.index(" ")
        windows = torch.tensor([len(said) - sequence for said in long.values()])
        return TextExamples(
            torch.from_numpy(codes),
            torch.repeat_interleave(torch.arange(len(long), dtype=torch.int16), windows),
            user_names=tuple(long),
            sequence=sequence,
            num_unknown=int(unknown.sum()),
        )

    def __len__(self) -> int:
        return len(self.user)

    def inputs(self, index: Tensor) -> Tensor:
        return self.text.unfold(0, self.sequence, 1)[self._starts(index)].long()

    def targets(self, index: Tensor) -> Tensor:
        return self.text[self._starts(index) + self.sequence].long()

    def tensors(self) -> dict[str, Tensor]:
        return {"text": self.text, "user": self.user}

    def with_tensors(self, tensors: dict[str, Tensor]) -> "TextExamples":
        return TextExamples(**tensors, user_names=self.user_names, sequence=self.sequence, num_unknown=self.num_unknown)

    def _starts(self, index: Tensor) -> Tensor:
        return index + self.sequence * self.user[index].long()
