"""What holds for every log, however it was torn, mixed, coloured or damaged."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_charllm.engines.logs import READERS
from pytest_charllm.records import LogProblem, LogSteps

Read = Callable[..., LogSteps | LogProblem]
Sample = Callable[[str], bytes]

FOREIGN = (
    "node7:4312:4401 [3] NCCL INFO Channel 00/16 : 0 1 2 3",
    "/usr/lib/python3/site.py:12: UserWarning: step size 3 of 10 is 5% of 1000 ms",
    "Map: 100%|##########| 1000/1000 [00:01<00:00, 813.23 examples/s]",
    "{'eval_loss': '7.9', 'eval_runtime': '3.2', 'epoch': '0.24'}",
    "saving checkpoint at iteration 20 | took 1.5 s",
    "\x1b[33mWARNING\x1b[0m loss scale: 65536.0, step=?, iteration ?/?",
    "Traceback (most recent call last):",
    "\ufffd\ufffd\x00\x08",
)


def pieces(data: bytes) -> list[bytes]:
    """The lines with what ends them, a progress bar's repaintings apart."""
    return re.findall(rb"[^\r\n]*[\r\n]+|[^\r\n]+$", data)


def sane(log: LogSteps | LogProblem) -> bool:
    """A problem of one line, or a series of steps that rises."""
    if isinstance(log, LogProblem):
        return "\n" not in log.message
    rising = all(before < after for before, after in pairwise(log.steps))
    return rising and min(log.step_time_s) > 0 and min(log.spans) > 0


def without_path(log: LogSteps | LogProblem) -> tuple[object, ...]:
    fields = [name for name in log.__struct_fields__ if name != "path"]
    return tuple(getattr(log, name) for name in fields)


@settings(deadline=None, max_examples=12)
@given(share=st.floats(0, 1))
def test_a_torn_log_tells_a_beginning_of_the_steps(name: str, sample: Sample, read_bytes: Read, share: float) -> None:
    """A job that is killed, or a disk that is full: never a step that the whole log does not have."""
    whole, torn = read_bytes(sample(name)), read_bytes(sample(name)[: round(share * len(sample(name)))])
    assert isinstance(whole, LogSteps)
    if isinstance(torn, LogSteps):
        count = len(torn.steps)
        assert (torn.steps, torn.step_time_s) == (whole.steps[:count], whole.step_time_s[:count])
        assert torn.losses == whole.losses[: len(torn.losses)]
    assert sane(torn)


@settings(deadline=None, max_examples=12)
@given(seed=st.integers(0, 2**32), lines=st.lists(st.sampled_from(FOREIGN), max_size=30))
def test_lines_of_others_change_nothing(
    name: str, sample: Sample, read_bytes: Read, seed: int, lines: list[str]
) -> None:
    """NCCL, warnings, other bars and checkpoints write to the same file."""
    mixed, where = pieces(sample(name)), random.Random(seed)
    for line in lines:
        mixed.insert(where.randrange(len(mixed) + 1), f"{line}\n".encode())
    assert without_path(read_bytes(b"".join(mixed))) == without_path(read_bytes(sample(name)))


@settings(deadline=None, max_examples=4)
@given(codes=st.lists(st.sampled_from(["\x1b[31m", "\x1b[1;38;5;208m", "\x1b[38;2;1;2;3m", "\x1b[K"]), min_size=1))
def test_colours_change_nothing(name: str, sample: Sample, read_bytes: Read, codes: list[str]) -> None:
    """Each line in a colour of its own, its label and the words in it too."""
    coloured = [
        re.sub(rb"(\S+)", codes[number % len(codes)].encode() + rb"\1" + b"\x1b[0m", piece)
        for number, piece in enumerate(pieces(sample(name)))
    ]
    assert without_path(read_bytes(b"".join(coloured))) == without_path(read_bytes(sample(name)))


@settings(deadline=None, max_examples=12)
@given(seed=st.integers(0, 2**32), fragments=st.integers(1, 12))
def test_shuffled_and_repeated_fragments_never_raise(
    name: str, sample: Sample, read_bytes: Read, seed: int, fragments: int
) -> None:
    """Several buffers flushed to one file, some of them twice."""
    chance = random.Random(seed)
    edges = sorted(chance.randrange(len(sample(name))) for _ in range(fragments))
    parts = [sample(name)[begin:end] for begin, end in pairwise([0, *edges, len(sample(name))])]
    assert sane(read_bytes(b"".join(chance.choices(parts, k=len(parts) + 2))))


@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 2**32), damage=st.lists(st.binary(min_size=1, max_size=6), max_size=40))
def test_damaged_bytes_never_raise(name: str, sample: Sample, read_bytes: Read, seed: int, damage: list[bytes]) -> None:
    """Whatever a number turns into."""
    data, chance = bytearray(sample(name)), random.Random(seed)
    for junk in damage:
        at = chance.randrange(len(data))
        data[at : at + len(junk)] = junk
    assert sane(read_bytes(bytes(data)))


NUMBERS = st.sampled_from(
    ["0", "-1", "nan", "inf", "1e308", "1e-308", "9" * 12, "9" * 40, "1,5", "1.2.3", ",", "0.00", "1e400"]
)


@settings(deadline=None, max_examples=15)
@given(numbers=st.lists(NUMBERS, min_size=1, max_size=8), every=st.integers(1, 9))
def test_absurd_numbers_never_raise(
    name: str, sample: Sample, read_bytes: Read, numbers: list[str], every: int
) -> None:
    """Overflow, division by zero, and counts that fit no machine word."""
    seen = 0

    def absurd(match: re.Match[bytes]) -> bytes:
        nonlocal seen
        seen += 1
        return match[0] if seen % every else numbers[seen % len(numbers)].encode()

    assert sane(read_bytes(re.sub(rb"\d+(?:\.\d+)?", absurd, sample(name))))


@pytest.mark.parametrize("reader", READERS)
@settings(deadline=None, max_examples=15)
@given(data=st.binary(max_size=400))
def test_rubbish_never_raises(read_bytes: Read, reader: str, data: bytes) -> None:
    """A reader that was named is asked, whatever the file is."""
    assert isinstance(read_bytes(data, reader), LogProblem)
