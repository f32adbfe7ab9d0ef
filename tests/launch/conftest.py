"""Requests for launches of an engine that trains nothing, and a look at what processes they leave."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from pytest_charllm.hardware import Machine
from pytest_charllm.launch.request import LaunchRequest, Limits
from pytest_charllm.records import Fault, Pass, tier
from pytest_charllm.scenario.key import parse_key

STUB = Path(__file__).parent / "stub"
MACHINE = Machine(variant="cpu", gpus_per_node=2, cpu_model="test", kernel="6.1")


@pytest.fixture
def make_request(tmp_path: Path) -> Callable[..., LaunchRequest]:
    """``make_request("raise", rank=1)``: two ranks, of which rank 1 misbehaves; no fault: both answer."""

    def make(*faults: Fault, **changes: object) -> LaunchRequest:
        directory = tmp_path / "timed-1"
        directory.mkdir(exist_ok=True)
        fields: dict[str, object] = {
            "id": "tiny.timed-1",
            "scenario": parse_key("tiny-llama.dp2.mb2.fp32.eager"),
            "pass_": Pass.TIMED,
            "window": tier("smoke", is_cpu=True).window,
            "machine": MACHINE,
            "directory": directory,
            "cache_dir": tmp_path / "cache",
            "source": "cpu",
            "faults": faults,
            "limits": Limits(start_s=60, silence_s=3, silence_factor=1, total_s=90, settle_s=2, exit_s=2),
        }
        return LaunchRequest(**(fields | changes))  # type: ignore[arg-type]

    return make


@pytest.fixture
def stub_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks get the stub engine, the way any site's ``sitecustomize`` reaches them."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(STUB), *_python_path()]))


@pytest.fixture
def processes_of() -> Callable[[LaunchRequest], list[str]]:
    """Every living process whose command line or environment names the folder of a launch."""

    def find(request: LaunchRequest) -> list[str]:
        folder, found = str(request.directory), []
        for process in psutil.process_iter():
            try:
                words = [*process.cmdline(), *process.environ().values()]
            except psutil.Error:  # gone meanwhile, or somebody else's
                continue
            if process.pid != os.getpid() and any(folder in word for word in words):
                found.append(f"{process.pid}: {' '.join(words[:6])}")
        return found

    return find


def _python_path() -> list[str]:
    path = os.environ.get("PYTHONPATH")
    return [path] if path else []
