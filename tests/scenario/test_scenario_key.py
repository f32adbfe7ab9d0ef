"""The texts of layouts and scenarios: exact inverses, one text each, errors that name the token."""

from __future__ import annotations

import re

import msgspec
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from pytest_charllm.errors import BadInput
from pytest_charllm.scenario import Layout, Options, Precision, Recompute, Scenario, Sharding, Training
from pytest_charllm.scenario import key as key_module
from pytest_charllm.scenario.capabilities import ENGINES
from pytest_charllm.scenario.key import canonical, format_key, parse_key
from pytest_charllm.scenario.layout import SCHEDULES, format_layout, parse_layout
from pytest_charllm.scenario.models import models

DEGREES = st.integers(1, 64)

no_deadline = settings(deadline=None)
"""The first example reads the model table, on a machine that may be busy."""


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Every layout that has a text, feasible or not."""
    sharding = draw(st.sampled_from(Sharding))
    schedule = draw(st.none() | st.sampled_from(SCHEDULES))
    return Layout(
        tp=draw(DEGREES),
        pp=draw(DEGREES),
        cp=draw(DEGREES),
        dp=draw(DEGREES),
        ep=draw(DEGREES),
        sharding=sharding,
        replicas=draw(DEGREES) if sharding is Sharding.HSDP else 1,
        gathered=sharding in (Sharding.FSDP, Sharding.HSDP) and draw(st.booleans()),
        sequence_parallel=draw(st.booleans()),
        ring=draw(st.booleans()),
        schedule=schedule,
        virtual_stages=draw(st.none() | st.integers(2, 8)) if schedule == "interleaved-1f1b" else None,
        stage_layers=draw(st.none() | st.lists(st.integers(1, 40), min_size=1, max_size=6).map(tuple)),
    )


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    """Any scenario that has a key, with defaults written out as often as not."""
    model = draw(st.sampled_from(sorted(models().values(), key=lambda model: model.name)))
    layout = draw(layouts())
    if draw(st.booleans()):
        layers = model.layers // layout.stages
        layout = msgspec.structs.replace(layout, stage_layers=(layers,) * layout.stages if layers else None)
    microbatch = draw(st.integers(1, 64))
    work = Training(
        model=model.name,
        microbatch=microbatch,
        layers=draw(st.none() | st.just(model.layers) | st.integers(1, model.layers)),
        global_batch=draw(st.none() | st.just(microbatch * layout.dp) | st.integers(1, 4096)),
        seq=draw(st.none() | st.just(model.seq) | st.integers(1, 131072)),
    )
    options = Options(
        recompute=draw(st.sampled_from(Recompute)),
        precision=draw(st.sampled_from(Precision)),
        compile=draw(st.booleans()),
        overlap=draw(st.booleans()),
        distributed_optimizer=draw(st.booleans()),
        lora=draw(st.integers(0, 64)),
        chunked_loss=draw(st.booleans()),
        real_routing=draw(st.booleans()),
        reduce_bucket=draw(st.just(500_000_000) | st.integers(1, 10**11)),
        prefetch_bucket=draw(st.just(50_000_000) | st.integers(0, 10**11)),
        live_parameters=draw(st.just(1_000_000_000) | st.integers(0, 10**11)),
        sm_clock=draw(st.integers(0, 3000)),
        soak=draw(st.integers(0, 120)),
    )
    return Scenario(work=work, layout=layout, options=options)


@no_deadline
@given(layouts())
def test_layout_round_trip(layout: Layout) -> None:
    """A suffix that is written but not read, or read into another field, would run another layout than was asked."""
    assert parse_layout(format_layout(layout)) == layout


@no_deadline
@given(st.text("tpcd0123456789+efshrz-L.", max_size=24))
def test_layout_texts_are_refused_or_canonical(text: str) -> None:
    """Two texts of one layout would be two baselines of one scenario; no text may end in a traceback."""
    try:
        layout = parse_layout(text)
    except BadInput:
        return
    assert format_layout(layout) == text


@no_deadline
@given(scenarios())
def test_key_round_trip(scenario: Scenario) -> None:
    """The key is all that names a baseline: what it loses is compared across, what it adds is never found again."""
    try:
        key = format_key(scenario)
    except BadInput as error:
        assert "at most 120" in str(error)  # noqa: PT017
        reject()
    assert parse_key(key) == canonical(scenario)
    assert format_key(parse_key(key)) == key == canonical(scenario).key
    assert re.fullmatch(r"[a-z0-9.+_L-]{1,120}", key)


@no_deadline
@given(scenarios())
def test_normal_form_is_the_same_work(scenario: Scenario) -> None:
    """Leaving a default out must not change what is trained."""
    normal = canonical(scenario)
    assert canonical(normal) == normal
    assert normal.global_batch == scenario.global_batch
    assert normal.accumulation == scenario.accumulation
    assert normal.layout.world == scenario.layout.world


TOKENS = (
    "llama3-8b", "8L", "32L", "tp8pp4", "dp8+fsdp", "pp4+1f1b", "mb1", "mb02", "gb8", "seq8192", "seq64",
    "recompute-full", "recompute-none", "fp32", "fp8", "bf16", "no-overlap", "dist-opt", "lora32", "lora0",
    "chunked-loss", "real-routing", "eager", "native", "", "MB1", "x",
)  # fmt: skip


@no_deadline
@given(st.lists(st.sampled_from(TOKENS), max_size=6).map(lambda tokens: ".".join(("llama3-8b", *tokens, "mb1"))))
def test_keys_are_refused_or_canonical(key: str) -> None:
    """A key typed by hand that means the same as another one must not become a second scenario."""
    try:
        scenario = parse_key(key)
    except BadInput:
        return
    assert format_key(scenario) == key


@pytest.mark.parametrize(
    ("key", "scenario"),
    [
        (
            "gpt3-175b.tp8pp4.mb1.recompute-full",
            Scenario(
                work=Training(model="gpt3-175b", microbatch=1),
                layout=Layout(tp=8, pp=4),
                options=Options(recompute=Recompute.FULL),
            ),
        ),
        (
            "mixtral-8x22b.tp2pp2dp8+ep8.mb1.gb128",
            Scenario(
                work=Training(model="mixtral-8x22b", microbatch=1, global_batch=128),
                layout=Layout(tp=2, pp=2, dp=8, ep=8),
            ),
        ),
        (
            "llama3-8b.8L.dp8+hsdp2.mb2.seq4096.recompute-selective.fp32.eager",
            Scenario(
                work=Training(model="llama3-8b", layers=8, microbatch=2, seq=4096),
                layout=Layout(dp=8, sharding=Sharding.HSDP, replicas=2),
                options=Options(recompute=Recompute.SELECTIVE, precision=Precision.FP32, compile=False),
            ),
        ),
        (
            "mixtral-8x7b.2L.mb1.real-routing",
            Scenario(work=Training(model="mixtral-8x7b", layers=2, microbatch=1), options=Options(real_routing=True)),
        ),
        (
            "llama3-8b.pp4+gpipe+s10-9-9-4.mb1",
            Scenario(
                work=Training(model="llama3-8b", microbatch=1),
                layout=Layout(pp=4, schedule="gpipe", stage_layers=(10, 9, 9, 4)),
            ),
        ),
    ],
)
def test_keys_on_record_stay(key: str, scenario: Scenario) -> None:
    """Every stored baseline is named by its key: another spelling orphans them all."""
    assert format_key(scenario) == key
    assert parse_key(key) == scenario


def test_defaults_written_out_give_the_same_key() -> None:
    """A suite that says `global_batch=8` and one that leaves it out ask for one measurement, not two."""
    plain = Scenario(work=Training(model="llama3-8b", microbatch=1), layout=Layout(pp=4, dp=8))
    explicit = Scenario(
        work=Training(model="llama3-8b", microbatch=1, layers=32, global_batch=8, seq=8192),
        layout=Layout(pp=4, dp=8, stage_layers=(8, 8, 8, 8)),
    )
    assert explicit.key == plain.key == "llama3-8b.pp4dp8.mb1"
    assert canonical(explicit) == plain


def test_stages_of_a_reduced_model_are_compared_with_its_own_layers() -> None:
    """Even stages of the full model are uneven ones of the reduced model, and must stay in its key."""
    layout = Layout(pp=2, stage_layers=(4, 4))
    even = Scenario(work=Training(model="llama3-8b", layers=8, microbatch=1), layout=layout)
    odd = Scenario(work=Training(model="llama3-8b", layers=9, microbatch=1), layout=layout)
    assert (even.key, odd.key) == ("llama3-8b.8L.pp2.mb1", "llama3-8b.9L.pp2+s4-4.mb1")


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("llama3-1b.dp8", "no mb<N>"),
        ("llama3-1b.mb2.egaer", "token 'egaer' is not understood; did you mean eager"),
        ("llama3-1b.mb2.fsdp", "token 'fsdp' is not understood"),
        ("llama3-1b.mb1.mb2", "token 'mb2' gives microbatch a second time"),
        ("llama3-1b.mb0", "microbatch is 0, it must be at least 1"),
        ("llama3-1b.mb1.gb0", "global_batch is 0"),
        ("llama3-1b.mb1.seq0", "seq is 0"),
        ("llama3-1b.mb٣", "token 'mb٣' is not understood"),
        ("llama3-1b.99L.mb1", "llama3-1b has 16 layers"),
        ("llama3-1b.tp8x.mb1", "'x' is not an axis"),
        ("llama3-1b.dp8+hdsp2.mb1", "'hdsp2' is not known; after a \\+ comes"),
        ("llama3-1b.tp2tp4.mb1", "axis tp is there twice"),
        ("llama3-1b.dp8+fsdp+zero1.mb1", "'zero1' gives sharding a second time"),
        ("llama3-1b.tp0.mb1", "tp is 0, it must be at least 1"),
        ("llama3-1b.pp2+s0-16.mb1", "must be at least one layer each"),
        ("llama3-1b.mb2.dp8", "not the canonical form, write 'llama3-1b.dp8.mb2'"),
        ("llama3-1b.mb02", "write 'llama3-1b.mb2'"),
        ("llama3-1b.16L.mb2", "write 'llama3-1b.mb2'"),
        ("llama3-1b.dp4.mb2.gb8", "write 'llama3-1b.dp4.mb2'"),
        ("llama3-1b.dp1.mb2", "write 'llama3-1b.mb2'"),
        ("llama3-1b.pp2dp1.mb2", "write 'pp2'"),
        ("llama3-1b.dp2tp2.mb2", "write 'tp2dp2'"),
        ("llama3-1b.mb2.native", "write 'llama3-1b.mb2'"),
        ("llama3-1b.mb2.real-routing", "write 'llama3-1b.mb2'"),
        ("lama.mb2", "model 'lama' is not known"),
        ("", "model '' is not known"),
        ("llama3-1b." + "mb1." * 40, "characters, at most 120"),
    ],
)
def test_errors_name_the_token(key: str, message: str) -> None:
    """Whoever mistypes one of seven tokens wants to read which, and what to write instead, on one line."""
    with pytest.raises(BadInput, match=message) as caught:
        parse_key(key)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "layout",
    [
        Layout(tp=0),
        Layout(ep=-1),
        Layout(dp=8, replicas=2),
        Layout(pp=2, schedule="2f2b"),
        Layout(pp=2, stage_layers=()),
        Layout(pp=2, stage_layers=(16, 0)),
    ],
)
def test_layouts_without_a_text_are_refused(layout: Layout) -> None:
    """A field that the text leaves out would be lost in silence."""
    with pytest.raises(BadInput):
        format_layout(layout)


def test_a_key_too_long_for_a_file_name_is_refused() -> None:
    """A baseline's file is named by its key."""
    layout = Layout(pp=64, stage_layers=(1,) * 63 + (17,))
    with pytest.raises(BadInput, match="at most 120"):
        format_key(Scenario(work=Training(model="llama3-70b", microbatch=1), layout=layout))


def test_other_engines_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two engines on the same work are two scenarios; an engine that does not exist has no key."""
    scenario = Scenario(work=Training(model="llama3-1b", microbatch=1), engine="other")
    with pytest.raises(BadInput, match="engine 'other' is not known; engines: native"):
        format_key(scenario)
    monkeypatch.setitem(ENGINES, "other", msgspec.structs.replace(ENGINES["native"], name="other"))
    assert key_module.ENGINES is ENGINES
    assert format_key(scenario) == "llama3-1b.mb1.other"
    assert parse_key("llama3-1b.mb1.other") == scenario
