"""One pass of AdamW over memory: a gradient in any precision is clipped on the way in, and the weight that the products
read is written on the way out."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from pytest_charllm.engines.native.optimizer import BETAS, EPS, LEARNING_RATE, WEIGHT_DECAY

_BLOCK = 2048


@triton.jit
def _adamw(
    master, gradient, mean, square, weight, scale, count, step_size, root_correction,
    decay: tl.constexpr, beta1: tl.constexpr, beta2: tl.constexpr, epsilon: tl.constexpr,
    cast: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    here = at < count
    g = tl.load(gradient + at, mask=here).to(tl.float32) * tl.load(scale)
    m = tl.load(mean + at, mask=here)
    v = tl.load(square + at, mask=here)
    p = tl.load(master + at, mask=here)
    m = m + (1.0 - beta1) * (g - m)
    v = beta2 * v + (1.0 - beta2) * g * g
    p = p * decay - step_size * m / (tl.sqrt(v) / root_correction + epsilon)
    tl.store(mean + at, m, mask=here)
    tl.store(square + at, v, mask=here)
    tl.store(master + at, p, mask=here)
    if cast:
        tl.store(weight + at, p.to(weight.dtype.element_ty), mask=here)


def adamw_(
    master: Tensor,
    gradient: Tensor,
    mean: Tensor,
    square: Tensor,
    weight: Tensor | None,
    scale: Tensor,
    step: int,
) -> None:
    """Update contiguous tensors of one size on a GPU in place: `master` and both moments in fp32, from `gradient` times
    the scalar `scale`; `weight`, where it is not None, becomes `master` in its own precision. `step` counts from 1.

    Loshchilov & Hutter (2019), algorithm 2, in the order of torch's fused AdamW.
    """
    (beta1, beta2), count = BETAS, master.numel()
    _adamw[(triton.cdiv(count, _BLOCK),)](
        master, gradient, mean, square, master if weight is None else weight, scale, count,
        LEARNING_RATE / (1 - beta1**step), (1 - beta2**step) ** 0.5,
        decay=1 - LEARNING_RATE * WEIGHT_DECAY, beta1=beta1, beta2=beta2, epsilon=EPS,
        cast=weight is not None, block=_BLOCK,
    )  # fmt: skip
