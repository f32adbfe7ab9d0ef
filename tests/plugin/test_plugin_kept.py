"""What a run keeps of how its scenarios ended, as pytest's summary tells it."""

from __future__ import annotations

from pytest_charllm.errors import HarnessError
from pytest_charllm.plugin import opening

CHECK = """
@scenarios("llama3-1b.mb1")
def test_it(measured):
    measured.check()
"""


def test_a_disk_that_is_full_is_told_once(inner, monkeypatch):
    """How the scenario ended goes to the same disk: what comes of that must not stand in the place of the cause."""
    opened = opening.open_campaign

    def full(*arguments):
        def refuse(ended):
            raise HarnessError("a second error")

        campaign = opened(*arguments)
        campaign.run.save_ended = refuse
        return campaign

    monkeypatch.setattr(opening, "open_campaign", full)
    inner.suite(CHECK)
    inner.scripted(raises=HarnessError("disk full: runs/x"))
    result = inner.run()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["ERROR test_suite.py::test_it* - disk full: runs/x"])
    result.stdout.no_fnmatch_line("*a second error*")


def test_the_run_keeps_what_the_summary_says(inner, monkeypatch):
    """The first of two tests met a full disk: `runs show` said HARNESS for ever, and the summary PASS. What is known is
    kept as soon as it is, in case that nothing comes after it."""
    opened = opening.open_campaign

    def full_for_a_moment(*arguments):
        campaign = opened(*arguments)
        measure = campaign.evidence

        def refuse(scenario):
            campaign.evidence = measure
            raise HarnessError("disk full: runs/x")

        campaign.evidence = refuse
        return campaign

    monkeypatch.setattr(opening, "open_campaign", full_for_a_moment)
    inner.suite(CHECK + CHECK.replace("test_it", "test_too"))
    result = inner.run()
    result.assert_outcomes(errors=1, passed=1)
    result.stdout.fnmatch_lines(["llama3-1b.mb1 * PASS *"])
    assert [ended.outcome for ended in inner.campaign.ended] == ["HARNESS", "PASS"]


def test_a_value_leaves_a_verdict_on_record(inner):
    """A test of a trend says nothing of the scenario's verdict, before it or after it."""
    value = 'def test_{}(charllm):\n    charllm.measure("llama3-1b.mb1").value("{}")\n'
    inner.suite(value.format("a", "step_time") + CHECK + value.format("z", "mean_power"))
    inner.run().assert_outcomes(passed=2, skipped=1)
    assert [ended.outcome for ended in inner.campaign.ended] == ["MEASURED", "PASS"]


def test_what_a_full_disk_did_not_take_is_kept_later(inner, monkeypatch):
    """The disk may have room again when the session ends."""
    opened = opening.open_campaign

    def full_for_a_moment(*arguments):
        campaign = opened(*arguments)

        def refuse(ended):
            campaign.run.save_ended = campaign.ended.append
            raise HarnessError("disk full: runs/x")

        campaign.run.save_ended = refuse
        return campaign

    monkeypatch.setattr(opening, "open_campaign", full_for_a_moment)
    inner.suite(CHECK)
    inner.run().assert_outcomes(passed=1)
    assert [ended.outcome for ended in inner.campaign.ended] == ["PASS"]
