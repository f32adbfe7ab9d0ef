"""The pytest plugin. Loaded in every pytest of its environment, so its import is light and its hooks return at once
where no test takes a fixture of ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_charllm.errors import BadInput
from pytest_charllm.plugin import benchmark, guards, options
from pytest_charllm.plugin.fixtures import charllm, charllm_scenario, measured
from pytest_charllm.plugin.parametrize import ITEM_MARK, PARAMETER, ROWS_MARK, no_rows, parametrize
from pytest_charllm.plugin.state import STATE, State, is_ours

if TYPE_CHECKING:
    from pytest_charllm.hardware import Machine

__all__ = ["charllm", "charllm_scenario", "measured"]


def pytest_addoption(parser: pytest.Parser) -> None:
    options.add_options(parser)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    from pytest_charllm.plugin import hookspecs

    pluginmanager.add_hookspecs(hookspecs)


def pytest_configure(config: pytest.Config) -> None:
    config.stash[STATE] = State(options.read_options(config))
    config.addinivalue_line("markers", f"{ROWS_MARK}(*rows): scenarios the test runs on, written as @scenarios(...)")
    config.addinivalue_line("markers", f"{ITEM_MARK}(scenario): the scenario of one item, set by pytest-charllm")
    config.pluginmanager.register(benchmark.fixtures(config), "charllm-benchmark-fixtures")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    marked = metafunc.definition.get_closest_marker(ROWS_MARK) is not None
    if PARAMETER not in metafunc.fixturenames:
        if marked:
            pytest.fail(f"{metafunc.function.__name__} has @scenarios(...) but never takes `measured`", pytrace=False)
        return
    if not marked:
        pytest.fail(f"{metafunc.function.__name__} takes `measured` but has no @scenarios(...)", pytrace=False)
    state = metafunc.config.stash[STATE]
    machine = _machine(metafunc.config, state)
    if machine is None:
        metafunc.parametrize(PARAMETER, [no_rows("unknown")], indirect=True)
        return
    try:
        parametrize(metafunc, machine, state.options.microbatch, state.options.given)
        return
    except BadInput as error:
        why = str(error)
    # Outside of the handler, else pytest shows the same line twice.
    pytest.fail(f"{metafunc.function.__name__}: {why}", pytrace=False)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    ours = [item for item in items if is_ours(item)]
    if not ours:
        return
    from pytest_charllm.plugin.collection import begin

    state = config.stash[STATE]
    machine = _machine(config, state)
    if machine is None:
        guards.refuse(config, state.error or "")
    else:
        begin(config, state, machine, items)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """An xdist worker that refused our items has no terminal to say so: its controller does."""
    guards.raise_refusal_of(node)


def _machine(config: pytest.Config, state: State) -> Machine | None:
    """Resolved once, when the first test of ours is collected. None: `state.error` says why."""
    if state.machine is None and state.error is None:
        from pytest_charllm.plugin.machine import resolve_machine

        state.error = guards.refusal(config)
        if state.error is None:
            try:
                state.machine = resolve_machine(config, state.options)
            except pytest.UsageError as error:
                state.error = str(error)
    return state.machine
