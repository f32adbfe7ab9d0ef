"""When a launch counts as hung, and what the stacks of its ranks say about who holds it up. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from pytest_charllm.launch.exchange import RankProgress
from pytest_charllm.launch.request import Limits

_FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<name>.+)$', re.MULTILINE)
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x[0-9a-f]+.*$", re.MULTILINE)


def patience_s(progress: RankProgress | None, limits: Limits) -> float:
    """How long this rank may say nothing: by what it has told to expect, else by its phase."""
    if progress is None:
        return limits.start_s
    if progress.expected_s is not None:
        return max(limits.silence_s, limits.silence_factor * progress.expected_s)
    return limits.start_s if progress.phase in ("start", "report") else limits.compile_s


def hang_reason(
    progress: Mapping[int, RankProgress], unfinished: Iterable[int], began_s: float, now_s: float, limits: Limits
) -> str | None:
    """Why this launch counts as hung now, or None. Times on CLOCK_MONOTONIC.

    All unfinished ranks must have been silent for too long: one that waits for a slow other one is no hang.
    """
    if now_s - began_s > limits.total_s:
        return f"not finished after {limits.total_s:.0f} s"
    silences = []
    for rank in unfinished:
        told = progress.get(rank)
        silence_s = now_s - (told.mono_s if told else began_s)
        if silence_s <= patience_s(told, limits):
            return None
        silences.append(silence_s)
    return f"no progress for {min(silences):.0f} s" if silences else None


def describe(progress: RankProgress | None, now_s: float) -> str:
    """``warm-up, step 3, silent for 31 s``."""
    if progress is None:
        return "never started"
    step = "" if progress.step is None else f", step {progress.step}"
    return f"{progress.phase}{step}, silent for {now_s - progress.mono_s:.0f} s"


def main_thread_frame(stacks: str) -> tuple[str, str] | None:
    """(file:line, function) of the innermost frame of the main thread, which faulthandler prints last."""
    threads = list(_THREAD.finditer(stacks))
    innermost = _FRAME.search(stacks, threads[-1].end()) if threads else None
    return (f"{innermost['file']}:{innermost['line']}", innermost["name"]) if innermost else None


def suspect(stacks: Mapping[int, str], progress: Mapping[int, RankProgress], ranks: Iterable[int]) -> int | None:
    """The rank that the others wait for, None when the evidence names nobody or several.

    The one that never started; else the one that did not answer when asked for its stacks: it is stopped, or stuck in
    the kernel; else the one whose main thread is not inside torch, while all others are: a rank that waits in a
    collective is there.
    """
    ranks = list(ranks)
    if len(ranks) == 1:
        return ranks[0]
    absent = [rank for rank in ranks if rank not in progress]
    mute = [rank for rank in ranks if not stacks.get(rank)]
    outside = []
    for rank in ranks:
        frame = main_thread_frame(stacks.get(rank, ""))
        if frame is not None and "/torch/" not in frame[0]:
            outside.append(rank)
    for candidates in (absent, mute, outside):
        if len(candidates) == 1:
            return candidates[0]
    return None
