"""The native engine and torchtitan, or the native engine and itself with a lever moved, in turn on the same GPUs.

    python benchmarks/engine_vs_torchtitan.py --torchtitan PATH [--row KEY ...] [--variant SPEC ...] [--out FILE]

PATH is an unpacked torchtitan 0.2.2 wheel; nothing is downloaded. All variants train the same shape on the same random
tokens, with clipping at 1.0, the same fused AdamW, per-block compile, and bf16 over fp32 master weights.

A row is one launch: every variant is built and warmed up in the same processes, then they step in turn, in blocks of
some seconds, in the opposite order every round, with a block of sustained bf16 products before each round. A block has
CUDA events around its steps, no wait and no garbage collection. Whoever steps next inherits clocks and power from
whoever stepped before: the steps of the first `--settle-s` seconds of every block count for nothing, of products too.
Energy is of the same steps, from the counter that the sampler reads at 10 Hz around a block's edges.

Rounds: as many, an even number, as fit into `--row-s`, with blocks of `--least-block-s` to `--block-s`. Where variants
do not fit into memory together, one is there at a time (`--apart` asks for that) and does half of its blocks in a row;
that takes longer than `--row-s`. Variants are described in in_turn/variants.py; only native ones train mixtures.

Prints one JSON line a row, then a table: throughput of one GPU, ratio of the first variant to each other (median of the
rounds, smallest and largest), share of the sustained products of the same launch, energy, peak of allocated memory
without what the other variants hold. The exit code is 1 where something failed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
from in_turn.figures import Seen, figures, table
from in_turn.told import Failed, Spec, read
from in_turn.variants import Variant, parse

from pytest_charllm.devices.find import find_machine
from pytest_charllm.devices.open import source_of
from pytest_charllm.errors import BadRecord, CharllmError
from pytest_charllm.hardware.machine import Machine
from pytest_charllm.launch.environment import child_environment
from pytest_charllm.launch.names import LAUNCHER_PID, REQUEST
from pytest_charllm.launch.process import end_tree
from pytest_charllm.launch.request import LaunchRequest, rank_request
from pytest_charllm.records import Pass, Trace, tier, to_pretty_json
from pytest_charllm.scenario import Scenario
from pytest_charllm.scenario.capabilities import unsupported
from pytest_charllm.scenario.key import parse_key
from pytest_charllm.scenario.models import shape_of
from pytest_charllm.telemetry.reader import read_trace

ROWS = (
    "llama3-1b.mb1", "llama3-1b.mb2", "llama3-1b.mb4", "llama3-1b.mb8", "llama3-8b.8L.mb1", "llama3-8b.8L.mb2",
    "mixtral-8x7b.2L.mb8",
)  # fmt: skip
_GRACE_S = 90.0
"""On top of the time of a row: compilers may take long, and this one must end all the same."""
_STACKS_S = 5.0
"""So much earlier than they would be ended, ranks that hang end themselves and say where."""
_APART_FACTOR = 3.0


def measure(
    scenario: Scenario, variants: list[Variant], options: argparse.Namespace, machine: Machine
) -> dict[str, Any]:
    """One row, of whatever was told before it ended, well or not."""
    began_s = time.monotonic()
    limit_s = options.row_s * (_APART_FACTOR if options.apart else 1.0) + _GRACE_S
    world, gpu = scenario.layout.world, not machine.is_cpu
    if gpu and world > len(machine.devices):
        raise CharllmError(f"needs {world} GPUs, {len(machine.devices)} are visible")
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        request = LaunchRequest(
            id="in-turn",
            scenario=scenario,
            pass_=Pass.TIMED,
            window=tier("nightly", machine.is_cpu).window,
            machine=machine,
            directory=directory,
            cache_dir=options.cache,
            source=source_of(machine),
            device_uuids=tuple(device.uuid for device in machine.devices[:world]) if gpu else (),
        )
        spec = Spec(
            variants=tuple(each.name for each in variants),
            wheel=str(options.torchtitan.resolve()) if options.torchtitan else "",
            rounds=options.rounds,
            block_s=options.block_s,
            least_block_s=options.least_block_s,
            settle_s=options.settle_s,
            matmul_s=options.matmul_s,
            until_ns=round((began_s + options.row_s) * 1e9),
            limit_s=limit_s - _STACKS_S,
            apart=options.apart,
            source=request.source,
            uuids=request.device_uuids,
            trace=str(directory / "telemetry.jsonl"),
            out=str(directory / "told.jsonl"),
        )
        (directory / REQUEST).write_bytes(to_pretty_json(rank_request(request)))
        (directory / "spec.json").write_bytes(msgspec.json.encode(spec))
        broken = launch(world, request, directory / "spec.json", options.cache, limit_s)
        told = read(Path(spec.out))
        if broken:
            told.append(Failed(variant="row", message=broken))
        row = figures(scenario, told, Seen(_trace(Path(spec.trace)), request.device_uuids))
    return row | {"settle_s": options.settle_s, "wall_s": time.monotonic() - began_s, "driver": machine.driver}


def launch(world: int, request: LaunchRequest, spec: Path, cache: Path, limit_s: float) -> str | None:
    """Run a row's ranks to their end, or end them; what went wrong in one line, or None. One rank needs no torchrun."""
    environment = child_environment(request, os.environ)
    paths = (str(Path(__file__).parent), environment.get("PYTHONPATH"))
    environment |= {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        # One cache for all rows: what two of them have in common is compiled once.
        "TORCHINDUCTOR_CACHE_DIR": str(cache.resolve() / "inductor"),
        "TRITON_CACHE_DIR": str(cache.resolve() / "triton"),
        LAUNCHER_PID: str(os.getpid()),
    }
    command = [sys.executable]
    if world > 1:
        command += [
            "-m", "pytest_charllm.launch.agent", "-m", "torch.distributed.run", "--nproc-per-node", str(world),
            "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "--rdzv-id", request.id,
            "--local-addr", "localhost",
        ]  # fmt: skip
    command += ["-m", "in_turn.rank", str(spec)]
    log = spec.with_name("ranks.log")
    with open(log, "wb") as output:
        ranks = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment, start_new_session=True
        )
        try:
            code: int | None = ranks.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            if ranks.poll() is None:
                end_tree(ranks, ())
    if code == 0:
        return None
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    print("\n".join(lines[-25:]), file=sys.stderr, flush=True)
    said = next((line.strip() for line in reversed(lines) if "Error" in line), lines[-1] if lines else "said nothing")
    return f"{f'ended after {limit_s:.0f} s' if code is None else f'exit {code}'}: {said}"


def _trace(path: Path) -> Trace | None:
    try:
        return read_trace(path)
    except BadRecord as error:
        print(error, file=sys.stderr)
        return None


def able(variants: list[Variant], scenario: Scenario) -> list[Variant]:
    """Those that can train it; the peer here is torchtitan's dense Llama."""
    return [each for each in variants if each.engine == "native" or not shape_of(scenario).experts]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--torchtitan", type=Path, metavar="PATH", help="an unpacked torchtitan 0.2.2 wheel")
    parser.add_argument("--row", nargs="+", default=ROWS, metavar="KEY", help="scenarios (default: %(default)s)")
    parser.add_argument("--variant", nargs="+", default=("native", "torchtitan"), metavar="SPEC")
    parser.add_argument("--rounds", type=int, default=6, help="at most, an even number (default: %(default)s)")
    parser.add_argument("--block-s", type=float, default=4.0, help="longest block (default: %(default)s)")
    parser.add_argument("--least-block-s", type=float, default=2.0, help="shortest block (default: %(default)s)")
    parser.add_argument("--settle-s", type=float, default=0.6, help="dropped of each block (default: %(default)s)")
    parser.add_argument("--matmul-s", type=float, default=2.0, help="products of a round (default: %(default)s)")
    parser.add_argument("--row-s", type=float, default=75.0, help="a row, start included (default: %(default)s)")
    parser.add_argument("--apart", action="store_true", help="one variant in memory at a time")
    parser.add_argument("--cache", type=Path, help="compiler caches (default: empty ones, shared by all rows)")
    parser.add_argument("--out", type=Path, help="append the JSON lines here, too")
    options = parser.parse_args()
    if options.rounds < 2 or options.rounds % 2:
        parser.error("--rounds must be an even number, so that no variant is ahead of the others more often")
    try:
        variants = [parse(each) for each in options.variant]
        scenarios = [parse_key(key) for key in options.row]
        machine = find_machine()
    except CharllmError as error:
        parser.error(str(error))
    wheel = options.torchtitan
    if any(each.engine == "torchtitan" for each in variants) and not (wheel and (wheel / "torchtitan/models").is_dir()):
        parser.error(f"--torchtitan {wheel}: no unpacked torchtitan wheel, it has no torchtitan/models")
    rows = []
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        options.cache = options.cache or Path(folder)
        for scenario in scenarios:
            try:
                if reason := unsupported(scenario):
                    raise CharllmError(reason)
                row = measure(scenario, able(variants, scenario), options, machine)
            except (CharllmError, OSError) as error:
                print(f"{scenario.key}: {error}", flush=True)
                failures += 1
                continue
            rows.append(row)
            line = json.dumps(row)
            print(line, flush=True)
            if options.out:
                with options.out.open("a") as out:
                    out.write(line + "\n")
            for name, message in row["failed"].items():
                print(f"{scenario.key}: {name} failed: {message}", flush=True)
            failures += bool(row["failed"])
    print(table(rows))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
