"""Adapters beside frozen projections."""

from __future__ import annotations

import torch

from pytest_charllm.engines.native.model import Decoder
from pytest_charllm.engines.native.optimizer import adamw
from pytest_charllm.engines.native.weights import initialize
from pytest_charllm.scenario.key import parse_key
from pytest_charllm.scenario.models import is_adapter, shape, shape_of

CPU = torch.device("cpu")


def decoder(key: str) -> Decoder:
    with torch.device("meta"):
        model = Decoder(shape_of(parse_key(key)))
    initialize(model, 32, CPU, 1, CPU)
    return model


def test_a_new_adapter_changes_nothing_and_then_learns() -> None:
    """`up` starts at zero, so `down` has no gradient before the first update: a check of the first step alone would
    see nothing of it."""
    model, plain = decoder("tiny-llama.2L.mb1.lora8"), decoder("tiny-llama.2L.mb1")
    tokens = torch.randint(2048, (1, 32), generator=torch.Generator().manual_seed(3))
    frozen = {name: each.clone() for name, each in model.named_parameters() if not is_adapter(name)}
    assert torch.equal(model(tokens), plain(tokens)), "the base is that of the same model without adapters"
    optimizer = adamw(model.parameters())
    seen = []
    for _ in range(2):
        model(tokens, tokens).backward()
        adapters = [(name, each) for name, each in model.named_parameters() if is_adapter(name)]
        seen.append({name.rpartition(".")[2] for name, each in adapters if each.grad.abs().max() > 0})
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    assert seen == [{"up"}, {"down", "up"}]
    assert len(adapters) == 2 * 3 * 2
    for name, parameter in model.named_parameters():
        assert is_adapter(name) or torch.equal(parameter, frozen[name])


def test_parameters_are_those_on_paper() -> None:
    """Names and order decide which rank holds and sends what."""
    from pytest_charllm.scenario.models import parameter_list

    it = shape_of(parse_key("tiny-gpt.2L.mb1.lora8"))
    with torch.device("meta"):
        model = Decoder(it)
    found = [(name, tuple(each.shape)) for name, each in model.named_parameters()]
    assert found == list(parameter_list(it))
    assert [row for row in found if not is_adapter(row[0])] == list(parameter_list(shape("tiny-gpt", 2)))
