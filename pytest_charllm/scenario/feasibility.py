"""Whether a scenario can run on a machine at all, known before anything starts. One rule a function, in a list."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from pytest_charllm.hardware.catalogue import Hardware
from pytest_charllm.hardware.machine import Machine
from pytest_charllm.scenario.capabilities import unsupported
from pytest_charllm.scenario.layout import format_layout
from pytest_charllm.scenario.memory import need
from pytest_charllm.scenario.models import sequence, shape_of
from pytest_charllm.scenario.spec import (
    DEFAULT_ENGINE,
    V_SHAPES,
    Collective,
    Precision,
    Recompute,
    Scenario,
    Script,
    Sharding,
)
from pytest_charllm.scenario.stages import schedule_of

MEMORY_MARGIN = 1.1
"""The estimate may exceed the catalogue's capacity by this factor before it refuses: it errs by up to 10 %."""

_GIB = 1 << 30
_GATHERED_STAGES = 3
"""torch's runtime of looped schedules frees further ones, and gathers them again whenever it comes to them."""


class Broken(NamedTuple):
    """The first rule that a scenario breaks, and how; ``str()`` is the reason of a skipped test."""

    rule: str
    detail: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.detail}"


Rule = Callable[[Scenario, Hardware, Machine], Broken | None]


def infeasible(scenario: Scenario, hardware: Hardware, machine: Machine) -> Broken | None:
    """The first broken rule in the order of `RULES`, or None where the scenario can be tried.

    Of a script only what its launch needs is asked; the rest is its own to know.

    Raises `BadInput` for an unknown model or depth: that is a mistake of the caller, not a limit of the machine.
    """
    for rule in _RULES_OF.get(type(scenario.work), RULES):
        broken = rule(scenario, hardware, machine)
        if broken is not None:
            return broken
    return None


def numbers(scenario: Scenario, hardware: Hardware, machine: Machine) -> Broken | None:
    """Every degree and size is at least 1. The other rules divide by them."""
    work, layout = scenario.work, scenario.layout
    if isinstance(work, Script):
        values = {"tokens_per_step": work.tokens_per_step}
    elif isinstance(work, Collective):
        values = {"largest": work.largest}
    else:
        values = {"microbatch": work.microbatch, "global batch": work.global_batch, "seq": work.seq}
    values |= {name: getattr(layout, name) for name in ("tp", "pp", "cp", "dp", "ep", "replicas")}
    for name, value in values.items():
        if value is not None and value < 1:
            return Broken(name, f"{value} must be at least 1")
    return None


def world(scenario: Scenario, hardware: Hardware, machine: Machine) -> Broken | None:
    """The machine's GPUs, or ranks of a CPU, are a whole number of worlds; a smaller world than that is allowed."""
    ranks = scenario.layout.world
    if machine.world % ranks == 0:
        return None
    needs = f"{format_layout(scenario.layout)} needs {ranks} {'ranks' if machine.is_cpu else 'GPUs'}"
    if ranks > machine.world:
        return Broken("world", f"{needs}, {machine.shape} has {machine.world}")
    return Broken("world", f"{needs}, which does not divide the {machine.world} of {machine.shape}")


def tensor_parallel(scenario: Scenario, hardware: Hardware, machine: Machine) -> Broken | None:
    """A tensor-parallel group stays inside a node, and its ranks have equal parts: whole heads of each kind, columns,
    rows of the vocabulary, and with sequence parallelism tokens."""
    layout, tp, shape = scenario.layout, scenario.layout.tp, shape_of(scenario)
    if machine.gpus_per_node % tp:
        return Broken("tp", f"tp{tp} does not divide the {machine.gpus_per_node} GPUs of a node")
    parts = {
        "heads": shape.heads,
        "key-value heads": shape.kv_heads,
        "columns of the feed-forward": shape.ffn,
        "rows of the vocabulary": shape.vocab,
    }
    if layout.sequence_parallel:
        parts["tokens of a microbatch"] = scenario.training.microbatch * sequence(scenario) // layout.cp
    for what, number in parts.items():
        if number % tp:
            return Broken("tp", f"{number} {what} do not divide by tp{tp}")
    return None


def pipeline(scenario: Scenario, hardware: Hardware, machine: Machine) -> Broken | None:
    """Every stage has the same number of layers, unless the layout says how many each has."""
    layout, layers = scenario.layout, shape_of(scenario).layers
    depths, count = layout.stage_layers, layout.stages
    if layout.pp == 1 and (layout.schedule or depths):
        return Broken("pp", f"{layout.schedule or 'stage_layers'} without pipeline stages, pp is 1")
    looped = layout.stages_per_rank > 1
    if depths is None:
        if layers % count == 0:
            return None
        where = f"the {count} stages of {layout.schedule} on pp{layout.pp}" if looped else f"pp{layout.pp}"
        return Broken("pp", f"{layers} layers {'are too few for' if layers < count else 'do not divide by'} {where}")
    if len(depths) != count:
        wanted = f"{layout.schedule} on pp{layout.pp} has {count}" if looped else f"pp is {layout.pp}"
        return Broken("pp", f"stage_layers names {len(depths)} stages, {wanted}")
    if min(depths) < 1 or sum(depths) != layers:
        return Broken("pp", f"stage_layers {'-'.join(map(str, depths))} is not a split of {layers} layers")
    return None


def schedule(scenario: Scenario, hardware: Hardware, machine: Machine) -> Broken | None:
    """What the order of a schedule asks for: enough microbatches, in whole rounds, and a backward pass that it can take
    apart where it computes gradients of activations and of weights at different times."""
    layout, options, microbatches = scenario.layout, scenario.options, scenario.accumulation
    name, pp = schedule_of(layout), layout.pp
    rounds = max(1, microbatches // pp)
    if name == "interleaved-1f1b" and microbatches % rounds:
        return Broken("schedule", f"{microbatches} microbatches do not divide into {name}'s {rounds} rounds on pp{pp}")
    if name == "dualpipev" and microbatches < layout.stages:
        return Broken("schedule", f"{name} on pp{pp} needs {layout.stages} microbatches a step, not {microbatches}")
    if name in V_SHAPES and options.compile:
        return Broken("schedule", f"{name} takes the backward pass apart, a compiled block cannot; write .eager")
    if name in V_SHAPES and options.recompute is not Recompute.NONE:
        return Broken("schedule", f"{name} takes the backward pass apart, and would recompute again for every weight")
    if name in V_SHAPES and options.precision is Precision.FP8:
        return Broken("schedule", f"{name} takes the backward pass apart, an fp8 layer would do all of it twice")
    if layout.sharding.is_fsdp and layout.stages_per_rank > _GATHERED_STAGES:
        asked = f"{layout.stages_per_rank} stages of a rank"
        return Broken("schedule", f"{layout.sharding} keeps at most {_GATHERED_STAGES} of the {asked} gathered")
    return None


def context(scenario: Scenario, hardware: Hardware, machine: Machine) -> Broken | None:
    """Sequences split evenly over cp, and learned positions reach to their end."""
    cp, seq, shape = scenario.layout.cp, sequence(scenario), shape_of(scenario)
    if seq % cp:
        return Broken("cp", f"{seq} tokens do not divide by cp{cp}")
    if shape.positions and seq > shape.positions:
        return Broken("seq", f"{shape.name} has learned positions for {shape.positions} tokens, asked {seq}")
    return None


def ulysses(scenario: Scenario, hardware: Hardware, machine: Machine) -> Broken | None:
    """Every rank of an attention that exchanges sequence for heads has whole heads of each kind."""
    layout, shape = scenario.layout, shape_of(scenario)
    if layout.cp == 1 or layout.ring:
        return None
    for heads, kind in ((shape.heads, "heads"), (shape.kv_heads, "key-value heads")):
        if heads % (layout.tp * layout.cp):
            return Broken("cp", f"{heads} {kind} do not divide by tp{layout.tp} x cp{layout.cp}, which Ulysses needs")
    return None


def ring(scenario: Scenario, hardware: Hardware, machine: Machine) -> Broken | None:
    """Ring attention runs flash kernels of a GPU, which do no fp32, and gives every rank two pieces of a sequence."""
    layout, seq = scenario.layout, sequence(scenario)
    if not layout.ring:
        return None
    if layout.cp == 1:
        return Broken("ring", "nothing to go around, cp is 1")
    if hardware.vendor == "cpu":
        return Broken("ring", "ring attention needs a GPU; without +ring heads are exchanged (Ulysses), also on a CPU")
    if scenario.options.precision is Precision.FP32:
        return Broken("ring", "ring attention runs flash kernels, which do not compute in fp32")
    if seq % (2 * layout.cp):
        return Broken("ring", f"{seq} tokens do not divide into 2 x cp{layout.cp} pieces")
    return None


def experts(scenario: Scenario, hardware: Hardware, machine: Machine) -> Broken | None:
    """Expert parallelism partitions the data-parallel ranks, and every rank has whole experts."""
    layout, shape = scenario.layout, shape_of(scenario)
    if layout.ep == 1:
        return None
    if not shape.experts:
        return Broken("ep", f"{shape.name} has no experts, asked ep{layout.ep}")
    if layout.dp % layout.ep:
        return Broken("ep", f"dp{layout.dp} does not divide by ep{layout.ep}")
    if shape.experts % layout.ep:
        return Broken("ep", f"{shape.experts} experts do not divide by ep{layout.ep}")
    return None


def mixture(scenario: Scenario, hardware: Hardware, machine: Machine) -> Broken | None:
    """What the native engine's mixtures do not go along with. Balanced routing gives every expert as many tokens."""
    layout, shape, options = scenario.layout, shape_of(scenario), scenario.options
    if not shape.experts or scenario.engine != DEFAULT_ENGINE:
        return None
    if schedule_of(layout) in V_SHAPES:
        return Broken("experts", f"{schedule_of(layout)} takes the backward pass apart, one through experts does not")
    if options.precision is Precision.FP8:
        return Broken("experts", "grouped products are not done in fp8")
    if layout.ep > 1 and layout.sharding is Sharding.HSDP:
        return Broken("experts", f"hsdp shares among neighbours, ep{layout.ep} gives them other experts; use fsdp")
    senders = layout.cp * (layout.tp if layout.sequence_parallel else 1)
    copies = scenario.training.microbatch * sequence(scenario) * shape.topk
    if copies % (senders * shape.experts):
        return Broken("experts", f"{copies} copies of a microbatch's tokens do not divide by {senders * shape.experts}")
    if layout.sharding.is_fsdp:
        if options.recompute is Recompute.SELECTIVE:
            return Broken("experts", f"torch cannot recompute selectively around what {layout.sharding} gathers within")
        ranks, local = layout.batch_ranks // (layout.ep * layout.replicas), shape.experts // layout.ep
        if local % ranks and (shape.ffn // layout.tp % ranks or shape.hidden % ranks):
            return Broken("experts", f"neither {local} experts nor their layers divide by {ranks} ranks")
    return None


def sharding(scenario: Scenario, hardware: Hardware, machine: Machine) -> Broken | None:
    """Sharding needs somebody to share with, and context-parallel ranks have the same parameters too; the replicas of
    hsdp split the data-parallel ranks."""
    layout = scenario.layout
    if layout.sharding is not Sharding.NONE and layout.batch_ranks == 1:
        return Broken("sharding", f"{layout.sharding} needs dp or cp above 1")
    if layout.sharding.is_zero and scenario.engine != "deepspeed":
        return Broken("sharding", f"{layout.sharding} is DeepSpeed's, the engine is {scenario.engine}")
    if layout.sharding is Sharding.HSDP:
        if not 1 < layout.replicas < layout.batch_ranks or layout.dp % layout.replicas:
            return Broken("sharding", f"hsdp{layout.replicas} does not split dp{layout.dp} into groups of ranks")
    elif layout.replicas > 1:
        return Broken("sharding", f"{layout.replicas} replicas belong to hsdp, not to sharding {layout.sharding}")
    if scenario.options.distributed_optimizer:
        if layout.batch_ranks == 1:
            return Broken("sharding", "dist-opt needs dp or cp above 1, to share with")
        if layout.sharding is not Sharding.NONE:
            return Broken("sharding", f"dist-opt shares what {layout.sharding} has sharded already; ask for one")
    return None


def precision(scenario: Scenario, hardware: Hardware, machine: Machine) -> Broken | None:
    """fp8 needs matrix units for it, and layers that are trained, and whole: a split one sums what its ranks have."""
    if scenario.options.precision is not Precision.FP8:
        return None
    if not hardware.fp8:
        return Broken("fp8", f"{hardware.variant} has no matrix units for 8-bit floats")
    if scenario.options.lora:
        return Broken("fp8", f"adapters and frozen layers are not in fp8, asked lora{scenario.options.lora}")
    if scenario.layout.tp > 1:
        return Broken("fp8", f"linear layers in fp8 are not split over tp, asked tp{scenario.layout.tp}")
    return None


def adapters(scenario: Scenario, hardware: Hardware, machine: Machine) -> Broken | None:
    """An adapter is narrower than what it adapts; on a CPU nothing else would stop one of any width."""
    rank, hidden = scenario.options.lora, shape_of(scenario).hidden
    if rank >= hidden:
        return Broken("lora", f"rank {rank} is no less than the {hidden} columns that it adapts")
    return None


def batch(scenario: Scenario, hardware: Hardware, machine: Machine) -> Broken | None:
    """The global batch is a whole number of microbatches on every data-parallel rank."""
    microbatch, dp = scenario.training.microbatch, scenario.layout.dp
    if scenario.global_batch % (microbatch * dp):
        return Broken("batch", f"global batch {scenario.global_batch} does not divide by mb{microbatch} x dp{dp}")
    return None


def engine(scenario: Scenario, hardware: Hardware, machine: Machine) -> Broken | None:
    """The engine composes all of it, see `capabilities`."""
    detail = unsupported(scenario)
    return None if detail is None else Broken("engine", detail)


def deepspeed(scenario: Scenario, hardware: Hardware, machine: Machine) -> Broken | None:
    """What DeepSpeed cannot put together of all that it does."""
    if scenario.engine != "deepspeed":
        return None
    layout, shape, compiled = scenario.layout, shape_of(scenario), scenario.options.compile
    staged, zero3 = layout.pp > 1, layout.sharding is Sharding.ZERO3
    refusals = (
        (staged and layout.sharding in (Sharding.ZERO2, Sharding.ZERO3), f"no pipeline with {layout.sharding}"),
        (staged and shape.tied, f"no pipeline for {shape.name}: its head is tied to the embedding of the first stage"),
        (shape.experts and staged, f"no pipeline for the experts of {shape.name}"),
        (
            shape.experts and layout.sharding not in (Sharding.ZERO1, Sharding.ZERO2),
            f"the gradient norm of {shape.name}'s experts right with zero1 and zero2 alone",
        ),
        (shape.experts and not scenario.options.real_routing, "no balanced routing; ask for real_routing=True"),
        (compiled and zero3, "no compiled blocks with zero3, whose hooks are inside of them; ask for compile=False"),
        (compiled and shape.experts, "no compiled experts, whose sizes follow the routing; ask for compile=False"),
    )
    for refused, detail in refusals:
        if refused:
            return Broken("engine", f"deepspeed has {detail}")
    return None


def device(scenario: Scenario, hardware: Hardware, machine: Machine) -> Broken | None:
    """What is asked of the cards themselves: clocks that can be locked, temperatures that can settle."""
    if scenario.options.sm_clock and (hardware.vendor != "nvidia" or machine.simulated):
        return Broken("clock", "SM clocks are locked on NVIDIA GPUs alone, never on simulated ones")
    if scenario.options.soak and machine.is_cpu:
        return Broken("soak", "a CPU has no board whose temperature would settle")
    return None


def memory(scenario: Scenario, hardware: Hardware, machine: Machine) -> Broken | None:
    """The estimated need is at most 1.1 times the catalogue's capacity; a CPU has none on record, so none is asked."""
    capacity = hardware.memory_bytes
    if capacity is None:
        return None
    total = need(scenario).total
    if total <= MEMORY_MARGIN * capacity:
        return None
    return Broken(
        "memory", f"about {total / _GIB:.0f} GiB a GPU needed (estimate), {hardware.variant} has {capacity / _GIB:.0f}"
    )


def company(scenario: Scenario, hardware: Hardware, machine: Machine) -> Broken | None:
    """A collective of one rank moves nothing."""
    return Broken("dp", "a collective needs dp2 or more") if scenario.layout.world < 2 else None


RULES: tuple[Rule, ...] = (
    numbers, world, tensor_parallel, pipeline, context, ulysses, ring, experts, sharding, mixture, precision, adapters,
    batch, schedule, engine, deepspeed, device, memory,
)  # fmt: skip
"""In the order in which they are asked: `numbers` guards the divisions, `memory` relies on all before it."""

SCRIPT_RULES: tuple[Rule, ...] = (numbers, world, engine)
COLLECTIVE_RULES: tuple[Rule, ...] = (numbers, engine, company, world)
_RULES_OF: dict[type, tuple[Rule, ...]] = {Script: SCRIPT_RULES, Collective: COLLECTIVE_RULES}
