"""The words of a scenario: what is run (`Training`), how it is spread (`Layout`), with which switches (`Options`)."""

from __future__ import annotations

from enum import StrEnum

import msgspec

DEFAULT_ENGINE = "native"
DEFAULT_SCHEDULE = "1f1b"
"""Of a pipeline whose layout names none, whatever the engine."""


class Sharding(StrEnum):
    """How the data-parallel ranks share parameters, gradients and optimizer state."""

    NONE = "none"
    FSDP = "fsdp"
    HSDP = "hsdp"
    ZERO1 = "zero1"
    ZERO2 = "zero2"
    ZERO3 = "zero3"


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
    `gathered` keeps weights that are sharded by fsdp or hsdp whole between forward and backward;
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
    def stages_per_rank(self) -> int:
        """Pipeline stages on each rank: the V-shaped schedules give every rank two, an interleaved one as it says."""
        if self.schedule == "interleaved-1f1b":
            return self.virtual_stages or 2
        return 2 if self.schedule in ("zbv", "dualpipev") else 1

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


class Scenario(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What is run: work x layout x options x engine. Frozen and hashable; `key` names it independently of any test."""

    work: Training
    layout: Layout = Layout()
    options: Options = Options()
    engine: str = DEFAULT_ENGINE

    @property
    def key(self) -> str:
        """The stable, readable name: ``gpt3-175b.tp8pp4.mb1.recompute-full``; `parse_key` is its inverse."""
        from pytest_charllm.scenario.key import format_key

        return format_key(self)

    @property
    def global_batch(self) -> int:
        """Sequences per optimizer step over all ranks."""
        return self.work.global_batch or self.work.microbatch * self.layout.dp

    @property
    def accumulation(self) -> int:
        """Microbatches per optimizer step on each data-parallel rank (feasibility checks that it divides)."""
        return self.global_batch // (self.work.microbatch * self.layout.dp)
