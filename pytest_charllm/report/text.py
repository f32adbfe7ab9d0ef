"""Plain-text building blocks, at most `WIDTH` columns wide."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

WIDTH = 120


def grid(
    headers: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = (), last_width: int | None = None
) -> str:
    """A table; columns in which no row says anything are dropped.

    `right` names the columns flushed right; the last one is wrapped at `last_width`. "" without rows.
    """
    from tabulate import SEPARATING_LINE, tabulate

    if not rows:
        return ""
    kept = [i for i in range(len(headers)) if any(row[i] for row in rows)]
    # As a row like any other, a header costs no extra padding. The frame above and below is cut off.
    table = tabulate(
        [[headers[i] for i in kept], SEPARATING_LINE, *([row[i] for i in kept] for row in rows)],
        colalign=["right" if headers[i] in right else "left" for i in kept],
        maxcolwidths=[last_width if i == len(headers) - 1 else None for i in kept],
        disable_numparse=True,
    )
    return "\n".join(line.rstrip() for line in table.splitlines()[1:-1])


def clipped(text: str, width: int = WIDTH) -> str:
    """Cut to width with an ellipsis: for lines whose whole text stands elsewhere."""
    return text if len(text) <= width else text[: width - 3] + "..."


def pairs(items: Sequence[tuple[str, str]]) -> str:
    """Labels in one column, texts wrapped in the next."""
    column = max((len(label) for label, _ in items), default=0) + 2
    lines = []
    for label, text in items:
        wrapped = textwrap.wrap(text, WIDTH - 4 - column, break_long_words=False, break_on_hyphens=False) or [""]
        lines += [f"{label:<{column}}{wrapped[0]}".rstrip(), *(" " * column + line for line in wrapped[1:])]
    return "\n".join(lines)


def section(title: str, body: str) -> str:
    """A title with its body indented below; "" for an empty body."""
    return f"{title}\n{textwrap.indent(body, '  ')}" if body else ""


def verbatim(text: str, last: int | None = None) -> str:
    """Foreign lines (logs, tracebacks), clipped to width; only the last ones where there are more than `last`."""
    lines = [clipped(line.expandtabs(4).rstrip(), WIDTH - 4) for line in text.splitlines()]
    if last is not None and len(lines) > last:
        lines = [f"... {len(lines) - last} lines above", *lines[-last:]]
    return "\n".join(lines)
