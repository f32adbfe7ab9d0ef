"""One rank in this process: faults, refusals, calibration, and what a report says."""

from __future__ import annotations

import gc
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pytest_charllm.engines import load
from pytest_charllm.engines.errors import NoCompiler, NonFinite, OutOfMemory
from pytest_charllm.engines.native import calibration, extra_work, faults
from pytest_charllm.engines.native.calibration import Interleaved
from pytest_charllm.engines.native.clock import Span
from pytest_charllm.engines.native.extra_work import Slowdown
from pytest_charllm.engines.native.faults import Faults
from pytest_charllm.engines.native.world import World
from pytest_charllm.errors import BadInput
from pytest_charllm.records import Pass, RankReport, RankRequest, tier
from pytest_charllm.records.faults import parse_fault
from pytest_charllm.scenario import Precision, Recompute, Sharding
from pytest_charllm.scenario.flops import hardware_flops_per_step
from pytest_charllm.scenario.models import shape

MakeRequest = Callable[..., RankRequest]
CPU = torch.device("cpu")
WINDOW = tier("smoke", is_cpu=True).window
pytestmark = pytest.mark.usefixtures("alone")


class Heard:
    """A progress that remembers."""

    def __init__(self) -> None:
        self.phases: list[str] = []
        self.details: dict[str, dict[str, Any]] = {}

    def __call__(self, phase: str, **details: Any) -> None:
        self.phases.append(phase)
        self.details[phase] = details


def timed(make_request: MakeRequest, *texts: str, heard: Heard | None = None, **case: Any) -> RankReport:
    injected = tuple(parse_fault(text) for text in texts)
    request = make_request(pass_=Pass.TIMED, **{"layers": 1, **case}, faults=injected)
    return load("native")(request, heard or Heard())


def test_a_clean_window(make_request: MakeRequest) -> None:
    """The launcher's patience and the terminal live on the phases; garbage collection must be back on afterwards."""
    heard = Heard()
    report = timed(make_request, heard=heard)
    assert [phase for phase, before in zip(heard.phases, [None, *heard.phases], strict=False) if phase != before] == [
        "build", "warm-up", "window", "report",
    ]  # fmt: skip
    assert heard.details["window"]["expected_s"] > 0
    assert heard.details["window"]["tokens_per_s"] > 0
    assert gc.isenabled()
    assert report.faults == ()
    assert report.warmup is not None
    assert report.warmup.steps == 3
    assert report.device.kind == "cpu"
    assert report.attention_backend == "flash_for_cpu"
    assert report.compile_cache_cold is None
    assert report.phases.compile_s is None
    assert report.phases.import_s is not None
    assert report.software.torch == torch.__version__
    assert type(report.software.torch) is str


def test_crash(make_request: MakeRequest) -> None:
    """An ordinary exception in mid-window."""
    with pytest.raises(RuntimeError, match="injected crash at step 2"):
        timed(make_request, "crash=2")


def test_nan_names_the_first_step(make_request: MakeRequest) -> None:
    """Found after the window, since reading a loss in it would wait for the device."""
    with pytest.raises(NonFinite, match="nan at step 3 of the window on rank 0") as caught:
        timed(make_request, "nan=3")
    assert caught.value.kind == "not-finite"


def test_oom_is_told_by_its_kind(make_request: MakeRequest) -> None:
    """The CPU allocator's refusal is a plain RuntimeError; the limit must be gone again afterwards."""
    with pytest.raises(OutOfMemory, match="rank 0 on cpu") as caught:
        timed(make_request, "oom")
    assert caught.value.kind == "out-of-memory"
    assert torch.empty(1 << 29, dtype=torch.uint8).numel() == 1 << 29


def test_early_exit_leaves_in_mid_window(make_request: MakeRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 0 without a report: the launcher must notice by itself."""

    def leave(code: int) -> None:
        raise SystemExit(code)

    monkeypatch.setattr(faults.os, "_exit", leave)
    with pytest.raises(SystemExit) as caught:
        timed(make_request, "early-exit")
    assert caught.value.code == 0


def test_hang_never_returns(make_request: MakeRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """It must outlast any deadline, not a fixed time."""
    slept = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(faults, "time", SimpleNamespace(sleep=sleep))
    with pytest.raises(KeyboardInterrupt):
        timed(make_request, "hang")


def test_a_fault_that_would_never_happen_is_refused(make_request: MakeRequest) -> None:
    """A drill that stays green because its fault lay behind the window."""
    steps = WINDOW.min_steps
    with pytest.raises(BadInput, match=f"crash={steps}: the window has only steps 0 to {steps - 1}"):
        timed(make_request, f"crash={steps}")


def test_faults_of_other_ranks_are_not_mine() -> None:
    """rank=1 must leave rank 0 alone, and rank=0 must not mean every rank."""
    injected = [parse_fault("nan=4,rank=1"), parse_fault("nan=5,rank=0"), parse_fault("nan=6")]
    mine = Faults(injected, World(0, 2, CPU))
    assert [step for step in range(16) if mine.before_step(step)] == [5, 6]


def test_slowdown_is_fitted_to_the_clean_step() -> None:
    """Units follow from the cost of the extra work in place, and the achieved share from the measured spans."""
    slowdown = Slowdown(0.1, CPU)
    slowdown.fit(clean_s=1.0, extra_s=0.0)
    units = slowdown._units
    assert units >= 1
    slowdown.fit(clean_s=1.0, extra_s=0.05)
    assert slowdown._units == 2 * units
    both = Faults([parse_fault("slowdown=0.1")], World(0, 1, CPU))
    [applied] = both.applied([Span(9.0, 1.1), Span(9.0, 1.1)], [Span(9.0, 0.1), Span(9.0, 0.1)])
    assert applied.requested == 0.1
    assert applied.achieved == pytest.approx(0.1)


def test_extra_work_tells_what_it_came_to(make_request: MakeRequest) -> None:
    """A drill whose fault was never there would prove a gate that sees nothing; several at once stay apart."""
    report = timed(make_request, "host-stall=0.5", "memory=0.1", "leak=50")
    stall, memory, leak = report.faults
    assert stall.requested == 0.5
    assert stall.achieved == pytest.approx(0.5, rel=0.5)  # sized before the window, on whatever machine this is
    assert memory.achieved == pytest.approx(0.1, rel=1e-3)
    assert (leak.requested, leak.achieved) == (50.0, 50.0)
    assert report.objects is not None
    before, after = report.objects
    assert after - before >= 50 * WINDOW.min_steps


def test_overlap_that_is_not_there_cannot_be_lost(make_request: MakeRequest) -> None:
    """One rank reduces nothing: silently without effect, the drill would read as a gate that missed it."""
    with pytest.raises(BadInput, match="lost-overlap: only gradients of DDP"):
        timed(make_request, "lost-overlap")


def test_reductions_without_overlap_are_means(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hook that forgets to divide by the ranks would be another training, not a slower one."""
    hooks: list[Any] = []
    model = SimpleNamespace(process_group=None, register_comm_hook=lambda _, hook: hooks.append(hook))

    def all_reduce(tensor: torch.Tensor, **_: Any) -> SimpleNamespace:
        tensor.mul_(2)  # the other rank has the same gradients
        return SimpleNamespace(wait=lambda: None)

    fake = SimpleNamespace(get_world_size=lambda _: 2, all_reduce=all_reduce)
    monkeypatch.setattr(extra_work, "dist", fake)
    lost = extra_work.LostOverlap(model, CPU)  # type: ignore[arg-type]
    [hook] = hooks
    assert hook(None, SimpleNamespace(buffer=lambda: torch.tensor([3.0]))).value().tolist() == [3.0]
    lost.waited_s = 1.0
    assert lost.share_of(5.0) == 0.25


def test_host_work_is_not_counted_as_the_slowdown() -> None:
    """On a CPU both lie in one span of every step."""
    both = Faults([parse_fault("slowdown=0.1"), parse_fault("host-stall=0.2")], World(0, 1, CPU))
    assert both._stall is not None
    both._stall.spent_s = 0.4
    slowdown, stall = both.applied([Span(9.0, 1.3), Span(9.0, 1.3)], [Span(9.0, 0.3), Span(9.0, 0.3)])
    assert slowdown.achieved == pytest.approx(0.1)
    assert stall.achieved == pytest.approx(0.2)


def test_calibrations_touch_no_nn(make_request: MakeRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What slows `torch.nn.functional` would slow the yardstick too, and the ratio would hide it."""
    world, tiny = World(0, 1, CPU), shape("tiny-llama")
    yardstick = Interleaved(tiny, 64, world)

    def barred(*_: Any, **__: Any) -> None:
        raise AssertionError("a calibration called torch.nn")

    for name in dir(torch.nn.functional):
        each = getattr(torch.nn.functional, name)
        if callable(each) and not isinstance(each, type) and not name.startswith("_"):
            monkeypatch.setattr(torch.nn.functional, name, barred)
    monkeypatch.setattr(torch.nn.Module, "__call__", barred)
    yardstick.warm_up()
    yardstick.measure()
    assert [each.kind for each in yardstick.results()] == ["matmul", "decoder"]


def test_linear_layers_go_through_functional(make_request: MakeRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The counterpart: a slowdown in `F.linear` must hit the step."""
    calls = []
    original = torch.nn.functional.linear
    monkeypatch.setattr(
        torch.nn.functional, "linear", lambda *args, **kwargs: calls.append(1) or original(*args, **kwargs)
    )
    timed(make_request)
    assert len(calls) == (7 + 1) * (WINDOW.warmup_steps + WINDOW.min_steps)


def test_calibration_work_is_what_was_done() -> None:
    """`work` turns a calibration's time into a speed: it must be the FLOPs really done."""
    from torch.utils.flop_counter import FlopCounterMode

    for _, flops, work in (calibration.matmul_of_widths(shape("tiny-llama"), 64), calibration.reference_decoder()):
        with FlopCounterMode(display=False) as counter:
            work()
        assert counter.get_total_flops() == flops


def test_no_compiler_is_one_line(make_request: MakeRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inductor would say so after minutes, over many lines."""
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(NoCompiler, match=r"needs a C\+\+ compiler and found no no-such-compiler") as caught:
        timed(make_request, compiled=True)
    assert caught.value.kind == "environment"
    assert "\n" not in str(caught.value)


def test_what_cannot_be_trained_is_refused(make_request: MakeRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line before anything is built."""
    with pytest.raises(BadInput, match="native does not do sharding zero1"):
        timed(make_request, sharding=Sharding.ZERO1)
    with pytest.raises(BadInput, match="needs 2 ranks, this launch has 1"):
        timed(make_request, dp=2)
    with pytest.raises(BadInput, match="megatron"):
        load("megatron")


def test_compiled_blocks_train_alike(
    make_request: MakeRequest, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Compile, bf16 and selective recompute together: one graph for all blocks, counted eagerly, learning the same."""
    from torch._dynamo.utils import counters

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("inductor")))
    torch._dynamo.reset()
    counters.clear()
    request = make_request(
        compiled=True, precision=Precision.BF16, recompute=Recompute.SELECTIVE, layers=3, global_batch=4
    )
    report = load("native")(request, Heard())
    assert counters["stats"]["unique_graphs"] == 2
    assert report.reference is not None
    for here, there in zip(report.losses, report.reference.losses, strict=True):
        assert here == pytest.approx(there, rel=5e-4)
    for here, there in zip(report.grad_norms, report.reference.grad_norms, strict=True):
        assert here == pytest.approx(there, rel=2e-2)
    assert report.flops_per_step == hardware_flops_per_step(request.scenario)


@pytest.mark.parametrize(
    ("model", "recompute"),
    [("tiny-gpt", Recompute.NONE), ("tiny-llama", Recompute.SELECTIVE), ("tiny-llama", Recompute.FULL)],
)
def test_attention_that_is_not_fused_is_counted_as_it_is(
    make_request: MakeRequest, model: str, recompute: Recompute
) -> None:
    """A GPU has no fused attention for fp32 and grouped heads: predictions for flash were 1 % too high there."""
    request = make_request(model=model, recompute=recompute)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        report = load("native")(request, Heard())
    assert report.attention_backend == "math"
    assert report.flops_per_step == hardware_flops_per_step(request.scenario, "math")


@pytest.mark.parametrize("real", [False, True])
def test_a_mixture_is_timed_by_the_routing_it_asks_for(make_request: MakeRequest, real: bool) -> None:
    """Balanced routing where real was asked times other work; a report that does not say how uneven it was explains
    no slow step."""
    report = timed(make_request, model="tiny-mixtral", real_routing=real)
    assert report.expert_backend == "bmm"
    if real:
        assert report.expert_imbalance is not None
        assert report.expert_imbalance > 1
    else:
        assert report.expert_imbalance is None
