"""pytest-benchmark gets what the ranks measured, natively, and nothing from a test that failed."""

from __future__ import annotations

import json

import pytest

from pytest_charllm.plugin.benchmark import LaunchClock
from pytest_charllm.records import Status, Verdict

CHECK = """
@scenarios("llama3-1b.mb1")
def test_it(measured):
    measured.check()
"""


def stored(inner) -> list[dict]:
    """What is in the file; pytest-benchmark writes none when there is nothing to store."""
    path = inner.pytester.path / "out.json"
    return json.loads(path.read_text() or "{}").get("benchmarks", []) if path.exists() else []


def test_a_round_is_a_launch(inner):
    """Steps inside a launch are not independent: a round each would claim certainty that is not there."""
    inner.suite(CHECK)
    inner.scripted(steps_s=(0.1, 0.3, 0.2))
    inner.run("--benchmark-json=out.json").assert_outcomes(passed=1)
    (entry,) = stored(inner)
    assert entry["stats"]["data"] == [0.1, 0.3, 0.2]
    assert entry["stats"]["median"] == 0.2
    assert entry["fullname"] == "test_suite.py::test_it[h200-sxm-llama3-1b.mb1]"
    assert entry["params"] == {"charllm_scenario": "llama3-1b.mb1"}
    assert entry["extra_info"]["verdict"] == "PASS"
    assert entry["extra_info"]["steps_s"]["llama3-1b.mb1.timed-2"] == [0.3, 0.3, 0.3]
    assert "median_step_time_of_a_launch" in entry["options"]["timer"], "the JSON must say where times come from"
    assert "UNSERIALIZABLE" not in json.dumps(entry)


def test_save_and_compare(inner):
    """Saved runs are found again under the same name the next night."""
    inner.suite(CHECK)
    inner.run("--benchmark-save=first", "--benchmark-storage=store").assert_outcomes(passed=1)
    result = inner.run("--benchmark-compare=0001", "--benchmark-storage=store")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*llama3-1b.mb1?*(0001_first)*", "*llama3-1b.mb1?*(NOW)*"])


@pytest.mark.parametrize(
    "how",
    [
        {"verdict": Verdict.REGRESSION},
        {"verdict": Verdict.INCONCLUSIVE},
        {"status": Status.CRASHED},
        {"invalid": "tainted"},
    ],
)
def test_what_did_not_pass_is_never_stored(inner, how):
    """A regression in the store would be the next night's reference."""
    inner.suite(CHECK + '\n\n@scenarios("llama3-1b.mb2")\ndef test_other(measured):\n    measured.check()\n')
    inner.scripted("llama3-1b.mb1", **how)
    result = inner.run("--benchmark-json=out.json")
    assert result.parseoutcomes()["passed"] == 1
    result.stdout.no_fnmatch_line("*not used at all*")
    assert [entry["name"] for entry in stored(inner)] == ["test_other[h200-sxm-llama3-1b.mb2]"]


@pytest.mark.filterwarnings("ignore:Not saving anything")
def test_own_assertion_after_a_passing_check_keeps_it_out(inner):
    """Recording inside check() would store a test that fails two lines further down."""
    inner.suite('@scenarios("llama3-1b.mb1")\ndef test_it(measured):\n    measured.check()\n    assert False\n')
    inner.run("--benchmark-json=out.json").assert_outcomes(failed=1)
    assert not stored(inner)


@pytest.mark.parametrize("steps_s", [(float("nan"), 0.2), (float("inf"), 0.2), (0.0, 0.2)])
def test_what_is_no_time_never_reaches_its_statistics(inner, steps_s):
    """One NaN ends the whole session inside pytest-benchmark, long after the night's work."""
    inner.suite(CHECK)
    inner.scripted(steps_s=steps_s)
    inner.run("--benchmark-json=out.json").assert_outcomes(passed=1)
    assert stored(inner)[0]["stats"]["data"] == [0.2]


def test_without_timed_launches_nothing_is_stored_and_nothing_warns(inner):
    """Strict checks alone have no step time; an unused `benchmark` fixture must not turn that into a warning."""
    inner.suite(CHECK)
    inner.scripted(steps_s=())
    result = inner.run("-W", "error")
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*benchmark: 1 tests*")


def test_value_only_tests_are_stored_too(inner):
    """A trend test measures just as well as one that checks."""
    inner.suite('@scenarios("llama3-1b.mb1")\ndef test_it(measured):\n    assert measured.value("step_time") > 0\n')
    inner.run("--benchmark-json=out.json").assert_outcomes(passed=1)
    assert stored(inner)[0]["extra_info"]["scenario"] == "llama3-1b.mb1"


def test_disabled(inner):
    """--benchmark-disable runs the target once and has no stats: our verdict must not read any."""
    inner.suite(CHECK)
    inner.run("--benchmark-disable").assert_outcomes(passed=1)


def test_switched_off(inner):
    """Without the plugin `benchmark` is no fixture at all."""
    inner.suite(CHECK)
    inner.run(plugins=("charllm",)).assert_outcomes(passed=1)


def test_only_and_skip_select_ours(inner):
    """Its own selection options see our tests as benchmarks."""
    inner.suite(CHECK + "\n\ndef test_plain():\n    pass\n")
    inner.run("--benchmark-only").assert_outcomes(passed=1, skipped=1)
    inner.campaigns.clear()
    inner.run("--benchmark-skip").assert_outcomes(passed=1, skipped=1)
    assert not inner.campaigns, "what is skipped must not be launched by a neighbour's turn"


def test_users_marker_is_kept(inner):
    """`@pytest.mark.benchmark(group=...)` on a suite's test still groups."""
    inner.suite("@pytest.mark.benchmark(group='llama')" + CHECK)
    inner.run("--benchmark-json=out.json").assert_outcomes(passed=1)
    assert stored(inner)[0]["group"] == "llama"


def test_clock_reads_exactly_one_round():
    """Adding rounds up on a running clock would store sums of rounding errors."""
    clock = LaunchClock()
    clock.load([0.1, 0.2])
    read = []
    for _ in range(2):
        clock.rewind()
        start = clock()
        clock.pass_round()
        read.append(clock() - start)
    assert read == [0.1, 0.2]
