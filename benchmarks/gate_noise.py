"""How much Gate A scatters on this CPU between launches of unchanged code, by estimator and window length.

Scenarios take turns, launch by launch. Prints the CoV over the launches of each scenario, in percent, for the first N
steps of every window. `gate A` is what is judged: median over steps of step / (matmul + decoder), mean over ranks.

    python benchmarks/gate_noise.py [--launches 8] [--steps 40]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import structs
from tabulate import tabulate

from pytest_charllm.devices.find import cpu_machine
from pytest_charllm.launch.launcher import TorchrunLauncher
from pytest_charllm.launch.request import LaunchRequest
from pytest_charllm.measure.steps import cost_cpu
from pytest_charllm.records import Launch, Pass, RankReport, Status, StepSeries, tier
from pytest_charllm.scenario.key import parse_key

SCENARIOS = ("tiny-llama.dp2.mb2.fp32.eager", "tiny-gpt.dp2.mb2.fp32.eager", "tiny-llama.dp2+fsdp.mb2.fp32.eager")


def first_steps(report: RankReport, steps: int) -> RankReport:
    assert report.steps is not None
    return structs.replace(
        report,
        steps=StepSeries(wall_s=report.steps.wall_s[:steps], cpu_s=report.steps.cpu_s[:steps]),
        calibration=tuple(structs.replace(c, cpu_s=c.cpu_s[:steps]) for c in report.calibration),
    )


def gate_a(reports: Sequence[RankReport]) -> float:
    value = cost_cpu(reports).value
    assert value is not None
    return value


def ratio_of_sums(*kinds: str) -> Callable[[Sequence[RankReport]], float]:
    def estimate(reports: Sequence[RankReport]) -> float:
        step_s = sum(sum(report.steps.cpu_s) for report in reports if report.steps is not None)
        return step_s / sum(sum(c.cpu_s) for report in reports for c in report.calibration if c.kind in kinds)

    return estimate


ESTIMATORS = {
    "gate A": gate_a,
    "sums, both": ratio_of_sums("matmul", "decoder"),
    "sums, decoder": ratio_of_sums("decoder"),
    "sums, matmul": ratio_of_sums("matmul"),
}


def run(scenario: str, number: int, steps: int, root: Path) -> Launch:
    directory = root / f"{scenario}-{number}"
    directory.mkdir()
    request = LaunchRequest(
        id=directory.name,
        scenario=parse_key(scenario),
        pass_=Pass.TIMED,
        window=structs.replace(tier("smoke", is_cpu=True).window, min_steps=steps),
        machine=cpu_machine({}),
        directory=directory,
        cache_dir=root / "cache",
        source="cpu",
    )
    launch = TorchrunLauncher().run(request)
    if launch.status is not Status.COMPLETED:
        sys.exit(f"{scenario}: {launch.first_cause}")
    return launch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--launches", type=int, default=8)
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    launches: dict[str, list[Launch]] = {scenario: [] for scenario in SCENARIOS}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.launches):
            for scenario, done in launches.items():
                done.append(run(scenario, number, options.steps, Path(folder)))
    rows = []
    for scenario, done in launches.items():
        for steps in range(16, options.steps + 1, 8):
            windows = [[first_steps(report, steps) for report in launch.ranks] for launch in done]
            values = {name: [estimate(window) for window in windows] for name, estimate in ESTIMATORS.items()}
            rows.append((scenario, steps, *(100 * statistics.stdev(v) / statistics.mean(v) for v in values.values())))
    print(tabulate(rows, headers=["scenario", "steps", *(f"{name} %" for name in ESTIMATORS)], floatfmt=".2f"))


if __name__ == "__main__":
    main()
