"""Where a rank stands on every parallel axis, and with whom it talks there.

Ranks are numbered with tp fastest, then cp, dp and pp, so that the axis that talks most has the nearest neighbours.
The data-parallel ranks are split twice more: into groups of `ep` neighbours, which hold different experts, and with
hsdp into `replicas` groups of neighbours, which hold the same shards.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from pytest_charllm.scenario import Layout
from pytest_charllm.scenario.stages import place_of

RankSets = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Axis:
    """`rank` of `size`, in a process group that there is no need for at size 1."""

    size: int = 1
    rank: int = 0
    ranks: tuple[int, ...] = (0,)
    group: dist.ProcessGroup | None = None

    @property
    def name(self) -> str:
        """The group's name, by which functional collectives call it."""
        assert self.group is not None, "an axis of size 1 has no group"
        return self.group.group_name


@dataclass(frozen=True)
class Mesh:
    """Every axis of one rank. `batch` averages dense gradients (dp and cp together), `expert_batch` those of experts;
    `shard` and `replicate` split `batch` for fsdp and hsdp, `expert_shard` is `expert_batch` where experts are sharded.
    `ends` are the ranks of the first and the last pipeline stage, where these have copies of the same weights.
    """

    tp: Axis = Axis()
    cp: Axis = Axis()
    dp: Axis = Axis()
    pp: Axis = Axis()
    ep: Axis = Axis()
    batch: Axis = Axis()
    expert_batch: Axis = Axis()
    shard: Axis = Axis()
    replicate: Axis = Axis()
    ends: Axis = Axis()
    labels: dict[str, str] = field(default_factory=dict)
    """Group name -> the axis under which its collectives are counted."""

    def device_mesh(self, device: torch.device, expert: bool = False) -> DeviceMesh:
        """For `fully_shard`: one dimension to shard over, and with hsdp one of replicas before it."""
        shard = self.expert_batch if expert else self.shard
        assert shard.group is not None, "a sharded axis has a group at any size"
        if expert or self.replicate.size == 1:
            return DeviceMesh.from_group(shard.group, device.type, mesh_dim_names=("shard",))
        assert self.replicate.group is not None
        ranks = torch.tensor(self.batch.ranks).view(self.replicate.size, shard.size)
        groups = [self.replicate.group, shard.group]
        return DeviceMesh.from_group(groups, device.type, mesh=ranks, mesh_dim_names=("replicate", "shard"))


ALONE = Mesh()
"""One process that holds everything."""

_COUNTED_AS = {"batch": "dp", "expert_batch": "dp", "shard": "dp", "replicate": "dp", "ends": "pp"}


def build_mesh(layout: Layout, rank: int, tied: bool = False) -> Mesh:
    """This rank's mesh; `tied`: of a model whose first and last stage share weights. Collective: every rank of the
    world calls it, with a process group standing where there is more than one."""
    sharded = layout.sharding.is_fsdp
    if layout.world == 1 and not sharded:
        return ALONE
    made: dict[tuple[str, RankSets], dist.ProcessGroup | None] = {}
    axes: dict[str, Axis] = {}
    labels: dict[str, str] = {}
    for name, sets in rank_sets(layout).items():
        if name == "ends" and not tied:
            continue
        label = _COUNTED_AS.get(name, name)
        wanted = len(sets[0]) > 1 or (sharded and name in ("shard", "expert_batch"))
        # Axes with the same sets share a group, where their traffic is counted alike.
        if wanted and (label, sets) not in made:
            talking = [list(ranks) for ranks in sets if len(ranks) == len(sets[0])]
            made[label, sets], _ = dist.new_subgroups_by_enumeration(talking)
        ranks = next(each for each in sets if rank in each)
        group = made.get((label, sets))
        axes[name] = Axis(size=len(ranks), rank=ranks.index(rank), ranks=ranks, group=group)
        if group is not None:
            labels[group.group_name] = label
    return Mesh(**axes, labels=labels)


def rank_sets(layout: Layout) -> dict[str, RankSets]:
    """Axis of `Mesh` -> the sets of ranks that talk along it; every rank is in one set of each axis."""
    tp, cp, dp, ep, world = layout.tp, layout.cp, layout.dp, layout.ep, layout.world
    shards = layout.batch_ranks // layout.replicas
    last_place = place_of(layout, layout.stages - 1)

    def sets(group_of: Callable[[int], tuple[int, ...]]) -> RankSets:
        groups: dict[tuple[int, ...], list[int]] = {}
        for rank in range(world):
            groups.setdefault(group_of(rank), []).append(rank)
        return tuple(tuple(group) for group in groups.values())

    def coordinates(rank: int) -> tuple[int, int, int, int]:
        """(tp, cp, dp, pp)"""
        return rank % tp, rank // tp % cp, rank // (tp * cp) % dp, rank // (tp * cp * dp)

    def without(*dropped: int) -> RankSets:
        return sets(lambda rank: tuple(at for index, at in enumerate(coordinates(rank)) if index not in dropped))

    def in_batch(rank: int) -> tuple[tuple[int, int], int]:
        """((tp, pp), number within dp and cp together)"""
        at_tp, at_cp, at_dp, at_pp = coordinates(rank)
        return (at_tp, at_pp), at_dp * cp + at_cp

    def first_if_last(at_pp: int) -> int:
        return 0 if at_pp == last_place else at_pp

    def place(rank: int, *extra: int) -> tuple[int, ...]:
        return (*in_batch(rank)[0], *extra)

    return {
        "tp": without(0),
        "cp": without(1),
        "dp": without(2),
        "pp": without(3),
        "ep": sets(lambda rank: (*coordinates(rank)[:2], coordinates(rank)[2] // ep, coordinates(rank)[3])),
        "batch": without(1, 2),
        "expert_batch": sets(lambda rank: place(rank, coordinates(rank)[2] % ep)),
        "shard": sets(lambda rank: place(rank, in_batch(rank)[1] // shards)),
        "replicate": sets(lambda rank: place(rank, in_batch(rank)[1] % shards)),
        "ends": sets(lambda rank: (*coordinates(rank)[:3], first_if_last(coordinates(rank)[3]))),
    }
