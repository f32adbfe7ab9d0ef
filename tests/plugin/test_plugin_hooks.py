"""What a site may override, and how the campaign is set up from the command line."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from pytest_charllm.campaign import campaign
from pytest_charllm.campaign.settings import Planned
from pytest_charllm.errors import BadInput
from pytest_charllm.hardware.machine import Machine
from pytest_charllm.plugin import opening
from pytest_charllm.plugin.options import rerun_line
from pytest_charllm.plugin.parametrize import CollectedScenario
from pytest_charllm.plugin.plan import plan
from pytest_charllm.scenario.key import parse_key

OPEN = opening.open_campaign
CHECK = """
@scenarios("llama3-1b.mb1", "llama3-1b.mb2")
def test_it(measured):
    measured.check()
"""


@pytest.fixture
def created(inner, monkeypatch) -> list[SimpleNamespace]:
    """What `Campaign.create` was asked for; the scripted campaign answers."""
    asked = []

    def create(settings, planned, launcher=None):
        asked.append(SimpleNamespace(settings=settings, planned=planned, launcher=launcher))
        return fake(None, None, None, (), settings.on_progress)

    fake = opening.open_campaign
    monkeypatch.setattr(opening, "open_campaign", OPEN)
    monkeypatch.setattr(campaign.Campaign, "create", create)
    return asked


def test_settings_come_from_the_command_line(inner, created):
    """Every option that shapes a run must arrive there, and be kept with it."""
    inner.suite(CHECK)
    arguments = [
        "--charllm-tier=smoke", "--charllm-launches=2", "--charllm-seed=7", "--charllm-inject=slowdown=0.05",
        "--charllm-dir=elsewhere",
    ]  # fmt: skip
    inner.run(*arguments).assert_outcomes(passed=2)
    (asked,) = created
    settings = asked.settings
    assert (settings.tier.name, settings.launches, settings.seed) == ("smoke", 2, 7)
    assert [(fault.name, fault.value) for fault in settings.faults] == [("slowdown", 0.05)]
    assert settings.root == Path(inner.pytester.path / "elsewhere")
    assert settings.shipped == inner.pytester.path / "baselines"
    assert "--charllm-launches=2" in settings.arguments
    assert [item.scenario.key for item in asked.planned] == ["llama3-1b.mb1", "llama3-1b.mb2"]
    assert asked.launcher is None


def test_a_folder_elsewhere_does_not_move_the_project(inner, created, tmp_path_factory):
    """Without an ini file pytest takes the common ancestor of all paths it sees, that of an option's value as well."""
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    inner.suite(CHECK)
    inner.run("--charllm-dir", str(elsewhere))
    settings = created[0].settings
    assert settings.root == elsewhere
    assert settings.shipped == inner.pytester.path / "baselines"
    (inner.pytester.path / "known.toml").write_text("not TOML")
    result = inner.run("--charllm-dir", str(elsewhere))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: *known.toml: *"])


def test_gpus_are_nightly_by_default(inner, created):
    """Without a tier a GPU gets the evidence a nightly needs."""
    inner.suite(CHECK)
    inner.run()
    assert created[0].settings.tier.name == "nightly"


def test_only_what_will_run_is_planned(inner, created):
    """Neighbours take turns: a deselected or skipped scenario in the plan would be launched for nobody."""
    later = '@pytest.mark.skip(reason="later")\n@scenarios("llama3-1b.mb4")\ndef test_later(measured):\n    pass\n'
    inner.suite(f"{CHECK}\n\n{later}")
    inner.run("-k", "not mb2")
    assert [item.scenario.key for item in created[0].planned] == ["llama3-1b.mb1"]


def test_speed_flag_reaches_the_plan(inner, created):
    """speed=False spares a CPU scenario its timed launches."""
    inner.suite('@scenarios("llama3-1b.mb1", speed=False)\ndef test_it(measured):\n    measured.check()\n')
    inner.run()
    assert [item.speed for item in created[0].planned] == [False]


def test_site_hooks_are_asked(inner, created):
    """Launcher and baseline may be a site's own."""
    inner.suite(CHECK)
    with (inner.pytester.path / "conftest.py").open("a") as file:
        file.write(
            "def pytest_charllm_launcher(config, settings):\n    return 'srun for ' + settings.machine.variant\n"
            "def pytest_charllm_baseline(config, machine, key):\n    return 'ours of ' + key\n"
        )
    inner.run()
    (asked,) = created
    assert asked.launcher == "srun for h200-sxm"
    assert asked.settings.find_baseline(asked.settings.machine, "llama3-1b.mb1") == "ours of llama3-1b.mb1"


def test_missing_skip_launches_what_is_on_record(inner, created):
    """A site's own baselines count as on record, scenario by scenario."""
    inner.suite(CHECK)
    with (inner.pytester.path / "conftest.py").open("a") as file:
        file.write(
            "def pytest_charllm_baseline(config, machine, key):\n    return 'ours' if key.endswith('mb2') else None\n"
        )
    inner.run("--charllm-missing=skip").assert_outcomes(passed=1, skipped=1)
    assert [item.scenario.key for item in created[0].planned] == ["llama3-1b.mb2"]


def test_campaign_that_cannot_start_is_exit_4(inner, monkeypatch):
    """A run directory that cannot be written is said once, before the first test, not once a test."""

    def refuse(*arguments):
        raise BadInput("run directory .charllm/runs/x not writable: Read-only file system")

    monkeypatch.setattr(opening, "open_campaign", refuse)
    inner.suite(CHECK)
    result = inner.run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert [line for line in result.errlines if line] == [
        "ERROR: run directory .charllm/runs/x not writable: Read-only file system"
    ]
    result.stdout.no_fnmatch_line("*= charllm: *")  # the summary of a run that never was


@pytest.mark.parametrize("option", ["--collect-only", "--setup-plan", "--fixtures", "--fixtures-per-test"])
def test_what_only_lists_is_no_run(inner, created, option):
    """An empty run would be the `latest`, and a list end with the code for "nothing was judged"."""
    inner.suite(CHECK)
    assert inner.run(option).ret == 0
    assert not created


def test_fault_on_a_rank_that_no_launch_has_is_exit_4(inner, created):
    """It would never happen, and the drill would be green for the wrong reason."""
    inner.suite(CHECK)
    result = inner.run("--charllm-inject=crash,rank=1")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert [line for line in result.errlines if line] == [
        "ERROR: --charllm-inject: crash,rank=1: no launch of this run has that rank; they are 0 to 0"
    ]
    assert not created
    inner.run("--charllm-inject=crash,rank=0")
    assert len(created) == 1


def test_fault_at_a_step_that_no_window_has_is_exit_4(inner, created):
    """On a CPU every window has the same steps: a launch to find that out cost 13 s and read as our own failure."""
    inner.suite(CHECK.replace("llama3-1b", "tiny-llama"))
    asked = ("-p", "no:cacheprovider", "--charllm-inject=slowdown=0.1")
    (inner.pytester.path / "conftest.py").write_text(
        "from pytest_charllm.hardware import Machine\n"
        "def pytest_charllm_machine(config):\n    return Machine(variant='cpu', gpus_per_node=2)\n"
    )
    result = inner.run(*asked, "--charllm-inject=hang=24")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert [line for line in result.errlines if line] == [
        "ERROR: --charllm-inject: fault hang=24: the window has only steps 0 to 23"
    ]
    assert not created
    inner.run(*asked, "--charllm-inject=hang=23")
    assert len(created) == 1


def test_dead_driver_is_exit_4(inner, monkeypatch):
    """`auto` on a machine whose GPU does not answer must never quietly become the CPU."""
    inner.suite(CHECK)
    (inner.pytester.path / "conftest.py").write_text(
        "import pytest_charllm.devices.find as find\n"
        "from pytest_charllm.errors import DeviceError\n"
        "def dead():\n    raise DeviceError('8 NVIDIA GPU(s) on the PCI bus, but the driver does not answer')\n"
        "find.find_machine = dead\n"
    )
    monkeypatch.setattr("pytest_charllm.devices.find.find_machine", None)  # restored afterwards
    result = inner.run("--gpu=auto")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: 8 NVIDIA GPU(s) on the PCI bus, but the driver does not answer"])
    inner.run("--gpu=cpu", "--co").stdout.fnmatch_lines(["*cpu-llama3-1b.mb1*"])


def test_the_confirmation_of_an_injected_fault_is_in_the_estimate(monkeypatch):
    """A drill took twice the minutes that its head told: what is put in is found, and confirmed."""
    machine, planned = Machine(variant="h200-sxm", gpus_per_node=1), Planned(parse_key("llama3-1b.mb1"))
    monkeypatch.setattr(opening, "_on_record", lambda *arguments: True)

    def told_s(*faults: str) -> float:
        options = SimpleNamespace(tier=None, launches=None, faults=faults)
        seconds = opening.durations(None, options, machine)(planned)
        assert seconds is not None
        return seconds

    assert told_s("slowdown=0.1") > 1.9 * told_s()


@pytest.mark.parametrize("speeds", [(False, True), (True, False)])
def test_a_plan_merges_as_the_run_does(speeds):
    """Two files may ask for one scenario, and only one of them for its speed: its launches are in the minutes."""
    scenario = parse_key("tiny-gpt.dp2.mb2.fp32.eager")
    items = [("test_a.py", CollectedScenario(Planned(scenario, speed=speed), None)) for speed in speeds]
    text = plan(Machine(variant="cpu", gpus_per_node=2), items, lambda planned: 600.0 if planned.speed else 60.0)
    assert "about 10 min" in text


@pytest.mark.parametrize(
    ("launches", "named"),
    [("/x/.charllm/runs/one/launches", "one"), ("/x/latest", "latest"), ("/x/r/latest", "latest")],
)
def test_the_latest_run_is_named_where_it_is_one(launches, named):
    """A folder may be called so, too: then that is what was replayed."""
    arguments = SimpleNamespace(args=("--charllm-replay", "latest"))
    config = SimpleNamespace(invocation_params=arguments, getoption=lambda name, default: default)
    options = SimpleNamespace(replay=Path(launches), root=Path("/x/.charllm"))
    assert rerun_line(config, options, "test_a.py::test_b") == f"pytest test_a.py::test_b --charllm-replay={named}"
