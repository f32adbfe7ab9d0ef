"""Once everything is collected: drop what is not for this machine, then run, or plan, or just list."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from pytest_charllm.plugin import benchmark
from pytest_charllm.plugin.parametrize import ITEM_MARK, PARAMETER, ROWS_MARK, collected
from pytest_charllm.plugin.state import State, is_ours

if TYPE_CHECKING:
    from pytest_charllm.hardware import Machine


def begin(config: pytest.Config, state: State, machine: Machine, items: list[pytest.Item]) -> None:
    """Deselect items without a row on this machine and register what the session needs.

    Raises `pytest.UsageError` where an assumed machine was asked to run something, and for a test without any rows.
    """
    options = state.options
    lists_only = _lists_only(config)
    if machine.assumed and not (lists_only or options.plan) and options.replay is None:
        raise pytest.UsageError(
            "--charllm-assume runs nothing: add --charllm-plan or --collect-only, or replay launches of such a machine"
        )
    _deselect(config, items, machine)
    if options.faults:
        _deselect_faultless(config, items)
    if options.plan:
        from pytest_charllm.plugin.opening import durations
        from pytest_charllm.plugin.plan import PlanPrinter

        config.pluginmanager.register(PlanPrinter(machine, durations(config, options, machine)), "charllm-plan")
    elif not lists_only:
        from pytest_charllm.plugin.hooks import SuiteHooks
        from pytest_charllm.plugin.suite import Suite

        state.suite = Suite(config, options, machine)
        config.pluginmanager.register(SuiteHooks(state.suite), "charllm-suite")
        if benchmark.is_present(config):
            config.pluginmanager.register(benchmark.BenchmarkInterop(state.suite), "charllm-benchmark")


def _lists_only(config: pytest.Config) -> bool:
    """Whether pytest will show tests or fixtures instead of running anything: such a session is no run."""
    option = config.option
    return option.collectonly or option.setupplan or option.showfixtures or option.show_fixtures_per_test


class Elsewhere:
    """One line at the end for all that is not for this run, in the place of a skip for each."""

    def __init__(self, line: str) -> None:
        self._line = line

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.write_line(self._line)


def _deselect(config: pytest.Config, items: list[pytest.Item], machine: Machine) -> None:
    absent = [item for item in items if is_ours(item) and _has_no_row(item)]
    for item in absent:
        if item.get_closest_marker(ITEM_MARK) is None:  # pytest never asked us for its rows
            raise pytest.UsageError(f"{item.nodeid}: a unittest method cannot take `measured`; write a function")
    too_large = [item for item in items if (found := collected(item)) and found.needs_more_than(machine)]
    line = _waiting(absent, machine)
    if line is None and len(absent) == len(items):
        line = f"{_without_row(len(absent), machine)}: `@scenarios` says for which hardware its rows are"
    _drop(config, items, absent, line)
    rows = "1 row needs" if len(too_large) == 1 else f"{len(too_large)} rows need"
    what = "ranks" if machine.is_cpu else "GPUs"
    _drop(config, items, too_large, f"{rows} more {what} than {machine.variant} {machine.shape} has, deselected")


def _deselect_faultless(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Under injection: what nothing can be injected into would tell nothing of the gates."""
    untouched = [item for item in items if (found := collected(item)) and not found.takes_faults]
    many = f"{len(untouched)} tests of scripts or collectives take"
    tests = "1 test of a script or a collective takes" if len(untouched) == 1 else many
    _drop(config, items, untouched, f"{tests} no injected fault, deselected")


def _drop(config: pytest.Config, items: list[pytest.Item], gone: list[pytest.Item], line: str | None) -> None:
    """Deselect them, and say so in one line at the end where there is something to say."""
    if not gone:
        return
    config.hook.pytest_deselected(items=gone)
    dropped = set(gone)
    items[:] = [item for item in items if item not in dropped]
    if line is not None:
        config.pluginmanager.register(Elsewhere(f"charllm: {line}"))


def _waiting(absent: list[pytest.Item], machine: Machine) -> str | None:
    """What is there for an option alone: it was not given, or has nothing to do on this machine."""
    given = [{mark.kwargs["given"] for mark in item.iter_markers(ROWS_MARK)} - {""} for item in absent]
    names = [name for each in given for name in sorted(each)]
    counted = Counter(f"--charllm-{name.replace('_', '-')}" for name in names)
    told = ", ".join(f"{count} for {option}" for option, count in counted.items())
    need = ", all need GPUs" if machine.is_cpu else ""
    return f"{_without_row(counted.total(), machine)}{need}: {told}" if told else None


def _without_row(count: int, machine: Machine) -> str:
    return f"{'1 test has' if count == 1 else f'{count} tests have'} no row on {machine.variant} {machine.shape}"


def _has_no_row(item: pytest.Item) -> bool:
    return PARAMETER in getattr(item, "fixturenames", ()) and collected(item) is None
