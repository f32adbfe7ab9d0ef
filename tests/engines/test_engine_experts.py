"""One mixture in this process: what it computes by either routing, its products, its balance."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from pytest_charllm.engines.native.counting import counting_flops
from pytest_charllm.engines.native.experts import BALANCE_WEIGHT, Mixture, Routing, balance_loss, expert_imbalance
from pytest_charllm.engines.native.grouped import Groups, equal_groups, expert_backend, grouped_product
from pytest_charllm.engines.native.mesh import ALONE
from pytest_charllm.engines.native.model import Decoder
from pytest_charllm.engines.native.tensor import Region
from pytest_charllm.engines.native.weights import initialize
from pytest_charllm.engines.native.world import World
from pytest_charllm.scenario.models import shape

CPU = torch.device("cpu")
IT = shape("tiny-mixtral", 1)


def mixture(*, real: bool) -> Mixture:
    torch.manual_seed(1)
    it = Mixture(IT, ALONE, Region(ALONE.tp), Routing(real=real))
    for parameter in it.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    return it


def token_by_token(it: Mixture, x: Tensor, chosen: Tensor) -> Tensor:
    """By the definition: each chosen expert's SwiGLU, weighted by the router's softmax over those chosen."""
    rows = []
    for token, experts in zip(x, chosen, strict=True):
        weights = torch.softmax(it.router(token)[experts], dim=0)
        results = [it.w2.weight[e] @ (F.silu(it.w1.weight[e] @ token) * (it.w3.weight[e] @ token)) for e in experts]
        rows.append(sum(weight * result for weight, result in zip(weights, results, strict=True)))
    return torch.stack(rows)


def test_real_routing_is_mixtrals() -> None:
    """Softmax over all, the two best, brought to sum 1: the same as a softmax over the two best logits."""
    it, x = mixture(real=True), torch.randn(24, IT.hidden, generator=torch.Generator().manual_seed(3))
    out, load = it(x)
    chosen = it.router(x).topk(2, dim=1).indices
    torch.testing.assert_close(out, token_by_token(it, x, chosen))
    assert load[0].tolist() == chosen.flatten().bincount(minlength=8).tolist()


def test_balanced_routing_deals_out_and_still_learns() -> None:
    """Every expert gets as many tokens as any other, whatever the router says, and the router still learns."""
    it, x = mixture(real=False), torch.randn(24, IT.hidden, generator=torch.Generator().manual_seed(3))
    out, load = it(x)
    chosen = torch.arange(48).view(24, 2) % 8
    torch.testing.assert_close(out, token_by_token(it, x, chosen))
    assert load[0].tolist() == [6.0] * 8
    out.square().sum().backward()
    assert it.router.weight.grad is not None
    assert it.router.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sizes", [(4, 4, 4), (5, 0, 7), (0, 0, 0)])
def test_each_group_meets_its_own_matrix(dtype: torch.dtype, sizes: tuple[int, ...]) -> None:
    """An expert that nobody chose shifts all others if groups are counted wrongly; its gradient is zero, not absent."""
    generator = torch.Generator().manual_seed(3)
    rows = torch.randn(sum(sizes), 16, generator=generator).to(dtype).requires_grad_()
    weight = torch.randn(3, 32, 16, generator=generator).to(dtype).requires_grad_()
    groups = Groups(sizes, torch.tensor(sizes).cumsum(0, dtype=torch.int32))
    out = grouped_product(rows, weight, groups)
    parts = [group @ matrix.T for group, matrix in zip(rows.split(sizes), weight, strict=True)]
    torch.testing.assert_close(out, torch.cat(parts))
    out.backward(torch.ones_like(out))
    assert weight.grad is not None
    assert [bool(each.abs().sum() > 0) for each in weight.grad] == [size > 0 for size in sizes]


def test_equal_groups_end_where_uneven_ones_of_that_size_do() -> None:
    """The running sum is made on the device, so nothing compares it to the sizes."""
    groups = equal_groups(3, 4, CPU)
    assert (groups.sizes, groups.ends.tolist(), groups.ends.dtype) == ((4, 4, 4), [4, 8, 12], torch.int32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_are_counted_alike_whatever_runs_them(dtype: torch.dtype) -> None:
    """torch counts nothing for the grouped kernel: a mixture would look nearly free of FLOPs."""
    rows, weight = torch.randn(12, 16, dtype=dtype), torch.randn(3, 32, 16, dtype=dtype)
    with counting_flops() as flops:
        out = grouped_product(rows.requires_grad_(), weight.requires_grad_(), equal_groups(3, 4, CPU))
        out.backward(torch.ones_like(out))
    assert flops() == 3 * 2 * 12 * 16 * 32


def test_the_report_names_the_product_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torch would loop and wait for the device inside its own call, that call must not be made."""
    assert expert_backend(torch.bfloat16, CPU) == "grouped-mm"
    assert expert_backend(torch.float32, CPU) == "bmm"
    for capability, backend in (((8, 0), "bmm"), ((9, 0), "grouped-mm"), ((10, 0), "grouped-mm"), ((12, 0), "bmm")):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, answer=capability: answer)
        assert expert_backend(torch.bfloat16, torch.device("cuda", 0)) == backend
    monkeypatch.setattr(torch.version, "hip", "6.0")
    assert expert_backend(torch.bfloat16, torch.device("cuda", 0)) == "bmm"


def test_balance_loss_is_least_in_perfect_balance() -> None:
    """0.01 a layer when every expert is as busy and as likely; more where tokens go where they are likely to go."""
    even = torch.stack([torch.full((8,), 6.0), torch.full((8,), 3.0)])
    skewed = torch.stack([torch.tensor([24.0, 24.0, *[0.0] * 6]), torch.tensor([9.0, 9.0, *[1.0] * 6])])
    of = lambda load: balance_loss(torch.stack([load, load]), 24, 2, Region(ALONE.tp), 1, ()).item()  # noqa: E731
    assert of(even) == pytest.approx(2 * BALANCE_WEIGHT)
    assert of(skewed) == pytest.approx(2 * BALANCE_WEIGHT * 8 * 2 * (24 / 48) * (9 / 24))


def test_imbalance_is_that_of_the_worst_layer() -> None:
    """A mean over layers would hide the one that everything waits for."""
    world = World(0, 1, CPU)
    assert expert_imbalance(torch.tensor([[4.0, 4.0], [6.0, 2.0]]), world) == 1.5
    assert expert_imbalance(None, world) is None


def test_balanced_blocks_compile_as_one_graph() -> None:
    """A graph break in the routing would be a wait for the device in every layer of the timed pass."""
    with torch.device("meta"):
        model = Decoder(IT)
    initialize(model, 16, CPU, 1, CPU)
    tokens = torch.randint(IT.vocab, (2, 17), generator=torch.Generator().manual_seed(3))
    eager = model(tokens[:, :-1], tokens[:, 1:])
    for block in model.blocks.values():
        block.forward = torch.compile(block.forward, fullgraph=True, dynamic=False, backend="eager")
    torch.testing.assert_close(model(tokens[:, :-1], tokens[:, 1:]), eager)
