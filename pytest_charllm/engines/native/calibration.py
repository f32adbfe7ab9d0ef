"""Fixed work timed in the same launch, so that a slow machine and a slow framework can be told apart.

Nothing here may go through `torch.nn` or `torch.nn.functional`: what slows those must show as a ratio to this.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import Tensor

from pytest_charllm.engines.native.clock import Span, mark_type
from pytest_charllm.engines.native.world import World
from pytest_charllm.records import Calibration
from pytest_charllm.scenario.models import ModelShape

_MATMUL_FLOPS = 1.1e9
_GPU_MATMUL_WIDTH = 8192
_GPU_COPY_BYTES = 1 << 30
_GPU_ALL_REDUCE_BYTES = 256 << 20
_GPU_REPEATS, _GPU_WARMUP = 20, 3

_LAYERS, _TOKENS, _WIDTH, _FFN, _HEADS, _VOCAB = 2, 256, 256, 640, 4, 1024
"""The reference decoder: frozen, since all wall-clock ratios on record refer to it."""


class Interleaved:
    """The calibrations of a CPU, one of each after every step: the neighbours of a step share its weather."""

    def __init__(self, shape: ModelShape, tokens: int, world: World) -> None:
        self._pieces: list[tuple[str, float, Callable[[], None]]] = [
            matmul_of_widths(shape, tokens),
            reference_decoder(),
        ]
        self._mark = mark_type(world.device)
        self._spans: list[list[Span]] = [[] for _ in self._pieces]

    def warm_up(self) -> None:
        for _, _, work in self._pieces:
            work()

    def measure(self) -> None:
        for (_, _, work), spans in zip(self._pieces, self._spans, strict=True):
            before = self._mark()
            work()
            spans.append(before.until(self._mark()))

    def results(self) -> tuple[Calibration, ...]:
        return tuple(
            Calibration(
                kind=kind,
                work=flops,
                work_unit="FLOP",
                wall_s=tuple(span.wall_s for span in spans),
                cpu_s=tuple(span.cpu_s for span in spans if span.cpu_s is not None),
            )
            for (kind, flops, _), spans in zip(self._pieces, self._spans, strict=True)
        )


def matmul_of_widths(shape: ModelShape, tokens: int) -> tuple[str, float, Callable[[], None]]:
    """fp32 products of a microbatch's tokens with the model's own widths, repeated to a fixed number of FLOPs."""
    generator = torch.Generator().manual_seed(1)
    left = torch.randn(tokens, shape.hidden, generator=generator)
    right = torch.randn(shape.hidden, shape.ffn, generator=generator)
    out = torch.empty(tokens, shape.ffn)
    one = 2 * tokens * shape.hidden * shape.ffn
    repeats = max(1, round(_MATMUL_FLOPS / one))

    def work() -> None:
        for _ in range(repeats):
            torch.mm(left, right, out=out)

    return "matmul", float(one * repeats), work


def reference_decoder() -> tuple[str, float, Callable[[], None]]:
    """Forward and backward of a small frozen decoder, then the all-reduce of its gradients: compute, memory traffic
    and a wait for the others, as in a step of training."""
    generator = torch.Generator().manual_seed(2)

    def weight(rows: int, columns: int) -> Tensor:
        return (torch.randn(rows, columns, generator=generator) * rows**-0.5).requires_grad_()

    blocks = [
        (weight(_WIDTH, 3 * _WIDTH), weight(_WIDTH, _WIDTH), weight(_WIDTH, 2 * _FFN), weight(_FFN, _WIDTH))
        for _ in range(_LAYERS)
    ]
    head = weight(_WIDTH, _VOCAB)
    weights = [*(matrix for block in blocks for matrix in block), head]
    tokens = torch.randn(_TOKENS, _WIDTH, generator=generator).requires_grad_()
    target = torch.randint(_VOCAB, (_TOKENS, 1), generator=generator)
    future = torch.full((_TOKENS, _TOKENS), float("-inf")).triu(1)

    def normalized(x: Tensor) -> Tensor:
        return x * (x * x).mean(-1, keepdim=True).add(1e-5).rsqrt()

    def attention(x: Tensor, qkv: Tensor) -> Tensor:
        q, k, v = torch.mm(x, qkv).view(_TOKENS, 3, _HEADS, -1).permute(1, 2, 0, 3)
        scores = torch.bmm(q, k.transpose(1, 2)) * (_WIDTH // _HEADS) ** -0.5 + future
        return torch.bmm(scores.softmax(-1), v).transpose(0, 1).reshape(_TOKENS, _WIDTH)

    def work() -> None:
        x = tokens
        for qkv, out, up, down in blocks:
            x = x + torch.mm(attention(normalized(x), qkv), out)
            gate, value = torch.mm(normalized(x), up).chunk(2, dim=-1)
            x = x + torch.mm(gate * torch.sigmoid(gate) * value, down)
        logits = torch.mm(normalized(x), head)
        loss = (logits.logsumexp(-1) - logits.gather(1, target).squeeze(1)).mean()
        gradients = torch.autograd.grad(loss, [tokens, *weights])[1:]
        if dist.is_initialized():
            flat = torch.cat([gradient.flatten() for gradient in gradients])
            dist.all_reduce(flat)

    products = sum(matrix.numel() for matrix in weights) * _TOKENS + _LAYERS * 2 * _TOKENS * _TOKENS * _WIDTH
    return "decoder", float(3 * 2 * products), work


def calibrate_gpu(world: World) -> tuple[Calibration, ...]:
    """Matrix product, copy and all-reduce on a GPU. Runs outside the window, with the model's memory given back."""
    device = world.device
    left, right = (
        torch.randn(_GPU_MATMUL_WIDTH, _GPU_MATMUL_WIDTH, device=device, dtype=torch.bfloat16) for _ in range(2)
    )
    product = torch.empty_like(left)
    results = [_repeated("matmul", 2.0 * _GPU_MATMUL_WIDTH**3, "FLOP", lambda: torch.mm(left, right, out=product))]
    source = torch.randint(256, (_GPU_COPY_BYTES,), device=device, dtype=torch.uint8)
    sink = torch.empty_like(source)
    results.append(_repeated("copy", 2.0 * _GPU_COPY_BYTES, "byte", lambda: sink.copy_(source)))
    if world.size > 1:
        gradients = torch.randn(_GPU_ALL_REDUCE_BYTES // 2, device=device, dtype=torch.bfloat16)
        average = dist.ReduceOp.AVG
        results.append(
            _repeated("all-reduce", float(_GPU_ALL_REDUCE_BYTES), "byte", lambda: dist.all_reduce(gradients, average))
        )
    return tuple(results)


def _repeated(kind: str, work: float, unit: str, piece: Callable[[], object]) -> Calibration:
    device = torch.device("cuda", torch.cuda.current_device())
    mark = mark_type(device)
    for _ in range(_GPU_WARMUP):
        piece()
    marks = [mark()]
    for _ in range(_GPU_REPEATS):
        piece()
        marks.append(mark())
    torch.cuda.synchronize(device)
    spans = [before.until(after) for before, after in pairwise(marks)]
    return Calibration(kind=kind, work=work, work_unit=unit, wall_s=tuple(span.wall_s for span in spans))
