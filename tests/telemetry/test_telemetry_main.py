"""How the sampler process begins: what it spares, and that no failure of it is silent."""

from __future__ import annotations

import gc
import subprocess
import sys

import msgspec
import pytest

from pytest_charllm.devices.process import ours, search_environment
from pytest_charllm.telemetry import __main__, sampler
from pytest_charllm.telemetry.config import SamplerConfig
from pytest_charllm.telemetry.inbox import Stop


@pytest.fixture(autouse=True)
def collects():
    yield
    gc.enable()
    gc.unfreeze()


def test_nothing_is_collected_while_it_loads(monkeypatch):
    """Of what it imports nothing goes, and to look through it again and again was a tenth of the imports."""
    monkeypatch.setattr(sampler, "main", lambda argv: gc.isenabled())
    monkeypatch.setattr(sys, "argv", ["telemetry", "config.json"])
    assert __main__._run() is False


def test_it_collects_while_it_samples(monkeypatch, tmp_path):
    """A soak of two hours makes as much garbage as any program."""
    config = tmp_path / "config.json"
    config.write_bytes(
        msgspec.json.encode(SamplerConfig(path=str(tmp_path / "trace"), source="simulated:h200", uuids=("GPU-a",)))
    )
    for name in ("claim_stdout", "die_with_parent", "_watch_stdin", "_watch_events"):
        monkeypatch.setattr(sampler, name, lambda *arguments: None)
    monkeypatch.setattr(sampler.signal, "signal", lambda number, handler: None)
    enabled: list[bool] = []

    def record(*arguments: object) -> Stop:
        enabled.append(gc.isenabled())
        return Stop("told to")

    monkeypatch.setattr(sampler, "_record", record)
    gc.disable()
    assert sampler.main([str(config)]) == 0
    assert enabled == [True]


def test_a_broken_installation_is_told(tmp_path):
    """Whoever started it shows the last of what it said; without a word it "ended before the first sample"."""
    (tmp_path / "msgspec.py").write_text("raise ImportError('made up: no such wheel')\n")
    environment = search_environment()
    environment["PYTHONPATH"] = f"{tmp_path}:{environment['PYTHONPATH']}"
    done = subprocess.run(
        (*ours("pytest_charllm.telemetry", "-S"), "config.json"), env=environment, capture_output=True, text=True,
        timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "ImportError: made up: no such wheel"
