"""Which GPUs of a node NVLink joins: those of an HGX board all of them, bridged cards in pairs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

from pytest_charllm.devices.nvml_calls import NvmlError, call

_OVER_NVLINK = 2
_OK = 0
"""NVML_P2P_CAPS_INDEX_NVLINK, NVML_P2P_STATUS_OK."""


def islands(nvml: Any, handles: Sequence[Any]) -> list[int | None]:
    """Of each GPU the number of its island, in which every two have NVLink between them; one without is alone in its
    own. None for all where NVML does not tell, and where there is no other GPU."""
    if len(handles) < 2:
        return [None] * len(handles)
    try:
        joined = {
            (one, other)
            for one, other in combinations(range(len(handles)), 2)
            if call(nvml, "nvmlDeviceGetP2PStatus", handles[one], handles[other], _OVER_NVLINK) == _OK
        }
    except NvmlError:
        return [None] * len(handles)
    found: list[list[int]] = []
    for index in range(len(handles)):
        home = next((island for island in found if all((one, index) in joined for one in island)), None)
        if home is None:
            found.append([index])
        else:
            home.append(index)
    return [number for index in range(len(handles)) for number, island in enumerate(found) if index in island]
