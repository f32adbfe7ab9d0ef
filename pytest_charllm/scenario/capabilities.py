"""What each engine composes, as data. What an engine cannot do is refused here, before any rank starts."""

from __future__ import annotations

import msgspec

from pytest_charllm.scenario.layout import AXES, SCHEDULES
from pytest_charllm.scenario.models import Family, shape
from pytest_charllm.scenario.spec import (
    COLLECTIVE_ENGINE,
    SCRIPT_ENGINE,
    Collective,
    Layout,
    Options,
    Precision,
    Recompute,
    Scenario,
    Script,
    Sharding,
)


class Engine(msgspec.Struct, frozen=True, kw_only=True):
    """Everything listed composes with everything else that is listed."""

    name: str
    axes: frozenset[str]
    """Parallel axes that may be above 1."""
    shardings: frozenset[Sharding]
    families: frozenset[Family]
    recompute: frozenset[Recompute]
    precisions: frozenset[Precision]
    schedules: frozenset[str] = frozenset()
    switches: frozenset[str] = frozenset()
    """Fields of the layout and the options that may differ from their defaults, beside those above."""


ENGINES: dict[str, Engine] = {
    engine.name: engine
    for engine in (
        Engine(
            name="native",
            axes=frozenset({"dp", "tp", "cp", "pp", "ep"}),
            shardings=frozenset({Sharding.NONE, Sharding.FSDP, Sharding.HSDP}),
            families=frozenset(Family),
            recompute=frozenset(Recompute),
            precisions=frozenset(Precision),
            schedules=frozenset(SCHEDULES),
            switches=frozenset(
                {
                    "gathered",
                    "sequence_parallel",
                    "ring",
                    "virtual_stages",
                    "overlap",
                    "distributed_optimizer",
                    "chunked_loss",
                    "lora",
                    "real_routing",
                }
            ),
        ),
        Engine(
            name="deepspeed",
            axes=frozenset({"dp", "pp", "ep"}),
            shardings=frozenset({Sharding.NONE, Sharding.ZERO1, Sharding.ZERO2, Sharding.ZERO3}),
            families=frozenset(Family),
            recompute=frozenset(Recompute),
            precisions=frozenset({Precision.BF16, Precision.FP32}),
            schedules=frozenset({"1f1b"}),
            switches=frozenset({"overlap", "real_routing"}),
        ),
    )
}


_LAYOUT_SWITCHES = ("gathered", "sequence_parallel", "ring", "virtual_stages")
_OPTION_SWITCHES = ("overlap", "distributed_optimizer", "lora", "chunked_loss", "real_routing")


def unsupported(scenario: Scenario) -> str | None:
    """The first thing asked for that the scenario's engine does not do, as one line; None where it does everything."""
    if isinstance(scenario.work, Script):
        return _unsupported_script(scenario)
    if isinstance(scenario.work, Collective):
        return _unsupported_collective(scenario)
    engine = ENGINES.get(scenario.engine)
    if engine is None:
        return f"{scenario.engine!r} is not known; engines: {', '.join(ENGINES)}"
    layout, options = scenario.layout, scenario.options
    for axis in (*AXES, "ep"):
        degree = getattr(layout, axis)
        if degree > 1 and axis not in engine.axes:
            return f"{engine.name} does not do {axis} (asked {axis}{degree})"
    if layout.sharding not in engine.shardings:
        return f"{engine.name} does not do sharding {layout.sharding}"
    if layout.schedule is not None and layout.schedule not in engine.schedules:
        return f"{engine.name} does not do the schedule {layout.schedule}"
    family = shape(scenario.training.model).family
    if family not in engine.families:
        return f"{engine.name} does not build {family} models (asked {scenario.training.model})"
    if options.recompute not in engine.recompute:
        return f"{engine.name} does not do recompute {options.recompute}"
    if options.precision not in engine.precisions:
        return f"{engine.name} does not do {options.precision}"
    for words, names in ((layout, _LAYOUT_SWITCHES), (options, _OPTION_SWITCHES)):
        for name in names:
            value = getattr(words, name)
            if value != getattr(type(words)(), name) and name not in engine.switches:
                return f"{engine.name} does not do {name.replace('_', ' ')} (asked {value})"
    return None


def _unsupported_script(scenario: Scenario) -> str | None:
    """A layout only says what the script's arguments ask for, so every one is possible."""
    if scenario.engine != SCRIPT_ENGINE:
        return f"{scenario.engine} does not run scripts"
    if scenario.options != Options():
        return "the options of a script are among its own arguments"
    return None


def _unsupported_collective(scenario: Scenario) -> str | None:
    """Its ranks are one group: an axis of training is measured by a world of that many ranks."""
    if scenario.engine != COLLECTIVE_ENGINE:
        return f"{scenario.engine} does not run collectives alone"
    if scenario.options != Options():
        return "a collective alone has no options"
    if scenario.layout != Layout(dp=scenario.layout.dp):
        return "the ranks of a collective are all alike; write dp and their number"
    return None
