"""Ring attention: queries stay where they are, keys and values visit every rank.

Each rank has two pieces of every sequence, the `rank`-th from the front and the `rank`-th from the back, so that all
have the same share of what the causal mask leaves. A hop attends to the keys that are here while the next ones are
on their way, and the partial results are merged by the logarithm of their softmax denominators. Backward, keys and
values go around once more, followed by their gradients, which collect every rank's part and end where they belong.

Both passes are operators of their own: a compiled block takes them as they are, and selective recompute keeps the
result. They run aten's flash kernels, the only ones whose log-sum-exp is given back alike by every version of torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import GroupName, _resolve_process_group

aten = torch.ops.aten

_ALL = slice(None)


def kernel(device: torch.device) -> str:
    """The name of the fused kernel that does the work of a hop."""
    return "flash" if device.type == "cuda" else "flash_for_cpu"


def forward(q: Tensor, k: Tensor, v: Tensor, group: str, overlap: bool) -> tuple[Tensor, Tensor]:
    """q (batch, tokens of this rank, heads, head_dim), k and v perhaps with fewer heads -> (output as q, log-sum-exp
    (batch, heads, tokens) in fp32). `group`: the name of the process group. Without `overlap` a hop waits for the next
    keys before it attends to those that are here. Collective, as `backward` is."""
    ring = _Ring(group, overlap)
    keys_values = torch.stack([k, v])
    out = lse = torch.empty(0)
    for hop in range(ring.size):
        arrival = ring.pass_on(keys_values) if hop < ring.size - 1 else None
        rows, columns = ring.unmasked(hop, q.shape[1])
        key, value = keys_values[:, :, columns].unbind()
        block, block_lse = _attend(q[:, rows], key, value, causal=hop == 0)
        if hop == 0:
            out, lse = block.float(), block_lse
        else:
            _merge(out[:, rows], lse[..., rows], block, block_lse)
        if arrival is not None:
            keys_values = arrival()
    return out.to(q.dtype).contiguous(), lse.contiguous()


def backward(
    gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, group: str, overlap: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v. They are summed, and those of k and v travel, in fp32."""
    ring = _Ring(group, overlap)
    keys_values = torch.stack([k, v])
    q_gradient = kv_gradient = torch.empty(0)
    for hop in range(ring.size):
        arrival = ring.pass_on(keys_values) if hop < ring.size - 1 else None
        gradient_arrival = ring.pass_on(kv_gradient) if hop else None
        rows, columns = ring.unmasked(hop, q.shape[1])
        key, value = keys_values[:, :, columns].unbind()
        dq, dk, dv = _attend_backward(
            gradient[:, rows], q[:, rows], key, value, out[:, rows], lse[..., rows], causal=hop == 0
        )
        if gradient_arrival is None:
            q_gradient, kv_gradient = dq.float(), torch.stack([dk.float(), dv.float()])
        else:
            q_gradient[:, rows] += dq
            kv_gradient = gradient_arrival()
            kv_gradient[0][:, columns] += dk
            kv_gradient[1][:, columns] += dv
        if arrival is not None:
            keys_values = arrival()
    dk, dv = ring.pass_on(kv_gradient)()
    # An operator's results may share no memory.
    return q_gradient.to(q.dtype).contiguous(), dk.to(k.dtype, copy=True), dv.to(v.dtype, copy=True)


class _Ring:
    def __init__(self, group: str, overlap: bool) -> None:
        self._overlap = overlap
        self._group = _resolve_process_group(GroupName(group))
        self.size, self.rank = self._group.size(), self._group.rank()

    def pass_on(self, x: Tensor) -> Callable[[], Tensor]:
        """Begin to send `x` to the next rank; the result waits for what comes from the one before."""
        received = torch.empty_like(x)
        to, source = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, x, group=self._group, group_peer=to),
                dist.P2POp(dist.irecv, received, group=self._group, group_peer=source),
            ]
        )

        def arrived() -> Tensor:
            while works:
                works.pop().wait()
            return received

        if not self._overlap:
            arrived()
        return arrived

    def unmasked(self, hop: int, tokens: int) -> tuple[slice, slice]:
        """The queries and keys of a hop that the mask lets see each other, all of them but for the first hop's."""
        if hop == 0:
            return _ALL, _ALL
        front, back = slice(0, tokens // 2), slice(tokens // 2, tokens)
        # Keys of a rank before this one: their front piece precedes both of ours, their back piece follows both.
        return (_ALL, front) if hop <= self.rank else (back, _ALL)


def _merge(out: Tensor, lse: Tensor, block: Tensor, block_lse: Tensor) -> None:
    """Add attention over further keys to `out` and `lse`, in place."""
    share = torch.sigmoid(block_lse - lse)
    out.lerp_(block.float(), share.transpose(1, 2).unsqueeze(-1))
    lse.copy_(torch.logaddexp(lse, block_lse))


def _attend(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    heads_first = [x.transpose(1, 2) for x in (q, k, v)]
    if q.device.type == "cuda":
        out, lse, *_ = aten._scaled_dot_product_flash_attention(*heads_first, 0.0, causal)
    else:
        out, lse = aten._scaled_dot_product_flash_attention_for_cpu(*heads_first, 0.0, causal)
    return out.transpose(1, 2), lse


def _attend_backward(
    gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, causal: bool
) -> list[Tensor]:
    """With the output and log-sum-exp of all keys, so that the parts of all hops add up."""
    heads_first = [x.transpose(1, 2) for x in (gradient, q, k, v, out)]
    lse = lse.contiguous()
    if q.device.type == "cuda":
        gradients = aten._scaled_dot_product_flash_attention_backward(
            *heads_first, lse, None, None, q.shape[1], k.shape[1], 0.0, causal, *_no_randomness(q.device)
        )
    else:
        gradients = aten._scaled_dot_product_flash_attention_for_cpu_backward(*heads_first, lse, 0.0, causal)
    return [each.transpose(1, 2) for each in gradients]


def _no_randomness(device: torch.device) -> tuple[Tensor, Tensor]:
    """Seed and offset of a dropout that does not take place, in the types that the forward kernel gives."""
    if torch.version.hip:
        return torch.zeros((), dtype=torch.int64, device=device), torch.zeros((), dtype=torch.int64, device=device)
    return torch.zeros(2, dtype=torch.uint64, device=device), torch.zeros((), dtype=torch.uint64, device=device)


ring_attention = torch.library.custom_op("charllm::ring_attention", mutates_args=())(forward)
_ring_attention_backward = torch.library.custom_op("charllm::ring_attention_backward", mutates_args=())(backward)

FORWARD = torch.ops.charllm.ring_attention.default
OPERATORS: dict[Any, Callable[..., Any]] = {
    FORWARD: forward,
    torch.ops.charllm.ring_attention_backward.default: backward,
}
"""What each operator does, for those who count what happens inside."""


@ring_attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, group: str, overlap: bool) -> tuple[Tensor, Tensor]:
    return q.new_empty(q.shape), q.new_empty((q.shape[0], q.shape[2], q.shape[1]), dtype=torch.float32)


@_ring_attention_backward.register_fake
def _(
    gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, group: str, overlap: bool
) -> tuple[Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, ctx.group, ctx.overlap = inputs
    ctx.save_for_backward(q, k, v, *output)


def _differentiate(ctx: Any, gradient: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    return (*_ring_attention_backward(gradient, *ctx.saved_tensors, ctx.group, ctx.overlap), None, None)


ring_attention.register_autograd(_differentiate, setup_context=_keep)
