"""What the overlap switch reaches into, which has no public name in torch."""

from __future__ import annotations

import inspect

from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPCommContext
from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState

from pytest_charllm.engines.native.overlap import STREAMS


def test_fsdp_makes_its_streams_where_they_are_replaced() -> None:
    """A stream that torch renames or adds would go on overlapping with the switch off, and nobody would see."""
    made = inspect.getsource(FSDPCommContext.lazy_init)
    streams = {line.split("=")[0].strip().removeprefix("self.") for line in made.splitlines() if "_stream =" in line}
    assert streams == set(STREAMS)
    assert "_comm_ctx.lazy_init" in inspect.getsource(FSDPState)


def test_the_compiler_knows_the_switch_of_async_tensor_parallelism() -> None:
    """An unknown field of the compiler's configuration raises only on a GPU, in the first launch of a night."""
    import torch._inductor.config as config
    from torch.distributed._symmetric_memory import enable_symm_mem_for_group

    assert config._micro_pipeline_tp is False
    assert callable(enable_symm_mem_for_group)
