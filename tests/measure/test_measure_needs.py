"""What each metric is made of, held against what the measurement really takes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pytest_charllm.measure.measurement import measure
from pytest_charllm.measure.needs import NEEDS, missing_readings
from pytest_charllm.measure.values import DEVICE_METRICS


def test_every_device_metric_is_told() -> None:
    """A metric that is left out would be promised by a device without any sensor for it."""
    assert set(NEEDS) == set(DEVICE_METRICS)


@pytest.mark.parametrize("metric", [m for m in NEEDS if m not in ("core_temp_spread", "core_temp_slope",
                                    "core_temp_steady", "thermal_resistance", "link_bytes")])  # fmt: skip
def test_what_is_needed_is_enough_and_not_too_much(make: SimpleNamespace, metric: str) -> None:
    """Any one way suffices; without a quantity of each way there is no value."""
    everything = make.healthy()
    for way in NEEDS[metric]:
        signals = {quantity: everything[quantity] for quantity in way}
        assert missing_readings(metric, dict.fromkeys(way, "ok")) is None
        assert measure(make.launch(), make.trace(signals), make.machine()).number(metric) is not None
    broken = {way[0] for way in NEEDS[metric]}
    signals = {quantity: signal for quantity, signal in everything.items() if quantity not in broken}
    assert measure(make.launch(), make.trace(signals), make.machine()).number(metric) is None
    capabilities = dict.fromkeys(everything, "ok") | dict.fromkeys(broken, "NotSupported (3)")
    assert f"{NEEDS[metric][0][0]}: NotSupported (3)" in (missing_readings(metric, capabilities) or "")


def test_speed_needs_no_sensor() -> None:
    """Throughput comes from the ranks' own clocks."""
    assert missing_readings("throughput", {}) is None
