"""torchtitan 0.2.2's Llama as a `TrainingStep`: its model, parallelization, loss and clipping; our tokens and AdamW."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from pytest_charllm.engines.native.attention import backend_behind
from pytest_charllm.engines.native.data import Batches
from pytest_charllm.engines.native.gradients import MAX_GRAD_NORM
from pytest_charllm.engines.native.optimizer import adamw
from pytest_charllm.engines.native.world import World
from pytest_charllm.records import Collective, RankRequest
from pytest_charllm.scenario import Precision, Recompute, Scenario, Sharding
from pytest_charllm.scenario.models import ModelShape

_FFN_MULTIPLE = 64


class TitanStep:
    """Plain and fully sharded data parallelism and tensor parallelism, as torchtitan itself arranges them.

    One exception: under tensor parallelism alone it would train in fp32, since its bf16 comes with FSDP. There it gets
    FSDP over a single rank, as it does itself around its experts for the same reason.
    """

    expert_backend: str | None = None
    expert_load: Tensor | None = None

    def __init__(
        self, wheel: Path, request: RankRequest, shape: ModelShape, seq: int, world: World, _: torch.device
    ) -> None:
        """The last argument, of a generator for weights, is not used: torchtitan draws its own."""
        scenario = request.scenario
        layout, options = scenario.layout, scenario.options
        assert options.precision is Precision.BF16
        assert options.recompute is Recompute.NONE
        titan = _Titan(wheel)
        config = titan.config.JobConfig()
        config.compile.enable = options.compile
        config.training.seq_len = seq
        config.activation_checkpoint.mode = "none"
        sharded = layout.sharding is Sharding.FSDP
        kind = titan.distributed.ParallelDims
        dims = (_in_bf16(kind) if layout.tp > 1 and not sharded else kind)(
            dp_replicate=1 if sharded else layout.dp, dp_shard=layout.dp if sharded else 1,
            cp=1, tp=layout.tp, pp=1, ep=1, etp=1, world_size=layout.world,
        )  # fmt: skip
        if layout.world > 1:
            titan.dims.device_type = world.device.type  # It takes a torch with CUDA for a machine with a GPU.
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
        self._context = titan.utils.get_train_context(dims.tp_enabled and not config.parallelism.disable_loss_parallel)
        self._amp = titan.utils.maybe_enable_amp(dims, "bfloat16", world.device.type)
        self._loss = titan.loss.build_cross_entropy_loss(config)
        self._optimizer = adamw(model.parameters())
        self._batches = Batches(scenario, shape.vocab, seq, request.seed, world)
        self._accumulation = scenario.accumulation
        # torchtitan divides by the tokens of the whole step itself; FSDP's own averaging it turns off.
        self._tokens = scenario.global_batch * seq if sharded else scenario.global_batch * seq // layout.dp
        self.attention_backend = _attention_backend(titan, scenario, shape, seq, world.device)

    def __call__(self, index: int, poison: bool = False) -> tuple[Tensor, Tensor]:
        losses = []
        for number in range(self._accumulation):
            inputs, targets = self._batches.microbatch(index, number)
            with self._context():
                with self._amp:
                    loss = self._loss(self.model(inputs), targets) / self._tokens
                loss.backward()
            loss = loss.detach()
            losses.append(loss.full_tensor() if isinstance(loss, DTensor) else loss)
        norm = self._clip(list(self.model.parameters()), MAX_GRAD_NORM, foreach=True)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return torch.stack(losses).sum(), norm

    @property
    def parts_s(self) -> Mapping[str, float]:
        return {}

    @contextmanager
    def counting_collectives(self) -> Iterator[Callable[[], tuple[Collective, ...]]]:
        yield lambda: ()

    def axis_of(self, group: str, op: str, size: int) -> str | None:
        return None


def _in_bf16(kind: type[Any]) -> type[Any]:
    """ParallelDims that shard over a single rank too."""

    class WithFsdp(kind):
        def _mesh_exist(self, name: str, degree: int) -> bool:
            return name == "fsdp" or bool(super()._mesh_exist(name, degree))

        @property
        def fsdp_enabled(self) -> bool:
            return True

    return WithFsdp


def _attention_backend(titan: _Titan, scenario: Scenario, shape: ModelShape, seq: int, device: torch.device) -> str:
    """The kernel that answers torchtitan's own call of this size on one rank."""
    tp = scenario.layout.tp
    q, k, v = (
        torch.zeros(scenario.training.microbatch, seq, heads // tp, shape.head_dim, dtype=torch.bfloat16, device=device)
        .requires_grad_()
        .transpose(1, 2)
        for heads in (shape.heads, shape.kv_heads, shape.kv_heads)
    )
    grouped = shape.heads > shape.kv_heads
    return backend_behind(titan.attention.ScaledDotProductAttentionWrapper()(q, k, v, enable_gqa=grouped))


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
    """The modules of an unpacked wheel that train. Those that read command lines, tokenizers and data sets need
    packages of their own: of them only the names that the others import are there."""

    def __init__(self, path: Path) -> None:
        if str(path) not in sys.path:
            sys.path.insert(0, str(path))
        _stand_in("config.manager", ConfigManager=None)
        _stand_in("components.tokenizer", BaseTokenizer=None)
        _stand_in("models.llama3", __path__=[str(path / "torchtitan" / "models" / "llama3")])
        self.config = _imported("config")
        _stand_in("protocols.train_spec", ModelProtocol=_imported("protocols.model").ModelProtocol)
        self.distributed = _imported("distributed")
        self.dims = _imported("distributed.parallel_dims")
        self.utils = _imported("distributed.utils")
        self.attention = _imported("models.attention")
        self.loss = _imported("components.loss")
        self.arguments = _imported("models.llama3.model.args")
        self.model = _imported("models.llama3.model.model")
        self.parallelize = _imported("models.llama3.infra.parallelize")


def _imported(name: str) -> Any:
    return importlib.import_module(f"torchtitan.{name}")


def _stand_in(name: str, **attributes: object) -> None:
    module = types.ModuleType(f"torchtitan.{name}")
    vars(module).update(attributes)
    sys.modules.setdefault(module.__name__, module)
