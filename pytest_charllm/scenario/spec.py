"""The words of a scenario: what is run (`Training`), how it is spread (`Layout`), with which switches (`Options`)."""

from __future__ import annotations

from enum import StrEnum

import msgspec

DEFAULT_ENGINE = "native"


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
    """bf16: bf16 compute over fp32 master weights. fp32: everything in fp32."""

    BF16 = "bf16"
    FP32 = "fp32"


class Layout(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Degrees of each parallel axis. World size is ``tp * pp * cp * dp``; ``ep`` partitions dp, it never multiplies."""

    tp: int = 1
    pp: int = 1
    cp: int = 1
    dp: int = 1
    ep: int = 1
    sharding: Sharding = Sharding.NONE
    replicas: int = 1
    schedule: str | None = None
    stage_layers: tuple[int, ...] | None = None

    @property
    def world(self) -> int:
        return self.tp * self.pp * self.cp * self.dp


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
