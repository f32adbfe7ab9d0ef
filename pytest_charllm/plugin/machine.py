"""Which machine the suites run on: ``--gpu`` held against what is here, or ``--charllm-assume``, or a site's hook."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from pytest_charllm.errors import BadInput, CharllmError

if TYPE_CHECKING:
    from pytest_charllm.hardware import Machine
    from pytest_charllm.plugin.options import Options


def resolve_machine(config: pytest.Config, options: Options) -> Machine:
    """Raises `pytest.UsageError` with one line: an unknown name, or hardware asked for that is not here."""
    try:
        wanted = _wanted_variants(options.gpu)
        if options.simulate:
            machine = _simulated(options)
        elif options.assume is not None:
            machine = _assumed(options.assume)
        else:
            machine = config.hook.pytest_charllm_machine(config=config) or _find(wanted)
    except CharllmError as error:
        raise pytest.UsageError(str(error)) from None
    if wanted and machine.variant not in wanted:
        asked = ",".join(options.gpu)
        raise pytest.UsageError(f"--gpu={asked}: no such GPU here; {_found(machine, assumed=options.assume)}")
    return machine


def describe(machine: Machine) -> str:
    """E.g. ``h200-sxm 1x8, driver 580.159.04``."""
    if machine.is_cpu:
        detail = f" ({machine.cpu_model})" if machine.cpu_model else ""
    else:
        detail = f", driver {machine.driver}" if machine.driver and not machine.simulated else ""
    made_up = ", assumed" if machine.assumed else ", simulated" if machine.simulated else ""
    return f"{machine.variant} {machine.shape}{detail}{made_up}"


def _assumed(text: str) -> Machine:
    from pytest_charllm.hardware.catalogue import parse_assume

    if not text.strip():
        raise BadInput("--charllm-assume: no hardware given; name it, for example h200:4x8, or leave the option out")
    try:
        return parse_assume(text)
    except BadInput as error:
        raise BadInput(f"--charllm-assume={text}: {error}") from None


def _simulated(options: Options) -> Machine:
    """Found like a real one, through the vendor's simulated library."""
    from pytest_charllm.devices.find import CPU_RANKS, simulated_machine
    from pytest_charllm.hardware.catalogue import default_variant

    if options.assume is not None:
        assumed = _assumed(options.assume)
        if assumed.nodes > 1:
            raise BadInput(f"--charllm-assume={options.assume}: a simulation is of one node")
        return simulated_machine(assumed.variant, assumed.gpus_per_node)
    if len(options.gpu) != 1:
        raise BadInput("--charllm-simulate: name the one GPU to simulate, for example --gpu=h200")
    return simulated_machine(default_variant(options.gpu[0]).variant, CPU_RANKS)


def _wanted_variants(names: tuple[str, ...]) -> frozenset[str]:
    from pytest_charllm.hardware.catalogue import resolve

    try:
        return frozenset(hardware.variant for name in names for hardware in resolve(name))
    except BadInput as error:
        raise BadInput(f"--gpu={','.join(names)}: {error}") from None


def _find(wanted: frozenset[str]) -> Machine:
    from pytest_charllm.devices.find import cpu_machine, find_machine

    # Asked for the CPU alone, GPUs are not even looked at: a dead driver must not stand in the way.
    return cpu_machine() if wanted == {"cpu"} else find_machine()


def _found(machine: Machine, assumed: str | None) -> str:
    if assumed is not None:
        return f"--charllm-assume={assumed} says {machine.variant}"
    if machine.is_cpu:
        return "found no GPU, only the CPU (--gpu=cpu)"
    names = Counter(device.name for device in machine.devices)
    listed = ", ".join(f"{count} x {name}" for name, count in names.items())
    return f"found {machine.variant} {machine.shape}{f' ({listed})' if listed else ''}"
