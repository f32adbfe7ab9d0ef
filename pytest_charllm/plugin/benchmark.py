"""pytest-benchmark, fed through its public interface: one round a launch, which is the launch's median step.

The marker's `timer` is a clock that only the rounds advance, and `pedantic` takes one reading a round. So its table,
``--benchmark-json``, ``--benchmark-save`` and ``--benchmark-compare`` all work, on times that the ranks measured.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pytest_charllm.plugin.suite import Suite
    from pytest_charllm.report.case import Case


CLOCK = pytest.StashKey["LaunchClock"]()
BENCHMARK = pytest.StashKey[Any]()


class WithBenchmark:
    @pytest.fixture
    def charllm_benchmark(self, request: pytest.FixtureRequest, benchmark: Any) -> None:
        """Puts pytest-benchmark's fixture among the test's own names, so that ``--benchmark-only`` selects it."""
        request.node.stash[BENCHMARK] = benchmark
        benchmark.skipped = True  # until a round was recorded: it warns when it was never used


class WithoutBenchmark:
    @pytest.fixture
    def charllm_benchmark(self) -> None:
        """Stands in where pytest-benchmark is not installed or was switched off."""


def is_present(config: pytest.Config) -> bool:
    """Asked by its options, since its plugin name depends on how it was loaded."""
    return config.getoption("benchmark_skip", None) is not None


def fixtures(config: pytest.Config) -> WithBenchmark | WithoutBenchmark:
    """The object whose fixture fits this session."""
    return WithBenchmark() if is_present(config) else WithoutBenchmark()


class LaunchClock:
    """A timer for pytest-benchmark that stands still except when a round says how long it took, in seconds.

    Its name is what the JSON shows under ``options.timer``.
    """

    __name__ = "median_step_time_of_a_launch"

    def __init__(self) -> None:
        self._now_s = 0.0
        self._rounds_s: list[float] = []
        self.was_read = False

    def __call__(self) -> float:
        return self._now_s

    def load(self, rounds_s: list[float]) -> None:
        self._rounds_s = list(rounds_s)

    def rewind(self) -> None:
        """Before each round, so that its reading is exactly its time and no sum of rounded ones."""
        self._now_s = 0.0

    def pass_round(self) -> None:
        self.was_read = True
        self._now_s = self._rounds_s.pop(0)


class BenchmarkInterop:
    """Registered beside the suite where pytest-benchmark is there."""

    def __init__(self, suite: Suite) -> None:
        self._suite = suite

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if "charllm_benchmark" not in getattr(item, "fixturenames", ()):
            return
        item.stash[CLOCK] = clock = LaunchClock()
        own = item.get_closest_marker("benchmark")
        keywords = {**(own.kwargs if own else {}), "timer": clock}
        item.add_marker(pytest.mark.benchmark(**keywords), append=False)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """After the test passed, and only then: what failed must never become something to compare with."""
        result = yield
        case = self._suite.case(item)
        if case is not None and BENCHMARK in item.stash:
            record(item.stash[BENCHMARK], item.stash[CLOCK], case)
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if BENCHMARK in item.stash:
            benchmark = item.stash[BENCHMARK]
            benchmark.has_error = benchmark.has_error or not report.passed
            benchmark.skipped = benchmark.skipped or not item.stash[CLOCK].was_read
        return report


def record(benchmark: Any, clock: LaunchClock, case: Case) -> None:
    """One round for each timed launch with a step time that can be stored."""
    steps_s = [measurement.number("step_time") for measurement in case.measurements]
    rounds_s = [step_s for step_s in steps_s if step_s is not None and _storable(step_s)]
    if not rounds_s:
        return
    clock.load(rounds_s)
    benchmark.pedantic(clock.pass_round, setup=clock.rewind, rounds=len(rounds_s), iterations=1)
    benchmark.extra_info.update(extra_info(case))


def extra_info(case: Case) -> dict[str, Any]:
    """What the JSON keeps beside the rounds: everything known about the scenario, and each launch's steps."""
    from pytest_charllm.measure.steps import slowest_steps_s, unusable
    from pytest_charllm.records import Pass
    from pytest_charllm.report.properties import properties

    timed = [launch for launch in case.launches if launch.pass_ is Pass.TIMED and unusable(launch.ranks) is None]
    steps_s = {launch.id: [*filter(_storable, slowest_steps_s(launch.ranks))] for launch in timed}
    return {**properties(case), "steps_s": steps_s}


def _storable(step_s: float) -> bool:
    """A NaN or zero would end the whole session inside pytest-benchmark's statistics."""
    return math.isfinite(step_s) and step_s > 0
