"""How a layout is written: ``tp8pp4``, ``tp2pp2dp8+ep8``, ``dp8+hsdp2``, ``pp4+1f1b+s10-9-9-4``.

    layout   = axes ["+ep" N] ["+" sharding ["+gathered"]] ["+nosp"] ["+ring"] ["+" schedule ["+v" N]]
               ["+s" N "-" N ...]
    axes     = "dp1" | ["tp" N] ["pp" N] ["cp" N] ["dp" N], each N above 1
    sharding = "fsdp" | "hsdp" replicas | "zero1" | "zero2" | "zero3"
    schedule = "gpipe" | "1f1b" | "interleaved-1f1b" | "zbv" | "dualpipev"

One layout has one text, and one text is one layout: anything else is refused, naming what to write.
"""

from __future__ import annotations

import re

from pytest_charllm.errors import BadInput
from pytest_charllm.scenario.spec import Layout, Sharding

AXES = ("tp", "pp", "cp", "dp")

SCHEDULES = ("gpipe", "1f1b", "interleaved-1f1b", "zbv", "dualpipev")
"""Pipeline schedules that have a name. A layout without one takes its engine's own."""

_FLAGS: dict[str, tuple[str, bool]] = {
    "gathered": ("gathered", True),
    "nosp": ("sequence_parallel", False),
    "ring": ("ring", True),
}
"""Suffix -> the switch it sets."""

_AXIS = re.compile(r"(tp|pp|cp|dp)([0-9]{1,6})")


def format_layout(layout: Layout) -> str:
    """The one text of a layout. Raises `BadInput` for a layout that no text can say."""
    _check(layout)
    axes = "".join(f"{axis}{degree}" for axis in AXES if (degree := getattr(layout, axis)) > 1)
    parts = [axes or "dp1"]
    if layout.ep > 1:
        parts.append(f"ep{layout.ep}")
    if layout.sharding is Sharding.HSDP:
        parts.append(f"hsdp{layout.replicas}")
    elif layout.sharding is not Sharding.NONE:
        parts.append(layout.sharding.value)
    parts += [flag for flag, (name, value) in _FLAGS.items() if getattr(layout, name) is value]
    if layout.schedule is not None:
        parts.append(layout.schedule)
    if layout.virtual_stages is not None:
        parts.append(f"v{layout.virtual_stages}")
    if layout.stage_layers is not None:
        parts.append("s" + "-".join(map(str, layout.stage_layers)))
    return "+".join(parts)


def parse_layout(text: str) -> Layout:
    """Inverse of `format_layout`. Raises `BadInput` naming the part that cannot be read."""
    axes, *suffixes = text.split("+")
    fields: dict[str, object] = dict(_parse_axes(axes, text))
    for suffix in suffixes:
        for name, value in _parse_suffix(suffix, text).items():
            if name in fields:
                raise BadInput(f"layout {text!r}: {suffix!r} gives {name} a second time")
            fields[name] = value
    layout = Layout(**fields)  # type: ignore[arg-type]
    canonical = format_layout(layout)
    if text != canonical:
        raise BadInput(f"layout {text!r}: not the canonical form, write {canonical!r}")
    return layout


def alternating_stages(layers: int, stages: int) -> tuple[int, ...]:
    """`stage_layers` of the CharLLM study's mitigation for GPUs that sit in warm and cool places by turns: the first,
    third, ... stage has one layer more than an even share, the others one fewer, and the last what then remains.

    Raises `BadInput` where a stage would have no layer.
    """
    share = layers // stages
    depths = [share + (1 if number % 2 == 0 else -1) for number in range(stages - 1)]
    depths.append(layers - sum(depths))
    if min(depths) < 1:
        raise BadInput(f"{layers} layers do not alternate over {stages} stages: each needs a layer, got {depths}")
    return tuple(depths)


def _check(layout: Layout) -> None:
    for name in (*AXES, "ep", "replicas"):
        if getattr(layout, name) < 1:
            raise BadInput(f"layout: {name} is {getattr(layout, name)}, it must be at least 1")
    if layout.replicas > 1 and layout.sharding is not Sharding.HSDP:
        raise BadInput(f"layout: {layout.replicas} replicas belong to hsdp, not to sharding {layout.sharding}")
    if layout.schedule is not None and layout.schedule not in SCHEDULES:
        raise BadInput(f"layout: schedule {layout.schedule!r} is not known; schedules: {', '.join(SCHEDULES)}")
    if layout.virtual_stages is not None and not (layout.schedule == "interleaved-1f1b" and layout.virtual_stages > 1):
        raise BadInput(f"layout: {layout.virtual_stages} virtual stages need interleaved-1f1b and must be at least 2")
    if layout.gathered and not layout.sharding.is_fsdp:
        raise BadInput(f"layout: gathered is a way of fsdp and hsdp, not of sharding {layout.sharding}")
    if layout.stage_layers is not None and not (layout.stage_layers and min(layout.stage_layers) > 0):
        raise BadInput(f"layout: stage_layers {layout.stage_layers} must be at least one layer each")


def _parse_axes(axes: str, text: str) -> dict[str, int]:
    degrees: dict[str, int] = {}
    at = 0
    while at < len(axes):
        match = _AXIS.match(axes, at)
        if match is None:
            raise BadInput(f"layout {text!r}: {axes[at:]!r} is not an axis; write tp, pp, cp or dp and a number")
        axis, degree = match.groups()
        if axis in degrees:
            raise BadInput(f"layout {text!r}: axis {axis} is there twice")
        degrees[axis] = int(degree)
        at = match.end()
    if not degrees:
        raise BadInput(f"layout {text!r}: no axis; write tp, pp, cp or dp and a number, as in tp8pp4")
    return degrees


def _parse_suffix(suffix: str, text: str) -> dict[str, object]:
    if match := re.fullmatch(r"ep([0-9]{1,6})", suffix):
        return {"ep": int(match[1])}
    if match := re.fullmatch(r"hsdp([0-9]{1,6})", suffix):
        return {"sharding": Sharding.HSDP, "replicas": int(match[1])}
    if suffix in (Sharding.FSDP, Sharding.ZERO1, Sharding.ZERO2, Sharding.ZERO3):
        return {"sharding": Sharding(suffix)}
    if suffix in _FLAGS:
        return dict([_FLAGS[suffix]])
    if suffix in SCHEDULES:
        return {"schedule": suffix}
    if match := re.fullmatch(r"v([0-9]{1,4})", suffix):
        return {"virtual_stages": int(match[1])}
    if re.fullmatch(r"s[0-9]{1,6}(-[0-9]{1,6})*", suffix):
        return {"stage_layers": tuple(int(count) for count in suffix[1:].split("-"))}
    raise BadInput(
        f"layout {text!r}: {suffix!r} is not known; after a + comes ep<N>, fsdp, hsdp<replicas>, zero1 to zero3, "
        f"{', '.join(_FLAGS)}, a schedule ({', '.join(SCHEDULES)}), v<N> or s<layers>-<layers>..."
    )
