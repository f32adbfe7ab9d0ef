"""Linear layers in 8-bit floats, by torchao: each tensor scaled by its own largest value, products summed in bf16."""

from __future__ import annotations

from torch import nn

from pytest_charllm.engines.errors import MissingPackage

_MULTIPLE = 16
"""Rows and columns that the hardware's 8-bit products come in."""


def to_fp8(block: nn.Module, emulate: bool = False) -> None:
    """Replace the linear layers of a block, in place; weights keep their names, and fp32 masters.

    `emulate`: compute with rounded numbers where the hardware has no such units. Raises `MissingPackage`.
    """
    try:
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training
    except ImportError as error:
        raise MissingPackage(
            f"fp8 needs torchao, which cannot be imported ({error}); pip install pytest-charllm[fp8]"
        ) from error

    def fits(module: nn.Module, name: str) -> bool:
        return isinstance(module, nn.Linear) and not (module.in_features % _MULTIPLE or module.out_features % _MULTIPLE)

    convert_to_float8_training(block, config=Float8LinearConfig(emulate=emulate), module_filter_fn=fits)
