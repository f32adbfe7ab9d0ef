"""What a launch through this project costs beside a bare torchrun of the same rank program.

The two take turns; each pair gives one ratio. On ours the clock covers all that a launch of a campaign does: request,
sampler, agent, ranks, classification, trace, measurement, records. Prints every pair, the medians and the median ratio.

    python benchmarks/launch_overhead.py [--pairs 7] [--scenario tiny-llama.dp2.mb2.fp32.eager]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tabulate import tabulate

from pytest_charllm.campaign.runner import Runner
from pytest_charllm.campaign.settings import Evidence, Planned, Settings
from pytest_charllm.devices.find import find_machine
from pytest_charllm.launch.environment import rank_environment
from pytest_charllm.launch.exchange import write_request
from pytest_charllm.launch.launcher import TorchrunLauncher
from pytest_charllm.launch.names import torchrun_arguments
from pytest_charllm.launch.request import LaunchRequest
from pytest_charllm.records import Pass, tier
from pytest_charllm.scenario.key import parse_key
from pytest_charllm.store.run import RunDirectory


def ours(runner: Runner, evidence: Evidence) -> float:
    begin = time.perf_counter()
    if runner(evidence, Pass.TIMED, of=1) is None:
        sys.exit(f"the launch failed: {evidence.invalid or evidence.failed}")
    return time.perf_counter() - begin


def bare(request: LaunchRequest) -> float:
    request.directory.mkdir(parents=True)
    begin = time.perf_counter()
    write_request(request)
    command = [sys.executable, *torchrun_arguments(request)]
    with open(request.directory / "torchrun.log", "wb") as log:
        subprocess.run(command, env=rank_environment(request), stdout=log, stderr=log, timeout=600, check=True)
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--scenario", default="tiny-llama.dp2.mb2.fp32.eager")
    options = parser.parse_args()
    scenario = parse_key(options.scenario)
    machine = find_machine()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        settings = Settings(machine=machine, tier=tier("nightly", machine.is_cpu), root=root, shipped=root / "baselines")
        run = RunDirectory.create(root, machine=machine, tier=settings.tier.name)
        runner = Runner(settings, TorchrunLauncher(), run)
        evidence = Evidence(Planned(scenario), machine)
        rows = []
        for pair in range(options.pairs):
            request = LaunchRequest(
                id=f"bare-{pair}",
                scenario=scenario,
                pass_=Pass.TIMED,
                window=settings.tier.window,
                machine=machine,
                device_uuids=tuple(device.uuid for device in machine.devices[: scenario.layout.world]),
                directory=root / f"bare-{pair}",
                cache_dir=run.cache,
                source="cpu" if machine.is_cpu else "nvml",
            )
            both = (bare(request), ours(runner, evidence)) if pair % 2 else (ours(runner, evidence), bare(request))[::-1]
            rows.append((pair, *both, both[1] / both[0]))
            print(f"pair {pair}: bare {both[0]:.2f} s, ours {both[1]:.2f} s", flush=True)
    print(tabulate(rows, headers=["pair", "bare torchrun s", "pytest-charllm s", "ratio"], floatfmt=".3f"))
    middle = [statistics.median(column) for column in list(zip(*rows, strict=True))[1:]]
    print(f"medians: bare {middle[0]:.2f} s, ours {middle[1]:.2f} s; median ratio {middle[2]:.3f}")


if __name__ == "__main__":
    main()
