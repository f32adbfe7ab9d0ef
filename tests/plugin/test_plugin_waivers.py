"""known.toml: what a waiver covers, and what it never does."""

from __future__ import annotations

import datetime

import pytest

from pytest_charllm.errors import BadInput
from pytest_charllm.plugin.waivers import Waiver, read_waivers, waive
from pytest_charllm.records import Judgement, MetricVerdict, Verdict

TODAY = datetime.date(2026, 11, 29)


def waiver(**changes) -> Waiver:
    fields = {"scenario": "llama3-*", "metric": "throughput", "delta": 0.05, "until": TODAY, "ticket": "PERF-1"}
    return Waiver(**{**fields, **changes})


def judgement(*moved: tuple[str, float]) -> Judgement:
    metrics = tuple(MetricVerdict(metric=metric, verdict=Verdict.REGRESSION, change=change) for metric, change in moved)
    return Judgement(scenario_key="llama3-1b.mb1", verdict=Verdict.REGRESSION, because="slower", metrics=metrics)


def covered(one: Waiver, *moved: tuple[str, float], variant: str = "h200-sxm") -> bool:
    reason, _ = waive(judgement(*moved), [one], variant, TODAY)
    return reason is not None


def test_covers_up_to_its_delta_and_last_day():
    """Both ends are inclusive, whichever direction is the bad one."""
    assert covered(waiver(), ("throughput", -0.05))
    assert not covered(waiver(), ("throughput", -0.051))
    assert not covered(waiver(until=TODAY - datetime.timedelta(days=1)), ("throughput", -0.01))


def test_every_moved_metric_needs_one():
    """Slower is known; hotter at the same time is news."""
    assert not covered(waiver(), ("throughput", -0.02), ("core_temp_end", 4.0))


def test_narrowed_by_pattern_and_hardware():
    """A waiver for one card must not hide the same loss on another."""
    assert not covered(waiver(scenario="gpt3-*"), ("throughput", -0.02))
    assert not covered(waiver(hardware="h100-sxm"), ("throughput", -0.02))
    assert covered(waiver(hardware="h200-sxm"), ("throughput", -0.02))
    assert covered(waiver(hardware="h200"), ("throughput", -0.02))


def test_a_second_waiver_may_reach_further():
    """The first one that lapsed must neither win nor be reported when another holds."""
    both = [waiver(delta=0.01), waiver(delta=0.10, because="both")]
    reason, lapsed = waive(judgement(("throughput", -0.05)), both, "h200-sxm", TODAY)
    assert reason is not None
    assert "both" in reason
    assert not lapsed


def test_regression_without_moved_metric_is_never_waived():
    """A failed strict check moves no metric; an empty "all" must not waive it."""
    assert not covered(waiver())


def test_degrees_are_no_shares(tmp_path):
    """15 degC hotter is a delta of 15."""
    (tmp_path / "known.toml").write_text(
        '[[known]]\nscenario="a"\nmetric="core_temp_end"\ndelta=15\nuntil=2026-01-01\nticket="b"\n'
    )
    assert [waiver.delta for waiver in read_waivers([tmp_path / "known.toml"])] == [15.0]


@pytest.mark.parametrize("metric", ["cost_cpu", "Gate A"])
def test_metrics_are_named_as_tables_print_them(tmp_path, metric):
    """Whoever copied a red line's "Gate A" was told 60 ids, none of which stood in that line."""
    file = tmp_path / "known.toml"
    file.write_text(f'[[known]]\nscenario="*"\nmetric="{metric}"\ndelta=0.2\nuntil={TODAY}\nticket="b"\n')
    (one,) = read_waivers([file])
    assert covered(one, ("cost_cpu", 0.1), variant="cpu")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[[known]\n", "known.toml: "),
        ('[[known]]\nscenario = "a"\n', "missing required field"),
        (
            '[[known]]\nscenario="a"\nmetric="speed"\ndelta=0.1\nuntil=2026-01-01\nticket="b"\n',
            "entry 1: metric 'speed'",
        ),
        (
            '[[known]]\nscenario="a"\nmetric="mfu"\ndelta=1\nuntil=2026-01-01\nticket="b"\nhardware="h900"\n',
            "entry 1: hardware 'h900' is not known",
        ),
        (
            '[[known]]\nscenario="a"\nmetric="tokens/s/GPU"\ndelta=15\nuntil=2026-01-01\nticket="b"\n',
            "entry 1: delta = 15 is 1500 %; write 0.15 for 15 %",
        ),
        ('[[known]]\nscenario="a"\nmetric="mfu"\ndelta=0\nuntil=2026-01-01\nticket="b"\n', "entry 1: delta"),
        ('[[known]]\nscenario="a"\nmetric="mfu"\ndelta=inf\nuntil=2026-01-01\nticket="b"\n', "above 0 and finite"),
        ('[[known]]\nscenario="a"\nmetric="mfu"\ndelta=0.1\nuntil=2026-01-01\nticket=" "\n', "ticket must say"),
        ('[[known]]\nscenario="a"\nmetric="mfu"\ndelta=0.1\nuntil="soon"\nticket="b"\n', "until"),
    ],
)
def test_bad_file_names_itself(tmp_path, text, says):
    """A waiver that cannot be read would waive nothing, or everything."""
    path = tmp_path / "known.toml"
    path.write_text(text)
    with pytest.raises(BadInput, match=r"known\.toml") as error:
        read_waivers([path])
    assert says in str(error.value)


def test_file_that_cannot_be_read_is_told(tmp_path):
    """A traceback of pytest's own, before the first test."""
    (tmp_path / "known.toml").symlink_to("/proc/self/mem")  # a file, and no permission is enough to read its begin
    with pytest.raises(BadInput, match=r"known\.toml"):
        read_waivers([tmp_path / "known.toml"])


def test_a_folder_of_that_name_is_told(tmp_path):
    """A checkout gone wrong had no waivers, and said nothing."""
    (tmp_path / "known.toml").mkdir()
    with pytest.raises(BadInput, match=r"known\.toml: .*Is a directory"):
        read_waivers([tmp_path / "known.toml"])


def test_no_file_is_no_waiver(tmp_path):
    """Most projects have none."""
    assert read_waivers([tmp_path / "known.toml"]) == ()
