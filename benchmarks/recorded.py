"""Files of recorded launches, one a line as in tests/data/h200_launches.jsonl, and what the scripts on them share."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

Launch = TypeVar("Launch")

UNCHANGED = "none"
"""`inject` of a launch of unchanged code."""


def read_launches(path: Path, launch_of: Callable[[dict[str, Any]], Launch]) -> list[Launch]:
    """Raises `ValueError` naming the line that is not a launch."""
    launches = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if line.strip():
            try:
                launches.append(launch_of(json.loads(line)))
            except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
                what = f"{type(error).__name__} {error}"
                raise ValueError(f"{path}: line {number} is not a launch: {what}") from None
    return launches


def print_lines(
    doc: str | None,
    read: Callable[[Path], list[Launch]],
    lines_of: Callable[[list[Launch]], Iterable[dict[str, object]]],
) -> int:
    """The command line of such a script: one JSON line a launch of the file that it names; 1 where it is none."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    file = parser.parse_args().file
    try:
        launches = read(file)
    except UnicodeDecodeError:
        print(f"{file}: no text, so no launches", file=sys.stderr)
        return 1
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    if not launches:
        print(f"{file}: no launch in it", file=sys.stderr)
        return 1
    for line in lines_of(launches):
        print(json.dumps(line))
    return 0
