"""What a test takes: `measured` in suites, `charllm` in tests of one's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_charllm.plugin.parametrize import collected
from pytest_charllm.plugin.state import STATE

if TYPE_CHECKING:
    from pytest_charllm.campaign.settings import Evidence
    from pytest_charllm.plugin.suite import Suite
    from pytest_charllm.scenario import Scenario, Script


class Measured:
    """One scenario, launched and measured. `used` once the test has looked at it."""

    def __init__(self, suite: Suite, item: pytest.Item, evidence: Evidence) -> None:
        self.scenario = evidence.scenario
        self.evidence = evidence
        self.used = False
        self._suite = suite
        self._item = item

    def check(self) -> None:
        """Judge against the baseline, launching more where the judge asks for it.

        Raises `Regression`, `LaunchFailed` or `NoBaseline` with the whole story; skips where nothing can be concluded.
        """
        self.used = True
        self._suite.check(self._item, self.evidence)

    def value(self, metric: str) -> float:
        """Median over the first round's launches, in the metric's unit (`pytest_charllm.records.METRICS`), by id or by
        the name that tables print.

        Raises `LaunchFailed` where the job did not complete and `BadInput` for an unknown metric; skips where the
        metric has no evidence.
        """
        self.used = True
        return self._suite.value(self._item, self.evidence, metric)


class Charllm:
    """Launches on demand, for tests outside of the suites. Takes a `Scenario`, its key, or a `Script` of one's own."""

    def __init__(self, suite: Suite, item: pytest.Item) -> None:
        self._suite = suite
        self._item = item

    def measure(self, scenario: Scenario | Script | str, *, layout: str | None = None) -> Measured:
        """Launch and measure, unless this run has done so already. Skips where the machine cannot run it.

        `layout` is what a `Script` spreads itself over (``"tp2dp4"``; default: one rank).
        """
        feasible = self._suite.feasible(self._item, scenario, layout)
        return Measured(self._suite, self._item, self._suite.evidence(self._item, feasible))

    def check(self, scenario: Scenario | Script | str, *, layout: str | None = None) -> Measured:
        """`measure`, then `Measured.check`."""
        measured = self.measure(scenario, layout=layout)
        measured.check()
        return measured


@pytest.fixture
def charllm_scenario(request: pytest.FixtureRequest) -> Scenario:
    """The scenario of this item; its key is the parameter."""
    item = collected(request.node)
    assert item is not None, "an item without a scenario is deselected"
    return item.planned.scenario


@pytest.fixture
def measured(request: pytest.FixtureRequest, charllm_scenario: Scenario, charllm_benchmark: object) -> Measured:
    """The measurement of this test's scenario. Set-up launches it; `check()` judges it."""
    suite = _suite(request)
    return Measured(suite, request.node, suite.evidence(request.node, charllm_scenario))


@pytest.fixture
def charllm(request: pytest.FixtureRequest) -> Charllm:
    """Measure and check any scenario from a test of your own: ``charllm.check("llama3-1b.mb2")``."""
    return Charllm(_suite(request), request.node)


def _suite(request: pytest.FixtureRequest) -> Suite:
    suite = request.config.stash[STATE].suite
    if suite is None:
        pytest.fail("take `measured` or `charllm` as an argument of the test, not by getfixturevalue()", pytrace=False)
    return suite
