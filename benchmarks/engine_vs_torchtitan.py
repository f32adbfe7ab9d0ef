"""The native engine and torchtitan in turn on the same GPUs, in the same measuring loop.

    python benchmarks/engine_vs_torchtitan.py --torchtitan PATH [--rounds 3] [--row KEY ...] [--out FILE]

PATH is an unpacked torchtitan 0.2.2 wheel; nothing is downloaded. Both train the same shape on the same random tokens
with clipping at 1.0, the same fused AdamW, per-block compile and bf16 over fp32 master weights; each launch is a
fresh torchrun job with warm-up and a nightly window, and the two change places every round. Rows are scenario keys.
Prints one JSON line a launch, then a table: medians, the ratio ours / theirs with the smallest and largest of its
rounds, share of the sustained matmul rate of the same launches, and J/token.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tabulate import tabulate

from pytest_charllm.campaign.runner import Runner
from pytest_charllm.campaign.settings import Evidence, Planned, Settings
from pytest_charllm.devices.find import find_machine
from pytest_charllm.launch.launcher import TorchrunLauncher
from pytest_charllm.records import Launch, Measurement, Pass, tier
from pytest_charllm.scenario.flops import FLOP_FORMULA, flops_per_token
from pytest_charllm.scenario.key import parse_key
from pytest_charllm.store.run import RunDirectory

ROWS = (
    "llama3-1b.mb1", "llama3-1b.mb2", "llama3-1b.mb4", "llama3-1b.mb8", "llama3-8b.8L.mb1", "llama3-8b.8L.mb2",
)  # fmt: skip
PEER = str(Path(__file__).with_name("torchtitan"))


@contextmanager
def trained_by(engine: str, wheel: Path) -> Iterator[None]:
    """Ranks inherit this environment."""
    before = dict(os.environ)
    if engine == "torchtitan":
        os.environ["CHARLLM_TORCHTITAN"] = str(wheel)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (PEER, before.get("PYTHONPATH"))))
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def numbers(engine: str, launch: Launch, measurement: Measurement) -> dict[str, object]:
    values = {name: value.value for name, value in measurement.values.items()}
    scenario = launch.scenario
    rate = statistics.median(
        calibration.work / statistics.median(calibration.wall_s)
        for report in launch.ranks
        for calibration in report.calibration
        if calibration.kind == "matmul"
    )
    tokens_per_s = values.get("throughput")
    achieved = None if tokens_per_s is None else tokens_per_s * flops_per_token(scenario, FLOP_FORMULA)
    return {
        "engine": engine,
        "scenario": scenario.key,
        "tokens_per_s_per_gpu": tokens_per_s,
        "matmul_flop_per_s": rate,
        "share_of_matmul": None if achieved is None else achieved / rate,
        "j_per_token": values.get("energy_per_token"),
        "mean_power_w": values.get("mean_power"),
        "device": [report.device.uuid or report.device.name for report in launch.ranks],
        "loss_tokens": launch.ranks[0].tokens_per_step,
        "attention": launch.ranks[0].attention_backend,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--torchtitan", type=Path, required=True, metavar="PATH")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--row", nargs="+", default=ROWS, metavar="KEY")
    parser.add_argument("--out", type=Path, help="append the JSON lines here, too")
    options = parser.parse_args()
    if not (options.torchtitan / "torchtitan" / "models").is_dir():
        sys.exit(f"{options.torchtitan} is no unpacked torchtitan wheel: it has no torchtitan/models")
    machine = find_machine()
    found: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        settings = Settings(
            machine=machine, tier=tier("nightly", machine.is_cpu), root=root, shipped=root / "baselines"
        )
        run = RunDirectory.create(root, machine=machine, tier=settings.tier.name)
        runner = Runner(settings, TorchrunLauncher(), run)
        for key in options.row:
            evidence = {engine: Evidence(Planned(parse_key(key))) for engine in ("native", "torchtitan")}
            for number in range(options.rounds):
                order = list(evidence) if number % 2 == 0 else list(evidence)[::-1]
                for engine in order:
                    with trained_by(engine, options.torchtitan.resolve()):
                        measurement = runner(evidence[engine], Pass.TIMED, of=options.rounds)
                    if measurement is None:
                        failed = evidence[engine].failed
                        cause = evidence[engine].invalid if failed is None else failed.first_cause
                        sys.exit(f"{engine} on {key} failed: {cause}")
                    found.append(numbers(engine, evidence[engine].launches[-1], measurement))
                    line = json.dumps(found[-1])
                    print(line, flush=True)
                    if options.out:
                        with options.out.open("a") as out:
                            out.write(line + "\n")
    print(table(found))


def table(found: list[dict[str, object]]) -> str:
    rows = []
    for key in dict.fromkeys(str(each["scenario"]) for each in found):
        ours, theirs = (
            [each for each in found if each["scenario"] == key and each["engine"] == engine]
            for engine in ("native", "torchtitan")
        )
        ratios = [
            a["tokens_per_s_per_gpu"] / b["tokens_per_s_per_gpu"]  # type: ignore[operator]
            for a, b in zip(ours, theirs, strict=True)
        ]
        rows.append(
            [
                key,
                _median(ours, "tokens_per_s_per_gpu"),
                _median(theirs, "tokens_per_s_per_gpu"),
                f"{statistics.median(ratios):.3f} ({min(ratios):.3f}..{max(ratios):.3f})",
                _median(ours, "share_of_matmul"),
                _median(theirs, "share_of_matmul"),
                _median(ours, "j_per_token"),
                _median(theirs, "j_per_token"),
            ]
        )
    headers = ["scenario", "ours tok/s", "torchtitan", "ratio", "of matmul", "theirs", "J/token", "theirs"]
    return tabulate(rows, headers=headers, floatfmt=".4g")


def _median(each: list[dict[str, object]], name: str) -> float | None:
    values = [value for one in each if isinstance(value := one[name], float)]
    return statistics.median(values) if values else None


if __name__ == "__main__":
    main()
