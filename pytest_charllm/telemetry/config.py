"""What the client tells the sampler process: a JSON file beside the trace, and words on its stdin.

```
client   sampler CONFIG       record CONFIG, of the same devices
sampler  ready                once the first sample of each device is in the file
client   (see `dense`)        what is to be looked at more closely, or less
client   close                the trace is complete; another may follow
sampler  closed               not said where a device was lost or hangs: then it ends
```
Its stdin closing ends it, whatever it does.
"""

from __future__ import annotations

import msgspec

from pytest_charllm.records.base import SCHEMA, Record

READY = b"ready\n"
CLOSE = b"close\n"
CLOSED = b"closed\n"
_RECORD = b"record "


def recording(config: str) -> bytes:
    """The line that asks for another recording."""
    return _RECORD + msgspec.json.encode(config) + b"\n"


def recorded_by(line: bytes) -> str | None:
    """The path of the configuration that such a line names; None for any other line."""
    if not line.startswith(_RECORD):
        return None
    try:
        return msgspec.json.decode(line.removeprefix(_RECORD), type=str)
    except msgspec.MsgspecError:
        return None


class SamplerConfig(Record, frozen=True, kw_only=True):
    """`path`: the telemetry file, must not exist yet. `uuids`: none means every device of the source.

    What is slow to read is read every `slow_period_s`, while a window is near every `near_slow_period_s`, and in a rest
    every `rest_slow_period_s`, with all else every `near_period_s` and `rest_period_s`: `dense.Kind` says when.
    Quantities `without` are not read, though the device could tell them. `jitter_s` moves each pass, so that sampling
    does not march in step with training. A read not back after `gap_s` is on record as a gap, after `abandon_s` its
    device is given up. At `max_bytes` sampling ends, and when `parent_pid` is gone. Processes on a device that do not
    descend from `ours_pid` are somebody else's; None: not looked for.
    """

    schema: int = SCHEMA
    path: str
    source: str
    uuids: tuple[str, ...] = ()
    period_s: float = 0.1
    slow_period_s: float = 1.0
    near_period_s: float = 0.2
    near_slow_period_s: float = 3.0
    rest_period_s: float = 0.7
    rest_slow_period_s: float = 60.0
    without: tuple[str, ...] = ()
    jitter_s: float = 0.02
    seed: int = 0
    gap_s: float = 2.0
    abandon_s: float = 10.0
    max_bytes: int = 1 << 30
    parent_pid: int | None = None
    ours_pid: int | None = None
