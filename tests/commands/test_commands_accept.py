"""What may go on record, and everything that never may."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pytest_charllm.commands.accept import Accepted, Refused, accept
from pytest_charllm.errors import BadInput
from pytest_charllm.hardware import Machine
from pytest_charllm.records import (
    TIERS,
    Check,
    Failure,
    Fault,
    Judgement,
    Launch,
    Pass,
    Phases,
    RankDevice,
    RankReport,
    Stack,
    Status,
    Validity,
    Verdict,
    to_json,
)
from pytest_charllm.scenario import Scenario, Training
from pytest_charllm.scenario.flops import hardware_flops_per_step
from pytest_charllm.store.baselines import BaselineStore
from pytest_charllm.store.run import RunDirectory

KEY = "llama3-1b.mb1"
CPU_KEY = "llama-5m.dp2.mb2"


@pytest.fixture
def store(project: Path) -> BaselineStore:
    return BaselineStore(project / "baselines", project / ".charllm" / "baselines")


def one(results: list[Accepted | Refused]) -> Accepted | Refused:
    (result,) = results
    return result


def refused(run: RunDirectory, store: BaselineStore, **options: Any) -> str:
    result = one(accept(run, store, accepted_by="ada", **options))
    assert isinstance(result, Refused)
    assert not list(store.shipped.rglob("*.json")) or options
    return result.reason


def test_first_of_its_kind(gpu_run: Callable[..., RunDirectory], store: BaselineStore, h200: Machine) -> None:
    """Values, provenance and the label are those of the run; a CPU-only look-up path is not involved."""
    run = gpu_run()
    result = one(accept(run, store, accepted_by="ada"))
    assert result == Accepted(KEY, store.shipped / "h200-sxm" / "1x1" / f"{KEY}.json", 3)
    baseline = store.find(h200, KEY)
    assert baseline is not None
    stack = baseline.reference
    assert (stack.run_id, stack.accepted_by, stack.label, stack.because) == (
        run.id,
        "ada",
        "bootstrap",
        "first on record",
    )
    assert stack.stack.driver == "580.159.04"
    assert [sample.launch_id for sample in stack.samples] == [f"{KEY}.timed-{n}" for n in (1, 2, 3)]
    assert stack.samples[0].values["mean_power"] == 588.4
    assert stack.samples[0].start_temp_c == {"GPU-1": 31.0}
    assert stack.speed_on_record
    assert not stack.new_level
    assert baseline.comparable == run.comparable(KEY)


def test_a_later_run_is_appended(gpu_run: Callable[..., RunDirectory], store: BaselineStore, h200: Machine) -> None:
    """The newest accepted is the reference, the old stack stays as history; the same run never counts twice."""
    accept(gpu_run(), store, accepted_by="ada")
    newer = gpu_run(verdict=Verdict.PASS)
    assert isinstance(one(accept(newer, store, accepted_by="bob", label="driver 590")), Accepted)
    baseline = store.find(h200, KEY)
    assert baseline is not None
    assert [stack.label for stack in baseline.stacks] == ["bootstrap", "driver 590"]
    assert baseline.reference.run_id == newer.id
    assert one(accept(newer, store, accepted_by="bob")) == Refused(KEY, "already on record")


def test_an_undecided_night_goes_on_record_with_a_reason(
    gpu_run: Callable[..., RunDirectory], store: BaselineStore, h200: Machine
) -> None:
    """Tensor parallelism that waits for its host: one night was too unsteady to judge any by, and since only what was
    judged could go on record, it would have stayed so for ever."""
    accept(gpu_run(), store, accepted_by="ada")
    night = gpu_run(verdict=Verdict.INCONCLUSIVE)
    assert isinstance(one(accept(night, store, accepted_by="ada", because="nothing changed")), Accepted)
    baseline = store.find(h200, KEY)
    assert baseline is not None
    assert (baseline.reference.because, baseline.reference.new_level) == ("nothing changed", False)
    assert len(list(baseline.segments())) == 1


def test_an_undecided_cpu_stays_off_the_record(cpu_run: Callable[..., RunDirectory], store: BaselineStore) -> None:
    """There it means that the machine was busy, and no reason makes its times better."""
    run = cpu_run([1.0] * 5)
    (key,) = run.scenario_keys()
    judgement = run.judgement(key)
    assert judgement is not None
    run.save_judgement(msgspec.structs.replace(judgement, verdict=Verdict.INCONCLUSIVE, because="busy"))
    assert one(accept(run, store, accepted_by="ada", because="nothing changed")) == Refused(key, "INCONCLUSIVE: busy")


def test_incomparable_starts_a_new_file(
    gpu_run: Callable[..., RunDirectory], store: BaselineStore, h200: Machine
) -> None:
    """Numbers of two power limits must never stand in one list; what changed is said."""
    accept(gpu_run(), store, accepted_by="ada")
    result = one(accept(gpu_run(comparable={"power_limit_w": 600.0}), store, accepted_by="ada"))
    assert isinstance(result, Accepted)
    assert result.note == ("a new file, the old one was not comparable: power_limit_w: 700.0 on record, 600.0 here")
    baseline = store.find(h200, KEY)
    assert baseline is not None
    assert len(baseline.stacks) == 1


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"faults": (Fault(name="slowdown", value=0.1),)}, "injected: slowdown"),
        ({"replayed": True}, "replayed: recorded launches do not measure this machine"),
        ({"first": {"injected": True}}, f"injected: {KEY}.timed-1"),
        ({"first": {"simulated": True}}, f"simulated: {KEY}.timed-1"),
        ({"verdict": Verdict.INVALID}, "INVALID: told INVALID"),
        (
            {"verdict": Verdict.INCONCLUSIVE},
            "INCONCLUSIVE: told INCONCLUSIVE; if nothing is wrong with these launches, say so with --because",
        ),
        (
            {"verdict": Verdict.REGRESSION},
            "REGRESSION: told REGRESSION; to make it the new normal, say why with --because",
        ),
        ({"launches": 2}, "2 of 3 valid launches; run it with --charllm-launches 3"),
        (
            {"first": {"validity": Validity.INVALID, "reason": "sampler lost"}},
            f"2 of 3 valid launches; {KEY}.timed-1 invalid: sampler lost",
        ),
        ({"values": {"hbm_temp_end": None}}, f"{KEY}.timed-1 has no hbm_temp_end: not read"),
        ({"first": {"stack": Stack(torch="2.10.0", driver="580.159.04")}},
         "the software changed between launches: torch 2.10.0, then 2.11.0"),
        (
            {"judgement": {"checks": (Check(name="loss parity", ok=False, expected="1", observed="2"),)}},
            "strict checks failed: loss parity",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)  # fmt: skip
def test_refused(
    gpu_run: Callable[..., RunDirectory], store: BaselineStore, changes: dict[str, Any], reason: str
) -> None:
    """Each of these on record would make every later verdict wrong."""
    assert refused(gpu_run(**changes), store) == reason


def test_a_simulated_machine_is_refused(
    gpu_run: Callable[..., RunDirectory], store: BaselineStore, h200: Machine
) -> None:
    """A machine that was assumed for planning or simulated for tests has no speed."""
    machine = msgspec.structs.replace(h200, simulated=True)
    assert refused(gpu_run(machine=machine), store) == "simulated: the machine was not really there"


def test_a_crashed_launch_is_refused(gpu_run: Callable[..., RunDirectory], store: BaselineStore) -> None:
    """The launches that survived beside a crash are not the scenario's speed."""
    run = gpu_run()
    launch = Launch(
        id=f"{KEY}.timed-4",
        scenario=Scenario(work=Training(model="llama3-1b", microbatch=1)),
        pass_=Pass.TIMED,
        window=TIERS["nightly", False].window,
        status=Status.CRASHED,
        failure=Failure(kind="signal", summary="rank 0: SIGSEGV"),
    )
    (run.launch_directory(KEY, Pass.TIMED, 4) / "launch.json").write_bytes(to_json(launch))
    assert refused(run, store) == "CRASHED: rank 0: SIGSEGV"


@pytest.mark.parametrize(("parameters", "wrong"), [(1_104_218_112, ""), (7, "parameters")])
def test_checks_are_done_again(
    gpu_run: Callable[..., RunDirectory], store: BaselineStore, parameters: int, wrong: str
) -> None:
    """Three launches of an hour on eight GPUs were lost to a prediction that the next version mended."""
    checks = tuple(
        Check(name=name, ok=False, expected="1", observed="2") for name in ("parameters", "collective count")
    )
    run = gpu_run(verdict=Verdict.REGRESSION, judgement={"checks": checks})
    scenario = Scenario(work=Training(model="llama3-1b", microbatch=1))
    rank = RankReport(
        nonce="n",
        rank=0,
        world_size=1,
        host="node",
        pid=100,
        pass_=Pass.TRACED,
        device=RankDevice(kind="cuda", name="NVIDIA H200", uuid="GPU-1"),
        tokens_per_step=4096,
        parameters=parameters,
        flops_per_step=hardware_flops_per_step(scenario),
        software=Stack(),
        phases=Phases(),
    )
    launch = Launch(
        id=f"{KEY}.traced-1",
        scenario=scenario,
        pass_=Pass.TRACED,
        window=TIERS["nightly", False].window,
        status=Status.COMPLETED,
        ranks=(rank,),
    )
    (run.launch_directory(KEY, Pass.TRACED, 1) / "launch.json").write_bytes(to_json(launch))
    result = one(accept(run, store, accepted_by="ada", because="the count was held against other buckets"))
    if wrong:
        assert result == Refused(KEY, f"strict checks failed: {wrong}")
    else:
        assert isinstance(result, Accepted)


def test_a_regression_with_a_reason(gpu_run: Callable[..., RunDirectory], store: BaselineStore, h200: Machine) -> None:
    """A slower driver that has to stay can become the new normal, with the reason beside the numbers."""
    run = gpu_run(verdict=Verdict.REGRESSION)
    assert isinstance(one(accept(run, store, accepted_by="ada", because="CVE fix costs 5 %")), Accepted)
    baseline = store.find(h200, KEY)
    assert baseline is not None
    assert baseline.reference.because == "CVE fix costs 5 %"
    assert baseline.reference.new_level


def test_a_broken_baseline_stands_in_the_way(gpu_run: Callable[..., RunDirectory], store: BaselineStore) -> None:
    """Overwriting a file that somebody edited would hide the edit for good."""
    accept(gpu_run(), store, accepted_by="ada")
    path = store.shipped / "h200-sxm" / "1x1" / f"{KEY}.json"
    edited = path.read_bytes().replace(b"588.4", b"488.4", 1)
    path.write_bytes(edited)
    result = one(accept(gpu_run(), store, accepted_by="ada"))
    assert isinstance(result, Refused)
    assert "stacks[0].samples[0] was edited" in result.reason
    assert path.read_bytes() == edited


def test_only_some(gpu_run: Callable[..., RunDirectory], store: BaselineStore) -> None:
    """By pattern or by part of a key; a pattern that matches nothing is a typing error, not a success."""
    run = gpu_run(key="gpt3-175b.2L.mb1")
    assert isinstance(one(accept(run, store, accepted_by="ada", only="gpt3*")), Accepted)
    assert one(accept(run, store, accepted_by="ada", only="175b")) == Refused("gpt3-175b.2L.mb1", "already on record")
    with pytest.raises(BadInput, match=r"holds no timed scenario that matches llama"):
        accept(run, store, accepted_by="ada", only="llama")


def test_a_running_run_is_left_alone(project: Path, store: BaselineStore, h200: Machine) -> None:
    """Half of its launches on record would be somebody's surprise tomorrow."""
    run = RunDirectory.create(project / ".charllm", machine=h200, tier="nightly")
    with pytest.raises(BadInput, match="is still running"):
        accept(run, store, accepted_by="ada")


def test_an_interrupted_run_says_so(gpu_run: Callable[..., RunDirectory], store: BaselineStore) -> None:
    """Launches without a judgement come from a run that was stopped."""
    run = gpu_run()
    run.finish(interrupted=True)
    (run.path / "judgements" / f"{KEY}.json").unlink()
    assert refused(run, store) == "not judged: the run was interrupted"


def test_cpu_speed_goes_on_record_where_launches_agree(
    cpu_run: Callable[..., RunDirectory], store: BaselineStore, cpu: Machine
) -> None:
    """Five launches within 1.5 % are a baseline, and it stays on this machine."""
    result = one(accept(cpu_run([7.60, 7.63, 7.66, 7.61, 7.65]), store, accepted_by="ada"))
    assert result == Accepted(CPU_KEY, store.local / "cpu" / "1x2" / f"{CPU_KEY}.json", 5)
    baseline = store.find(cpu, CPU_KEY)
    assert baseline is not None
    assert baseline.reference.speed_on_record


def test_cpu_speed_stays_off_record_where_launches_scatter(
    cpu_run: Callable[..., RunDirectory], store: BaselineStore, cpu: Machine
) -> None:
    """A machine too noisy to agree with itself would only raise false alarms."""
    result = one(accept(cpu_run([7.2, 7.63, 8.0, 7.61, 7.65]), store, accepted_by="ada"))
    assert isinstance(result, Accepted)
    assert result.note == ("speed is not on record: Gate A of the 5 launches scatters by 3.72 % (CoV), more than 1.5 %")
    baseline = store.find(cpu, CPU_KEY)
    assert baseline is not None
    assert not baseline.reference.speed_on_record
    assert "scatters by 3.72 %" in baseline.reference.because


def test_a_noisy_run_does_not_take_speed_off_the_record(
    cpu_run: Callable[..., RunDirectory], store: BaselineStore
) -> None:
    """Accepting on a bad day must not switch the gate off."""
    accept(cpu_run([7.60, 7.63, 7.66, 7.61, 7.65]), store, accepted_by="ada")
    result = one(accept(cpu_run([7.2, 7.63, 8.0, 7.61, 7.65]), store, accepted_by="ada"))
    assert isinstance(result, Refused)
    assert result.reason.endswith("the speed on record stays: measure again on a quieter machine")


def test_cpu_needs_five_launches(cpu_run: Callable[..., RunDirectory], store: BaselineStore) -> None:
    """One launch cannot agree with itself."""
    result = one(accept(cpu_run([7.6]), store, accepted_by="ada"))
    assert result == Refused(CPU_KEY, "1 of 5 valid launches; run it with --charllm-launches 5")


def test_strict_only_scenarios_are_no_refusal(cpu_run: Callable[..., RunDirectory], store: BaselineStore) -> None:
    """Most CPU scenarios are judged by strict checks alone; `accept latest` must not end red because of them."""
    run = cpu_run([7.60, 7.63, 7.66, 7.61, 7.65])
    run.save_judgement(Judgement(scenario_key="llama-5m.dp2+fsdp.mb2", verdict=Verdict.PASS, because="checks hold"))
    assert [result.key for result in accept(run, store, accepted_by="ada")] == [CPU_KEY]
