"""Whether the launches of a run may go on record: asked before the advice to accept them, and by accept itself."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_charllm.judge.collective import collective_required
from pytest_charllm.judge.diagnosis.evidence import SCRIPT
from pytest_charllm.judge.script import script_required, script_too_far_apart
from pytest_charllm.records import Measurement, Tier, Validity, why_missing
from pytest_charllm.scenario import Collective, Script, Training

AGAIN = "measure again on a quieter machine"
NOT_IN_THE_SCRIPT = "longer steps or more launches do not narrow what lies between launches"
"""Of one DDP script on a busy machine, steps of 22 ms scattered by 4.3 % (CoV) and of 130 ms by 4.8 %; on one rank, of
34 ms by 4.5 % over 15 launches, and of 250 ms by 8.2 %."""


def not_recordable(
    measured: Sequence[Measurement], work: Training | Script | Collective | None, tier: Tier, is_cpu: bool
) -> str:
    """Why these timed launches of one scenario cannot go on record, and what to do; "" where they can.

    They can where enough of them are valid, of one stack, with every metric that a PASS requires, and where those of a
    script on a CPU agree.
    """
    launches = [measurement for measurement in measured if measurement.validity is Validity.VALID]
    wanted = tier.bootstrap_launches
    if len(launches) < wanted:
        spoiled = "".join(f"; {m.launch_id} {m.validity}: {m.reason}" for m in measured if m not in launches)
        return f"{len(launches)} of {wanted} valid launches" + (spoiled or f"; run it with --charllm-launches {wanted}")
    required = tier.required
    if isinstance(work, Collective):
        required = collective_required(work)
    if isinstance(work, Script):
        required = script_required(required, work, launches, is_cpu)
    for launch in launches:
        diff = launches[0].stack.diff(launch.stack)
        if diff:
            return f"the software changed between launches: {diff[0][0]} {diff[0][1]}, then {diff[0][2]}"
        scripts = [each.workload.get(SCRIPT) for each in (launches[0], launch)]
        if scripts[0] != scripts[1]:
            return f"the script was edited between launches: {scripts[0]}, then {scripts[1]}"
        for metric in required:
            if launch.number(metric) is None:
                return f"{launch.launch_id} has no {metric}: {why_missing([launch], metric)}"
    disagreement = script_too_far_apart(launches, work) if isinstance(work, Script) and is_cpu else ""
    return (
        f"{disagreement}; a script has nothing else to be judged by: {AGAIN} ({NOT_IN_THE_SCRIPT})"
        if disagreement
        else ""
    )
