"""Other rules than those that ship, to ask what they would have said of launches on record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from pytest_charllm.errors import BadInput
from pytest_charllm.judge.tolerances import CPU, GPU, Tolerance
from pytest_charllm.records import metric_named

JUDGED = (*GPU, *CPU, "step_time", "step_cpu_time")
"""Every metric that some hardware has a tolerance for; the last two are of scripts."""


class Rules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`tolerances`: by metric, the fields of `Tolerance` to change. `factor`: standard deviations of a tolerance."""

    factor: float | None = None
    tolerances: dict[str, dict[str, float]] = {}

    def applied(self, shipped: Mapping[str, Tolerance]) -> dict[str, Tolerance]:
        """The shipped table with these changes, in its own order."""
        return {
            metric: msgspec.structs.replace(rule, **self.tolerances.get(metric, {}))
            for metric, rule in shipped.items()
        }  # fmt: skip


NO_CHANGE = Rules()
CHANGEABLE = ("floor", "one_run_floor", "cap", "prior_sigma", "other_card", "worst", "and_at_least")


def rules_of(document: Mapping[str, Any], where: str) -> Rules:
    """Check what a file says. Raises `BadInput` naming file, metric and field."""
    try:
        rules = msgspec.convert(document, Rules)
    except msgspec.ValidationError as error:
        raise BadInput(f"{where}: {error}; it holds [tolerances.<metric>] and factor") from None
    if rules.factor is not None and not rules.factor > 0:
        raise BadInput(f"{where}: factor {rules.factor:g} must be above 0")
    try:
        by_id = {metric_named(metric): changes for metric, changes in rules.tolerances.items()}
    except BadInput as error:
        raise BadInput(f"{where}: {error}") from None
    if len(by_id) < len(rules.tolerances):
        raise BadInput(f"{where}: a metric has two tables, by two of its names; write one")
    rules = msgspec.structs.replace(rules, tolerances=by_id)
    for metric, changes in rules.tolerances.items():
        if metric not in JUDGED:
            raise BadInput(f"{where}: metric {metric!r} has no tolerance; those that have: {', '.join(JUDGED)}")
        for field, value in changes.items():
            if field not in CHANGEABLE:
                raise BadInput(f"{where}: {metric}: {field} cannot be changed; fields: {', '.join(CHANGEABLE)}")
            if not value >= 0:
                raise BadInput(f"{where}: {metric}: {field} = {value:g} must be 0 or more")
    return rules
