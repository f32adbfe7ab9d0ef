"""Scenarios as test parameters: a suite writes its table as data, each machine collects the rows that are meant for it.

Ids are ``<variant>-<key>``, so they stay the same for as long as the scenario does, whatever the test is called.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from math import prod
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from pytest_charllm.errors import BadInput, did_you_mean

if TYPE_CHECKING:
    from pytest_charllm.campaign.settings import Planned
    from pytest_charllm.hardware import Machine
    from pytest_charllm.scenario import Layout, Scenario, Script
    from pytest_charllm.scenario.feasibility import Broken

PARAMETER = "charllm_scenario"
"""The fixture through which an item gets its scenario; its value in the call's parameters is the key."""
ROWS_MARK = "charllm"
ITEM_MARK = "charllm_item"

Given = Mapping[str, tuple[int, ...]]
"""Field of `Options` -> its values, as the command line gives them."""
NOTHING: Given = {}

T = TypeVar("T")


@dataclass(frozen=True)
class Rows:
    """One model's rows of a table: which layouts on which machine, and how they are fed.

    `layouts` maps a machine to layouts separated by blanks, e.g. ``{"h200-sxm:4x8": "tp2pp16 tp8dp4+fsdp"}``. A
    machine is ``<variant, family or *>:<nodes>x<gpus>``; the most exact entry that fits is taken, alone. ``*`` is any
    GPU, never ``cpu``. `microbatch` is in sequences per data-parallel rank, `global_batch` in sequences per optimizer
    step, `seq` in tokens; `layers` cuts the model down to so many (everywhere, or per machine).

    `reduces`: on these GPUs (a variant, a family, or ``*``) a machine without an entry takes the rows of a larger one
    in a smaller form, see `scenario.reduced`; of its own family if there is one, else of the first.
    `shares_optimizer`: data-parallel ranks share the optimizer (``dist-opt``) wherever nothing is sharded already.
    """

    model: str
    layouts: Mapping[str, str]
    microbatch: int | tuple[int, ...] = 1
    global_batch: int | None = None
    seq: int | tuple[int, ...] | None = None
    layers: int | Mapping[str, int] | None = None
    reduces: str = ""
    shares_optimizer: bool = False

    def __post_init__(self) -> None:
        """Here a `TypeError` points at the line of the suite; later it would come from somewhere inside."""
        if not isinstance(self.layouts, Mapping) or not all(isinstance(text, str) for text in self.layouts.values()):
            raise TypeError(f'Rows({self.model!r}): layouts is a dict such as {{"h200:1x8": "dp8 dp8+fsdp"}}')
        sizes = _tuple(self.microbatch)
        if not sizes or not all(isinstance(size, int) for size in sizes):
            raise TypeError(f"Rows({self.model!r}): microbatch is a whole number or a tuple of them")


@dataclass(frozen=True)
class CollectedScenario:
    """What an item's mark carries. `broken`: the rule that forbids it on this machine, None where it can run."""

    planned: Planned
    broken: Broken | None

    def needs_more_than(self, machine: Machine) -> bool:
        """Whether it is not the row but the machine that is at fault: it has too few GPUs."""
        return self.broken is not None and self.planned.scenario.layout.world > machine.world

    @property
    def takes_faults(self) -> bool:
        """Faults are extra work in a step of our own: there is none in a script or in a collective alone."""
        from pytest_charllm.scenario import Training

        return isinstance(self.planned.scenario.work, Training)


def scenarios(
    *rows: Rows | Scenario | Script | str,
    on: str | tuple[str, ...] = (),
    layout: str | None = None,
    speed: bool = True,
    where: Callable[[Scenario], bool] | None = None,
    given: str = "",
    **options: Any,
) -> pytest.MarkDecorator:
    """Run a test once for each row that is meant for the machine at hand. May be stacked.

    A row is a `Rows` table, a `Scenario`, a `Script`, or a key such as ``"llama3-1b.mb2"``. `on` narrows them to
    machines, named as in `Rows`; all but a table is otherwise meant for all. `layout` is what a `Script` spreads itself
    over (``"tp2dp4"``; default: one rank). `speed=False` judges by the strict checks alone, where the hardware is a
    CPU; a script has none, so its speed is always judged. `where` says of a scenario whether it is wanted. `given`
    names an option whose values the command line gives, ``sm_clock`` or ``soak``: no row without them. `options` are
    those of `pytest_charllm.scenario.Options` (``recompute="full"``, ``precision="fp32"``, ``compile=False``) or
    ``engine``; a tuple of values makes a row for each.
    """
    if not rows:
        raise TypeError("scenarios() needs at least one row: Rows(...), a Scenario, a Script, or a key")
    try:
        checked = tuple(_checked_row(row, layout) for row in rows)
    except (BadInput, TypeError) as error:
        __tracebackhide__ = True  # pytest then shows the line of the suite, and none of ours
        raise type(error)(str(error)) from None
    machines = (on,) if isinstance(on, str) else on
    return pytest.mark.charllm.with_args(*checked, on=machines, speed=speed, where=where, given=given, options=options)


def parametrize(
    metafunc: pytest.Metafunc, machine: Machine, microbatches: tuple[int, ...] | None, given: Given = NOTHING
) -> None:
    """Give the test function its rows on this machine. One without any is left with a mark that gets it deselected.

    Raises `BadInput` for a row that cannot be read.
    """
    from pytest_charllm.scenario.script import refuse_namesake

    marks = list(metafunc.definition.iter_markers(ROWS_MARK))
    found: dict[str, CollectedScenario] = {}
    for item in collect(marks, machine, microbatches, given):
        key = item.planned.scenario.key
        refuse_namesake(item.planned.scenario, found.get(key, item).planned.scenario)
        found[key] = item
    parameters = [_parameter(machine, key, item) for key, item in found.items()]
    metafunc.parametrize(PARAMETER, parameters or [no_rows(machine.variant)], indirect=True)


def no_rows(variant: str) -> Any:
    """The parameter of a function that has nothing to do on this machine."""
    return pytest.param(None, id=f"{variant}-none", marks=pytest.mark.charllm_item.with_args(None))


def collected(item: pytest.Item) -> CollectedScenario | None:
    """The scenario of an item, None where it has none on this machine."""
    mark = item.get_closest_marker(ITEM_MARK)
    return mark.args[0] if mark is not None else None


def collect(
    marks: Iterable[pytest.Mark], machine: Machine, microbatches: tuple[int, ...] | None, given: Given = NOTHING
) -> Iterator[CollectedScenario]:
    """Every scenario of the marked rows on this machine, checked against the feasibility rules."""
    from pytest_charllm.campaign.settings import Planned
    from pytest_charllm.hardware.catalogue import CATALOGUE
    from pytest_charllm.scenario import Script
    from pytest_charllm.scenario.feasibility import infeasible

    hardware = CATALOGUE[machine.variant]
    for mark in marks:
        options, name = mark.kwargs["options"], mark.kwargs["given"]
        if name:
            options = {**options, name: given.get(name, ())}
        for row in mark.args:
            for scenario in _scenarios(row, mark.kwargs["on"], machine, microbatches, options):
                if mark.kwargs["where"] is not None and not mark.kwargs["where"](scenario):
                    continue
                check_script(scenario)
                planned = Planned(scenario, speed=mark.kwargs["speed"] or isinstance(scenario.work, Script))
                yield CollectedScenario(planned, infeasible(scenario, hardware, machine))


def choose(table: Mapping[str, T], machine: Machine) -> T | None:
    """The most exact entry for this machine: its variant, else its family, else ``*`` (any GPU); None without one.

    Raises `BadInput` for an entry that names no machine at all, which would otherwise silently never run.
    """
    from pytest_charllm.hardware.catalogue import resolve

    for text in table:
        name, _, shape = text.partition(":")
        if not re.fullmatch(r"[1-9]\d*x[1-9]\d*", shape):
            raise BadInput(f"machine {text!r} of a scenario table: write <variant, family or *>:<nodes>x<gpus>")
        if name != "*":
            resolve(name)
    entries = (table.get(f"{name}:{machine.shape}") for name in _names(machine))
    return next((entry for entry in entries if entry is not None), None)


def _names(machine: Machine) -> list[str]:
    """What a table may call it, most exact first."""
    from pytest_charllm.hardware.catalogue import CATALOGUE

    if machine.simulated:
        return ["cpu"]  # which does the training, whatever the sensors say
    names = [machine.variant, CATALOGUE[machine.variant].family]
    return names if machine.is_cpu else [*names, "*"]


def scripted(script: Script, layout: str | None) -> Scenario:
    """A script spread over `layout`, or alone on one rank. Raises `BadInput` for a layout that cannot be read."""
    from pytest_charllm.scenario import Layout, Scenario
    from pytest_charllm.scenario.layout import parse_layout

    return Scenario(work=script, layout=parse_layout(layout) if layout is not None else Layout())


def check_script(scenario: Scenario) -> None:
    """Raise `BadInput` for a script whose log reader does not exist, or whose limits are none: a launch would only say
    so at its start, or end there."""
    from pytest_charllm.engines.script.log import reader_of
    from pytest_charllm.scenario import Script
    from pytest_charllm.scenario.script import refuse_times

    if isinstance(scenario.work, Script):
        refuse_times(scenario.work)
        reader_of(scenario.work)


def _checked_row(row: Any, layout: str | None) -> Rows | Scenario | str:
    from pytest_charllm.scenario import Scenario, Script

    if isinstance(row, Script):
        return scripted(row, layout)
    if layout is not None:
        raise TypeError(f"layout={layout!r} is for a Script; {row!r} has its own")
    if not isinstance(row, Rows | Scenario | str):
        raise TypeError(f"a row is Rows(...), a Scenario, a Script, or a key such as 'llama3-1b.mb2', not {row!r}")
    return row


def _parameter(machine: Machine, key: str, item: CollectedScenario) -> Any:
    marks = [pytest.mark.charllm_item.with_args(item)]
    if item.broken is not None:
        marks.append(pytest.mark.skip(reason=str(item.broken)))
    return pytest.param(key, id=f"{machine.variant}-{key}", marks=marks)


def _scenarios(
    row: Rows | Scenario | str,
    on: tuple[str, ...],
    machine: Machine,
    microbatches: tuple[int, ...] | None,
    options: Mapping[str, Any],
) -> Iterator[Scenario]:
    if on and not choose(dict.fromkeys(on, True), machine):
        return
    if isinstance(row, Rows):
        yield from _of_table(row, machine, microbatches, options)
    else:
        yield from _of_key(row, microbatches, options)


def _of_table(
    rows: Rows, machine: Machine, microbatches: tuple[int, ...] | None, options: Mapping[str, Any]
) -> Iterator[Scenario]:
    from pytest_charllm.scenario import Options, Scenario, Sharding, Training

    _refuse_misspelled(rows)
    for layout, layers, batch in _table_of(rows, machine):
        shared = rows.shares_optimizer and layout.dp > 1 and layout.sharding is Sharding.NONE
        for microbatch, seq in itertools.product(microbatches or _tuple(rows.microbatch), _tuple(rows.seq)):
            work = Training(model=rows.model, microbatch=microbatch, layers=layers, global_batch=batch, seq=seq)
            row = Scenario(work=work, layout=layout, options=Options(distributed_optimizer=shared))
            yield from _with_options(row, options)


def _refuse_misspelled(rows: Rows) -> None:
    """Raise `BadInput` for a model or a layout that is none, in rows for other machines too: who writes them on a
    laptop would hear of it from the night."""
    from pytest_charllm.scenario.layout import parse_layout
    from pytest_charllm.scenario.models import shape

    shape(rows.model)
    for text in rows.layouts.values():
        for layout in text.split():
            parse_layout(layout)


def _table_of(rows: Rows, machine: Machine) -> list[tuple[Layout, int | None, int | None]]:
    """(layout, layers, global batch) of every row on this machine, reduced where `rows` say so."""
    from pytest_charllm.hardware.catalogue import CATALOGUE, resolve
    from pytest_charllm.scenario.layout import parse_layout
    from pytest_charllm.scenario.reduced import reduced

    text = choose(rows.layouts, machine)
    if text is not None:
        layers = choose(rows.layers, machine) if isinstance(rows.layers, Mapping) else rows.layers
        return [(parse_layout(layout), layers, rows.global_batch) for layout in text.split()]
    if rows.reduces not in ("", "*"):
        resolve(rows.reduces)  # a typing error would be a row that silently never runs
    source = _larger(rows.layouts, machine) if rows.reduces in _names(machine) else None
    if source is None:
        return []
    layouts = [parse_layout(layout) for layout in rows.layouts[source].split()]
    smaller = reduced(rows.model, layouts, rows.global_batch, CATALOGUE[machine.variant], machine)
    return [(layout, smaller.layers, batch) for layout, batch in smaller.rows]


def _larger(table: Mapping[str, str], machine: Machine) -> str | None:
    """The entry whose rows this machine takes in a smaller form: of more GPUs, of its own family if there is one."""
    from pytest_charllm.hardware.catalogue import CATALOGUE, resolve

    family = CATALOGUE[machine.variant].family
    larger = [text for text in table if prod(map(int, text.partition(":")[2].split("x"))) > machine.world]
    own = (text for text in larger if family in {hardware.family for hardware in resolve(text.partition(":")[0])})
    return next(own, larger[0] if larger else None)


def _of_key(
    row: Scenario | str, microbatches: tuple[int, ...] | None, options: Mapping[str, Any]
) -> Iterator[Scenario]:
    """What trains no model of ours has no microbatch that could be replaced."""
    from msgspec.structs import replace

    from pytest_charllm.scenario import Training
    from pytest_charllm.scenario.key import parse_key

    scenario = parse_key(row) if isinstance(row, str) else row
    if not isinstance(scenario.work, Training):
        yield from _with_options(scenario, options)
        return
    for microbatch in microbatches or (scenario.work.microbatch,):
        yield from _with_options(replace(scenario, work=replace(scenario.work, microbatch=microbatch)), options)


def _with_options(scenario: Scenario, options: Mapping[str, Any]) -> Iterator[Scenario]:
    """The product of all option values given as tuples."""
    from msgspec.structs import replace

    for values in itertools.product(*(_tuple(value) for value in options.values())):
        chosen = dict(zip(options, values, strict=True))
        engine = chosen.pop("engine", scenario.engine)
        switches = {name: _option(name, value) for name, value in chosen.items()}
        yield replace(scenario, options=replace(scenario.options, **switches), engine=engine)


def _option(name: str, value: Any) -> Any:
    """The value as the field of that name holds it. Raises `BadInput` for a name that is none and a value unfit."""
    import msgspec

    from pytest_charllm.scenario import Options

    types = {field.name: field.type for field in msgspec.structs.fields(Options)}
    if name not in types:
        known = (*types, "engine")
        raise BadInput(f"scenarios(): no option {name!r}; {did_you_mean(name, known)}options are {', '.join(known)}")
    try:
        return msgspec.convert(value, types[name])
    except msgspec.ValidationError as error:
        takes = f"it takes {', '.join(types[name])}" if issubclass(types[name], Enum) else str(error)
        raise BadInput(f"scenarios(): {name}={value!r}: {takes}") from None


def _tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)
