"""A mixture of experts by DeepSpeed's own layer: no token is dropped, the best experts are weighted as in Mixtral."""

from __future__ import annotations

import re

import torch
import torch.nn.functional as F  # noqa: N812
from deepspeed.moe.layer import MoE
from torch import Tensor, nn

from pytest_charllm.engines.native.mesh import Axis
from pytest_charllm.scenario.models import ModelShape

_ROUTER = "ffn.layer.deepspeed_moe.gate.wg.weight"
_EXPERT = re.compile(
    r"(?P<block>.*)\.ffn\.layer\.deepspeed_moe\.experts\.deepspeed_experts\.(?P<expert>\d+)\.(?P<rest>.*)"
)


class Expert(nn.Module):
    """One SwiGLU."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.w1 = nn.Linear(shape.hidden, shape.ffn, bias=False)
        self.w3 = nn.Linear(shape.hidden, shape.ffn, bias=False)
        self.w2 = nn.Linear(shape.ffn, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Mixture(nn.Module):
    """Every expert gets room for as many tokens as the fullest one needs: what is computed depends on the routing."""

    def __init__(self, shape: ModelShape, ep: int) -> None:
        super().__init__()
        self.layer = MoE(
            shape.hidden,
            Expert(shape),
            num_experts=shape.experts,
            ep_size=ep,
            k=shape.topk,
            drop_tokens=False,
            use_rts=False,
            top2_2nd_expert_sampling=False,
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """What the native engine's mixture returns: DeepSpeed's own auxiliary loss looks at first choices alone."""
        out, _, copies = self.layer(x)
        router = self.layer.deepspeed_moe.gate.wg.weight
        probabilities = F.softmax(F.linear(x.float(), router.float()), dim=-1)
        return out, torch.stack([copies.to(x.device, torch.float32), probabilities.sum(dim=0)])


def full_name_of(name: str, ep: Axis, experts: int) -> tuple[str, int | None]:
    """(name in `parameter_list`, which expert's part of it): of a parameter's name in the module of one rank."""
    if name.endswith(_ROUTER):
        return f"{name.removesuffix(_ROUTER)}ffn.router.weight", None
    if match := _EXPERT.fullmatch(name):
        return f"{match['block']}.ffn.{match['rest']}", ep.rank * (experts // ep.size) + int(match["expert"])
    return name, None
