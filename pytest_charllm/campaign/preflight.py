"""Before the first launch on a device: is it fit to be measured, and has it cooled down from whoever came before."""

from __future__ import annotations

from pytest_charllm.campaign.cooling import cool_down
from pytest_charllm.devices import inspection
from pytest_charllm.judge.tolerances import START_BAND_C
from pytest_charllm.measure.admission import HOT_MARGIN_C, Level, State, remarks

GPU_SOURCES = ("nvml", "amd")


def preflight(source: str, uuids: tuple[str, ...]) -> tuple[str | None, list[str]]:
    """Why these devices are refused, or None, and what is worth a line: each with the command that shows it.

    Waits, within the bounds of `cool_down`, for a board that is hot before any load. Raises `DeviceError` where the
    driver does not answer. Every measurement repeats the judgement by what its own sampler saw.
    """
    if source not in GPU_SOURCES or not all(uuid.startswith("GPU-") or source == "amd" for uuid in uuids):
        return None, []
    seen = inspection.inspect(source, uuids)
    if seen.error is not None:
        return seen.error, []
    refused: list[str] = []
    notes: list[str] = []
    hot_c: dict[str, float] = {}
    for line in seen.devices:
        sensors = seen.samples[line.uuid].values
        state = State(line, seen.snapshots[line.uuid].values, sensors, alone=len(seen.devices) == 1)
        for remark in remarks(state):
            (refused if remark.level is Level.REFUSED else notes).append(f"{line.uuid}: {remark}")
        margin_c, core_c = sensors.get("margin_c"), sensors.get("core_temp_c")
        if margin_c is not None and core_c is not None and margin_c < HOT_MARGIN_C:
            hot_c[line.uuid] = core_c + margin_c - HOT_MARGIN_C - START_BAND_C
    if hot_c and not refused:
        still_hot = cool_down(hot_c, source)
        notes += [f"started hot: {still_hot}"] if still_hot is not None else []
    return "; ".join(refused) or None, notes
