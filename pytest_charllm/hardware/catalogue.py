"""GPU models by exact variant: capacity, peaks, the names by which drivers report them. Data: ``catalogue.toml``."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import msgspec

from pytest_charllm.errors import BadInput, did_you_mean
from pytest_charllm.hardware.machine import Machine

_MIB = 1 << 20


class Hardware(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One exact variant. All but `tdp_w` is per GPU as programs see it, so an MI250 package is two of them.

    Numbers are datasheet peaks; they are None on ``cpu``, whose speed and memory belong to the machine and not to the
    variant. What a real card offers (power limit, memory) is read from the device.
    """

    variant: str
    family: str
    vendor: Literal["nvidia", "amd", "cpu"]
    title: str
    names: tuple[str, ...]
    gpus_per_package: int = 1
    gpus_per_node: int = 8
    memory_mib: int | None = None
    tdp_w: float | None = None
    """Of the package."""
    bf16_tflops: float | None = None
    """Dense."""
    fp8: bool = False
    """Its matrix units take 8-bit floats."""
    memory_gb_per_s: float | None = None

    @property
    def memory_bytes(self) -> int | None:
        return None if self.memory_mib is None else self.memory_mib * _MIB

    @property
    def peak_bf16_flops(self) -> float | None:
        """FLOP/s, dense."""
        return None if self.bf16_tflops is None else self.bf16_tflops * 1e12

    @property
    def memory_bytes_per_s(self) -> float | None:
        return None if self.memory_gb_per_s is None else self.memory_gb_per_s * 1e9

    def is_named(self, name: str) -> bool:
        """Whether a driver that reports this name means this variant. The whole name counts: "NVIDIA H200 NVL" and
        a MIG slice of an H200 are not "NVIDIA H200"."""
        return any(re.fullmatch(pattern, name.strip(), re.IGNORECASE) for pattern in self.names)


def _read() -> dict[str, Hardware]:
    tables = tomllib.loads(Path(__file__).with_name("catalogue.toml").read_text(encoding="utf-8"))
    return {variant: msgspec.convert({"variant": variant, **table}, Hardware) for variant, table in tables.items()}


CATALOGUE: Mapping[str, Hardware] = MappingProxyType(_read())
"""Every known variant by name."""


def resolve(name: str) -> tuple[Hardware, ...]:
    """All variants that a name stands for: every one of a family (``h100``, ``mi250``), else the variant itself.

    Raises `BadInput` for any other name.
    """
    family = tuple(hardware for hardware in CATALOGUE.values() if hardware.family == name)
    if family:
        return family
    if name in CATALOGUE:
        return (CATALOGUE[name],)
    words = dict.fromkeys([hardware.family for hardware in CATALOGUE.values()] + list(CATALOGUE))
    raise BadInput(f"hardware {name!r} is not known; {did_you_mean(name.lower(), words)}known: {', '.join(words)}")


def default_variant(name: str) -> Hardware:
    """The one variant meant by a name where no device can be asked: a family means its SXM part (``h200``:
    ``h200-sxm``), or its first variant where it has none (``mi250``). Raises `BadInput` for an unknown name."""
    return CATALOGUE[name] if name in CATALOGUE else resolve(name)[0]


def match_name(name: str) -> Hardware | None:
    """The variant that a device name of NVML or amdsmi tells; None where it is unknown or does not tell."""
    return next((hardware for hardware in CATALOGUE.values() if hardware.is_named(name)), None)


def parse_assume(text: str) -> Machine:
    """A machine that is only assumed, from ``hardware:<nodes>x<gpus>`` (``h200:1x8``) or ``hardware`` (its usual node).

    Raises `BadInput` where that is not what `text` says.
    """
    name, colon, size = text.partition(":")
    hardware = default_variant(name)
    if not colon:
        return Machine(variant=hardware.variant, gpus_per_node=hardware.gpus_per_node, assumed=True)
    match = re.fullmatch(r"([1-9][0-9]{0,5})x([1-9][0-9]{0,5})", size)
    if match is None:
        raise BadInput(f"{size!r} is not <nodes>x<gpus>, each up to 999,999; write e.g. {name}:1x8")
    nodes, gpus = (int(number) for number in match.groups())
    if gpus % hardware.gpus_per_package:
        raise BadInput(
            f"{gpus} GPUs a node, but a {hardware.variant} package has {hardware.gpus_per_package}; count them all"
        )
    return Machine(variant=hardware.variant, gpus_per_node=gpus, nodes=nodes, assumed=True)
