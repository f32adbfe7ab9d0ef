"""What can run where, on paper: each rule, and the layouts of the CharLLM study."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from pytest_charllm.hardware import Machine
from pytest_charllm.hardware.catalogue import CATALOGUE, parse_assume
from pytest_charllm.scenario import Layout, Options, Recompute, Scenario, Sharding, Training
from pytest_charllm.scenario.capabilities import ENGINES, unsupported
from pytest_charllm.scenario.feasibility import RULES, Broken, engine, infeasible, memory
from pytest_charllm.scenario.key import parse_key
from pytest_charllm.scenario.layout import format_layout, parse_layout
from pytest_charllm.scenario.memory import need

STUDY = {
    "h200:4x8": {
        "gpt3-175b": ["tp2pp16", "tp4pp8", "tp8pp4", "pp32", "tp8dp4+fsdp"],
        "llama3-70b": ["tp8pp2dp2", "tp4pp4dp2", "tp2pp8dp2", "pp16dp2", "tp8dp4+fsdp"],
        "mixtral-8x7b": ["dp32+ep8", "tp2dp16+ep4"],
        "mixtral-8x22b": ["pp4dp8+ep8", "tp2pp2dp8+ep8", "tp4dp8+ep8"],
    },
    "h100:8x8": {
        "gpt3-175b": ["tp2pp32", "tp4pp16", "tp8pp8", "tp8dp8+fsdp"],
        "llama3-70b": ["tp8pp4dp2", "tp4pp8dp2", "tp2pp16dp2", "pp32dp2", "tp8dp8+fsdp"],
        "mixtral-8x7b": ["pp2dp32+ep8", "tp4dp16+ep4", "tp2pp2dp16+ep4", "pp4dp16+ep4"],
        "mixtral-8x22b": ["tp8dp8+ep8", "tp4pp2dp8+ep8", "tp2pp4dp8+ep8", "pp8dp8+ep8"],
    },
}
"""Tables of the artifact, by cluster; an axis of degree 1 is not written."""

NOT_BUILDABLE = ("h100:8x8", "llama3-70b", "pp32dp2")
"""80 layers over 32 stages, the one layout of these tables that the artifact itself could not run."""

ROWS = [(cluster, model, text) for cluster, table in STUDY.items() for model, texts in table.items() for text in texts]


def broken_on_paper(scenario: Scenario, machine: Machine) -> Broken | None:
    """The first broken rule, leaving out what our engines do today and what fits."""
    hardware = CATALOGUE[machine.variant]
    found = (rule(scenario, hardware, machine) for rule in RULES if rule not in (engine, memory))
    return next(filter(None, found), None)


@pytest.mark.parametrize(("cluster", "model", "text"), ROWS)
def test_layouts_of_the_study_are_expressible_and_feasible(cluster: str, model: str, text: str) -> None:
    """A rule that is too strict would hide rows of the paper; each must have a text, and fill its cluster."""
    layout, machine = parse_layout(text), parse_assume(cluster)
    assert format_layout(layout) == text
    assert layout.world == machine.world
    scenario = Scenario(
        work=Training(model=model, microbatch=1, global_batch=128),
        layout=layout,
        options=Options(recompute=Recompute.FULL),
    )
    assert parse_key(scenario.key) == scenario
    broken = broken_on_paper(scenario, machine)
    if (cluster, model, text) == NOT_BUILDABLE:
        assert str(broken) == "pp: 80 layers do not divide by pp32"
    else:
        assert broken is None


@pytest.mark.parametrize("microbatch", [1, 2, 4, 8])
@pytest.mark.parametrize(("model", "text"), [(model, text) for cluster, model, text in ROWS if cluster == "h200:4x8"])
def test_microbatch_sweep_of_the_study(model: str, text: str, microbatch: int) -> None:
    """128 sequences over dp32 at microbatch 8 can never run: infeasible by rule, where the study's plots say OOM."""
    work = Training(model=model, microbatch=microbatch, global_batch=128)
    broken = broken_on_paper(Scenario(work=work, layout=parse_layout(text)), parse_assume("h200:4x8"))
    if (model, text, microbatch) == ("mixtral-8x7b", "dp32+ep8", 8):
        assert str(broken) == "batch: global batch 128 does not divide by mb8 x dp32"
    else:
        assert broken is None


@pytest.mark.parametrize(
    ("key", "assumed", "reason"),
    [
        ("gpt3-175b.tp8pp4.mb1", "h200:1x8", "world: tp8pp4 needs 32 GPUs, 1x8 has 8"),
        ("tiny-llama.dp3.mb1", "cpu:1x2", "world: dp3 needs 3 ranks, 1x2 has 2"),
        ("llama3-8b.dp3.mb1", "h200:1x8", "world: dp3 needs 3 GPUs, which does not divide the 8 of 1x8"),
        ("gpt3-175b.tp16.mb1", "h200:4x8", "tp: tp16 does not divide the 8 GPUs of a node"),
        ("gpt3-30b.tp16.mb1", "h200:2x16", "tp: 56 heads do not divide by tp16"),
        ("llama3-70b.tp16.mb1", "h200:2x16", "tp: 8 key-value heads do not divide by tp16"),
        ("llama3-8b.tp8.mb1.seq1001", "h200:1x8", "tp: 1001 tokens of a microbatch do not divide by tp8"),
        ("llama3-70b.pp32.mb1", "h200:4x8", "pp: 80 layers do not divide by pp32"),
        ("llama3-8b.6L.pp4.mb1", "h200:1x8", "pp: 6 layers do not divide by pp4"),
        ("llama3-8b.pp4+s10-10-12.mb1", "h200:1x8", "pp: stage_layers names 3 stages, pp is 4"),
        ("llama3-8b.pp4+s10-9-9-5.mb1", "h200:1x8", "pp: stage_layers 10-9-9-5 is not a split of 32 layers"),
        ("llama3-8b.dp8+1f1b.mb1", "h200:1x8", "pp: 1f1b without pipeline stages, pp is 1"),
        ("llama3-8b.dp8+s16-16.mb1", "h200:1x8", "pp: stage_layers without pipeline stages, pp is 1"),
        ("llama3-8b.cp8.mb1.seq100", "h200:1x8", "cp: 100 tokens do not divide by cp8"),
        ("llama3-8b.tp4cp4.mb1", "h200:2x8", "cp: 8 key-value heads do not divide by tp4 x cp4, which Ulysses needs"),
        ("tiny-llama.cp2+ring.mb1", "cpu:1x2", "ring: ring attention needs a GPU; without +ring heads are exchanged"),
        ("llama3-8b.cp8+ring.mb1.fp32", "h200:1x8", "ring: ring attention runs flash kernels, which do not compute in"),
        ("llama3-8b.cp8+ring.mb1.seq1000", "h200:1x8", "ring: 1000 tokens do not divide into 2 x cp8 pieces"),
        ("gpt3-175b.2L.mb1.seq4096", "h200:1x8", "seq: gpt3-175b has learned positions for 2048 tokens, asked 4096"),
        ("llama3-8b.dp8+ep8.mb1", "h200:1x8", "ep: llama3-8b has no experts, asked ep8"),
        ("mixtral-8x7b.dp4+ep8.mb1", "h200:1x8", "ep: dp4 does not divide by ep8"),
        ("mixtral-8x7b.dp16+ep16.mb1", "h200:2x8", "ep: 8 experts do not divide by ep16"),
        ("llama3-8b.tp8+fsdp.mb1", "h200:1x8", "sharding: fsdp needs dp or cp above 1"),
        ("llama3-8b.dp8+zero1.mb1", "h200:1x8", "sharding: zero1 is DeepSpeed's, the engine is native"),
        ("llama3-8b.dp8+hsdp3.mb1", "h200:1x8", "sharding: hsdp3 does not split dp8 into groups of ranks"),
        ("llama3-8b.dp8+hsdp8.mb1", "h200:1x8", "sharding: hsdp8 does not split dp8 into groups of ranks"),
        ("llama3-8b.dp8.mb3.gb32", "h200:1x8", "batch: global batch 32 does not divide by mb3 x dp8"),
        ("llama3-8b.tp8.mb1.dist-opt", "h200:1x8", "sharding: dist-opt needs dp or cp above 1, to share with"),
        ("llama3-8b.dp8+fsdp.mb1.dist-opt", "h200:1x8", "sharding: dist-opt shares what fsdp has sharded already"),
        ("tiny-llama.dp2.mb1.lora256", "cpu:1x2", "lora: rank 256 is no less than the 256 columns that it adapts"),
        ("llama3-8b.dp8.mb1.fp8.lora32", "h200:1x8", "fp8: adapters and frozen layers are not in fp8, asked lora32"),
        (
            "mixtral-8x7b.pp2+zbv.mb1.eager",
            "h200:1x2",
            "experts: zbv takes the backward pass apart, one through experts",
        ),
        ("mixtral-8x7b.dp8+ep8.mb1.fp8", "h200:1x8", "experts: grouped products are not done in fp8"),
        ("mixtral-8x7b.dp8+ep2+hsdp2.mb1", "h200:1x8", "experts: hsdp shares among neighbours, ep2 gives them other"),
        ("mixtral-8x7b.mb1.seq31", "h200:1x1", "experts: 62 copies of a microbatch's tokens do not divide by 8"),
        ("mixtral-8x7b.tp8.mb1.seq24", "h200:1x8", "experts: 48 copies of a microbatch's tokens do not divide by 64"),
        ("mixtral-8x7b.dp8+fsdp.mb1.recompute-selective", "h200:1x8", "experts: torch cannot recompute selectively"),
        ("tiny-mixtral.dp3+fsdp.mb4", "cpu:1x3", "experts: neither 8 experts nor their layers divide by 3 ranks"),
        ("llama3-70b.mb1", "h200:1x1", "memory: about 1"),
        ("llama3-70b.dp8+fsdp.mb1", "h100:1x8", "memory: about"),
    ],
)
def test_each_rule_says_what_is_wrong(key: str, assumed: str, reason: str) -> None:
    """The skip reason is all that a reader of the report sees of a row that did not run."""
    machine = parse_assume(assumed)
    broken = infeasible(parse_key(key), CATALOGUE[machine.variant], machine)
    assert broken is not None
    assert str(broken).startswith(reason)
    assert "\n" not in str(broken)


@pytest.mark.parametrize(
    ("key", "assumed"),
    [
        ("llama3-1b.mb4", "h200:1x1"),
        ("llama3-1b.mb4", "h200:1x8"),
        ("llama3-8b.8L.mb1", "h200:1x1"),
        ("gpt3-175b.2L.mb1", "h200:1x1"),
        ("llama3-8b.dp8+fsdp.mb1.gb128.recompute-selective", "h200:1x8"),
        ("tiny-llama.dp2.mb2", "cpu"),
        ("tiny-gpt.dp2+fsdp.mb2.gb8.fp32.eager", "cpu"),
        ("tiny-llama.cp2.mb2", "cpu:1x2"),
        ("tiny-mixtral.dp2+ep2+fsdp.mb2", "cpu:1x2"),
        ("mixtral-8x7b.2L.mb1.real-routing", "h200:1x1"),
        ("llama3-8b.tp4cp4+ring.mb1", "h200:2x8"),
        ("llama3-8b.cp8+fsdp.mb1", "h200:1x8"),
        ("llama3-8b.tp8+nosp.mb1.seq1001", "h200:1x8"),
    ],
)
def test_what_runs_today_is_feasible(key: str, assumed: str) -> None:
    """A rule that refuses a scenario with an accepted baseline would retire that baseline in silence."""
    machine = parse_assume(assumed)
    assert infeasible(parse_key(key), CATALOGUE[machine.variant], machine) is None


@pytest.mark.parametrize(
    ("work", "layout", "rule"),
    [
        (Training(model="llama3-8b", microbatch=0), Layout(), "microbatch"),
        (Training(model="llama3-8b", microbatch=1, global_batch=0), Layout(), "global batch"),
        (Training(model="llama3-8b", microbatch=1, seq=-1), Layout(), "seq"),
        (Training(model="llama3-8b", microbatch=1), Layout(pp=0), "pp"),
        (Training(model="llama3-8b", microbatch=1), Layout(dp=8, replicas=2), "sharding"),
        (Training(model="llama3-8b", microbatch=1), Layout(dp=8, ring=True), "ring"),
        (Training(model="llama3-8b", microbatch=1), Layout(dp=8, sharding=Sharding.HSDP), "sharding"),
        (Training(model="llama3-8b", microbatch=1), Layout(pp=2, stage_layers=(32, 0)), "pp"),
    ],
)
def test_numbers_that_no_key_can_name(work: Training, layout: Layout, rule: str) -> None:
    """A scenario built in code may hold a zero: a rule must say so, not a ZeroDivisionError."""
    machine = parse_assume("h200:1x8")
    broken = infeasible(Scenario(work=work, layout=layout), CATALOGUE[machine.variant], machine)
    assert broken is not None
    assert broken.rule == rule


def test_memory_refuses_only_beyond_the_margin() -> None:
    """The estimate errs by 10 %: a little too much may fit after all; a CPU's memory is not in the catalogue."""
    scenario, machine = parse_key("llama3-1b.mb2"), parse_assume("h200:1x1")
    total_mib = need(scenario).total / 2**20

    def on(memory_mib: float) -> Broken | None:
        return memory(scenario, replace(CATALOGUE["h200-sxm"], memory_mib=int(memory_mib)), machine)

    assert on(total_mib / 1.09) is None
    assert on(total_mib / 1.11) is not None
    assert memory(parse_key("llama3-70b.mb1"), CATALOGUE["cpu"], parse_assume("cpu:1x1")) is None


def test_unknown_engine_names_the_known_ones() -> None:
    """Not a KeyError at collection."""
    scenario = Scenario(work=Training(model="llama3-8b", microbatch=1), engine="megatorn")
    assert unsupported(scenario) == f"'megatorn' is not known; engines: {', '.join(ENGINES)}"


def test_native_does_what_it_says() -> None:
    """Everything that its table lists must pass, each with each: a capability that is refused is not one."""
    native = ENGINES["native"]
    for model in ("tiny-gpt", "tiny-llama"):
        for sharding in native.shardings:
            for recompute in native.recompute:
                for precision in native.precisions:
                    for compiled in (True, False):
                        options = Options(recompute=recompute, precision=precision, compile=compiled)
                        layout = Layout(dp=2, sharding=sharding)
                        work = Training(model=model, microbatch=1)
                        assert unsupported(Scenario(work=work, layout=layout, options=options)) is None
