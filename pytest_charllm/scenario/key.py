"""The stable, readable name of a scenario, and back.

    key = model ["." N "L"] ["." layout] ".mb" N [".gb" N] [".seq" N] [".recompute-selective" | ".recompute-full"]
          [".fp32" | ".fp8"] [".eager"] [".no-overlap"] [".dist-opt"] [".real-routing"] [".lora" N]
          [".chunked-loss"] [".reduce" N] [".prefetch" N] [".live" N] [".sm" MHZ] [".soak" MINUTES] ["." engine]

The model and the microbatch are always there, everything else only where it is not the default. A value that is written
out and happens to be the default (all of a model's layers, its own sequence length, the global batch of one microbatch
a data-parallel rank, the schedule that a pipeline has anyway, stages of equal depth, a switch of an axis that is 1,
weights that a pipeline keeps gathered anyway) is the same work, so it gives the same key: `canonical` is that normal
form, and ``parse_key(format_key(s)) == canonical(s)`` for every scenario. A key that is not canonical is refused.
Scripts have keys of their own, see `scenario.script`, and so have collectives, see `scenario.collective`.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from pytest_charllm.errors import BadInput, did_you_mean
from pytest_charllm.scenario.capabilities import ENGINES
from pytest_charllm.scenario.collective import OPS, collective_key, parse_collective
from pytest_charllm.scenario.layout import format_layout, parse_layout
from pytest_charllm.scenario.models import shape
from pytest_charllm.scenario.script import PREFIX, script_key
from pytest_charllm.scenario.spec import (
    DEFAULT_ENGINE,
    DEFAULT_SCHEDULE,
    Collective,
    Layout,
    Options,
    Precision,
    Recompute,
    Scenario,
    Script,
    Sharding,
    Training,
)

MAX_LENGTH = 120
"""Characters of a key, so that it fits into a file name with room to spare."""

_GRAMMAR = (
    "model[.<N>L][.layout].mb<N>[.gb<N>][.seq<N>][.recompute-selective|.recompute-full][.fp32|.fp8][.eager]"
    "[.no-overlap][.dist-opt][.real-routing][.lora<N>][.chunked-loss][.reduce<N>][.prefetch<N>][.live<N>]"
    "[.sm<MHZ>][.soak<MINUTES>][.<engine>]"
)


def canonical(scenario: Scenario) -> Scenario:
    """The same work with every default left out. Raises `BadInput` for an unknown model or depth, and for a script."""
    work, layout = scenario.training, scenario.layout
    full, model = shape(work.model), shape(work.model, work.layers)
    work = msgspec.structs.replace(
        work,
        layers=None if work.layers == full.layers else work.layers,
        global_batch=None if work.global_batch == work.microbatch * layout.dp else work.global_batch,
        seq=None if work.seq == full.seq else work.seq,
    )
    stages = layout.stage_layers
    if stages and len(stages) == layout.stages and len(set(stages)) == 1 and sum(stages) == model.layers:
        stages = None
    layout = msgspec.structs.replace(
        layout,
        stage_layers=stages,
        sequence_parallel=layout.sequence_parallel or layout.tp == 1,
        ring=layout.ring and layout.cp > 1,
        gathered=layout.gathered and layout.pp == 1,
        schedule=None if layout.pp > 1 and layout.schedule == DEFAULT_SCHEDULE else layout.schedule,
        virtual_stages=None if layout.virtual_stages == 2 else layout.virtual_stages,
    )
    options = msgspec.structs.replace(
        scenario.options,
        real_routing=scenario.options.real_routing and model.experts > 0,
        **_without_effect(layout.sharding),
    )
    return msgspec.structs.replace(scenario, work=work, layout=layout, options=options)


def _without_effect(sharding: Sharding) -> dict[str, int]:
    """The defaults of the buckets that a sharding does not have."""
    own = set(_BUCKETS.values()) if sharding is Sharding.ZERO3 else {"reduce_bucket"} if sharding.is_zero else set()
    return {name: getattr(Options(), name) for name in _BUCKETS.values() if name not in own}


def format_key(scenario: Scenario) -> str:
    """The key of a scenario. Raises `BadInput` where it names nothing that exists or would be longer than 120."""
    if isinstance(scenario.work, Script):
        return _of_bounded_length(script_key(scenario.work, scenario.layout))
    if isinstance(scenario.work, Collective):
        return collective_key(scenario.work, scenario.layout)
    scenario = canonical(scenario)
    _check(scenario)
    work, options = scenario.training, scenario.options
    tokens = [work.model]
    if work.layers is not None:
        tokens.append(f"{work.layers}L")
    if scenario.layout != Layout():
        tokens.append(format_layout(scenario.layout))
    tokens.append(f"mb{work.microbatch}")
    if work.global_batch is not None:
        tokens.append(f"gb{work.global_batch}")
    if work.seq is not None:
        tokens.append(f"seq{work.seq}")
    if options.recompute is not Recompute.NONE:
        tokens.append(f"recompute-{options.recompute}")
    if options.precision is not Precision.BF16:
        tokens.append(options.precision.value)
    tokens += [word for word, (name, value) in _SWITCHES.items() if getattr(options, name) is value]
    if options.lora:
        tokens.append(f"lora{options.lora}")
    if options.chunked_loss:
        tokens.append("chunked-loss")
    tokens += [
        f"{word}{getattr(options, name)}"
        for word, name in _BUCKETS.items()
        if getattr(options, name) != getattr(Options(), name)
    ]
    if options.sm_clock:
        tokens.append(f"sm{options.sm_clock}")
    if options.soak:
        tokens.append(f"soak{options.soak}")
    if scenario.engine != DEFAULT_ENGINE:
        tokens.append(scenario.engine)
    return _of_bounded_length(".".join(tokens))


def _check(scenario: Scenario) -> None:
    """Raise `BadInput` for a number or an engine that no key has."""
    work, options = scenario.training, scenario.options
    for name in ("microbatch", "global_batch", "seq"):
        if (value := getattr(work, name)) is not None and value < 1:
            raise BadInput(f"{name} is {value}, it must be at least 1")
    for name in ("lora", "sm_clock", "soak"):
        if (value := getattr(options, name)) < 0:
            raise BadInput(f"{name} is {value}, it must be at least 1, or 0 for none")
    for word, name in _BUCKETS.items():
        if (size := getattr(options, name)) < (least := int(name == "reduce_bucket")):
            raise BadInput(f"{word} is {size} elements, it must be at least {least}")
    if scenario.engine not in ENGINES:
        raise BadInput(f"engine {scenario.engine!r} is not known; engines: {', '.join(ENGINES)}")


def _of_bounded_length(key: str) -> str:
    if len(key) > MAX_LENGTH:
        raise BadInput(f"scenario key {key!r} has {len(key)} characters, at most {MAX_LENGTH} are allowed")
    return key


def parse_key(key: str) -> Scenario:
    """Inverse of `format_key`. Raises `BadInput` naming the token that cannot be read, or the canonical key.

    A script's key is refused: its arguments are not in it.
    """
    if len(key) > MAX_LENGTH:
        raise BadInput(f"scenario key {key[:40]!r}... has {len(key)} characters, at most {MAX_LENGTH} are allowed")
    try:
        return _parse(key)
    except BadInput as error:
        raise BadInput(f"scenario key {key!r}: {error}") from None


def _parse(key: str) -> Scenario:
    if key.startswith(PREFIX):
        raise BadInput("a script's arguments are not in its key; give the Script itself")
    if key.partition(".")[0] in OPS:
        return parse_collective(key)
    model, *tokens = key.split(".")
    shape(model)
    fields: dict[str, Any] = {}
    for token in tokens:
        name, value = _parse_token(token)
        if name in fields:
            raise BadInput(f"token {token!r} gives {name} a second time")
        fields[name] = value
    if "microbatch" not in fields:
        raise BadInput("no mb<N>, the microbatch is always named")
    scenario = Scenario(
        work=Training(model=model, **_take(fields, "microbatch", "layers", "global_batch", "seq")),
        layout=fields.pop("layout", Layout()),
        options=Options(**_take(fields, *Options.__struct_fields__)),
        **fields,
    )
    written = format_key(scenario)
    if key != written:
        raise BadInput(f"not the canonical form, write {written!r}")
    return scenario


def _take(fields: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: fields.pop(name) for name in names if name in fields}


_BUCKETS = {"reduce": "reduce_bucket", "prefetch": "prefetch_bucket", "live": "live_parameters"}

_NUMBERS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"([0-9]{1,9})L"), "layers"),
    (re.compile(r"mb([0-9]{1,9})"), "microbatch"),
    (re.compile(r"gb([0-9]{1,9})"), "global_batch"),
    (re.compile(r"seq([0-9]{1,9})"), "seq"),
    (re.compile(r"lora([0-9]{1,9})"), "lora"),
    (re.compile(r"sm([0-9]{1,9})"), "sm_clock"),
    (re.compile(r"soak([0-9]{1,9})"), "soak"),
    *((re.compile(rf"{word}([0-9]{{1,12}})"), name) for word, name in _BUCKETS.items()),
)

_SWITCHES: dict[str, tuple[str, bool]] = {
    "eager": ("compile", False),
    "no-overlap": ("overlap", False),
    "dist-opt": ("distributed_optimizer", True),
    "real-routing": ("real_routing", True),
}

_WORDS: dict[str, tuple[str, Any]] = {
    "recompute-selective": ("recompute", Recompute.SELECTIVE),
    "recompute-full": ("recompute", Recompute.FULL),
    "fp32": ("precision", Precision.FP32),
    "fp8": ("precision", Precision.FP8),
    **_SWITCHES,
    "chunked-loss": ("chunked_loss", True),
}


def _parse_token(token: str) -> tuple[str, Any]:
    if token in _WORDS:
        return _WORDS[token]
    if token in ENGINES:
        return "engine", token
    for pattern, name in _NUMBERS:
        if match := pattern.fullmatch(token):
            return name, int(match[1])
    if re.match(r"(tp|pp|cp|dp)[0-9]", token):
        return "layout", parse_layout(token)
    meant = did_you_mean(token, [*_WORDS, *ENGINES])
    raise BadInput(f"token {token!r} is not understood; {meant}a key is {_GRAMMAR}")
