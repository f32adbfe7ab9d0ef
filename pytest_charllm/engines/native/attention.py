"""Causal attention through SDPA: which kernel is asked for, and which one answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from pytest_charllm.scenario.models import ModelShape

_HOPPER = (9, 0)

_ANSWERS = {
    "ScaledDotProductCudnnAttention": "cudnn",
    "ScaledDotProductFlashAttention": "flash",
    "ScaledDotProductEfficientAttention": "efficient",
    "ScaledDotProductFlashAttentionForCpu": "flash_for_cpu",
    "ScaledDotProductFusedAttentionOverrideable": "overrideable",
}


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention of (batch, seq, heads, head_dim); k and v may have fewer heads, each serving a group."""
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    grouped = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped).transpose(1, 2)


@contextmanager
def preferred_backends(device: torch.device) -> Iterator[None]:
    """Ask for cuDNN attention first on Hopper, where it beats flash on training shapes; elsewhere take the default."""
    if device.type == "cuda" and torch.cuda.get_device_capability(device) == _HOPPER:
        wanted = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]
        with sdpa_kernel(wanted, set_priority=True):
            yield
    else:
        yield


def answering_backend(shape: ModelShape, microbatch: int, seq: int, dtype: torch.dtype, device: torch.device) -> str:
    """The kernel that SDPA runs for these sizes here and now, as its backward node names it.

    It is seen on a call of the real size and memory layout outside the model, since the nodes inside a compiled
    block are not visible; torch makes the same choice when it traces one.
    """
    q, k, v = (
        torch.zeros(microbatch, seq, heads, shape.head_dim, dtype=dtype, device=device, requires_grad=True)
        for heads in (shape.heads, shape.kv_heads, shape.kv_heads)
    )
    return backend_behind(attend(q, k, v))


def backend_behind(output: Tensor) -> str:
    """The kernel that computed what an SDPA call returned."""
    node = output.grad_fn
    while node is not None:
        name = node.name().partition("Backward")[0]
        if name in _ANSWERS:
            return _ANSWERS[name]
        node = node.next_functions[0][0] if node.next_functions else None
    return "math"
