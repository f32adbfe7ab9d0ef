"""What goes into a launch and what comes back: request, report a rank, failure, and the launch as a whole."""

from __future__ import annotations

from enum import StrEnum

from pytest_charllm.records.base import SCHEMA, Record
from pytest_charllm.records.breakdown import AxisTime, StepBreakdown
from pytest_charllm.records.stack import Stack
from pytest_charllm.scenario.spec import Scenario


class Pass(StrEnum):
    """timed: carries nothing but step clocks. diagnostic: parity, FLOPs and traffic. traced: a few steps under the
    profiler. Only the first contributes a step time."""

    TIMED = "timed"
    DIAGNOSTIC = "diagnostic"
    TRACED = "traced"


class Status(StrEnum):
    COMPLETED = "completed"
    CRASHED = "crashed"
    HUNG = "hung"
    OUT_OF_MEMORY = "out-of-memory"
    HARNESS = "harness"


class WindowRule(Record, frozen=True, kw_only=True):
    """When warm-up ends and how long is measured. Part of what makes two numbers comparable.

    The window lasts until both `min_steps` and `min_seconds` are reached. Warm-up ends after `warmup_steps` and
    `warmup_seconds`, once the medians of two successive groups of `steady_steps` steps differ by less than
    `steady_ratio`; at `warmup_max_steps` it ends anyway, and the launch says that it was not steady.
    """

    tier: str
    min_steps: int
    min_seconds: float
    warmup_steps: int
    warmup_seconds: float
    warmup_max_steps: int
    steady_steps: int
    steady_ratio: float


class Fault(Record, frozen=True, kw_only=True):
    """A known slowdown or failure put into real work. `rank` None means every rank."""

    name: str
    value: float | None = None
    rank: int | None = None


class FaultApplied(Record, frozen=True, kw_only=True):
    """What an injected fault did: requested and achieved, as a share of the clean step, of memory for "memory", in
    objects a step for "leak". None where it has no size, or where a rank cannot tell."""

    name: str
    requested: float | None
    achieved: float | None


class RankRequest(Record, frozen=True, kw_only=True):
    """What every rank of one launch is asked to do. Travels as a file, never through argv or the environment."""

    schema: int = SCHEMA
    nonce: str
    scenario: Scenario
    pass_: Pass
    window: WindowRule
    device: str
    """"cuda" or "cpu"."""
    faults: tuple[Fault, ...] = ()
    seed: int = 1234
    diagnostic_steps: int = 5
    out_dir: str
    deadline_s: float


class RankDevice(Record, frozen=True, kw_only=True):
    """The device a rank ran on. `uuid` is what NVML calls it, with its ``GPU-`` prefix."""

    kind: str
    name: str
    uuid: str | None = None
    pci: str | None = None


class StepSeries(Record, frozen=True, kw_only=True):
    """One entry a measured step, in seconds. `cpu_s` is this process's CPU time, empty on a GPU."""

    wall_s: tuple[float, ...]
    cpu_s: tuple[float, ...] = ()


class StepMarks(Record, frozen=True, kw_only=True):
    """When a script called `mark_step` on one rank: N calls, so N - 1 steps. One entry a call, in order.

    `mono_ns` on CLOCK_MONOTONIC; with `on_device`, when the device got there. `cpu_ns` is the process's CPU time, empty
    with `on_device`. `tokens` are those of the step that the call ended, over all ranks; empty where one did not say.
    """

    mono_ns: tuple[int, ...]
    cpu_ns: tuple[int, ...] = ()
    tokens: tuple[int, ...] = ()
    on_device: bool = False


class Elapsed(Record, frozen=True, kw_only=True):
    """A stretch of one process, by the wall's clock and by its own CPU time, children left out."""

    wall_s: float
    cpu_s: float


class Unmeasured(Record, frozen=True, kw_only=True):
    """Why a script that ran to its end leaves no step times. `message` is one line: what, where, what to do."""

    status: str
    """"never-marked", "marked-once", "several-threads", "several-processes", "cut", or a `LogStatus`."""
    message: str


class Calibration(Record, frozen=True, kw_only=True):
    """A fixed piece of work timed in the same launch, so that a slow machine and a slow framework can be told apart.

    On a CPU one entry a step, interleaved; on a GPU repeated outside the window. `work` is FLOPs or bytes of one.
    """

    kind: str
    """"matmul", "decoder" (frozen reference decoder), "copy" or "all-reduce"."""
    work: float
    work_unit: str
    wall_s: tuple[float, ...]
    cpu_s: tuple[float, ...] = ()


class WindowEdges(Record, frozen=True, kw_only=True):
    """CLOCK_MONOTONIC at the two edges, each taken after a device synchronization."""

    begin_mono_ns: int
    end_mono_ns: int


class Phases(Record, frozen=True, kw_only=True):
    """Seconds spent before the window. `compile_s`: first step minus a steady one. None: not reached."""

    import_s: float | None = None
    build_s: float | None = None
    compile_s: float | None = None
    warmup_s: float | None = None
    window_s: float | None = None


class Warmup(Record, frozen=True, kw_only=True):
    steps: int
    steady: bool
    reason: str


class Collective(Record, frozen=True, kw_only=True):
    """Collectives of one kind on one parallel axis in one optimizer step of one rank.

    `bytes` is the size of the full (unsharded) tensor of each, summed over `count`.
    """

    op: str
    """"all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast", "send", "recv"."""
    axis: str
    """"dp", "tp", "pp", "ep", "cp", or "world" for scalars such as the loss and the gradient norm."""
    count: int
    bytes: int


class MessageTimes(Record, frozen=True, kw_only=True):
    """Calls of one collective with messages of one size on one rank, in batches of `calls` without a pause between.

    `wall_s`: seconds of one call, an entry a batch. `size` is what was asked for, `bytes` that of the full tensor,
    rounded up to equal parts. `wrong`: elements of the first call's result that were not what they had to be.
    `untimed_calls`: that one and those of the warm-up; None in records that do not tell.
    """

    size: int
    bytes: int
    calls: int
    wall_s: tuple[float, ...]
    wrong: int
    untimed_calls: int | None = None


class Reference(Record, frozen=True, kw_only=True):
    """Losses and gradient norms of the same scenario in one fp32 process."""

    losses: tuple[float, ...]
    grad_norms: tuple[float, ...]


class RankReport(Record, frozen=True, kw_only=True):
    """What one rank measured. Written once, atomically; stdout is never parsed."""

    schema: int = SCHEMA
    nonce: str
    rank: int
    world_size: int
    host: str
    pid: int
    pass_: Pass
    device: RankDevice
    tokens_per_step: int | None
    """Global tokens of one optimizer step. None: a script that does not say."""
    parameters: int | None = None
    """Trainable parameters of the full model, before any sharding. None: a script's."""
    attention_backend: str | None = None
    """None: a script's."""
    expert_backend: str | None = None
    """What multiplied the experts' rows: "grouped-mm", "bmm" or "loop". None: no experts, or a script's."""
    expert_imbalance: float | None = None
    """Most tokens of an expert over their mean, in the layer where that is largest, over all ranks and steps so far.
    None: no experts, or tokens were dealt out evenly."""
    software: Stack
    phases: Phases
    steps: StepSeries | None = None
    window: WindowEdges | None = None
    warmup: Warmup | None = None
    marks: StepMarks | None = None
    """Of a script that marks its steps. All ranks' together say which of them are the window."""
    step_source: str = ""
    """What a script's step times are made of; part of comparability."""
    script: Elapsed | None = None
    """A script from its first line to its last: how much of the cores it had, where no step says so."""
    script_digest: str | None = None
    """First 12 hex digits of the SHA-256 of the script's file, as this rank ran it. None: no script, no such file, or
    a launch from before it was kept."""
    unmeasured: Unmeasured | None = None
    calibration: tuple[Calibration, ...] = ()
    peak_memory_bytes: int | None = None
    objects: tuple[int, int] | None = None
    """Python objects that the collector tracks right before the window and after it, garbage removed."""
    compile_cache_cold: bool | None = None
    """True: nothing was in the compiler's cache, so `compile_s` is a compile time. None: no compile."""
    losses: tuple[float, ...] = ()
    grad_norms: tuple[float, ...] = ()
    reference: Reference | None = None
    """Rank 0 of the diagnostic pass only."""
    collectives: tuple[Collective, ...] = ()
    messages: tuple[MessageTimes, ...] = ()
    """Of a collective alone: a size after the other."""
    transport: str | None = None
    """What carried its messages, as far as the library tells; None of everything else."""
    flops_per_step: int | None = None
    """Measured over all ranks' global step, diagnostic pass only; recomputation included."""
    parts_s: dict[str, float] = {}
    """Part of a step -> seconds by the engine's own timers, median over the steps of the diagnostic pass: "forward",
    "backward", "reduction" (of gradients, at the end of the backward pass and in its time) and "update". Empty of the
    native engine, of a pipeline, and in every other pass."""
    breakdown: tuple[StepBreakdown, ...] = ()
    """Of the traced steps, in order; traced pass only. Empty there: a note says why."""
    axis_times: tuple[AxisTime, ...] = ()
    """Of one step more under a profiler that sees the host too; traced pass of several ranks only."""
    untraced_step_s: float | None = None
    """A steady step of the same launch right before, without the profiler."""
    faults: tuple[FaultApplied, ...] = ()
    notes: tuple[str, ...] = ()


class Failure(Record, frozen=True, kw_only=True):
    """Why a launch did not complete: the first cause, not its echoes on other ranks."""

    kind: str
    """"exception", "signal", "out-of-memory", "hang", "rendezvous", "early-exit", "no-report", "not-finite",
    "environment" (something this machine lacks) or "harness"."""
    summary: str
    """One line: what, which rank, where."""
    rank: int | None = None
    detail: str = ""
    """Traceback, or the stacks of all ranks for a hang."""
    log_tail: str = ""
    log_path: str | None = None


class Launch(Record, frozen=True, kw_only=True):
    """One torchrun job, as it ended. `faults` bar it from baselines and history, so do `replayed` and `simulated`."""

    schema: int = SCHEMA
    id: str
    scenario: Scenario
    pass_: Pass
    window: WindowRule
    status: Status
    failure: Failure | None = None
    ranks: tuple[RankReport, ...] = ()
    telemetry: str | None = None
    """File name beside this record."""
    stack: Stack = Stack()
    faults: tuple[Fault, ...] = ()
    seed: int = 1234
    started: str = ""
    """UTC, ISO 8601."""
    wall_s: float = 0.0
    replayed: bool = False
    simulated: bool = False
    notes: tuple[str, ...] = ()

    @property
    def first_cause(self) -> str:
        """Why it did not complete, in one line; how it ended where nothing more is known."""
        return self.failure.summary if self.failure is not None else str(self.status)
