"""Scripts as scenarios: what names them, and what is asked of them before a launch."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_charllm.errors import BadInput
from pytest_charllm.hardware.catalogue import CATALOGUE, parse_assume
from pytest_charllm.scenario import Layout, Options, Scenario, Script, Training
from pytest_charllm.scenario.feasibility import infeasible
from pytest_charllm.scenario.key import MAX_LENGTH, parse_key

TRAIN = Script("train.py")
ALONE = Layout()


def key(script: Script, layout: Layout = ALONE) -> str:
    return Scenario(work=script, layout=layout).key


@pytest.mark.parametrize(
    ("script", "layout", "expected"),
    [
        (Script("train.py"), ALONE, "script-train"),
        (Script("/here/Pretrain GPT.py"), Layout(tp=2, dp=4), "script-pretrain-gpt.tp2dp4"),
        (Script("torchtitan.train", module=True), Layout(dp=2), "script-train.dp2"),
        (Script("train.py", args=["--layers", 2]), ALONE, "script-train.args-710be97b"),
        (Script("train.py", name="nano"), ALONE, "script-nano"),
    ],
)
def test_key_is_written_down(script: Script, layout: Layout, expected: str) -> None:
    """It is the name of a baseline's file: a key that changes between versions loses everything on record."""
    assert key(script, layout) == expected


@given(name=st.text(max_size=60), args=st.lists(st.text(max_size=20), max_size=4))
def test_every_key_is_a_file_name(name: str, args: list[str]) -> None:
    """Script names and arguments are anybody's: a slash or a blank in a key would be a path of its own."""
    written = key(Script("train.py", name=f"a{name}", args=args))
    assert re.fullmatch(r"[a-z0-9._-]+", written)
    assert len(written) <= MAX_LENGTH


def test_arguments_are_work_and_measuring_is_not() -> None:
    """Another argument is another number; where its step times come from only says whether two numbers compare."""
    assert key(Script("train.py", args=["a", "b"])) != key(Script("train.py", args=["a b"]))
    assert key(Script("train.py", args=["a"])) != key(TRAIN)
    for same in (
        Script("there/train.py"),
        Script("train.py", log="megatron-lm"),
        Script("train.py", tokens_per_step=8),
        Script("train.py", silence_s=5),
    ):
        assert key(same) == key(TRAIN)


def test_name_without_a_letter_is_refused() -> None:
    """A key that is nothing but a prefix would be shared by all of them."""
    with pytest.raises(BadInput, match="give it a name of letters and digits"):
        key(Script("训练.py"))


def test_key_of_a_script_is_not_parsed() -> None:
    """A Scenario read back without its arguments would launch other work under the same name."""
    with pytest.raises(BadInput, match="a script's arguments are not in its key; give the Script itself"):
        parse_key("script-train.dp2.args-1f9c02ab")


@pytest.mark.parametrize("script", [TRAIN, Script("m.train", module=True, args=["--log", "x"], log_file="{out}/l")])
def test_scenario_survives_json(script: Script) -> None:
    """The request travels to the ranks as JSON, where a list of arguments comes back unhashable."""
    scenario = Scenario(work=script, layout=Layout(dp=2))
    back = msgspec.json.decode(msgspec.json.encode(scenario), type=Scenario)
    assert (back, back.engine) == (scenario, "script")
    assert hash(back) == hash(scenario)


def test_path_may_be_a_path() -> None:
    """Suites name the script beside them by ``Path(__file__)``."""
    assert Script(Path("a") / "." / "train.py").path == "a/train.py"  # type: ignore[arg-type]


def test_one_string_of_arguments_is_refused() -> None:
    """It would reach the script letter by letter."""
    with pytest.raises(TypeError, match="args is a list of arguments, not one string"):
        Script("train.py", args="--steps 60")


@pytest.mark.parametrize(
    ("scenario", "told"),
    [
        (Scenario(work=TRAIN, layout=Layout(tp=3)), "world: tp3 needs 3 GPUs, which does not divide the 8 of 1x8"),
        (Scenario(work=TRAIN, options=Options(compile=False)), "engine: the options of a script are among its own"),
        (Scenario(work=TRAIN, engine="deepspeed"), "engine: deepspeed does not run scripts"),
        (Scenario(work=Script("train.py", tokens_per_step=0)), "tokens_per_step: 0 must be at least 1"),
        (Scenario(work=Training(model="llama3-1b", microbatch=1), engine="script"), "engine: 'script' is not known"),
    ],
)
def test_what_cannot_be_launched_is_told(scenario: Scenario, told: str) -> None:
    machine = parse_assume("h200:1x8")
    assert str(infeasible(scenario, CATALOGUE[machine.variant], machine)).startswith(told)


def test_no_rule_about_a_model_is_asked_of_a_script() -> None:
    """Heads, layers and memory are its own to know: pp3 of whatever it builds is no business of ours."""
    machine = parse_assume("h200:1x8")
    scenario = Scenario(work=TRAIN, layout=Layout(tp=2, pp=2, dp=2, ep=2))
    assert infeasible(scenario, CATALOGUE[machine.variant], machine) is None


def test_what_a_script_trains_is_not_guessed() -> None:
    """FLOPs, memory and traffic of a model that nobody named must be refused, not computed from something else."""
    with pytest.raises(BadInput, match="script-train is a script: what it trains is not known"):
        Scenario(work=TRAIN).training  # noqa: B018
