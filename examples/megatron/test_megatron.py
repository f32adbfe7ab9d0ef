"""Gates tensor-parallel Megatron-Core; skipped with one line where it is not installed."""

import pytest

pytest.importorskip("megatron.core")

from pathlib import Path

from pytest_charllm import Script, scenarios

TRAIN = Path(__file__).with_name("train.py")


@scenarios(Script(TRAIN, args=["--steps", 40, "--tp", 2], name="megatron"), layout="tp2")
def test_megatron(measured):
    measured.check()
