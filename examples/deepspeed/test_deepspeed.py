"""One test a ZeRO stage: the script's own argument makes each a scenario of its own."""

from pathlib import Path

import pytest

from pytest_charllm import Script

TRAIN = Path(__file__).with_name("train.py")


@pytest.mark.parametrize("stage", [1, 3])
def test_zero(charllm, stage):
    pytest.importorskip("deepspeed")
    script = Script(TRAIN, args=["--steps", 40, "--stage", stage], name=f"deepspeed-zero{stage}")
    charllm.check(script, layout=f"dp2+zero{stage}")
