"""benchmarks/two_gpus/streams.py without a GPU: which stream waits for which under each mechanism, and the verdicts."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

BENCHMARKS = Path(__file__).parents[2] / "benchmarks" / "two_gpus"
ROOM = 10
"""Elements of a buffer."""


@pytest.fixture(scope="module", autouse=True)
def _importable() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield


class Streams:
    """A backward pass and its reductions as DeepSpeed orders them; an event is how many reductions precede it."""

    def __init__(self) -> None:
        self.reduced, self.known = 0, 0
        self.read: dict[int, int] = {}
        """Buffer -> its last reduction."""
        self.early: list[int] = []
        """Buffers that were filled while they may still have been read."""
        self.held_up = 0
        """Waits of the backward pass for reductions that it did not know to be over."""
        self.reduction, self.compute = SimpleNamespace(record_event=lambda: self.reduced), SimpleNamespace()
        self.compute.wait_event = self.wait_event
        self.compute.wait_stream = lambda other: self.wait_stream(self.compute, other)

    def wait_event(self, event: int) -> None:
        self.held_up += event > self.known
        self.known = max(self.known, event)

    def wait_stream(self, stream: object, other: object) -> None:
        if stream is self.compute and other is self.reduction:
            self.wait_event(self.reduced)


def optimizer(streams: Streams) -> type:
    """As much of DeepSpeed's as the mechanisms get between."""

    class Optimizer:
        reduce_bucket_size = ROOM
        reduction_stream = streams.reduction

        def __init__(self) -> None:
            self.bucket = SimpleNamespace(index=0, elements=0, reuse_events={})
            self.ipg_buckets = {torch.float32: self.bucket}
            self.extra_large_param_to_reduce: dict[torch.dtype, object] = {}

        def get_param_comm_dtype(self, param: object) -> torch.dtype:
            return torch.float32

        def reduce_independent_p_g_buckets_and_remove_grads(self, param: torch.Tensor, group: int) -> None:
            if self.bucket.elements + param.numel() > ROOM:
                self.reduce_ipg_grads(comm_dtype=torch.float32)
                self.bucket.index = 1 - self.bucket.index
            if param.numel() > ROOM:
                self.extra_large_param_to_reduce[torch.float32] = param
            elif streams.read.get(self.bucket.index, 0) > streams.known:
                streams.early.append(self.bucket.index)
            self.bucket.elements += param.numel()

        def reduce_ipg_grads(self, comm_dtype: torch.dtype | None = None) -> None:
            self.average_tensor(torch.empty(0), torch.float32)
            if self.extra_large_param_to_reduce.pop(torch.float32, None) is None:
                streams.read[self.bucket.index] = streams.reduced
            self.bucket.elements = 0

        def average_tensor(self, tensor: torch.Tensor, dtype: torch.dtype) -> None:
            torch.cuda.Stream.wait_stream(streams.reduction, streams.compute)  # type: ignore[arg-type]
            torch.cuda.Stream.wait_stream(streams.compute, streams.reduction)  # type: ignore[arg-type]
            streams.reduced += 1

    return Optimizer


def backward(mechanism: str, sizes: list[int]) -> Streams:
    """Gradients of these sizes become ready in this order."""
    import mechanisms

    streams = Streams()
    kind = optimizer(streams)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mechanisms, "_optimizer", lambda: kind)
        patch.setattr(mechanisms, "_accelerator", lambda: SimpleNamespace(current_stream=lambda: streams.compute))
        patch.setattr(torch.cuda.Stream, "wait_stream", streams.wait_stream)
        with mechanisms.MECHANISMS[mechanism]():
            one: Any = kind()
            for size in sizes:
                one.reduce_independent_p_g_buckets_and_remove_grads(torch.empty(size), 0)
            one.reduce_ipg_grads()
    return streams


gradients = st.lists(st.integers(1, 2 * ROOM), max_size=24)


@given(gradients)
def test_no_buffer_is_filled_before_it_was_reduced(sizes: list[int]) -> None:
    """A repair that is none: it would be faster for being wrong. It never waits more often than what it replaces."""
    repaired, released = backward("repaired", sizes), backward("as-shipped", sizes)
    assert not repaired.early
    assert not released.early
    assert repaired.held_up <= released.held_up


def test_what_is_larger_than_a_buffer_holds_nobody_up() -> None:
    """DeepSpeed#8364: the wait before each reduction, which the buffers need only where they are used again."""
    assert backward("as-shipped", [15] * 8).held_up > 5
    assert backward("repaired", [15] * 8).held_up == 0
    assert backward("serialized", [15] * 8).held_up == backward("serialized", [15] * 8).reduced


def test_a_buffer_that_nobody_waits_for_is_overwritten() -> None:
    """The fault of before DeepSpeed#5606, and that the model above can tell it."""
    assert backward("overwritten", [6] * 5).early


def test_the_allocator_is_not_told_and_then_is_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """DeepSpeed#7965 put back in for good, or for other callers of the accelerator as well."""
    import mechanisms

    accelerator = SimpleNamespace(resolves_data_dependency=lambda: False)
    kind = type("Optimizer", (), {"allreduce_and_copy_with_multiple_ranks": lambda self: asked.append(resolves())})
    asked: list[bool] = []

    def resolves() -> bool:
        return accelerator.resolves_data_dependency()

    monkeypatch.setattr(mechanisms, "_optimizer", lambda: kind)
    monkeypatch.setattr(mechanisms, "_accelerator", lambda: accelerator)
    one: Any = kind()
    with mechanisms.handed_back() as acts:
        one.allreduce_and_copy_with_multiple_ranks()
        asked.append(resolves())
    one.allreduce_and_copy_with_multiple_ranks()
    assert (asked, acts.count) == ([True, False, False], 1)


@pytest.fixture
def verdicts(_importable: None) -> ModuleType:
    import streams

    return streams


@pytest.fixture
def seen(verdicts: ModuleType) -> Callable[..., Any]:
    def make(exposed_s: float = 0.01, step_s: float = 0.07, loss: float = 11.0, norm: float = 2.0) -> Any:
        return verdicts.Seen(step_s, 0.02, exposed_s, (12.0, loss), (norm, norm), acted=1)

    return make


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, []),
        ({"exposed_s": 0.0105, "step_s": 0.071}, []),
        ({"exposed_s": 0.013}, ["overlap fraction"]),
        ({"exposed_s": 0.02, "step_s": 0.08}, ["overlap fraction", "step time"]),
        ({"loss": 11.1}, ["parity"]),
        ({"norm": 2.1}, ["parity"]),
        ({"loss": math.nan}, ["parity"]),
        ({"norm": math.inf}, ["parity"]),
    ],
)
def test_what_catches_a_case(
    verdicts: ModuleType, seen: Callable[..., Any], changed: dict[str, float], expected: list[str]
) -> None:
    """A fault that goes unseen, noise that is called one, and a loss that is no number taken for one that is alike."""
    assert verdicts.caught_by(seen(**changed), [seen()], seen()) == expected


def test_scatter_of_the_healthy_is_no_fault(verdicts: ModuleType, seen: Callable[..., Any]) -> None:
    """Two turns of one scenario that are further apart than the case is from them."""
    healthy = [seen(), seen(exposed_s=0.013, step_s=0.08)]
    assert verdicts.caught_by(seen(exposed_s=0.0135, step_s=0.08), healthy, seen()) == []


def test_a_verdict_is_what_had_to_be(verdicts: ModuleType, seen: Callable[..., Any]) -> None:
    """A fault that the wrong thing caught, a sibling that is red, and a mechanism that never acted pass for proof."""
    fault, sibling = verdicts.Case("serialized", verdicts.ZERO2, "small"), verdicts.Case("as-shipped", verdicts.ZERO3)
    slow, healthy = seen(exposed_s=0.02, step_s=0.08), [seen()]
    assert verdicts.judged(fault, "", slow, healthy, seen())["ok"]
    assert not verdicts.judged(fault, "", slow._replace(acted=0), healthy, seen())["ok"]
    assert not verdicts.judged(fault, "", seen(), healthy, seen())["ok"]
    assert verdicts.judged(sibling, "", seen(), healthy, seen())["ok"]
    assert not verdicts.judged(sibling, "", slow, healthy, seen())["ok"]


@pytest.mark.parametrize("on_cpu", [False, True])
def test_every_case_is_a_scenario_of_its_own(verdicts: ModuleType, on_cpu: bool) -> None:
    """Two cases of one name, of which the second's outcome would replace the first's; keys that are not canonical."""
    from pytest_charllm.scenario.key import parse_key

    names = [case.name(on_cpu) for case in verdicts.CASES]
    assert len(set(names)) == len(names)
    keys = [case.key(on_cpu) for case in verdicts.CASES]
    assert [parse_key(key).key for key in keys] == keys
