"""The grouped product of experts against one product an expert, on one GPU: results, gradients, time.

    python benchmarks/two_gpus/grouped.py [--out FILE]

Widths are those of Mixtral 8x7B's experts, rows those of one microbatch, in bf16. One JSON line for equal groups, one
for unequal ones with one that is empty. Differences are of norms, relative to the same in fp32; those of one product an
expert stand beside them, since both round the same. `ms` is the median of a forward and backward pass. Exits 1 where
the grouped product is further off than 1.5 times the other.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from pytest_charllm.engines.native.grouped import Groups, expert_backend, grouped_product

EXPERTS = 8
FACTOR = 1.5
REPEATS = 10

Product = Callable[[Tensor, Tensor, Groups], Tensor]


def one_by_one(rows: Tensor, weight: Tensor, groups: Groups) -> Tensor:
    each = zip(rows.split(groups.sizes), weight.unbind(), strict=True)
    return torch.cat([group @ matrix.T for group, matrix in each])


def trained(product: Product, rows: Tensor, weight: Tensor, gradient: Tensor, groups: Groups) -> list[Tensor]:
    """[result, gradient of the rows, gradient of the weights]"""
    rows, weight = rows.detach().requires_grad_(), weight.detach().requires_grad_()
    out = product(rows, weight, groups)
    return [out.detach(), *torch.autograd.grad(out, (rows, weight), gradient)]


def off(found: list[Tensor], right: list[Tensor]) -> list[float]:
    return [((a.float() - b).norm() / b.norm()).item() for a, b in zip(found, right, strict=True)]


def median_ms(call: Callable[[], object], device: torch.device) -> float:
    times_ms = []
    for _ in range(REPEATS):
        _wait(device)
        began_s = time.perf_counter()
        call()
        _wait(device)
        times_ms.append((time.perf_counter() - began_s) * 1e3)
    return statistics.median(times_ms)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def compare(sizes: tuple[int, ...], hidden: int, width: int, device: torch.device) -> dict[str, object]:
    torch.manual_seed(1)
    ends = torch.tensor(sizes).cumsum(0, dtype=torch.int32).to(device)
    groups = Groups(sizes, ends)
    rows = torch.randn(sum(sizes), hidden, device=device)
    weight = torch.randn(EXPERTS, width, hidden, device=device) / hidden**0.5
    gradient = torch.randn(sum(sizes), width, device=device)
    low = rows.bfloat16(), weight.bfloat16(), gradient.bfloat16()
    right = trained(one_by_one, low[0].float(), low[1].float(), low[2].float(), groups)
    grouped, looped = (off(trained(each, *low, groups), right) for each in (grouped_product, one_by_one))
    return {
        "sizes": sizes,
        "backend": expert_backend(torch.bfloat16, device),
        "ok": all(a <= FACTOR * b for a, b in zip(grouped, looped, strict=True)),
        "grouped_off": grouped,
        "one_by_one_off": looped,
        "grouped_ms": median_ms(lambda: trained(grouped_product, *low, groups), device),
        "one_by_one_ms": median_ms(lambda: trained(one_by_one, *low, groups), device),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="append the JSON lines here, too")
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    hidden, width, rows = (4096, 14336, 1024) if device.type == "cuda" else (64, 224, 16)
    uneven = [rows] * EXPERTS
    uneven[1], uneven[2], uneven[5], uneven[6] = 2 * rows - 7, 7, 0, 2 * rows
    failed = False
    for sizes in ((rows,) * EXPERTS, tuple(uneven)):
        told = compare(sizes, hidden, width, device)
        failed = failed or told["ok"] is False
        print(json.dumps(told), flush=True)
        if options.out:
            with options.out.open("a") as out:
                out.write(json.dumps(told) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
