"""What a scenario is held against, and what every judgement of it tells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_charllm.judge.diagnosis.diagnose import diagnose
from pytest_charllm.judge.diagnosis.evidence import SCRIPT, workload_diff
from pytest_charllm.judge.findings import merged_findings
from pytest_charllm.judge.reference import Recorded, recorded_runs
from pytest_charllm.records import (
    Baseline,
    Check,
    Comparable,
    Finding,
    Judgement,
    Measurement,
    MetricVerdict,
    Validity,
    Verdict,
)


@dataclass(frozen=True)
class Against:
    """The recorded runs to be held against; none, and the reason, where there are none that may be."""

    runs: tuple[Recorded, ...]
    reason: str
    comparable: bool

    @classmethod
    def of(cls, baseline: Baseline | None, here: Comparable, is_cpu: bool) -> Against:
        on_cpu = "not judged: no baseline for this CPU, recorded"
        if baseline is None:
            return cls((), on_cpu if is_cpu else f"nothing on record for {here.variant} {here.shape}", False)
        difference = baseline.comparable.difference(here)
        if difference is not None:
            reason = f"{on_cpu} ({difference})" if is_cpu else f"the baseline is not comparable: {difference}"
            return cls((), reason, False)
        stack = baseline.reference
        if not stack.speed_on_record:
            return cls((), f"not judged: speed is not on record ({stack.because})", True)
        if is_cpu:
            return cls((Recorded(stack.run_id, 0, (), stack.samples, stack.stack),), "", True)
        return cls(recorded_runs(baseline), "", True)


@dataclass(frozen=True)
class Grounds:
    """What a judgement of one scenario stands on, and tells whatever the verdict."""

    scenario_key: str
    baseline: Baseline | None
    launches: tuple[Measurement, ...]
    aside: Measurement | None
    """Of the launch beside the timed ones: the diagnostic pass on a CPU, the traced one on a GPU."""

    @property
    def measured(self) -> tuple[Measurement, ...]:
        """Every launch, timed or not."""
        return (*self.launches, *((self.aside,) if self.aside is not None else ()))

    @property
    def checks(self) -> tuple[Check, ...]:
        """Those of the launch aside, and of launches that check themselves: each once, failed if it ever did."""
        made = {check.name: check for launch in self.launches for check in launch.checks if check.ok}
        made |= {check.name: check for launch in self.launches for check in launch.checks if not check.ok}
        return (*(self.aside.checks if self.aside is not None else ()), *made.values())

    @property
    def failed(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if not check.ok)

    def judgement(
        self,
        verdict: Verdict,
        because: str,
        metrics: Sequence[MetricVerdict] = (),
        findings: Sequence[Finding] = (),
    ) -> Judgement:
        before = self.baseline.reference.stack if self.baseline is not None else None
        diff = before.diff(self.measured[0].stack) if before is not None and self.measured else ()
        edited = self._edited()
        why = diagnose(verdict, metrics, self.launches, self.aside, self.baseline, diff)
        if why and why[0].rule == "workload":
            because = f"{why[0].cause}; {because}"
        return Judgement(
            scenario_key=self.scenario_key,
            verdict=verdict,
            because=because,
            metrics=tuple(metrics),
            checks=self.checks,
            findings=(*findings, *merged_findings(self.launches), *(self.aside.findings if self.aside else ())),
            stack_diff=(*edited, *diff),
            diagnosis=why,
            launches=len(self.launches),
            confirmed=any(row.verdict is Verdict.REGRESSION for row in metrics),
        )

    def _edited(self) -> tuple[tuple[str, str, str], ...]:
        """The script where it is another than on record: to its user it is software like any other."""
        recorded = [self.baseline.reference] if self.baseline is not None else []
        return tuple(part for part in workload_diff(recorded, self.measured) if part[0] == SCRIPT)


def split(
    rounds: Sequence[Sequence[Measurement]], wanted: int
) -> tuple[tuple[Measurement, ...], tuple[Measurement, ...]]:
    """The first round, topped up by whole rounds until it has what was wanted, and the confirmation after it."""
    first: tuple[Measurement, ...] = ()
    for count, launches in enumerate(rounds):
        if count and len(first) >= wanted:
            return first, tuple(launch for later in rounds[count:] for launch in later)
        first += tuple(launches)
    return first, ()


def invalid(launches: Sequence[Measurement], aside: Measurement | None) -> str | None:
    """Why nothing here may be judged, or None."""
    for measurement in (*launches, *((aside,) if aside is not None else ())):
        if measurement.validity is Validity.INVALID:
            return f"{measurement.launch_id}: {measurement.reason}"
        mfu = measurement.number("mfu")
        if mfu is not None and mfu > 1:
            return f"{measurement.launch_id}: MFU {mfu:.2f} of {measurement.flop_formula} is above 1: wrong timing"
    limits_w = {launch.power_limit_w for launch in launches if launch.power_limit_w is not None}
    if len(limits_w) > 1:
        told = " and ".join(f"{limit_w:g} W" for limit_w in sorted(limits_w))
        return f"the power limit changed between launches: {told}"
    return None
