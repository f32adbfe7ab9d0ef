"""Bytes over the links, beside those of the collectives on paper."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pytest_charllm.measure.measurement import measure
from pytest_charllm.measure.traffic import sent_bytes
from pytest_charllm.records import Measurement
from pytest_charllm.scenario.key import parse_key

UUIDS = ("GPU-0", "GPU-1")
STEPS, WINDOW_S = 40, 5.0
"""Of the builders' ranks."""


def measured(make: SimpleNamespace, bytes_a_step: float, key: str = "llama3-1b.dp2.mb1", **machine: Any) -> Measurement:
    kib_per_s = bytes_a_step * STEPS / WINDOW_S / 1024
    signals = make.healthy() | {"link_tx_kib": lambda t: 5e6 + kib_per_s * t}
    launch = make.launch((make.report(0, 2), make.report(1, 2)), scenario=parse_key(key))
    return measure(launch, make.trace(signals, UUIDS), make.machine(UUIDS, **machine))


def told(measurement: Measurement) -> list[str]:
    return [finding.text for finding in measurement.findings if finding.kind == "link-traffic"]


@pytest.mark.parametrize(
    ("key", "on_links"),
    [("llama3-1b.dp2.mb1", 4.4053e9), ("llama3-8b.8L.tp2.mb1.gb8", 18.2322e9)],
)
def test_links_carry_what_is_on_paper(make: SimpleNamespace, key: str, on_links: float) -> None:
    """The counters of two H200s: an all-reduce between two sends all of it once, a gather and a scatter half each."""
    predicted = sent_bytes(parse_key(key))
    assert on_links == pytest.approx(predicted, rel=0.004)
    measurement = measured(make, on_links, key)
    assert measurement.number("link_bytes") == pytest.approx(on_links)
    assert not told(measurement)


@pytest.mark.parametrize("share", [0.5, 1.2])
def test_other_traffic_is_told(make: SimpleNamespace, share: float) -> None:
    """NCCL that leaves NVLink for the host's memory shows in no count of calls."""
    predicted = sent_bytes(parse_key("llama3-1b.dp2.mb1"))
    (text,) = told(measured(make, share * predicted))
    assert f"{share * predicted / 1e9:.3g} GB a step over its links, 4.42 GB by the collectives" in text


def test_nothing_is_said_across_nodes(make: SimpleNamespace) -> None:
    """What the network carries is on no link of the node."""
    launch = make.launch((make.report(0, 2), make.report(1, 2)), scenario=parse_key("llama3-1b.dp2.mb1"))
    signals = make.healthy() | {"link_tx_kib": lambda t: 1.0}
    assert not told(measure(launch, make.trace(signals, UUIDS), make.machine(UUIDS[:1])))


def test_one_device_has_no_partner(make: SimpleNamespace) -> None:
    """The counter of a card alone counts its neighbours' business."""
    signals = make.healthy() | {"link_tx_kib": lambda t: 1e6 * t}
    value = measure(make.launch(), make.trace(signals), make.machine()).values["link_bytes"]
    assert (value.value, value.reason) == (None, "one device")


@pytest.mark.parametrize(
    ("counter", "reason"),
    [
        (lambda t: 1e6 * (t if t < 4 else t - 4), "link_tx_kib went backwards: the counter was reset"),
        (lambda t: 1e6 * t if t < 4 else None, "link_tx_kib "),
    ],
)
def test_a_counter_without_evidence_gives_no_number(make: SimpleNamespace, counter: Any, reason: str) -> None:
    """A difference across a reset or a gap is any number."""
    launch = make.launch((make.report(0, 2), make.report(1, 2)), scenario=parse_key("llama3-1b.dp2.mb1"))
    measurement = measure(launch, make.trace(make.healthy() | {"link_tx_kib": counter}, UUIDS), make.machine(UUIDS))
    value = measurement.values["link_bytes"]
    assert value.value is None
    assert reason in (value.reason or "")
    assert not told(measurement)
