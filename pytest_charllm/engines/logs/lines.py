"""From the bytes of a log to clean lines: the one place that knows of colours, progress bars, ranks and torn ends."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

LONGEST_LINE = 64 * 1024
"""Of a longer line the beginning is kept, and it counts as torn. Nothing a trainer says of a step is that long."""

_CHUNK = 1024 * 1024

_ESCAPE = re.compile(
    r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # titles and links
    r"|\x1b\[[0-?]*[ -/]*[@-~]"  # colours and cursor movements
    r"|\x1b[ -/]*[0-~]?"
    r"|\[\d{1,3}(?:;\d{1,3})*m"  # colours whose escape character a collector has swallowed
)
_CONTROL = dict.fromkeys((*range(32), *range(127, 160))) | {ord("\t"): " "}

_RANK = re.compile(
    r"(?:\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[-+]\d\d:?\d\d)?\s(?:std(?:out|err) [FP] )?)?"  # a container's time stamp
    r"(?:[\w.-]+/\d+ )?"  # torchx: role and replica
    r"(?:\[[A-Za-z_]+(?P<torchrun>\d{1,6})\]:"  # [default3]:, [rank3]:
    r"|\[\d+,(?P<mpirun>\d{1,6})\]<std(?:out|err)>:"
    r"|\s{0,5}(?P<srun>\d{1,6}): )",
    re.ASCII,
)


class Line(NamedTuple):
    text: str
    rank: int | None
    """As the launcher labels its output, without the label. None: no label."""
    whole: bool
    """False: torn off, so that a number in it may lack digits."""


def read_lines(path: Path) -> Iterator[Line]:
    """All lines of a file that hold anything, one chunk in memory at a time. Raises `OSError`."""
    with path.open("rb") as file:
        yield from clean_lines(iter(lambda: file.read(_CHUNK), b""))


def clean_lines(chunks: Iterable[bytes]) -> Iterator[Line]:
    """Lines end at a line feed or at the carriage return with which a progress bar paints over itself.

    Bytes that are no UTF-8 become replacement characters; escape sequences and control characters go.
    """
    rest, torn = b"", False
    for chunk in chunks:
        *ended, rest = re.split(rb"[\r\n]", rest + chunk)
        for raw in ended:
            if raw:
                yield from _clean(raw[:LONGEST_LINE], whole=not torn and len(raw) <= LONGEST_LINE)
            torn = False
        if len(rest) > LONGEST_LINE:
            rest, torn = rest[:LONGEST_LINE], True
    yield from _clean(rest, whole=False)


def plain(text: str) -> str:
    """`text` without escape sequences and control characters."""
    if "\x1b" in text or "m" in text:
        text = _ESCAPE.sub("", text)
    return text if text.isprintable() else text.translate(_CONTROL)


def _clean(raw: bytes, whole: bool) -> Iterator[Line]:
    text = plain(raw.decode("utf-8", errors="replace"))
    if not text or text.isspace():
        return
    match = _RANK.match(text)
    if match is None:
        yield Line(text, None, whole)
    else:
        yield Line(text[match.end() :], int(match[match.lastgroup or 0]), whole)
