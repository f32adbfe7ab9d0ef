"""Waiting until the devices are as cool as they were when the baseline was measured. Bounded; says what it reached."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from pytest_charllm.telemetry.client import Sampler
from pytest_charllm.telemetry.reader import read_trace

BAND_C = 3.0
"""A device counts as cooled within this of its recorded start: the band in which temperatures are comparable."""


def cool_down(target_c: Mapping[str, float], source: str, limit_s: float = 180.0, poll_s: float = 1.0) -> str | None:
    """Wait until every device in `target_c` (UUID -> degC) is at most `BAND_C` above its target.

    Returns None when they are, else one line saying how warm they still were after `limit_s`.
    """
    if not target_c:
        return None
    with tempfile.TemporaryDirectory(prefix="charllm-cool-") as folder:
        path = Path(folder) / "telemetry.jsonl"
        with Sampler(path, source, tuple(target_c)):
            deadline = time.monotonic() + limit_s
            while True:
                warm = {
                    uuid: temperature
                    for uuid, temperature in _latest_core_temp_c(path).items()
                    if temperature > target_c.get(uuid, temperature) + BAND_C
                }
                if not warm:
                    return None
                if time.monotonic() >= deadline:
                    worst = max(warm, key=lambda uuid: warm[uuid] - target_c[uuid])
                    return (
                        f"{worst} still at {warm[worst]:.0f} degC after {limit_s:.0f} s of cooling "
                        f"(recorded start {target_c[worst]:.0f} degC)"
                    )
                time.sleep(poll_s)


def _latest_core_temp_c(path: Path) -> dict[str, float]:
    latest = {}
    for uuid, samples in read_trace(path).samples.items():
        for sample in reversed(samples):
            temperature = sample.values.get("core_temp_c")
            if temperature is not None:
                latest[uuid] = temperature
                break
    return latest
