"""What went over a device's links, by the links' own counters: a witness of the collectives that no rank can bias."""

from __future__ import annotations

from dataclasses import replace

from pytest_charllm.errors import BadInput
from pytest_charllm.measure.collective import sent_bytes
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
    if not readings:
        return Value(value=None, unit=UNIT, reason=window.absent(QUANTITY))
    return link_bytes(replace(window, begin_ns=readings.times_ns[0], end_ns=readings.times_ns[-1]), 1)


def link_findings(launch: Launch, measured: Value, gpus_per_node: int) -> tuple[Finding, ...]:
    """Where links carried something else than the collectives on paper: another path, another algorithm, a neighbour.

    Told of layouts within one node, whose collectives have no other way than a node's own links.
    """
    scenario = launch.scenario
    if measured.value is None or scenario.layout.world > gpus_per_node:
        return ()
    predicted, least = _on_paper(launch)
    if not predicted or (1 - APART) * least <= measured.value <= (1 + APART) * predicted:
        return ()
    each = "" if isinstance(scenario.work, Collective) else " a step"
    text = (
        f"a device sent {measured.value / 1e9:.3g} GB{each} over its links, {predicted / 1e9:.3g} GB by the "
        "collectives on paper: another path, or a neighbour's traffic"
    )
    return (Finding(kind="link-traffic", text=text),)


def _on_paper(launch: Launch) -> tuple[float, float]:
    """Bytes that a device sends a step, or in a sweep, as rings; and the least that can be left of them where a switch
    reduces. 0 where it is not known: what a router will say is on no paper."""
    scenario = launch.scenario
    if isinstance(scenario.work, Collective):
        if scenario.work.largest < SWEPT_TO:
            return 0.0, 0.0
        sent = sent_bytes(launch) or 0.0
        by_itself = scenario.work.op in (CollectiveOp.P2P, CollectiveOp.ALL_TO_ALL)
        return sent, sent if by_itself else sent / max(1, scenario.layout.world - 1)  # as in `sent_by_each`
    if not isinstance(scenario.work, Training) or scenario.options.real_routing:
        return 0.0, 0.0
    try:
        return sent_by_each(scenario)
    except BadInput:
        return 0.0, 0.0
