"""``pytest-charllm traffic KEY...``: what a step calls on each axis, against a run's curves of collectives."""

from __future__ import annotations

import argparse
import statistics

from pytest_charllm.commands import OK
from pytest_charllm.errors import BadInput
from pytest_charllm.measure.achieved import Achieved, achieved
from pytest_charllm.measure.traffic import AxisTraffic, axis_traffic, curves_of, sent_by_each
from pytest_charllm.records import Measurement, Pass, RankReport, Status, numbers_of
from pytest_charllm.report.numbers import MIB, seconds, significant, size
from pytest_charllm.report.text import grid
from pytest_charllm.scenario.key import parse_key
from pytest_charllm.scenario.spec import Scenario
from pytest_charllm.store.run import RunDirectory

HEADERS = ("scenario", "axis", "operation", "ranks", "calls", "mean message", "GB/s", "of the best", "in turn", "note")
NONE = "none; pytest suites/test_collectives.py measures them"
RIGHT = HEADERS[3:-1]
TRACED = (
    "scenario", "axis", "operation", "calls", "mean message", "in kernels", "moving", "GB/s", "of the curve", "note",
)  # fmt: skip


def run_traffic(options: argparse.Namespace) -> int:
    """One rank's calls in one step. Raises `BadInput` for a key that cannot be read, and one whose traffic is not
    predicted."""
    scenarios = {key: parse_key(key) for key in options.keys}
    for key, scenario in scenarios.items():
        if not 0 <= options.rank < scenario.layout.world:
            raise BadInput(f"--rank: {key} has ranks 0 to {scenario.layout.world - 1}, asked {options.rank}")
    run = RunDirectory.open(options.root, options.run)
    curves_run = RunDirectory.open(options.root, options.curves) if options.curves else run
    measured: dict[Scenario, list[Measurement]] = {}
    for key in curves_run.scenario_keys():
        for launch in curves_run.launches(key)[:1]:
            measured[launch.scenario] = curves_run.measurements(key)
    curves = curves_of(measured)
    traffic = {key: axis_traffic(scenario, curves, rank=options.rank) for key, scenario in scenarios.items()}
    rows = [row for key, calls in traffic.items() for row in _rows(key, calls)]
    print(grid(HEADERS, rows, RIGHT, last_width=30) or "one rank alone calls nothing")
    reports = {key: report for key in scenarios if (report := _traced_rank(run, key, options.rank)) is not None}
    rows = [row for key, report in reports.items() for row in _achieved(key, achieved(scenarios[key], curves, report))]
    if rows:
        print(f"\nrank {options.rank}, one traced step\n" + grid(TRACED, rows, TRACED[3:-1], last_width=30))
    traced = [
        line for key, calls in traffic.items() if (line := _traced(key, calls, run.measurements(key, Pass.TRACED)))
    ]
    traced += [line for key in traffic if (line := _over_links(key, scenarios[key], run.measurements(key)))]
    traced += [f"{key}: {note}" for key, report in reports.items() for note in report.notes]
    if traced:
        print("\n" + "\n".join(traced))
    told = ", ".join(f"{op} between {ranks}" for op, ranks in sorted(curves)) or NONE
    where = f"{curves_run.info.machine.variant} {curves_run.info.machine.shape}"
    print(f"\nrank {options.rank}, one step; curves of run {curves_run.id} on {where}: {told}")
    return OK


def _rows(key: str, traffic: tuple[AxisTraffic, ...]) -> list[tuple[str, ...]]:
    return [
        (
            key if not number else "",
            each.axis,
            each.op,
            str(each.ranks),
            f"{each.calls:,}",
            _bytes(each.mean_bytes),
            _rate(each.gb_per_s),
            "" if each.share is None else f"{100 * each.share:.0f} %",
            "" if each.seconds is None else seconds(each.seconds),
            each.reason,
        )
        for number, each in enumerate(traffic)
    ]


def _traced_rank(run: RunDirectory, key: str, rank: int) -> RankReport | None:
    """Of its last traced launch."""
    traced = [each for each in run.launches(key) if each.pass_ is Pass.TRACED and each.status is Status.COMPLETED]
    return next((report for report in traced[-1].ranks if report.rank == rank), None) if traced else None


def _achieved(key: str, calls: tuple[Achieved, ...]) -> list[tuple[str, ...]]:
    return [
        (
            key if not number else "",
            each.axis or "none",
            each.op,
            f"{each.calls:,}",
            "" if each.mean_bytes is None else _bytes(each.mean_bytes),
            "" if each.busy_s is None else seconds(each.busy_s),
            "" if each.moving_s is None else seconds(each.moving_s),
            _rate(each.gb_per_s),
            "" if each.of_curve is None else f"{100 * each.of_curve:.0f} %",
            each.reason,
        )
        for number, each in enumerate(calls)
    ]


def _traced(key: str, traffic: tuple[AxisTraffic, ...], launches: list[Measurement]) -> str | None:
    """What the links gave training itself, all of a step's calls together, mean over ranks. Waiting for other ranks is
    in it."""
    busy, exposed = (numbers_of(launches, metric) for metric in ("communication_time", "exposed_communication"))
    if not busy or not exposed or not traffic:
        return None
    took_s, exposed_s = statistics.median(busy), statistics.median(exposed)
    told = f"{key}: {seconds(took_s)} of communication in a traced step, {seconds(exposed_s)} of it exposed"
    alone_s = [each.seconds for each in traffic]
    if None in alone_s or not took_s:
        return told
    in_turn_s = sum(each for each in alone_s if each is not None)
    return f"{told}; {seconds(in_turn_s)} by the curves, so {100 * in_turn_s / took_s:.0f} % of their rate"


def _over_links(key: str, scenario: Scenario, launches: list[Measurement]) -> str | None:
    """What the links' own counters say of the timed launches, beside the calls on paper."""
    sent = numbers_of(launches, "link_bytes")
    if not sent:
        return None
    measured, (predicted, least) = statistics.median(sent), sent_by_each(scenario)
    told = f"{key}: a device sends {measured / 1e9:.4g} GB a step by its links' counters"
    apart = f" ({100 * (measured / predicted - 1):+.1f} %)" if predicted else ""
    switch = ", less where a switch reduces" if least < predicted else ""
    return f"{told}, {predicted / 1e9:.4g} GB by the calls as rings{switch}{apart}"


def _rate(gb_per_s: float | None) -> str:
    if gb_per_s is None:
        return ""
    return significant(gb_per_s) if gb_per_s >= 0.01 else "<0.01"


def _bytes(number: float) -> str:
    if number >= MIB:
        return size(number)
    return f"{significant(number / 1024)} KiB" if number >= 1024 else f"{number:.0f} B"
