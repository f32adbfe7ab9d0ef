"""A collective alone: one latency and one bandwidth a message size, and whether its results were right."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from pytest_charllm.records import Check, Launch, RankReport, Value
from pytest_charllm.records.curve import bus_bandwidth, latency
from pytest_charllm.scenario import Collective, Scenario
from pytest_charllm.scenario.collective import bus_factor, label, sizes_of


def curve_metrics(scenario: Scenario) -> tuple[str, ...]:
    """Those of the messages that the scenario sends; none of anything but a collective."""
    if not isinstance(scenario.work, Collective):
        return ()
    return tuple(metric for size in sizes_of(scenario.work) for metric in (latency(size), bus_bandwidth(size)))


def unequal(reports: Sequence[RankReport]) -> str | None:
    """Why the ranks' sweeps do not make one curve, or None. All else in here needs them to."""
    first = [(message.size, message.bytes, len(message.wall_s)) for message in reports[0].messages]
    if not first or not all(batches for _, _, batches in first):
        return f"rank {reports[0].rank} reports no times of messages"
    for report in reports:
        if [(message.size, message.bytes, len(message.wall_s)) for message in report.messages] != first:
            return f"rank {report.rank} swept other messages than rank {reports[0].rank}"
    return None


def curve(launch: Launch) -> dict[str, Value]:
    """Latency: the median batch's time of a call, each batch on its slowest rank, since a call is over when the last
    rank is. Bus bandwidth: ``factor * bytes / latency``, see `scenario.collective.bus_factor`."""
    work = launch.scenario.work
    assert isinstance(work, Collective)
    factor = bus_factor(work.op, len(launch.ranks))
    values: dict[str, Value] = {}
    for messages in zip(*(report.messages for report in launch.ranks), strict=True):
        slowest_s = [max(batch) for batch in zip(*(message.wall_s for message in messages), strict=True)]
        latency_s, size = statistics.median(slowest_s), messages[0].size
        values[latency(size)] = Value(value=latency_s, unit="s", coverage=1.0)
        gb_per_s = factor * messages[0].bytes / latency_s / 1e9
        values[bus_bandwidth(size)] = Value(value=gb_per_s, unit="GB/s", coverage=1.0)
    return values


def sent_in_sweep(launch: Launch) -> float | None:
    """Bytes that each rank has to send in all calls, timed or not; None where the record does not tell of all."""
    work, total = launch.scenario.work, 0
    assert isinstance(work, Collective)
    for each in launch.ranks[0].messages:
        if each.untimed_calls is None:
            return None
        total += each.bytes * (each.untimed_calls + each.calls * len(each.wall_s))
    return bus_factor(work.op, len(launch.ranks)) * total


def result_checks(launch: Launch) -> tuple[Check, ...]:
    """Every element that every rank received is the one it had to be, at every size."""
    wrong = [
        f"{message.wrong:,} wrong at {label(message.size)} on rank {report.rank}"
        for report in launch.ranks
        for message in report.messages
        if message.wrong
    ]
    observed = "; ".join(wrong) or "every element as expected"
    return (Check(name="results", ok=not wrong, expected="every element as expected", observed=observed),)
