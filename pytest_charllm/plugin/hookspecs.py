"""What a site may override, from a conftest or a plugin of its own. None means: go on as usual."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_charllm.campaign.runner import Launcher
    from pytest_charllm.campaign.settings import Settings
    from pytest_charllm.hardware import Machine
    from pytest_charllm.records import Baseline


@pytest.hookspec(firstresult=True)
def pytest_charllm_machine(config: pytest.Config) -> Machine | None:
    """The machine the suites run on, instead of looking for it here (a head node without GPUs, say)."""


@pytest.hookspec(firstresult=True)
def pytest_charllm_launcher(config: pytest.Config, settings: Settings) -> Launcher | None:
    """What starts the jobs (srun across nodes, say) and keeps each ``launch.json``, instead of a local torchrun."""


@pytest.hookspec(firstresult=True)
def pytest_charllm_baseline(config: pytest.Config, machine: Machine, key: str) -> Baseline | None:
    """The baseline of this scenario, instead of the stored file; None falls back to the file."""
