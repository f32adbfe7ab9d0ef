"""Gates a Trainer script; skipped with one line where transformers is not installed."""

import pytest

pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from pathlib import Path

from pytest_charllm import Script, scenarios

TRAIN = Path(__file__).with_name("train.py")


@scenarios(Script(TRAIN, args=["--steps", 40], name="huggingface"), layout="dp2")
def test_trainer(measured):
    measured.check()
