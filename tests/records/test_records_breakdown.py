"""Exposed communication from intervals: against a count of instants, and on traces as two public regressions left them.

The traces are synthetic: streams that wait for each other need a GPU.
"""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_charllm.records.breakdown import (
    Interval,
    Kernel,
    StepBreakdown,
    breakdown,
    breakdowns,
    exposed,
    is_communication,
)

BACKWARD, REDUCE = 2.0, 1.5
"""Of one bucket, in ms."""

intervals = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 12)).map(lambda at: Interval(at[0], at[0] + at[1])), max_size=8
)


@given(intervals, intervals)
def test_exposed_is_the_count_of_instants(communication: list[Interval], computation: list[Interval]) -> None:
    """Nested, touching, empty and repeated intervals, each of which a sum over pairs counts twice or not at all."""

    def at(tick: int, among: list[Interval]) -> bool:
        return any(begin <= tick < end for begin, end in among)

    alone = [tick for tick in range(60) if at(tick, communication) and not at(tick, computation)]
    assert exposed(communication, computation) == len(alone)


def trace(buckets: int, serialized: bool) -> tuple[list[Interval], list[Interval]]:
    """(communication, computation) of a backward pass: each bucket is reduced once its gradients are there. Serialized,
    the next part of the pass waits for it."""
    communication, computation = [], []
    now, free = 0.0, 0.0
    for _ in range(buckets):
        computation.append(Interval(now, now + BACKWARD))
        now += BACKWARD
        begin = max(now, free)
        free = begin + REDUCE
        communication.append(Interval(begin, free))
        if serialized:
            now = free
    return communication, computation


def test_a_backward_pass_that_waits_for_its_buckets_overlaps_nothing() -> None:
    """DeepSpeed#8364 (the backward pass waits for the previous bucket) and the 0.0 % of ZeRO 2 that alpamayo-recipes#24
    saw: every reduction is exposed, where a sound pass exposes the last one alone."""
    assert exposed(*trace(8, serialized=True)) == pytest.approx(8 * REDUCE)
    assert exposed(*trace(8, serialized=False)) == pytest.approx(REDUCE)


def test_an_interval_that_runs_backwards_is_refused() -> None:
    """A trace whose clocks do not fit together would give a negative time."""
    with pytest.raises(ValueError, match=r"ends at 1.*before it begins at 2"):
        exposed([Interval(2, 1)], [])


names = st.sampled_from(
    [
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
        "Memcpy PtoP (Device -> Device)",
        "nvjet_hsh_128x256",
        "Memset (Device)",
    ]
)
kernels = st.lists(
    st.tuples(st.integers(0, 3), names, st.integers(-5, 60), st.integers(0, 20)).map(
        lambda drawn: Kernel(drawn[0], drawn[1], drawn[2], drawn[2] + drawn[3])
    ),
    max_size=12,
)
SPAN = (0, 50)


@given(kernels)
def test_the_parts_of_a_step_add_up(traced: list[Kernel]) -> None:
    """Time that is counted twice, or lost between two streams or at the border of two steps."""
    step = breakdown(traced, *SPAN)
    assert step.compute_ns + step.exposed_ns + step.idle_ns == step.span_ns == 50
    assert 0 <= step.exposed_ns <= step.communication_ns <= step.span_ns
    assert min(step.compute_ns, step.idle_ns) >= 0


@given(kernels, st.randoms(use_true_random=False), st.permutations(range(4)))
def test_neither_order_nor_streams_matter(traced: list[Kernel], random: Random, streams: list[int]) -> None:
    """The profiler lists kernels as its buffers come back, and numbers streams anew in each launch."""
    shuffled = [kernel._replace(stream=streams[kernel.stream]) for kernel in traced]
    random.shuffle(shuffled)
    assert breakdown(shuffled, *SPAN) == breakdown(traced, *SPAN)


@given(kernels)
def test_without_communication_none_is_exposed(traced: list[Kernel]) -> None:
    """What a single GPU does must not be called communication."""
    step = breakdown([kernel._replace(name="gemm") for kernel in traced], *SPAN)
    assert (step.communication_ns, step.exposed_ns) == (0, 0)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", True),
        ("void ncclSymDevKernel<0>(ncclSymDevArgs)", True),
        ("Memcpy PtoP (Device -> Device)", True),
        ("void c10d::symmetric_memory::(anonymous namespace)::barrier_kernel(unsigned int**, int, int)", True),
        ("Memcpy DtoD (Device -> Device)", False),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>", False),
        ("triton_poi_fused_all_gather_into_tensor_wait_tensor_0", False),
    ],
)
def test_what_is_communication(name: str, expected: bool) -> None:
    """A compiled kernel bears the names of the operators around it, collectives too."""
    assert is_communication(name) is expected


def test_steps_lie_between_the_marks() -> None:
    """A kernel across the border counts in both steps, in each with its part; what is outside of all marks in none."""
    marks = [Kernel(7, "spin_kernel(long)", at, at + 1) for at in (10, 30, 50)]
    work = [Kernel(7, "gemm", 0, 20), Kernel(8, "ncclDevKernel", 25, 45), Kernel(7, "gemm", 40, 60)]
    first, second = breakdowns([*work, *reversed(marks)], "spin_kernel")
    assert first == StepBreakdown(span_ns=19, compute_ns=9, communication_ns=5, exposed_ns=5, idle_ns=5)
    assert second == StepBreakdown(span_ns=19, compute_ns=10, communication_ns=14, exposed_ns=9, idle_ns=0)


def test_the_clock_of_a_trace_is_exact() -> None:
    """Nanoseconds since 1970 do not fit into a double."""
    at = 1_764_444_444_444_444_444
    step = breakdown([Kernel(7, "gemm", at + 1, at + 4), Kernel(8, "ncclX", at + 3, at + 6)], at, at + 10)
    assert step == StepBreakdown(span_ns=10, compute_ns=3, communication_ns=3, exposed_ns=2, idle_ns=5)
