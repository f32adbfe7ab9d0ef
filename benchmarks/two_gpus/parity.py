"""Train every layout of two ranks on two GPUs, and hold each against one GPU and against what is on paper.

    python benchmarks/two_gpus/parity.py [--launch NAME ...] [--limit-s 400] [--out FILE]

Scenarios and launches are in cases.toml. Each scenario trains five steps on two ranks, and the same model on the same
sequences, plain and in the same precision, on one GPU; rank 0 also trains the fp32 reference. Prints one JSON line a
scenario: its largest relative differences from one GPU and from fp32 in loss and gradient norm, the strict checks of a
diagnostic launch (parity with fp32, parameters, FLOPs, each collective's count and bytes on every rank), seconds, and
what failed. A scenario that ends or hangs its ranks costs only itself: the rest of its launch starts again after it. On
a machine without GPUs the same runs over gloo on two CPU ranks. Exits 1 where a scenario failed.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path

from launches import Cases, Lines, Outcome, Started, finish, start
from msgspec.structs import replace

from pytest_charllm.devices.find import find_machine
from pytest_charllm.hardware.catalogue import CATALOGUE
from pytest_charllm.hardware.machine import Machine
from pytest_charllm.measure.checks import GRAD_NORM_LIMIT, LOSS_LIMIT, checks
from pytest_charllm.records import Launch, Pass, RankReport, Status, tier
from pytest_charllm.scenario import Layout, Options, Scenario
from pytest_charllm.scenario.feasibility import infeasible
from pytest_charllm.scenario.key import parse_key
from pytest_charllm.scenario.spec import DEFAULT_ENGINE

CASES = tomllib.loads(Path(__file__).with_name("cases.toml").read_text())
WORLD = 2
ALONE_LIMIT_S = 60.0


def alone(scenario: Scenario) -> Scenario:
    """The same model on the same sequences in one process, without what only changes how it is computed."""
    return replace(
        scenario,
        work=replace(scenario.training, global_batch=scenario.global_batch),
        layout=Layout(),
        options=Options(precision=scenario.options.precision, compile=False, lora=scenario.options.lora),
        engine=DEFAULT_ENGINE,
    )


def largest_difference(here: Sequence[float], there: Sequence[float]) -> float:
    """Relative, step by step."""
    return max(abs(a / b - 1) for a, b in zip(here, there, strict=True))


def differences(report: RankReport, losses: Sequence[float], norms: Sequence[float]) -> list[float]:
    """[of the loss, of the gradient norm]"""
    return [largest_difference(report.losses, losses), largest_difference(report.grad_norms, norms)]


def broken_checks(scenario: Scenario, reports: tuple[RankReport, ...]) -> list[str]:
    """What a strict check of the product says of these reports, one line each that does not hold."""
    launch = Launch(
        id=scenario.key, scenario=scenario, pass_=Pass.DIAGNOSTIC, window=tier("smoke", False).window,
        status=Status.COMPLETED, ranks=reports,
    )  # fmt: skip
    return [
        f"{check.name}: expected {check.expected}, observed {check.observed} {check.detail}".strip()
        for check in checks(launch)
        if not check.ok
    ]


def line(scenario: Scenario, launch: str, outcome: Outcome, single: Outcome | None) -> dict[str, object]:
    """The JSON line of one scenario. `single`: the same on one GPU. Differences are [of the loss, of the norm]."""
    told: dict[str, object] = {"key": scenario.key, "launch": launch, "ok": False, "seconds": outcome.seconds}
    if not outcome.reports:
        return told | {"error": outcome.error, "output": outcome.output}
    first, *_ = outcome.reports
    broken = broken_checks(scenario, outcome.reports)
    if any((report.losses, report.grad_norms) != (first.losses, first.grad_norms) for report in outcome.reports):
        broken.append("ranks disagree on losses or gradient norms")
    if single is None or not single.reports:
        broken.append(f"one GPU: {'not run' if single is None else single.error}")
    else:
        found = differences(first, single.reports[0].losses, single.reports[0].grad_norms)
        told |= {"from_one_gpu": found}
        precision = scenario.options.precision
        limits = LOSS_LIMIT[precision], GRAD_NORM_LIMIT[precision]
        broken += [
            f"{what} is {difference:.2g} from that of one GPU, limit {limit:g}"
            for what, difference, limit in zip(("loss", "gradient norm"), found, limits, strict=True)
            if not difference <= limit
        ]
    if first.reference is not None:
        told["from_fp32"] = differences(first, first.reference.losses, first.reference.grad_norms)
    told["collectives"] = [[each.axis, each.op, each.count, each.bytes] for each in first.collectives]
    if outcome.counted:
        told["split_products"] = outcome.counted
    return told | {"attention": first.attention_backend, "ok": not broken, "broken": broken}


def selected(launches: Sequence[str], machine: Machine) -> tuple[dict[str, list[str]], list[dict[str, object]]]:
    """Keys by launch, and a line for each that this machine cannot run."""
    keys: dict[str, list[str]] = {}
    refused: list[dict[str, object]] = []
    for name in launches:
        keys[name] = []
        for key in CASES[name]["cases"]:
            broken = infeasible(parse_key(key), CATALOGUE[machine.variant], machine)
            if broken is None:
                keys[name].append(key)
            else:
                refused.append({"key": key, "launch": name, "skipped": str(broken)})
    return keys, refused


def run(names: Sequence[str], until_s: float, root: Path, tell: Lines) -> None:
    machine = find_machine()
    keys, refused = selected(names, machine)
    for skipped in refused:
        tell(skipped)
    singles = {key: alone(parse_key(key)).key for each in keys.values() for key in each}
    last = machine.devices[-1].uuid if machine.devices else None
    cases = Cases(tuple(dict.fromkeys(singles.values())), 1, ALONE_LIMIT_S, root / "alone", last)
    beside: Started | None = start(cases)
    one_gpu: dict[str, Outcome] = {}
    try:
        for name, each in keys.items():
            began_s = time.monotonic()
            if each and began_s < until_s:
                of_two = Cases(tuple(each), WORLD, CASES[name]["case_limit_s"], root / name)
                found = finish(start(of_two), until_s)
            else:
                found = {key: Outcome(error="not run: out of time") for key in each}
            if beside is not None:
                one_gpu, beside = finish(beside, until_s), None
            for key, outcome in found.items():
                tell(line(parse_key(key), name, outcome, one_gpu.get(singles[key])))
            tell({"launch": name, "cases": len(each), "wall_s": time.monotonic() - began_s})
    finally:
        if beside is not None:
            beside.end()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--launch", nargs="+", choices=CASES, default=list(CASES), metavar="NAME")
    parser.add_argument("--limit-s", type=float, default=400.0, help="no launch starts after it, and all end (400)")
    parser.add_argument("--out", type=Path, help="append the JSON lines here, too")
    options = parser.parse_args()
    # So that `timeout` and Ctrl-C leave no rank behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    tell = Lines(options.out)
    with tempfile.TemporaryDirectory(prefix="two-gpus-") as folder:
        run(options.launch, time.monotonic() + options.limit_s, Path(folder), tell)
    return 1 if tell.failed else 0


if __name__ == "__main__":
    sys.exit(main())
