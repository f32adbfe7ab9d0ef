"""Linear layers in 8-bit floats, with numbers rounded as the hardware would, since this runs on a CPU."""

from __future__ import annotations

import sys

import pytest
import torch

from pytest_charllm.engines.errors import MissingPackage
from pytest_charllm.engines.native.fp8 import to_fp8
from pytest_charllm.engines.native.model import Decoder
from pytest_charllm.engines.native.weights import initialize
from pytest_charllm.scenario.models import parameter_list, shape

CPU = torch.device("cpu")


def test_missing_torchao_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """A traceback through an optional package says nothing of what to install."""
    monkeypatch.setitem(sys.modules, "torchao.float8", None)
    with pytest.raises(MissingPackage, match=r"^fp8 needs torchao, which cannot be imported \(.*\); pip install"):
        to_fp8(torch.nn.Linear(16, 16))


@pytest.mark.filterwarnings("ignore")
def test_fp8_keeps_names_and_learns_nearly_the_same() -> None:
    """A layer left out changes nothing; a scale gone wrong changes all; a renamed weight is never initialized."""
    pytest.importorskip("torchao.float8")
    losses, gradients = [], []
    tokens = torch.randint(2048, (2, 33), generator=torch.Generator().manual_seed(3))
    for emulated in (False, True):
        with torch.device("meta"):
            model = Decoder(shape("tiny-llama", 2))
        if emulated:
            for block in model.blocks.values():
                to_fp8(block, emulate=True)
        assert [name for name, _ in model.named_parameters()] == [name for name, _ in parameter_list(model.shape)]
        initialize(model, 32, CPU, 1, CPU)
        model.autocast = torch.bfloat16
        loss = model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        losses.append(loss.item())
        gradients.append(model.blocks["0"].attn.wq.weight.grad)
    assert losses[0] != losses[1]
    assert losses[1] == pytest.approx(losses[0], rel=5e-3)
    assert torch.nn.functional.cosine_similarity(*(each.flatten() for each in gradients), dim=0) > 0.95
