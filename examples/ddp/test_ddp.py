"""Gates the training script beside it, as it is run in production."""

from pathlib import Path

from pytest_charllm import Script, scenarios

TRAIN = Path(__file__).with_name("train.py")


@scenarios(Script(TRAIN, args=["--steps", 40], name="ddp"), layout="dp2")
def test_ddp(measured):
    measured.check()
