"""The matrix product of every expert with its own rows: which kernel is asked for is decided here and nowhere else."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

_FUSED_SINCE, _FUSED_BEFORE = 9, 11
"""Compute capabilities (major) on which torch has a kernel for all groups at once. On others the same call is a loop
that waits for the device to learn where the groups end."""


class Groups(NamedTuple):
    """Consecutive rows of each expert. `ends` is the running sum of `sizes`, int32, on the device."""

    sizes: tuple[int, ...]
    ends: Tensor


def equal_groups(experts: int, rows: int, device: torch.device) -> Groups:
    """`rows` for each expert, known without asking the device."""
    return Groups((rows,) * experts, torch.arange(1, experts + 1, dtype=torch.int32, device=device) * rows)


def expert_backend(dtype: torch.dtype, device: torch.device) -> str:
    """What `grouped_product` runs: "grouped-mm", or "bmm", a batched product of equal groups and a loop over others."""
    if dtype is not torch.bfloat16:
        return "bmm"
    if device.type == "cuda":
        major, _ = torch.cuda.get_device_capability(device)
        return "grouped-mm" if torch.version.hip is None and _FUSED_SINCE <= major < _FUSED_BEFORE else "bmm"
    return "grouped-mm"


def grouped_product(rows: Tensor, weight: Tensor, groups: Groups) -> Tensor:
    """rows (all groups, in), weight (experts, out, in) -> (all groups, out), in the precision of the rows."""
    weight = weight.to(rows.dtype)
    if expert_backend(rows.dtype, rows.device) == "grouped-mm":
        return F.grouped_mm(rows, weight.transpose(1, 2), offs=groups.ends)
    if len(set(groups.sizes)) == 1:
        return torch.bmm(rows.unflatten(0, (len(weight), groups.sizes[0])), weight.transpose(1, 2)).flatten(0, 1)
    each = zip(rows.split(groups.sizes), weight.unbind(), strict=True)
    return torch.cat([F.linear(group, matrix) for group, matrix in each])
