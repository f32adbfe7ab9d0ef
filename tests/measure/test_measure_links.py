"""Bytes over the links, beside those of the collectives on paper."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pytest_charllm.measure.measurement import measure
from pytest_charllm.measure.traffic import group_of, sent_bytes
from pytest_charllm.records import Measurement
from pytest_charllm.scenario.key import parse_key
from pytest_charllm.scenario.traffic import every_call

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


@pytest.mark.parametrize(
    ("key", "sends"),
    [
        ("llama3-1b.dp8.mb1", 2 * 7 / 8),
        ("llama3-1b.dp8+hsdp2.mb1", None),
        ("mixtral-8x7b.2L.dp8+ep4.mb1", None),
        ("mixtral-8x7b.2L.dp8+ep4+fsdp.mb1", None),
        ("mixtral-8x7b.2L.dp8+ep4.mb1.dist-opt", None),
        ("gpt3-175b.8L.pp8.mb1.gb16", None),
    ],
)
def test_groups_are_those_that_share(key: str, sends: float | None) -> None:
    """Experts have fewer copies than other weights have, and two ends of a pipeline share a weight: with the size of
    the axis in their place a healthy mixture was a quarter off, every night."""
    scenario = parse_key(key)
    total = sum(call.bytes for call in every_call(scenario))
    if sends is not None:
        assert sent_bytes(scenario) == pytest.approx(sends * total)
    groups = {(call.axis, call.op): set() for call in every_call(scenario)}  # type: dict[tuple[str, str], set[int]]
    for call in every_call(scenario):
        groups[call.axis, call.op].add(group_of(call, scenario.layout))
    layout = scenario.layout
    expected = {layout.world} if layout.pp == 1 else {2}
    if layout.ep > 1:
        expected |= {layout.world // layout.ep}
    if layout.replicas > 1:
        assert groups["dp", "all-reduce"] == {layout.replicas}
        assert groups["dp", "all-gather"] == {layout.world // layout.replicas}
    else:
        axis = "pp" if layout.pp > 1 else "dp"
        op = "all-gather" if ("dp", "all-gather") in groups else "all-reduce"
        assert groups[axis, op] == expected


@pytest.mark.parametrize(("share", "said"), [(1.06, False), (0.64, False), (0.2, False), (1.2, True), (0.1, True)])
def test_a_switch_may_reduce(make: SimpleNamespace, share: float, said: bool) -> None:
    """Among eight GPUs of a node with NVLink SHARP a device sends 36 % less than a ring would: every healthy night of a
    DGX was told. LL128 sends a flag with every 120 bytes."""
    key, uuids = "llama3-1b.dp8.mb1", tuple(f"GPU-{rank}" for rank in range(8))
    kib_per_s = share * sent_bytes(parse_key(key)) * STEPS / WINDOW_S / 1024
    signals = make.healthy() | {"link_tx_kib": lambda t: kib_per_s * t}
    launch = make.launch([make.report(rank, 8) for rank in range(8)], scenario=parse_key(key))
    assert bool(told(measure(launch, make.trace(signals, uuids), make.machine(uuids)))) is said


def test_what_a_router_says_is_not_on_paper(make: SimpleNamespace) -> None:
    """Balanced routing is predicted; what is measured goes where the router sends it."""
    key = "mixtral-8x7b.2L.dp2+ep2.mb1.real-routing"
    assert not told(measured(make, 3 * sent_bytes(parse_key(key)), key))


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
