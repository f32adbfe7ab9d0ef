"""``pytest-charllm calibrate RUN...``: what launches of unchanged code say of tolerances. A proposal, not the rule."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence

from pytest_charllm.commands import OK
from pytest_charllm.errors import BadInput
from pytest_charllm.judge.proposal import Proposal, propose
from pytest_charllm.judge.script import script_rules
from pytest_charllm.judge.tolerances import ENOUGH_SAMPLES, Tolerance, rules_for
from pytest_charllm.judge.wording import name, width
from pytest_charllm.records import METRICS, Measurement, Validity, tier
from pytest_charllm.report.text import grid
from pytest_charllm.scenario import Script
from pytest_charllm.store.atomic import write_atomically
from pytest_charllm.store.paths import shown
from pytest_charllm.store.run import RunDirectory

PROPOSAL = "proposal.toml"
HEADERS = (
    "scenario", "metric", "launches", "runs", "launch", "run", "card", "asks for", "sees", "in force", "sees then",
    "one run",
)  # fmt: skip
_DIGITS = 4


def run_calibrate(options: argparse.Namespace) -> int:
    """Print the split of the noise by scenario and metric, and write the tolerances that it asks for."""
    runs = [RunDirectory.open(options.root, run) for run in dict.fromkeys(options.runs)]
    _refuse(runs)
    info = runs[0].info
    is_cpu = info.machine.is_cpu
    found = {}
    for key in sorted({key for run in runs for key in run.scenario_keys()}):
        launches = [usable for run in runs if (usable := _usable(run, key))]
        if launches:
            rules = _rules(runs[0], key, launches)
            found[key] = propose(launches, rules, tier(info.tier, is_cpu), is_cpu, options.alpha)
    if not found:
        raise BadInput(f"no valid timed launch in {', '.join(run.id for run in runs)}")
    told = [(key, each) for key, proposals in found.items() for each in proposals if each.tolerance is not None]
    print(grid(HEADERS, [_row(key, proposal) for key, proposal in told], HEADERS[2:]))
    if any(proposal.noise.assumed for _, proposal in told):
        print(f"\n* assumed: fewer than {ENOUGH_SAMPLES} launches, runs or cards show it")
    if not any(_shown(proposal) for _, proposal in told):
        raise BadInput(f"nothing to propose: no scenario has {ENOUGH_SAMPLES} launches; run it with --charllm-launches")
    path = options.output or runs[-1].path / PROPOSAL
    write_atomically(path, _toml(found, runs, options.alpha).encode(), "--output")
    print(f"\nproposal: {shown(path)}")
    print("It is no rule. What it would have called: pytest --charllm-replay=DIR --charllm-rules=FILE")
    return OK


def chance(text: str) -> float:
    """An option's value between 0 and a half."""
    value = float(text)
    if not 0 < value < 0.5:
        raise argparse.ArgumentTypeError(f"{text} is no chance between 0 and 0.5")
    return value


def _refuse(runs: Sequence[RunDirectory]) -> None:
    """Launches that are not unchanged code on one kind of machine say nothing about noise."""
    first = runs[0].info
    for run in runs:
        info = run.info
        if info.faults or info.machine.simulated:
            what = "injected" if info.faults else "simulated"
            raise BadInput(f"run {run.id} is {what}; calibrate by unchanged, real launches")
        for what, here, there in (
            ("hardware", info.machine.variant, first.machine.variant),
            ("shape", info.machine.shape, first.machine.shape),
            ("tier", info.tier, first.tier),
            ("commit", info.commit, first.commit),
        ):
            if here != there:
                raise BadInput(f"{what} of run {run.id} is {here}, of run {runs[0].id} {there}: not unchanged")


def _usable(run: RunDirectory, key: str) -> list[Measurement]:
    launches = [launch for launch in run.measurements(key) if launch.validity is Validity.VALID]
    for launch in launches:
        # Of a replay the run itself knows nothing of what was done to its launches.
        if launch.injected or launch.simulated:
            what = "injected" if launch.injected else "simulated"
            raise BadInput(f"{launch.launch_id} of run {run.id} is {what}; calibrate by unchanged, real launches")
        diff = launches[0].stack.diff(launch.stack)
        if diff:
            raise BadInput(f"{launch.launch_id}: {diff[0][0]} changed from {diff[0][1]} to {diff[0][2]}: not unchanged")
    return launches


def _rules(run: RunDirectory, key: str, launches: Sequence[Sequence[Measurement]]) -> dict[str, Tolerance]:
    machine = run.info.machine
    rules = rules_for(machine.variant, run.info.tier, machine.is_cpu)
    if any(isinstance(launch.scenario.work, Script) for launch in run.launches(key)):
        return script_rules(rules, [each for group in launches for each in group], machine.is_cpu)
    return rules


def _row(key: str, proposal: Proposal) -> tuple[str, ...]:
    noise, metric = proposal.noise, proposal.metric

    def sigma(part: str) -> str:
        value = getattr(noise, part)
        return "" if value is None else _fine(metric, value) + ("*" if part in noise.assumed else "")

    def size(value: float | None) -> str:
        return "" if value is None else width(metric, value)

    return (
        key, name(metric), str(proposal.launches), str(noise.runs), sigma("launch"), sigma("run"), sigma("card"),
        size(proposal.tolerance), size(proposal.sees), size(proposal.shipped), size(proposal.shipped_sees),
        size(proposal.one_run),
    )  # fmt: skip


def _fine(metric: str, value: float) -> str:
    """With one digit more than a tolerance: a standard deviation is a third of it."""
    kind = METRICS[metric]
    if kind.relative:
        return f"{100 * value:.2f} %"
    return f"{100 * value:.2f} points" if kind.unit == "share" else f"{value:.2f} {kind.unit}"


def _toml(found: Mapping[str, Sequence[Proposal]], runs: Sequence[RunDirectory], alpha: float) -> str:
    """In the form that ``--charllm-rules`` reads: the widest that any scenario asks for, with all of them beside it."""
    info = runs[0].info
    lines = [
        f"# Proposed by pytest-charllm calibrate from {', '.join(run.id for run in runs)}",
        f"# ({info.machine.variant} {info.machine.shape}, {info.tier}), chance of a breach by luck {alpha:g} a round.",
        "# No rule until somebody puts it into pytest_charllm/judge/tolerances.py.",
    ]  # fmt: skip
    by_metric: dict[str, dict[str, Proposal]] = {}
    for key, proposals in found.items():
        for proposal in proposals:
            if _shown(proposal):
                by_metric.setdefault(proposal.metric, {})[key] = proposal
    for metric, scenarios in by_metric.items():
        lines += ["", f"[tolerances.{metric}]"]
        lines += [f"# {key}: {_told(each)}" for key, each in scenarios.items()]
        lines.append(f"floor = {_up(max(each.tolerance or 0.0 for each in scenarios.values()))}")
        alone = [each.one_run for each in scenarios.values() if each.one_run is not None]
        if alone:
            lines.append(f"one_run_floor = {_up(max(alone))}")
    return "\n".join(lines) + "\n"


def _shown(proposal: Proposal) -> bool:
    """Whether the launches say it themselves: what was assumed is no ground for a tolerance."""
    return proposal.tolerance is not None and "launch" not in proposal.noise.assumed


def _told(proposal: Proposal) -> str:
    assumed = f", {' and '.join(proposal.noise.assumed)} assumed" if proposal.noise.assumed else ""
    asks, sees = (width(proposal.metric, size or 0.0) for size in (proposal.tolerance, proposal.sees))
    return f"asks for {asks}, sees {sees} ({proposal.launches} launches, runs: {proposal.noise.runs}{assumed})"


def _up(value: float) -> float:
    """Rounded up, so that a proposal is never narrower than what it rests on."""
    return round(value + 0.5 * 10**-_DIGITS, _DIGITS)
