"""Build and step every layout of the CharLLM study where no machine has that many GPUs: as one rank of a world of
fakes, with full-size models that have no memory, and collectives that go nowhere.

    python benchmarks/fake_worlds.py [--world N ...] [--model NAME ...] [--layout TEXT ...]

One line a layout: the ranks that were stepped (one in the first and one in the last stage), parameters on the larger of
them, collectives of its step, and whether they are those on paper; then a total. World 1024 multiplies dp. The global
batch is one microbatch for each stage and data-parallel rank, which is enough for a pipeline to fill. As in the study
all recompute in full, and dp without sharding has a distributed optimizer. Needs no GPU. Exits 1 where a layout fails
that the feasibility rules let pass.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import msgspec
import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineSchedule
from torch.testing._internal.distributed.fake_pg import FakeStore

from pytest_charllm.engines.native.mesh import Mesh, build_mesh
from pytest_charllm.engines.native.model import Decoder
from pytest_charllm.engines.native.setup import build_step
from pytest_charllm.engines.native.world import World
from pytest_charllm.hardware.catalogue import CATALOGUE
from pytest_charllm.hardware.machine import Machine
from pytest_charllm.records import Pass, RankRequest, tier
from pytest_charllm.scenario import Layout, Options, Recompute, Scenario, Sharding, Training
from pytest_charllm.scenario.feasibility import Broken, infeasible
from pytest_charllm.scenario.layout import format_layout, parse_layout
from pytest_charllm.scenario.models import sequence, shape_of
from pytest_charllm.scenario.traffic import collectives

sys.path.insert(0, str(Path(__file__).parents[1]))

from suites import study

STUDIED = (study.GPT3_175B, study.GPT3_175B_FSDP, study.LLAMA3_70B, study.MIXTRAL_8X7B, study.MIXTRAL_8X22B)
CPU = torch.device("cpu")


class FakeWorld(World):
    """What other ranks would add is not known here."""

    def total(self, value: int) -> int:
        return value


def studied(model: str, world: int) -> Iterator[tuple[str, Layout]]:
    """(machine shape, layout) of one model for a world: as studied, or with dp multiplied up to it."""
    for rows in STUDIED:
        if rows.model == model:
            for machine, layouts in rows.layouts.items():
                for layout in map(parse_layout, layouts.split()):
                    if world == layout.world:
                        yield machine, layout
                    elif world > 64 and world % layout.world == 0:
                        yield machine, msgspec.structs.replace(layout, dp=layout.dp * world // layout.world)


def scenario_of(model: str, layout: Layout) -> Scenario:
    work = Training(model=model, microbatch=1, global_batch=layout.stages * layout.dp)
    options = Options(
        recompute=Recompute.FULL,
        compile=False,
        distributed_optimizer=layout.dp > 1 and layout.sharding is Sharding.NONE,
    )
    return Scenario(work=work, layout=layout, options=options)


def refused(scenario: Scenario, machine: str) -> Broken | None:
    """By the rules, on a machine of that hardware which is as large as the layout."""
    hardware = CATALOGUE[machine.partition(":")[0]]
    nodes = max(1, scenario.layout.world // hardware.gpus_per_node)
    whole = Machine(variant=hardware.variant, gpus_per_node=hardware.gpus_per_node, nodes=nodes, assumed=True)
    return infeasible(scenario, hardware, whole)


def without_weights(model: Decoder, seq: int, device: torch.device, *_: object) -> None:
    """In the place of `initialize`, whose `to_empty` cannot exchange the memory of fakes."""
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            setattr(module, name, nn.Parameter(torch.empty_like(parameter, device=device)))
    model.fill_rotary(seq, device)


def static_shapes(schedule: object, stages: list[PipelineStage], *_: object) -> None:
    """In the place of the vote of newer torch on whether all stages know their shapes: a fake vote has no count."""
    from torch.distributed.pipelining.stage import InferenceMode

    for stage in stages:
        stage._inference_mode = InferenceMode.STATIC


_device_mesh = Mesh.device_mesh


def real_device_mesh(mesh: Mesh, device: torch.device, expert: bool = False) -> DeviceMesh:
    """A device mesh looks into the tensor of its ranks."""
    with unset_fake_temporarily():
        return _device_mesh(mesh, device, expert)


@contextmanager
def fake_rank(rank: int, size: int) -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    try:
        with (
            patch("pytest_charllm.engines.native.parallelize.initialize", without_weights),
            patch.object(Mesh, "device_mesh", real_device_mesh),
            patch.object(_PipelineSchedule, "_warmup_p2p", static_shapes, create=True),
            FakeTensorMode(allow_non_fake_inputs=True),
        ):
            yield
    finally:
        dist.destroy_process_group()


def step_as(scenario: Scenario, rank: int) -> tuple[int, int, list[str]]:
    """(parameters that this rank holds, collectives of its step, what of them is not on paper)."""
    layout = scenario.layout
    request = RankRequest(
        nonce="fake", scenario=scenario, pass_=Pass.TIMED, window=tier("smoke", False).window, device="cpu",
        out_dir=".", deadline_s=100.0,
    )  # fmt: skip
    with fake_rank(rank, layout.world):
        world = FakeWorld(rank, layout.world, CPU, build_mesh(layout, rank, shape_of(scenario).tied))
        step = build_step(request, shape_of(scenario), sequence(scenario), world, CPU)
        with step.counting_collectives() as counted:
            step(0)
        found = {(each.op, each.axis): (each.count, each.bytes) for each in counted()}
        wanted = {(each.op, each.axis): (each.count, each.bytes) for each in collectives(scenario, rank)}
        differences = [
            f"{op} on {axis}: {found.get((op, axis))}, on paper {wanted.get((op, axis))}"
            for op, axis in sorted(found.keys() | wanted.keys())
            if found.get((op, axis)) != wanted.get((op, axis))
        ]
        return step.parameter_count, sum(count for count, _ in found.values()), differences


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--world", type=int, nargs="+", default=[32, 64, 1024])
    parser.add_argument("--model", nargs="+", default=list(dict.fromkeys(rows.model for rows in STUDIED)))
    parser.add_argument("--layout", nargs="+")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    counts = {"stepped": 0, "refused": 0, "failed": 0}
    began_s = time.perf_counter()
    for world in arguments.world:
        for model in arguments.model:
            for machine, layout in studied(model, world):
                if arguments.layout and format_layout(layout) not in arguments.layout:
                    continue
                verdict = try_layout(scenario_of(model, layout), machine)
                counts[verdict] += 1
    print(", ".join(f"{count} {what}" for what, count in counts.items()), f"in {time.perf_counter() - began_s:.0f} s")
    return 1 if counts["failed"] else 0


def try_layout(scenario: Scenario, machine: str) -> str:
    layout = scenario.layout
    name = f"{layout.world:5d}  {machine:13s}  {scenario.training.model:13s}  {format_layout(layout):18s}"
    if broken := refused(scenario, machine):
        print(f"{name}  refused  {broken}", flush=True)
        return "refused"
    began_s = time.perf_counter()
    first = layout.world // layout.pp
    ranks = sorted({0, (layout.pp - 1) * first})
    try:
        results = [step_as(scenario, rank) for rank in ranks]
    except Exception as error:
        print(f"{name}  FAILED   {type(error).__name__}: {str(error).splitlines()[0]}", flush=True)
        return "failed"
    parameters, calls, _ = max(results)
    differences = [line for _, _, lines in results for line in lines]
    took_s = time.perf_counter() - began_s
    paper = "as on paper" if not differences else "; ".join(differences)
    print(
        f"{name}  stepped  ranks {','.join(map(str, ranks)):9s} {parameters / 1e9:6.2f} B parameters, {calls:5d} "
        f"collectives {paper}, {took_s:.1f} s",
        flush=True,
    )
    return "failed" if differences else "stepped"


if __name__ == "__main__":
    sys.exit(main())
