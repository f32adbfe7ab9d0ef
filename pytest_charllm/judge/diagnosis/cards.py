"""Rules about single GPUs: one of several that is slower than its neighbours, a card slower than its own record."""

from __future__ import annotations

import statistics

from pytest_charllm.judge.diagnosis.evidence import SPOKEN, Evidence, columns
from pytest_charllm.judge.diagnosis.words import told
from pytest_charllm.judge.foreign import LIBRARIES
from pytest_charllm.judge.wording import name
from pytest_charllm.records import METRICS, Diagnosis
from pytest_charllm.records.metrics import TRACED_METRICS
from pytest_charllm.records.outlier import SKEW, Late, Outlier, late
from pytest_charllm.records.outlier import outlier as furthest_behind

SKEW_CPU = 0.05
"""`SKEW` of CPU time on a CPU: Gate A's floor."""
KERNEL = 0.02
"""From this change on a calibration counts as slower. Matrix product and copy of 24 launches of two H200s scattered by
0.1 % (CoV) on each, and their matrix products were 0.7 % apart."""
EXPLAINS = 0.5
"""A change explains a loss of which it is at least this share."""
OF_A_GPU = {"matmul_time": SKEW, "sm_clock": SKEW, "copy_time": SKEW}
"""What is a rank's own, however long it waits for others, and by how much it may be behind."""
OF_A_CPU = {"cost_cpu": SKEW_CPU}
"""The same on a CPU, where a calibration is what the CPU time of a step is held against: alone it says who had the
busier core."""


def slow_rank(e: Evidence) -> Diagnosis | None:
    """One of several ranks whose own kernels, clock or CPU time is behind all others', or that these wait for."""
    of_a_rank = OF_A_GPU if e.launches[0].device_uuids else OF_A_CPU
    for metric, skew in of_a_rank.items():
        found = outlier(e, metric, skew)
        if found is None or abs(found.by) < EXPLAINS * e.lost:
            continue
        spoken = SPOKEN.get(metric, name(metric))
        evidence = [f"{spoken} of rank {found.rank} {100 * found.by:+.1f} % against the others"]
        evidence += _beside(e, metric, found.rank)
        return _one_slow(e, "rank" if e.uuid(found.rank) is None else "GPU", found.rank, evidence)
    waited = late_rank(e)
    if waited is None:
        return None
    took = f"{1e3 * waited.others_s:.1f} ms on the others, {1e3 * waited.own_s:.1f} ms on rank {waited.rank}"
    evidence = [f"communication of a traced step, waiting included, {took}", *_beside(e, "", waited.rank)]
    # What it is late with may be more work as well as a slower card.
    return _one_slow(e, "rank", waited.rank, evidence)


def late_rank(e: Evidence) -> Late | None:
    """The rank that all others wait for in a traced step."""
    return late({metric: e.ranks(metric) for metric in TRACED_METRICS})


def _one_slow(e: Evidence, what: str, rank: int, evidence: list[str]) -> Diagnosis:
    uuid = e.uuid(rank)
    return told(e, "slow-rank", evidence, f"one slow {what}, {e.slot(rank)}", () if uuid is None else (uuid,))


def slow_card(e: Evidence) -> Diagnosis | None:
    """The same kernel takes longer than on record, on a card that nothing throttles: not the framework."""
    matmul, copy = e.move("matmul_time"), e.move("copy_time")
    limit = max(KERNEL, EXPLAINS * e.lost)
    slower = ((matmul, e.product_slower), (copy, copy.change))
    worse = [move for move, change in slower if change is not None and change >= limit]
    if not worse or not e.launches[0].device_uuids:
        return None
    evidence = [move.text for move in worse] + [e.move("sm_clock").text]
    libraries = [part for part, _, _ in e.stack_diff if part in (*LIBRARIES, "vbios")]
    if libraries:
        return told(e, "slow-card", evidence, f"the card or its libraries, not the framework; {e.changed}")
    if len(e.launches[0].device_uuids) > 1:
        return told(e, "slow-card", evidence, "the cards, not the framework; which of them is not known")
    uuid = e.launches[0].device_uuids[0]
    return told(e, "slow-card", evidence, f"slow card, not the framework, {e.slot(0)}", (uuid,))


def outlier(e: Evidence, metric: str, skew: float) -> Outlier | None:
    """The rank furthest behind in one metric, if it is so by `skew` and stands alone."""
    return furthest_behind(e.ranks(metric), METRICS[metric].better, skew)


def hottest(e: Evidence, metric: str) -> int | None:
    """The rank with the most throttled time; None where ranks are not told apart, or half of them are throttled."""
    shares = columns([launch.per_rank.get(metric, ()) for launch in e.launches])
    if not shares:
        return 0 if len(e.launches[0].device_uuids) == 1 else None
    worst = max(range(len(shares)), key=shares.__getitem__)
    return worst if shares[worst] > 2 * statistics.median_low(shares) else None


def _beside(e: Evidence, metric: str, rank: int) -> list[str]:
    """Its clock, where that is behind too."""
    clock = outlier(e, "sm_clock", SKEW / 2) if metric != "sm_clock" else None
    return [f"SM clock {100 * clock.by:+.1f} %"] if clock is not None and clock.rank == rank else []
