"""What went over a device's links, by the links' own counters: a witness of the collectives that no rank can bias."""

from __future__ import annotations

from pytest_charllm.errors import BadInput
from pytest_charllm.measure.traffic import sent_by_each
from pytest_charllm.measure.windows import DeviceWindow
from pytest_charllm.records import Finding, Launch, Value
from pytest_charllm.scenario import Training

UNIT = "bytes"
QUANTITY = "link_tx_kib"
KIB = 1024
APART = 0.1
"""Beyond this the links did not carry what is on paper. Measured on two H200s, six layouts: 0.1 to 1.5 % less than
predicted. NCCL's protocol LL128, for messages of middle size, sends a flag with every 120 bytes: 6.7 % more."""


def link_bytes(window: DeviceWindow, steps: int) -> Value:
    """Bytes that one device sent a step: the counter's difference between the edges, over the steps in between."""
    sent_kib = window.advance(QUANTITY)
    if isinstance(sent_kib, str):
        return Value(value=None, unit=UNIT, reason=sent_kib)
    return Value(value=KIB * sent_kib / steps, unit=UNIT, gap_s=window.gap_s(window.series(QUANTITY)))


def link_findings(launch: Launch, measured: Value, gpus_per_node: int) -> tuple[Finding, ...]:
    """Where links carried something else than the collectives on paper: another path, another algorithm, a neighbour.

    Told of layouts within one node, whose collectives have no other way than a node's own links.
    """
    scenario = launch.scenario
    if measured.value is None or not isinstance(scenario.work, Training) or scenario.layout.world > gpus_per_node:
        return ()
    if scenario.options.real_routing:  # what the router will say is not on paper
        return ()
    try:
        predicted, least = sent_by_each(scenario)
    except BadInput:
        return ()
    if not predicted or (1 - APART) * least <= measured.value <= (1 + APART) * predicted:
        return ()
    text = (
        f"a device sent {measured.value / 1e9:.3g} GB a step over its links, {predicted / 1e9:.3g} GB by the "
        "collectives on paper: another path, or a neighbour's traffic"
    )
    return (Finding(kind="link-traffic", text=text),)
