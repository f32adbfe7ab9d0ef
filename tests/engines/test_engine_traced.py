"""The traced pass as far as it goes without a GPU: what it takes from the profiler, and that a CPU is refused."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from torch.autograd import DeviceType

from pytest_charllm.engines.native import entry
from pytest_charllm.engines.native.traced import _kernels
from pytest_charllm.errors import BadInput
from pytest_charllm.records import Pass
from pytest_charllm.records.breakdown import Kernel


def event(name: str, device: DeviceType = DeviceType.CUDA, annotation: bool = False) -> SimpleNamespace:
    answers = {
        "name": name, "device_type": device, "device_resource_id": 7, "start_ns": 10, "end_ns": 30,
        "is_user_annotation": annotation,
    }  # fmt: skip
    return SimpleNamespace(**{call: (lambda answer=answer: answer) for call, answer in answers.items()})


def test_only_what_kept_the_device_busy_is_a_kernel() -> None:
    """The call that launches a kernel is an event too, and a range around kernels would cover every gap in it."""
    events = [event("gemm"), event("cudaLaunchKernel", DeviceType.CPU), event("nccl:all_reduce", annotation=True)]
    profiler = SimpleNamespace(profiler=SimpleNamespace(kineto_results=SimpleNamespace(events=lambda: events)))
    assert _kernels(profiler) == [Kernel(7, "gemm", 10, 30)]  # type: ignore[arg-type]


def test_a_profiler_that_saw_nothing() -> None:
    """No CUPTI in a container: no kernels, which the report tells as such."""
    assert _kernels(SimpleNamespace(profiler=None)) == []  # type: ignore[arg-type]


def test_a_cpu_is_not_traced(alone, make_request) -> None:  # type: ignore[no-untyped-def]
    """Zeros would read as a step without gaps."""
    with pytest.raises(BadInput, match="cannot be traced on cpu: only on a GPU"):
        entry.run(make_request(pass_=Pass.TRACED), lambda *_, **__: None, 0.0)
