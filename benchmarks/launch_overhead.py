"""What a launch through this project costs beside a bare torchrun of the same rank program.

The two take turns; each pair gives one ratio. On ours the clock covers all that a launch of a campaign does: request,
sampler, agent, ranks, classification, trace, measurement, records. Prints every pair, the medians and the median ratio.

    python benchmarks/launch_overhead.py [--pairs 7] [--scenario tiny-llama.dp2.mb2.fp32.eager]
"""

from __future__ import annotations

import argparse
import os
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
from pytest_charllm.launch.environment import child_environment, torchrun_arguments
from pytest_charllm.launch.launcher import TorchrunLauncher
from pytest_charllm.launch.names import LOGS, REQUEST
from pytest_charllm.launch.request import LaunchRequest, rank_request
from pytest_charllm.records import Pass, tier, to_json
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
    (request.directory / REQUEST).write_bytes(to_json(rank_request(request)))
    arguments = torchrun_arguments(request.scenario.layout.world, request.id, str(request.directory / LOGS))
    environment = child_environment(request, os.environ)
    with open(request.directory / "torchrun.log", "wb") as log:
        subprocess.run([sys.executable, *arguments], env=environment, stdout=log, stderr=log, timeout=600, check=True)
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
        tier_here = tier("nightly", machine.is_cpu)
        settings = Settings(machine=machine, tier=tier_here, root=root, shipped=root / "baselines")
        run = RunDirectory.create(root, machine=machine, tier=settings.tier.name)
        runner = Runner(settings, TorchrunLauncher(), run)
        evidence = Evidence(Planned(scenario))
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
            if pair % 2:
                bare_s, ours_s = bare(request), ours(runner, evidence)
            else:
                ours_s, bare_s = ours(runner, evidence), bare(request)
            rows.append((pair, bare_s, ours_s, ours_s / bare_s))
            print(f"pair {pair}: bare {bare_s:.2f} s, ours {ours_s:.2f} s", flush=True)
    print(tabulate(rows, headers=["pair", "bare torchrun s", "pytest-charllm s", "ratio"], floatfmt=".3f"))
    middle = [statistics.median(column) for column in list(zip(*rows, strict=True))[1:]]
    print(f"medians: bare {middle[0]:.2f} s, ours {middle[1]:.2f} s; median ratio {middle[2]:.3f}")


if __name__ == "__main__":
    main()
