"""Which recorded launches a round may be held against, metric by metric, and what they say about noise."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from pytest_charllm.judge.foreign import SAID_BY_IT, Pace, allowed, card_ratio, on_these, same_libraries
from pytest_charllm.judge.noise import Cards, Run
from pytest_charllm.judge.tolerances import LOCAL_RUNS, START_BAND_C, Match, Tolerance
from pytest_charllm.records import METRICS, Baseline, BaselineSample, Measurement, Stack


class Recorded(NamedTuple):
    """The launches of one accepted run on the same cards. Runs of one `segment` are of one software at one level."""

    run_id: str
    segment: int
    cards: Cards
    samples: tuple[BaselineSample, ...]
    stack: Stack
    card_ratio: float = 1.0
    """How much longer the cards at hand take for the same product than its own: its samples stand as they would have
    made them, by what is `allowed` of it."""


class Reference(NamedTuple):
    """What to hold against, and the floor that goes with it. No `values`: `reason` says why.

    `comparable` False: it is on record, but not under conditions in which it may be held against.
    `values`: launches of the reference, a tuple a run. `runs`: everything on record as ratios to its own segment's
    level (or differences), for the noise. `foreign`: how many sets of cards other than those at hand are among the
    values; 0 when all are from these. `card_ratio`: how much longer these take for the same product than those on
    record; the values are what these would have made.
    """

    values: tuple[tuple[float, ...], ...]
    runs: tuple[Run, ...]
    floor: float
    foreign: int = 0
    card_ratio: float = 1.0
    reason: str = ""
    comparable: bool = True

    @property
    def level(self) -> float:
        """The median over runs of the medians over their launches: the run is what repeats."""
        return statistics.median(statistics.median(launches) for launches in self.values)

    @property
    def launches(self) -> int:
        return sum(len(launches) for launches in self.values)


def recorded_runs(baseline: Baseline) -> tuple[Recorded, ...]:
    """Every run on record, oldest first, the last segment being the reference. Runs recorded twice count once."""
    found = []
    for number, segment in enumerate(baseline.segments()):
        for run in segment:
            by_cards: dict[Cards, list[BaselineSample]] = {}
            for sample in run.samples if run.speed_on_record else ():
                by_cards.setdefault(cards_of(sample), []).append(sample)
            found += [
                Recorded(run.run_id, number, cards, tuple(samples), run.stack) for cards, samples in by_cards.items()
            ]
    return tuple(found)


def cards_of(launch: Measurement | BaselineSample) -> Cards:
    return tuple(sorted(launch.device_uuids))


def reference_of(
    metric: str, rule: Tolerance, recorded: Sequence[Recorded], launches: Sequence[Measurement]
) -> Reference:
    """The recorded launches that match this round on what the metric's rule asks for.

    Runs of other cards are part of the reference until `LOCAL_RUNS` of the cards at hand are on record.
    """
    floor, here = rule.floor, {cards_of(launch) for launch in launches}
    if metric in SAID_BY_IT:
        recorded = _on_these_cards(metric, recorded, launches, here)
    level = [run for run in recorded if run.segment == recorded[-1].segment]
    local = [run for run in level if {run.cards} == here]
    of_others = rule.floor if local or rule.other_card is None else rule.other_card
    if rule.match is Match.CARD_WIDENS:
        floor = of_others
        level = local or level
    elif rule.match is Match.CARD_AND_START and level:
        if not local:
            reason = "not comparable: on record from another card"
            return Reference((), (), floor, reason=reason, comparable=False)
        here_c = start_temperatures(launches)
        alike = [(run, _in_band(here_c, run.samples)) for run in local]
        level = [run._replace(samples=samples) for run, samples in alike if samples]
        if not level:
            known = start_temperatures(sample for run in local for sample in run.samples)
            return Reference((), (), floor, reason=_outside(here_c, known), comparable=False)
        recorded = level
    elif rule.match is Match.OTHERWISE:
        here_c = start_temperatures(launches)
        if any(_in_band(here_c, run.samples) for run in local):
            reason = "the degrees themselves are compared"
            return Reference((), (), floor, reason=reason, comparable=False)
        floor = of_others
        level = local or level
    elif len(local) >= LOCAL_RUNS:
        level = local
    elif metric in SAID_BY_IT and all(run.card_ratio == 1.0 for run in level):
        floor = of_others
        level = level if rule.other_card is None else local or level
    values = tuple(numbers for run in level if (numbers := _numbers(metric, run.samples)))
    reason = "" if values or not level else _useless(metric, level)
    foreign = len({run.cards for run in level} - here)
    ratio = statistics.median([run.card_ratio for run in level if {run.cards} != here] or [1.0])
    return Reference(values, tuple(scaled_runs(metric, recorded)), floor, foreign, ratio, reason)


def _on_these_cards(
    metric: str, recorded: Sequence[Recorded], launches: Sequence[Measurement], here: set[Cards]
) -> list[Recorded]:
    """The runs of other cards as these would have made them: by these cards' own record where there is one, so that a
    card which fell behind that is not excused by it."""
    limit_w = next((launch.power_limit_w for launch in launches if launch.power_limit_w is not None), None)
    own: dict[int, list[BaselineSample]] = {}
    for run in recorded:
        if {run.cards} == here:
            own.setdefault(run.segment, []).extend(run.samples)

    def on_ours(run: Recorded) -> Recorded:
        ours = own.get(run.segment)
        if {run.cards} == here or not (ours or same_libraries(run.stack, launches)):
            return run
        ratio = card_ratio(Pace.on_record(run.samples), Pace.on_record(ours) if ours else Pace.of(launches), limit_w)
        return run._replace(samples=on_these(metric, run.samples, allowed(ratio)), card_ratio=ratio)

    return [on_ours(run) for run in recorded]


def nights(metric: str, recorded: Sequence[Recorded]) -> dict[str, float]:
    """Each run by its id: its median as a ratio to the level of its segment (or the difference)."""
    usable = [run for run in recorded if _numbers(metric, run.samples)]
    return {
        run.run_id: statistics.median(scaled.values)
        for run, scaled in zip(usable, scaled_runs(metric, usable), strict=True)
    }


def start_temperatures(launches: Iterable[Measurement | BaselineSample]) -> dict[str, float]:
    """Median start temperature in degC of each device over the launches that know it, by UUID."""
    known: dict[str, list[float]] = {}
    for launch in launches:
        for uuid, temperature in launch.start_temp_c.items():
            known.setdefault(uuid, []).append(temperature)
    return {uuid: statistics.median(temperatures) for uuid, temperatures in known.items()}


def _numbers(metric: str, samples: Sequence[BaselineSample]) -> tuple[float, ...]:
    """The usable values: finite, and above 0 where changes of the metric are ratios."""
    numbers = (sample.values[metric] for sample in samples if metric in sample.values)
    return tuple(number for number in numbers if math.isfinite(number) and (number > 0 or not METRICS[metric].relative))


def _useless(metric: str, level: Sequence[Recorded]) -> str:
    """Why a metric that is on record gives no reference; "" when it is not on record at all."""
    on_record = [sample.values[metric] for run in level for sample in run.samples if metric in sample.values]
    return f"{on_record[0]:g} on record is no reference" if on_record else ""


def scaled_runs(metric: str, recorded: Sequence[Recorded]) -> list[Run]:
    """The runs of each segment around 1 where the metric is relative, around 0 otherwise."""
    numbers = [(run, values) for run in recorded if (values := _numbers(metric, run.samples))]
    medians: dict[int, list[float]] = {}
    for run, values in numbers:
        medians.setdefault(run.segment, []).append(statistics.median(values))
    levels = {segment: statistics.median(each) for segment, each in medians.items()}
    if METRICS[metric].relative:
        return [Run(run.segment, run.cards, tuple(v / levels[run.segment] for v in values)) for run, values in numbers]
    return [Run(run.segment, run.cards, tuple(v - levels[run.segment] for v in values)) for run, values in numbers]


def _in_band(here_c: Mapping[str, float], samples: Sequence[BaselineSample]) -> tuple[BaselineSample, ...]:
    """Those that started as warm as the launches at hand, device by device."""
    if not here_c:
        return ()
    return tuple(
        sample
        for sample in samples
        if all(
            uuid in sample.start_temp_c and abs(sample.start_temp_c[uuid] - temperature) <= START_BAND_C
            for uuid, temperature in here_c.items()
        )
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
