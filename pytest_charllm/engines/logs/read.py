"""From the path of a log to its steps, or to the one line that says why there are none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from statistics import median

from msgspec import structs

from pytest_charllm.engines.logs.deepspeed import DeepSpeed
from pytest_charllm.engines.logs.huggingface import HuggingFace
from pytest_charllm.engines.logs.lightning import Lightning
from pytest_charllm.engines.logs.lines import Line, read_lines
from pytest_charllm.engines.logs.megatron import Megatron
from pytest_charllm.engines.logs.nemo import NeMo
from pytest_charllm.engines.logs.protocol import LogReader, Restart
from pytest_charllm.engines.logs.series import Series
from pytest_charllm.engines.logs.torchtitan import Torchtitan
from pytest_charllm.engines.logs.warmup import warmup_of
from pytest_charllm.errors import BadInput, did_you_mean
from pytest_charllm.records import Finding, LogProblem, LogStatus, LogSteps, Warmup, WindowRule, tier

READERS: dict[str, type[LogReader]] = {
    reader.name: reader for reader in (Megatron, NeMo, Torchtitan, DeepSpeed, HuggingFace, Lightning)
}
"""By the name that a declaration may ask for."""

ANY_WINDOW = structs.replace(tier("nightly", False).window, min_steps=1, min_seconds=0.0)
"""Warm-up as of a nightly run on GPUs, and whatever is left after it."""

_HEAD_CHARACTERS = 4 * 1024 * 1024
_COARSE = 0.005
_ELSEWISE = "or call pytest_charllm.step.mark_step once a step"


def read_log(path: str | Path, reader: str | None = None, *, window: WindowRule = ANY_WINDOW) -> LogSteps | LogProblem:
    """The steps that a trainer's log tells of, after warm-up as `window` rules it.

    `reader` names the trainer where its log is not to be recognized by itself. A file of several ranks' labelled
    output gives one rank's steps. Raises `BadInput` for a reader that does not exist; whatever is wrong with the log
    is a `LogProblem`.
    """
    return read_logs([Path(path)], reader, window=window)


def read_logs(
    paths: Sequence[Path], reader: str | None = None, *, window: WindowRule = ANY_WINDOW
) -> LogSteps | LogProblem:
    """`read_log` of files that are one output together: trainers print metrics to stdout and bars to stderr."""
    if reader is not None and reader not in READERS:
        raise BadInput(f"log reader {reader!r} is not known; {did_you_mean(reader, READERS)}known: {_KNOWN}")
    where = ", ".join(map(str, paths))
    try:
        logs = [path for path in paths if path.is_file()]  # a pipe would be waited on
        if not logs:
            return _problem(LogStatus.NO_LOG, where, None, "no such file; check where the trainer writes its log")
        if not any(path.stat().st_size for path in logs):
            return _problem(LogStatus.NO_LOG, where, None, "is empty; check that the trainer's output goes there")
        names = [reader] if reader else _recognized(logs)
        if len(names) == 1:
            return _Reading(where, logs, READERS[names[0]]()).result(window)
    except OSError as error:
        return _problem(LogStatus.NO_LOG, where, None, f"cannot be read ({error.strerror}); check its permissions")
    if names:
        text = f"looks like {' and '.join(names)}; name one of them as the reader"
        return _problem(LogStatus.AMBIGUOUS, where, None, text)
    text = f"no reader knows this log (known: {_KNOWN}); name the reader where it is one of them, {_ELSEWISE}"
    return _problem(LogStatus.UNKNOWN, where, None, text)


def _recognized(logs: Sequence[Path]) -> list[str]:
    """Readers that claim the logs, without those whose trainer runs inside another one's that claims them too."""
    head = "\n".join(_head(log) for log in logs)
    claims = [name for name, reader in READERS.items() if reader.matches(head)]
    return [name for name in claims if READERS[name].yields_to.isdisjoint(claims)]


def _head(log: Path) -> str:
    texts: list[str] = []
    characters = 0
    for line in read_lines(log):
        texts.append(line.text)
        characters += len(line.text)
        if characters > _HEAD_CHARACTERS:
            break
    return "\n".join(texts)


def _problem(status: LogStatus, where: str, reader: LogReader | None, text: str) -> LogProblem:
    name, title = (reader.name, f"{reader.title}: ") if reader else (None, "")
    return LogProblem(status=status, path=where, reader=name, message=f"{where}: {title}{text}")


class _Reading:
    """One pass over one output."""

    def __init__(self, where: str, logs: Sequence[Path], reader: LogReader) -> None:
        self.where, self.reader = where, reader
        self.torn = 0
        self.ranks: dict[int | None, Series] = {}
        for line in chain.from_iterable(map(read_lines, logs)):
            if line.whole:
                self._take(line)
            else:
                self.torn += 1

    def _take(self, line: Line) -> None:
        for event in self.reader.events(line.text):
            if isinstance(event, Restart) and event.everywhere:
                for series in self.ranks.values():
                    series.add(event)
            else:
                self.ranks.setdefault(line.rank, Series()).add(event)

    def result(self, window: WindowRule) -> LogSteps | LogProblem:
        rank, series = self._chosen()
        if series.not_finite_at is not None:
            text = f"a training loss is NaN or infinite after step {series.not_finite_at}; look there, not at the speed"
            return self._problem(LogStatus.NOT_FINITE, text)
        if series.out_of_order:
            text = f"the step number falls back {series.restarts} times; give the log of one rank, or label the ranks"
            return self._problem(LogStatus.AMBIGUOUS, text)
        if not series.steps:
            counted = "" if series.seen is None else f" although steps up to {series.seen} are counted"
            why = f" ({told})" if (told := self.reader.why_untimed()) and series.seen is not None else ""
            text = f"no line tells how long a step took{counted}{why}; {self.reader.remedy}, {_ELSEWISE}"
            return self._problem(LogStatus.NO_STEPS, text)
        ended = warmup_of(window, series.spans, series.step_s)
        if ended is None:
            rule = f"{window.warmup_steps} steps, {window.warmup_seconds:g} s, steady within {window.steady_ratio:.0%}"
            text = f"warm-up ({rule}) is not over after {sum(series.spans)} steps in {len(series.steps)} lines"
            text += "; train for longer"
            return self._problem(LogStatus.INCOMPLETE, text)
        first, warmup = ended
        steps, seconds = sum(series.spans[first:]), sum(map(_product, series.spans[first:], series.step_s[first:]))
        if steps < window.min_steps or seconds < window.min_seconds:
            left = f"{steps} steps ({seconds:.3g} s) are left after a warm-up of {warmup.steps}"
            text = f"{left}, {window.min_steps} ({window.min_seconds:g} s) are needed; train for longer"
            return self._problem(LogStatus.INCOMPLETE, text)
        return self._steps(rank, series, first, warmup)

    def _chosen(self) -> tuple[int | None, Series]:
        """The rank that tells most; of several the lowest, as in every launch."""
        if not self.ranks:
            return None, Series()
        return max(self.ranks.items(), key=lambda item: (len(item[1].steps), item[0] is None, -(item[0] or 0)))

    def _problem(self, status: LogStatus, text: str) -> LogProblem:
        return _problem(status, self.where, self.reader, text)

    def _steps(self, rank: int | None, series: Series, first: int, warmup: Warmup) -> LogSteps:
        if series.other_sequences is None:
            tokens, why = self.reader.tokens(series.sequences)
        else:
            tokens, why = None, f"the batch grows from {series.other_sequences} to {series.sequences} sequences"
        if tokens is not None and tokens <= 0:
            tokens, why = None, f"{tokens} tokens a step are none ({why})"
        tokens_per_s = tuple(series.tokens_per_s[first:]) if len(series.tokens_per_s) == len(series.steps) else ()
        return LogSteps(
            path=self.where,
            reader=self.reader.name,
            steps=tuple(series.steps[first:]),
            spans=tuple(series.spans[first:]),
            step_time_s=tuple(series.step_s[first:]),
            step_time_from=self.reader.step_time_from,
            resolution_s=max(series.resolution_s[first:]),
            tokens_per_step=tokens,
            tokens_why=why,
            tokens_per_s=tokens_per_s,
            tokens_per_s_of=self.reader.tokens_per_s_of if tokens_per_s else "",
            losses=tuple(series.losses),
            warmup=warmup,
            findings=tuple(self._findings(rank, series, first, warmup)),
        )

    def _findings(self, rank: int | None, series: Series, first: int, warmup: Warmup) -> Iterator[Finding]:
        telling = [other for other, told in self.ranks.items() if told.steps]
        if len(telling) > 1:
            yield Finding(kind="interleaved", text=f"{len(telling)} ranks tell their steps; rank {rank} was read")
        if series.restarts:
            times = "once" if series.restarts == 1 else f"{series.restarts} times"
            yield Finding(kind="restarted", text=f"training began again {times}; only the last attempt was read")
        if series.seen is not None and series.total is not None and series.seen + series.spans[-1] <= series.total:
            yield Finding(kind="ends-early", text=f"the log ends at step {series.seen} of {series.total}")
        if self.torn:
            yield Finding(kind="truncated", text=f"lines without an end, which were left out: {self.torn}")
        if not warmup.steady:
            yield Finding(kind="not-steady", text=f"warm-up ended after {warmup.steps} steps: {warmup.reason}")
        if series.left_out:
            yield Finding(kind="cut", text=f"{len(series.steps)} entries were read, {series.left_out} more left out")
        coarse = max(series.resolution_s[first:]) / median(series.step_s[first:])
        if coarse > _COARSE:
            yield Finding(kind="coarse", text=f"step times are rounded by up to {100 * coarse:.1f} % of a step")


def _product(span: int, step_s: float) -> float:
    return span * step_s


_KNOWN = ", ".join(READERS)
