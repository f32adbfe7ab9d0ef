"""What went over a device's links, by the links' own counters: a witness of the collectives that no rank can bias."""

from __future__ import annotations

from dataclasses import replace

from pytest_charllm.errors import BadInput
from pytest_charllm.measure.collective import sent_in_sweep
from pytest_charllm.measure.traffic import sent_by_each
from pytest_charllm.measure.windows import DeviceWindow
from pytest_charllm.records import Finding, Launch, Value
from pytest_charllm.scenario import Collective, CollectiveOp, Training

UNIT = "bytes"
QUANTITY = "link_tx_kib"
KIB = 1024
APART = 0.1
"""Beyond this the links did not carry what is on paper. Measured on two H200s, six layouts: 0.1 to 1.5 % less than
predicted, and 0.4 to 1.4 % more in sweeps of five collectives. NCCL's protocol LL128, for messages of middle size,
sends a flag with every 120 bytes: 6.7 % more."""
SWEPT_TO = 64 << 20
"""Sweeps that end below are not held against paper: protocol LL, for small messages, sends as many flags as bytes."""


def link_bytes(window: DeviceWindow, steps: int) -> Value:
    """Bytes that one device sent a step: the counter's difference between the edges, over the steps in between."""
    sent_kib = window.advance(QUANTITY)
    if isinstance(sent_kib, str):
        return Value(value=None, unit=UNIT, reason=sent_kib)
    return Value(value=KIB * sent_kib / steps, unit=UNIT, gap_s=window.gap_s(window.series(QUANTITY)))


def sweep_bytes(window: DeviceWindow) -> Value:
    """Bytes that one device sent from the first reading to the last. A sweep is over within a second or two, so its
    edges are no good place to read at; but nothing else is sent in its launch."""
    readings = window.series(QUANTITY)
    reason = window.not_bracketed(QUANTITY, readings) if readings else None
    if not readings or reason is not None:
        return Value(value=None, unit=UNIT, reason=f"{QUANTITY} {reason}" if reason else window.absent(QUANTITY))
    return link_bytes(replace(window, begin_ns=readings.times_ns[0], end_ns=readings.times_ns[-1]), 1)


def link_findings(launch: Launch, measured: Value, gpus_per_node: int) -> tuple[Finding, ...]:
    """Where links carried something else than the collectives on paper: another path, another algorithm, a neighbour.

    Told of layouts within one node, whose collectives have no other way than a node's own links.
    """
    scenario = launch.scenario
    if measured.value is None or scenario.layout.world > gpus_per_node:
        return ()
    predicted, least, most = _swept(launch) if isinstance(scenario.work, Collective) else _trained(launch)
    if not predicted or (1 - APART) * least <= measured.value <= (1 + APART) * most:
        return ()
    each = "" if isinstance(scenario.work, Collective) else " a step"
    text = (
        f"a device sent {measured.value / 1e9:.3g} GB{each} over its links, {predicted / 1e9:.3g} GB by the "
        "collectives on paper: another path, or a neighbour's traffic"
    )
    return (Finding(kind="link-traffic", text=text),)


def _trained(launch: Launch) -> tuple[float, float, float]:
    """Bytes that a device sends a step: as rings, at least and at most where a switch reduces. Zeros where they are not
    known: what a router will say is on no paper."""
    scenario = launch.scenario
    if not isinstance(scenario.work, Training) or scenario.options.real_routing:
        return 0.0, 0.0, 0.0
    try:
        predicted, least = sent_by_each(scenario)
    except BadInput:
        return 0.0, 0.0, 0.0
    return predicted, least, predicted


def _swept(launch: Launch) -> tuple[float, float, float]:
    """The same of a sweep, all of it."""
    work, world = launch.scenario.work, launch.scenario.layout.world
    assert isinstance(work, Collective)
    sent = sent_in_sweep(launch)
    if sent is None or work.largest < SWEPT_TO:
        return 0.0, 0.0, 0.0
    if world == 2 or work.op in (CollectiveOp.P2P, CollectiveOp.ALL_TO_ALL):
        return sent, sent, sent
    # As in `sent_by_each`; and a switch that scatters what it has reduced fetches a rank's own part as well.
    most = sent * world / (world - 1) if work.op is CollectiveOp.REDUCE_SCATTER else sent
    return sent, sent / (world - 1), most
