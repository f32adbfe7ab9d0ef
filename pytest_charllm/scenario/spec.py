"""The words of a scenario: what is run (`Training`, `Script` or `Collective`), how it is spread (`Layout`), with which
switches (`Options`)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from enum import StrEnum

import msgspec

from pytest_charllm.errors import BadInput

DEFAULT_ENGINE = "native"
SCRIPT_ENGINE = "script"
"""The engine of every `Script`, and of nothing else."""
COLLECTIVE_ENGINE = "collective"
"""The engine of every `Collective`, and of nothing else."""
LARGEST_MESSAGE = 1 << 30
"""Bytes up to which a collective is swept where its scenario does not say."""
DEFAULT_SCHEDULE = "1f1b"
"""Of a pipeline whose layout names none, whatever the engine."""
V_SHAPES = ("zbv", "dualpipev")
"""Schedules that turn round on the last rank, so that the first and the last stage are on the same one."""


class Sharding(StrEnum):
    """How the data-parallel ranks share parameters, gradients and optimizer state."""

    NONE = "none"
    FSDP = "fsdp"
    HSDP = "hsdp"
    ZERO1 = "zero1"
    ZERO2 = "zero2"
    ZERO3 = "zero3"

    @property
    def is_fsdp(self) -> bool:
        """torch's FSDP2 does it."""
        return self in (Sharding.FSDP, Sharding.HSDP)

    @property
    def is_zero(self) -> bool:
        """DeepSpeed does it."""
        return self in (Sharding.ZERO1, Sharding.ZERO2, Sharding.ZERO3)


class CollectiveOp(StrEnum):
    """What is called. p2p: every rank sends to the next and receives from the one before, at the same time."""

    ALL_REDUCE = "all-reduce"
    ALL_GATHER = "all-gather"
    REDUCE_SCATTER = "reduce-scatter"
    ALL_TO_ALL = "all-to-all"
    P2P = "p2p"


class Recompute(StrEnum):
    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"


class Precision(StrEnum):
    """bf16: bf16 compute over fp32 master weights. fp32: everything in fp32. fp8: as bf16, with the linear layers of
    the blocks in fp8."""

    BF16 = "bf16"
    FP32 = "fp32"
    FP8 = "fp8"


class Layout(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Degrees of each parallel axis. World size is ``tp * pp * cp * dp``; ``ep`` partitions dp, it never multiplies.

    `sequence_parallel` splits what lies between the tensor-parallel regions along the sequence (no effect at tp 1);
    `ring` hands keys and values around the cp ranks, where the default exchanges sequence for heads (Ulysses);
    `gathered` keeps weights that fsdp or hsdp shards whole between forward and backward (a pipeline always does);
    `virtual_stages` is how many stages each rank has in an interleaved schedule (None: 2);
    `stage_layers` names the layers of every stage in the order of the model.
    """

    tp: int = 1
    pp: int = 1
    cp: int = 1
    dp: int = 1
    ep: int = 1
    sharding: Sharding = Sharding.NONE
    replicas: int = 1
    gathered: bool = False
    sequence_parallel: bool = True
    ring: bool = False
    schedule: str | None = None
    virtual_stages: int | None = None
    stage_layers: tuple[int, ...] | None = None

    @property
    def world(self) -> int:
        return self.tp * self.pp * self.cp * self.dp

    @property
    def batch_ranks(self) -> int:
        """Ranks that see different tokens with the same dense parameters: context-parallel ones do as well."""
        return self.dp * self.cp

    @property
    def stages_per_rank(self) -> int:
        """Pipeline stages on each rank: the V-shaped schedules give every rank two, an interleaved one as it says."""
        if self.schedule == "interleaved-1f1b":
            return self.virtual_stages or 2
        return 2 if self.schedule in V_SHAPES else 1

    @property
    def stages(self) -> int:
        """Pipeline stages of the whole model."""
        return self.pp * self.stages_per_rank


class Training(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, tag="training"
):
    """Pre-training steps of one model. `layers` set means the reduced model: same widths, fewer layers.

    `microbatch` is in sequences per data-parallel rank; `global_batch` in sequences per optimizer step
    (None: one microbatch on each data-parallel rank); `seq` in tokens (None: the model's own).
    """

    model: str
    microbatch: int
    layers: int | None = None
    global_batch: int | None = None
    seq: int | None = None


class Script(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, tag="script"):
    """Somebody's own training program, started under torchrun as it is: ``Script("train.py", args=["--steps", "60"])``.

    `path` is a file, relative to the directory that pytest runs in, or with `module` a module as for ``python -m``.
    `args` reach it untouched, but for ``{out}``: the launch's own folder, empty at first, for whatever it writes.
    `name` stands for it in the key (default: the file's or module's name).

    Step times come from `pytest_charllm.step.mark_step`, or, with `log`, from what it prints: the name of a log reader,
    or "auto". `log_file` is read in place of its output (``{out}`` and relative paths as above).
    `tokens_per_step` are the global tokens of one optimizer step, where neither marks nor log tell them.
    It may be silent, neither stepping nor printing, for `silence_s` seconds, and take `deadline_s` in all.
    """

    path: str  # may be given by position, unlike the fields of every other struct: it reads as a call of the program
    args: Sequence[str] = ()
    name: str = ""
    module: bool = False
    log: str | None = None
    log_file: str | None = None
    tokens_per_step: int | None = None
    silence_s: float = 900.0
    deadline_s: float = 3600.0

    def __post_init__(self) -> None:
        if isinstance(self.args, str):
            raise TypeError(f"Script({self.path!r}): args is a list of arguments, not one string")
        path = os.fspath(self.path)
        msgspec.structs.force_setattr(self, "path", path if self.module else os.path.normpath(path))
        msgspec.structs.force_setattr(self, "args", tuple(str(argument) for argument in self.args))

    @property
    def reads_log(self) -> bool:
        """Whether step times come from a log; otherwise from `mark_step`."""
        return self.log is not None or self.log_file is not None


class Collective(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, tag="collective"
):
    """One operation between all ranks and nothing beside it, at every size of `scenario.collective.SIZES` up to
    `largest` bytes. The layout is ``dp<N>``, N ranks that are alike."""

    op: CollectiveOp
    largest: int = LARGEST_MESSAGE


class Options(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Switches that change how the same work is computed."""

    recompute: Recompute = Recompute.NONE
    precision: Precision = Precision.BF16
    compile: bool = True
    overlap: bool = True
    """Communication runs beside computation wherever the engine can; see `scenario.overlap` for where that is."""
    distributed_optimizer: bool = False
    """Data-parallel ranks share the optimizer's state and update, while each keeps all parameters and gradients."""
    lora: int = 0
    """Rank of the adapters on the q, k and v projections, the rest being frozen; 0: everything is trained."""
    chunked_loss: bool = False
    """Head and loss work on a few tokens at a time, so that the logits of a microbatch never exist at once."""
    real_routing: bool = False
    """Tokens go to the experts that the router chooses also where time is measured; by default every expert gets the
    same number of them there."""
    reduce_bucket: int = 500_000_000
    """Gradients that ZeRO reduces at once, in elements, as are the two below; the defaults are DeepSpeed's."""
    prefetch_bucket: int = 50_000_000
    """Parameters that ZeRO 3 gathers ahead of their use; 0: none."""
    live_parameters: int = 1_000_000_000
    """Parameters that ZeRO 3 lets be whole at once, and within how many a gathered one is kept for its next use."""
    sm_clock: int = 0
    """MHz that the GPUs' SM clocks are locked to while it runs; 0: the driver chooses."""
    soak: int = 0
    """Minutes that its window lasts at least, so that the boards settle; 0: as the tier says."""


class Scenario(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What is run: work x layout x options x engine. Frozen and hashable; `key` names it independently of any test."""

    work: Training | Script | Collective
    layout: Layout = Layout()
    options: Options = Options()
    engine: str = DEFAULT_ENGINE

    def __post_init__(self) -> None:
        if isinstance(self.work, Script) and self.engine == DEFAULT_ENGINE:
            msgspec.structs.force_setattr(self, "engine", SCRIPT_ENGINE)
        if isinstance(self.work, Collective) and self.engine == DEFAULT_ENGINE:
            msgspec.structs.force_setattr(self, "engine", COLLECTIVE_ENGINE)

    @property
    def training(self) -> Training:
        """The work of a model of ours. Raises `BadInput` for a script, since what it trains is not known, and for a
        collective."""
        if isinstance(self.work, Script):
            raise BadInput(f"{self.key} is a script: what it trains is not known")
        if isinstance(self.work, Collective):
            raise BadInput(f"{self.key} trains nothing")
        return self.work

    @property
    def key(self) -> str:
        """The stable, readable name: ``gpt3-175b.tp8pp4.mb1.recompute-full``; `parse_key` is its inverse, but for a
        script's (``script-pretrain_gpt.tp2dp4.args-1f9c02ab``)."""
        from pytest_charllm.scenario.key import format_key

        return format_key(self)

    @property
    def global_batch(self) -> int:
        """Sequences per optimizer step over all ranks."""
        return self.training.global_batch or self.training.microbatch * self.layout.dp

    @property
    def accumulation(self) -> int:
        """Microbatches per optimizer step on each data-parallel rank (feasibility checks that it divides)."""
        return self.global_batch // (self.training.microbatch * self.layout.dp)

    @property
    def element_bytes(self) -> int:
        """Of one number in the precision in which activations are computed and travel."""
        return 4 if self.options.precision is Precision.FP32 else 2

    @property
    def lowers_weights(self) -> bool:
        """Whether products read weights kept in compute precision beside fp32 masters that the update alone touches:
        where no rank shares gradients with another, and the update is a kernel of our own."""
        layout, options = self.layout, self.options
        return (
            self.engine == DEFAULT_ENGINE
            and options.compile
            and options.precision is Precision.BF16
            and layout.world == 1
            and layout.sharding is Sharding.NONE
            and not options.distributed_optimizer
        )
