"""Which recorded launches a round may be held against, metric by metric."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pytest_charllm.judge.tolerances import START_BAND_C, Match, Tolerance
from pytest_charllm.records import BaselineSample, Measurement


class Reference(NamedTuple):
    """The recorded values to be held against, and the floor that goes with them. No values: `reason` says why."""

    values: tuple[float, ...]
    floor: float
    reason: str = ""


def reference_of(
    metric: str, rule: Tolerance, recorded: Sequence[BaselineSample], launches: Sequence[Measurement]
) -> Reference:
    """The recorded launches that match this round on what the metric's rule asks for."""
    floor = rule.floor
    if recorded and rule.match is not Match.ANY:
        cards = {frozenset(launch.device_uuids) for launch in launches}
        same_card = [sample for sample in recorded if {frozenset(sample.device_uuids)} == cards]
        if rule.match is Match.CARD_WIDENS:
            floor = rule.floor if same_card or rule.other_card is None else rule.other_card
            recorded = same_card or recorded
        elif not same_card:
            return Reference((), floor, "not comparable: on record from another card")
        else:
            here_c = start_temperatures(launches)
            recorded = [sample for sample in same_card if _in_band(here_c, sample.start_temp_c)]
            if not recorded:
                return Reference((), floor, _outside(here_c, start_temperatures(same_card)))
    return Reference(tuple(sample.values[metric] for sample in recorded if metric in sample.values), floor)


def start_temperatures(launches: Sequence[Measurement] | Sequence[BaselineSample]) -> dict[str, float]:
    """Median start temperature in degC of each device over the launches that know it, by UUID."""
    known: dict[str, list[float]] = {}
    for launch in launches:
        for uuid, temperature in launch.start_temp_c.items():
            known.setdefault(uuid, []).append(temperature)
    return {uuid: statistics.median(temperatures) for uuid, temperatures in known.items()}


def _in_band(here_c: Mapping[str, float], recorded_c: Mapping[str, float]) -> bool:
    return bool(here_c) and all(
        uuid in recorded_c and abs(recorded_c[uuid] - temperature) <= START_BAND_C
        for uuid, temperature in here_c.items()
    )


def _outside(here_c: Mapping[str, float], recorded_c: Mapping[str, float]) -> str:
    both = [uuid for uuid in here_c if uuid in recorded_c]
    if not both:
        return "not comparable: start temperature not known"
    worst = max(both, key=lambda uuid: abs(here_c[uuid] - recorded_c[uuid]))
    return (
        f"not comparable: started at {here_c[worst]:.0f} degC, on record {recorded_c[worst]:.0f} degC "
        f"(band {START_BAND_C:g} degC)"
    )
