"""Two old faults of DeepSpeed's streams, real ones on two GPUs, and what notices them: overlap, step time or parity.

    python benchmarks/two_gpus/streams.py [--limit-s 150] [--out FILE]

Faults and the repair of the one that DeepSpeed 0.19.8 still has are in mechanisms.py, none of them a sleep. Every case
is one scenario with one mechanism, through the product's own traced pass: share of the communication that computation
hides, median step without the profiler, losses and gradient norms of the first steps. Prints one JSON line a case and,
at the end, one a case that has another to be held against: what caught it, and whether that is what had to. Parity is
held against the native engine's DDP by the limits of the product's strict checks. On a machine without GPUs all of it
runs over gloo with tiny models, without a trace, and no mechanism has a stream to act on. Exits 1 where a case failed
or was caught by anything else than it had to be.
"""

from __future__ import annotations

import argparse
import math
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from launches import Cases, Lines, Outcome, finish, start, traced_parts_s

from pytest_charllm.devices.find import find_machine
from pytest_charllm.judge.diagnosis.cards import EXPLAINS
from pytest_charllm.judge.tolerances import GPU
from pytest_charllm.measure.checks import GRAD_NORM_LIMIT, LOSS_LIMIT
from pytest_charllm.scenario import Precision

PROGRAM = Path(__file__).with_name("stream_ranks.py")
CASE_LIMIT_S = 60.0
FELL = 0.05
"""From here on a smaller share of hidden communication counts, where healthy runs do not scatter by more."""
SLOWER = 2 * GPU["throughput"].floor
"""From here on a longer step does: single launches scatter by more than the medians of a nightly."""
OVERLAP, STEP_TIME, PARITY = "overlap fraction", "step time", "parity"
NATIVE, ZERO1, ZERO2, ZERO3 = "dp2", "dp2+zero1", "dp2+zero2", "dp2+zero3"
BUCKETS = {"small": (1_000_000, 20_000), "large": (60_000_000, 200_000)}
"""Elements, on a GPU and on a CPU: every matrix is larger than a small one, the blocks' fit into a large one."""


class Case(NamedTuple):
    """`short`: few tokens, so that the backward pass runs ahead of its reductions."""

    mechanism: str
    layout: str
    bucket: str = ""
    short: bool = False
    overlap: bool = True
    turn: int = 1

    def key(self, on_cpu: bool) -> str:
        model, seq = ("tiny-llama.2L", (32, 16)) if on_cpu else ("llama3-8b.4L", (2048, 512))
        tokens = [model, self.layout, "mb2" if on_cpu else "mb1", f"seq{seq[self.short]}", "eager"]
        tokens += [] if self.overlap else ["no-overlap"]
        tokens += [f"reduce{BUCKETS[self.bucket][on_cpu]}"] if self.bucket else []
        tokens += [] if self.layout == NATIVE else ["deepspeed"]
        return ".".join(tokens)

    def name(self, on_cpu: bool) -> str:
        return f"{self.mechanism} {self.key(on_cpu)} {self.turn}"

    @property
    def is_zero12(self) -> bool:
        return self.layout in (ZERO1, ZERO2)

    @property
    def is_healthy(self) -> bool:
        return self.mechanism == ("repaired" if self.is_zero12 else "as-shipped")

    def is_like(self, other: Case) -> bool:
        """Whether it trains the same but for mechanism and overlap."""
        return (self.layout, self.bucket, self.short) == (other.layout, other.bucket, other.short)

    @property
    def must(self) -> frozenset[str] | None:
        """What has to catch it, and nothing may where that is empty. None: whatever does."""
        if self.is_healthy or not self.is_zero12:
            return frozenset()
        return MUST.get((self.mechanism, self.layout, self.bucket)) if self.overlap else None


MUST = {
    ("as-shipped", ZERO2, "small"): frozenset({OVERLAP}),
    ("as-shipped", ZERO1, "small"): frozenset({OVERLAP}),
    ("serialized", ZERO2, "small"): frozenset({OVERLAP, STEP_TIME}),
    ("handed-back", ZERO2, "small"): frozenset({PARITY}),
    ("overwritten", ZERO2, "large"): frozenset({PARITY}),
}
# What matters most comes first; ZeRO 3 last, since DeepSpeed replaces the linear layer for good.
CASES = (
    Case("as-shipped", NATIVE),
    Case("repaired", ZERO2, "small"),
    Case("as-shipped", ZERO2, "small"),
    Case("serialized", ZERO2, "small"),
    Case("as-shipped", NATIVE, short=True),
    Case("handed-back", ZERO2, "small", short=True),
    Case("repaired", ZERO2, "small", short=True),
    Case("overwritten", ZERO2, "large", short=True),
    Case("repaired", ZERO2, "large", short=True),
    Case("as-shipped", ZERO2, "small", turn=2),
    Case("repaired", ZERO2, "small", turn=2),
    Case("serialized-and-handed-back", NATIVE),
    Case("as-shipped", NATIVE, turn=2),
    Case("repaired", ZERO1, "small"),
    Case("as-shipped", ZERO1, "small"),
    Case("handed-back", ZERO1, "small", short=True),
    Case("as-shipped", ZERO2, "small", overlap=False),
    Case("as-shipped", ZERO3),
    Case("serialized-and-handed-back", ZERO3),
    Case("as-shipped", ZERO3, turn=2),
)


class Seen(NamedTuple):
    """One case, mean over ranks. Times in seconds, None without a trace. `acted`: how often its mechanism did."""

    step_s: float | None
    communication_s: float | None
    exposed_s: float | None
    losses: tuple[float, ...]
    norms: tuple[float, ...]
    acted: int = 0

    @property
    def overlap(self) -> float | None:
        """The share of the communication that computation hides."""
        if self.exposed_s is None or not self.communication_s:
            return None
        return 1 - self.exposed_s / self.communication_s


def seen_in(key: str, outcome: Outcome) -> Seen:
    """Of a case that has reports."""
    traced_s = traced_parts_s(key, outcome)
    return Seen(
        step_s=traced_s["step"],
        communication_s=traced_s["communication_time"],
        exposed_s=traced_s["exposed_communication"],
        losses=tuple(map(fmean, zip(*(report.losses for report in outcome.reports), strict=True))),
        norms=tuple(map(fmean, zip(*(report.grad_norms for report in outcome.reports), strict=True))),
        acted=outcome.counted,
    )


def furthest(here: Sequence[float], there: Sequence[float]) -> float:
    """The largest relative difference, step by step; infinite where one is no number."""
    each = [abs(a / b - 1) for a, b in zip(here, there, strict=True)]
    return max(each) if all(map(math.isfinite, each)) else math.inf


def differences(seen: Seen, native: Seen) -> tuple[float, float]:
    """(of the losses, of the gradient norms)"""
    return furthest(seen.losses, native.losses), furthest(seen.norms, native.norms)


def caught_by(seen: Seen, healthy: Sequence[Seen], native: Seen) -> list[str]:
    """What tells a case from the healthy runs of its scenario, by what is more than these scatter."""
    found = []
    overlaps = [each.overlap for each in healthy if each.overlap is not None]
    if seen.overlap is not None and overlaps:
        fell = fmean(overlaps) - seen.overlap
        if fell > max(FELL, max(overlaps) - min(overlaps)):
            found.append(OVERLAP)
    steps_s = [each.step_s for each in healthy if each.step_s is not None]
    if seen.step_s is not None and steps_s:
        slower = seen.step_s / fmean(steps_s) - 1
        if slower > max(SLOWER, max(steps_s) / min(steps_s) - 1):
            found.append(STEP_TIME)
    limits = LOSS_LIMIT[Precision.BF16], GRAD_NORM_LIMIT[Precision.BF16]
    if any(not off <= limit for off, limit in zip(differences(seen, native), limits, strict=True)):
        found.append(PARITY)
    return found


def judged(case: Case, name: str, seen: Seen, healthy: Sequence[Seen], native: Seen) -> dict[str, object]:
    """The verdict's line on a case."""
    caught, must = caught_by(seen, healthy, native), case.must
    told: dict[str, object] = {
        "verdict": name,
        "caught by": caught,
        "from_native": [number(off) for off in differences(seen, native)],
    }
    if healthy:
        told["from_healthy"] = [number(off) for off in differences(seen, healthy[0])]
    if seen.overlap is None:
        return told | {"ok": PARITY not in caught}  # no stream has done anything
    steps_s = [each.step_s for each in healthy if each.step_s is not None]
    exposed_s = [each.exposed_s for each in healthy if each.exposed_s is not None]
    if seen.step_s is not None and seen.exposed_s is not None and steps_s and exposed_s:
        lost_s, grown_s = seen.step_s - fmean(steps_s), seen.exposed_s - fmean(exposed_s)
        told |= {
            "step": f"{100 * lost_s / fmean(steps_s):+.1f} %",
            "exposed": f"{1e3 * grown_s:+.2f} ms",
            "exposed explains it": STEP_TIME in caught and grown_s >= EXPLAINS * lost_s,
        }
    if must is None:
        return told
    acted = seen.acted > 0 or case.mechanism == "as-shipped" or not case.is_zero12
    return told | {"must": sorted(must), "ok": acted and (must <= set(caught) if must else not caught)}


def number(value: float) -> float | str:
    """JSON has none that is not finite."""
    return value if math.isfinite(value) else str(value)


def told_of(case: Case, name: str, outcome: Outcome, seen: Seen | None) -> dict[str, object]:
    """The line of a case by itself."""
    told: dict[str, object] = {"case": name, "seconds": outcome.seconds, "ok": seen is not None}
    if seen is None:
        return told | {"error": outcome.error, "output": outcome.output}
    told |= {"acted": seen.acted, "step_ms": None if seen.step_s is None else round(1e3 * seen.step_s, 2)}
    if seen.communication_s is not None and seen.exposed_s is not None:
        told |= {"communication_ms": 1e3 * seen.communication_s, "exposed_ms": 1e3 * seen.exposed_s}
    return told | {
        "overlap": seen.overlap,
        "losses": [number(value) for value in seen.losses],
        "norms": [number(value) for value in seen.norms],
        "steps": [[each.span_ns for each in report.breakdown] for report in outcome.reports],
        "notes": sorted({note for report in outcome.reports for note in report.notes}),
    }


def run(until_s: float, root: Path, tell: Lines) -> None:
    on_cpu = not find_machine().devices
    cases = {case.name(on_cpu): case for case in CASES}
    found = finish(start(Cases(tuple(cases), 2, CASE_LIMIT_S, root, program=PROGRAM)), until_s)
    seen = {
        cases[name]: seen_in(cases[name].key(on_cpu), outcome) for name, outcome in found.items() if outcome.reports
    }
    for name, outcome in found.items():
        tell(told_of(cases[name], name, outcome, seen.get(cases[name])))
    for case, each in seen.items():
        native = [seen[other] for other in seen if (other.layout, other.short) == (NATIVE, case.short)]
        healthy = [seen[other] for other in seen if other.is_healthy and other.is_like(case)]
        if native:
            tell(judged(case, case.name(on_cpu), each, healthy, native[0]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit-s", type=float, default=150.0, help="all ends after it")
    parser.add_argument("--out", type=Path, help="append the JSON lines here, too")
    options = parser.parse_args()
    # So that `timeout` and Ctrl-C leave no rank behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    tell, began_s = Lines(options.out), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="streams-") as folder:
        run(began_s + options.limit_s, Path(folder), tell)
    tell({"wall_s": time.monotonic() - began_s})
    return 1 if tell.failed else 0


if __name__ == "__main__":
    sys.exit(main())
