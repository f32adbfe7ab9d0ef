"""What the passes ask of a model in training, whichever engine trains it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from pytest_charllm.records import Collective


class TrainingStep(Protocol):
    """Calling it does the optimizer step of that index."""

    @property
    def parameter_count(self) -> int:
        """Trainable parameters of the full model, before any sharding."""

    @property
    def expert_backend(self) -> str | None:
        """As in the report."""

    @property
    def expert_load(self) -> Tensor | None:
        """(layers, experts): how many copies of its tokens this rank has sent to each expert so far. None where there
        are no experts, where tokens are dealt out evenly, or where it is not known."""

    @property
    def parts_s(self) -> Mapping[str, float]:
        """Seconds of the parts of a step so far, by an engine's own timers, as in the report. Empty where it has none,
        or they are off."""

    def __call__(self, index: int, poison: bool = False) -> tuple[Tensor, Tensor]:
        """(mean loss over this rank's tokens, global gradient norm before clipping), both still on the device.

        `poison` makes the loss NaN.
        """

    def counting_collectives(self) -> AbstractContextManager[Callable[[], tuple[Collective, ...]]]:
        """A context that yields what tells, once it is left, which collectives this rank called in it."""

    def axis_of(self, group: str, op: str, size: int) -> str | None:
        """The axis, as in `Collective`, of a call of `size` bytes over the process group of that name; None: the engine
        does not know the group."""
