"""torchtitan 0.2.2's Llama as a `TrainingStep`: its model, parallelization, loss and clipping; our tokens and AdamW."""

from __future__ import annotations

import importlib
import os
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pytest_charllm.engines.native.data import Batches
from pytest_charllm.engines.native.gradients import MAX_GRAD_NORM
from pytest_charllm.engines.native.optimizer import adamw
from pytest_charllm.engines.native.world import World
from pytest_charllm.records import Collective, RankRequest
from pytest_charllm.scenario import Precision, Recompute, Sharding
from pytest_charllm.scenario.models import ModelShape

_FFN_MULTIPLE = 64


class TitanStep:
    """Plain and fully sharded data parallelism and tensor parallelism, as torchtitan itself arranges them."""

    expert_backend: str | None = None
    expert_load: Tensor | None = None

    def __init__(
        self, request: RankRequest, shape: ModelShape, seq: int, world: World, generator_device: torch.device
    ) -> None:
        scenario = request.scenario
        layout, options = scenario.layout, scenario.options
        assert options.precision is Precision.BF16
        assert options.recompute is Recompute.NONE
        titan = _Titan(Path(os.environ["CHARLLM_TORCHTITAN"]))
        config = titan.config.JobConfig()
        config.compile.enable = options.compile
        config.training.seq_len = seq
        config.activation_checkpoint.mode = "none"
        sharded = layout.sharding is Sharding.FSDP
        dims = titan.distributed.ParallelDims(
            dp_replicate=1 if sharded else layout.dp, dp_shard=layout.dp if sharded else 1,
            cp=1, tp=layout.tp, pp=1, ep=1, etp=1, world_size=layout.world,
        )  # fmt: skip
        if layout.world > 1:
            dims.build_mesh()
        with torch.device("meta"):
            model = titan.model.Transformer(_arguments(titan, shape, seq))
        titan.parallelize.parallelize_llama(model, dims, config)
        model.to_empty(device=world.device)
        with torch.no_grad():
            model.init_weights()
        self.model = model
        self.parameter_count = sum(parameter.numel() for parameter in model.parameters())
        self._clip = titan.utils.clip_grad_norm_
        self._amp = titan.utils.maybe_enable_amp(dims, "bfloat16", world.device.type)
        self._loss = titan.loss.build_cross_entropy_loss(config)
        self._optimizer = adamw(model.parameters())
        self._batches = Batches(scenario, shape.vocab, seq, request.seed, world)
        self._accumulation = scenario.accumulation
        # torchtitan divides by the tokens of the whole step itself; FSDP's own averaging it turns off.
        self._tokens = scenario.global_batch * seq if sharded else scenario.global_batch * seq // layout.dp

    def __call__(self, index: int, poison: bool = False) -> tuple[Tensor, Tensor]:
        losses = []
        for number in range(self._accumulation):
            inputs, targets = self._batches.microbatch(index, number)
            with self._amp:
                loss = self._loss(self.model(inputs), targets) / self._tokens
            loss.backward()
            losses.append(loss.detach())
        norm = self._clip(list(self.model.parameters()), MAX_GRAD_NORM, foreach=True)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return torch.stack(losses).sum(), norm

    @contextmanager
    def counting_collectives(self) -> Iterator[Callable[[], tuple[Collective, ...]]]:
        yield lambda: ()


def _arguments(titan: _Titan, shape: ModelShape, seq: int) -> Any:
    """torchtitan derives the inner width: hit it by what it rounds up."""
    base = 8 * shape.hidden // 3
    return titan.arguments.TransformerModelArgs(
        dim=shape.hidden,
        n_layers=shape.layers,
        n_heads=shape.heads,
        n_kv_heads=shape.kv_heads,
        vocab_size=shape.vocab,
        multiple_of=_FFN_MULTIPLE,
        ffn_dim_multiplier=(shape.ffn - _FFN_MULTIPLE / 2) / base,
        rope_theta=shape.rope_base,
        max_seq_len=seq,
    )


class _Titan:
    """The modules of an unpacked wheel, without the packages that only its command line and data sets need."""

    def __init__(self, path: Path) -> None:
        sys.path.insert(0, str(path))
        sys.modules.setdefault("tyro", types.ModuleType("tyro"))
        bare = types.ModuleType("torchtitan.models.llama3")
        bare.__path__ = [str(path / "torchtitan" / "models" / "llama3")]
        sys.modules["torchtitan.models.llama3"] = bare
        self.config = importlib.import_module("torchtitan.config")
        self.distributed = importlib.import_module("torchtitan.distributed")
        self.utils = importlib.import_module("torchtitan.distributed.utils")
        self.loss = importlib.import_module("torchtitan.components.loss")
        self.arguments = importlib.import_module("torchtitan.models.llama3.model.args")
        self.model = importlib.import_module("torchtitan.models.llama3.model.model")
        self.parallelize = importlib.import_module("torchtitan.models.llama3.infra.parallelize")
