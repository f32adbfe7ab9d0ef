"""Before the first test: which scenarios will be launched, which are settled already, and the campaign itself."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_charllm.errors import BadInput, BadRecord
from pytest_charllm.plugin.options import Options, command_line
from pytest_charllm.plugin.parametrize import collected

if TYPE_CHECKING:
    from pytest_charllm.campaign.campaign import Campaign
    from pytest_charllm.campaign.settings import CampaignProgress, Planned, Settings
    from pytest_charllm.hardware import Machine
    from pytest_charllm.judge.rules import Rules
    from pytest_charllm.records import Baseline

NOT_LAUNCHED = "none on record, not launched"


def open_campaign(
    config: pytest.Config,
    options: Options,
    machine: Machine,
    items: Sequence[pytest.Item],
    on_progress: Callable[[CampaignProgress], None],
) -> Campaign:
    """The campaign over every item that will really run. Raises `BadInput` where it cannot start."""
    from pytest_charllm.campaign.campaign import Campaign

    settings = _settings(config, options, machine, on_progress)
    to_run = [collected(item) for item in _to_run(items)]
    planned = [found.planned for found in to_run if found is not None]
    # A test of one's own chooses when it runs: up to the whole machine.
    _refuse_absent_ranks(options, machine.world if None in to_run else max(p.scenario.layout.world for p in planned))
    _refuse_absent_steps(options, settings)
    launcher = config.hook.pytest_charllm_launcher(config=config, settings=settings)
    return Campaign.create(settings, planned, launcher)


def durations(config: pytest.Config, options: Options, machine: Machine) -> Callable[[Planned], float | None]:
    """How many seconds a feasible scenario will take, by `campaign.duration`; None: not known. That is its first round,
    and where faults are injected the confirmation, which they are to need."""
    from pytest_charllm.campaign.duration import duration_s
    from pytest_charllm.hardware.catalogue import CATALOGUE
    from pytest_charllm.records import tier

    hardware = CATALOGUE["cpu" if machine.simulated else machine.variant]
    here = tier(options.tier or "nightly", machine.is_cpu)

    def of(planned: Planned) -> float | None:
        recorded = _on_record(config, options, machine, planned.scenario.key)
        launches = options.launches or (here.launches if recorded else here.bootstrap_launches)
        launches += here.confirm_launches if options.faults and recorded else 0
        return duration_s(planned, hardware, here, launches, traces=bool(options.faults) or not recorded)

    return of


def about_s(config: pytest.Config, options: Options, machine: Machine, items: Sequence[pytest.Item]) -> float:
    """Seconds of the first rounds of all that will run, each scenario once."""
    from pytest_charllm.campaign.duration import total_s
    from pytest_charllm.campaign.settings import by_key

    duration = durations(config, options, machine)
    planned = by_key(found.planned for item in _to_run(items) if (found := collected(item)))
    return total_s(map(duration, planned.values()))


def skip_without_baseline(
    config: pytest.Config, options: Options, machine: Machine, items: Sequence[pytest.Item]
) -> dict[str, str]:
    """For ``--charllm-missing=skip``: mark items whose scenario has nothing on record, before anything is launched.

    Returns nodeid -> key. On a CPU the strict checks need no baseline, so nothing is skipped there but scripts, which
    have none.
    """
    from pytest_charllm.scenario import Script

    if options.missing != "skip":
        return {}
    skipped = {}
    for item in _to_run(items):
        found = collected(item)
        if found is None or (machine.is_cpu and not isinstance(found.planned.scenario.work, Script)):
            continue
        if not _on_record(config, options, machine, found.planned.scenario.key):
            item.add_marker(pytest.mark.skip(reason=f"NO_BASELINE: {NOT_LAUNCHED}"))
            skipped[item.nodeid] = found.planned.scenario.key
    return skipped


def _settings(
    config: pytest.Config, options: Options, machine: Machine, on_progress: Callable[[CampaignProgress], None]
) -> Settings:
    from pytest_charllm.campaign.settings import Settings
    from pytest_charllm.records import tier

    def find_baseline(machine: Machine, key: str) -> Baseline | None:
        return config.hook.pytest_charllm_baseline(config=config, machine=machine, key=key)

    return Settings(
        machine=machine,
        tier=tier(options.tier or "nightly", machine.is_cpu),
        root=options.root,
        shipped=options.shipped,
        launches=options.launches,
        faults=options.faults,
        seed=options.seed,
        replay=options.replay,
        rules=_rules(options.rules),
        arguments=command_line(config),
        on_progress=on_progress,
        find_baseline=find_baseline,
    )


def _rules(path: Path | None) -> Rules:
    from pytest_charllm.judge.rules import NO_CHANGE, rules_of

    if path is None:
        return NO_CHANGE
    try:
        return rules_of(tomllib.loads(path.read_text(encoding="utf-8")), str(path))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadInput(f"--charllm-rules: {path}: {error}; it is TOML with [tolerances.<metric>] and factor") from None
    except BadInput as error:
        raise BadInput(f"--charllm-rules: {error}") from None


def _refuse_absent_ranks(options: Options, ranks: int) -> None:
    """A fault on a rank that no launch has would never happen, and the drill would pass for the wrong reason."""
    from pytest_charllm.records.faults import format_fault

    for fault in options.faults:
        if fault.rank is not None and fault.rank >= ranks:
            told = f"{format_fault(fault)}: no launch of this run has that rank"
            raise BadInput(f"--charllm-inject: {told}; they are 0 to {ranks - 1}")


def _refuse_absent_steps(options: Options, settings: Settings) -> None:
    """Likewise a step that no window has, where that is known before a launch: on a CPU, which has no soak either."""
    from pytest_charllm.records.faults import refuse_absent_step
    from pytest_charllm.records.warmup import known_steps

    steps = known_steps(settings.tier.window)
    if steps is None:
        return
    try:
        for fault in options.faults:
            refuse_absent_step(fault, steps)
    except BadInput as error:
        raise BadInput(f"--charllm-inject: {error}") from None


def _to_run(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    return [item for item in items if item.get_closest_marker("skip") is None]


def _on_record(config: pytest.Config, options: Options, machine: Machine, key: str) -> bool:
    from pytest_charllm.store.baselines import BaselineStore

    if config.hook.pytest_charllm_baseline(config=config, machine=machine, key=key) is not None:
        return True
    try:
        return BaselineStore.of(options.root, options.shipped).find(machine, key) is not None
    except BadRecord:
        return True  # its test is the place to say what is wrong with the file
