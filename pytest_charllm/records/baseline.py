"""What is on record for one scenario on one machine shape: a list of stacks, the newest accepted is the reference."""

from __future__ import annotations

from pytest_charllm.records.base import SCHEMA, Record
from pytest_charllm.records.stack import Stack


class Comparable(Record, frozen=True, kw_only=True):
    """What must be equal for two numbers to be comparable at all. Software versions are not in here, on purpose."""

    variant: str
    shape: str
    power_limit_w: float | None = None
    partition: str | None = None
    cpu_model: str | None = None
    semantics: dict[str, str] = {}
    flop_formula: str
    window: str
    """Tier and rule in one string, e.g. ``nightly 30 steps 15 s``."""
    measuring: int

    def difference(self, other: Comparable) -> str | None:
        """The first field that differs, as ``power_limit_w: 700.0 on record, 600.0 here``; None when comparable.

        Semantics are compared for the sensors known on both sides: one that is silent here leaves its metrics without
        evidence, which the judge says of those metrics alone.
        """
        for name in self.__struct_fields__:
            recorded, here = getattr(self, name), getattr(other, name)
            if name == "semantics":
                unlike = [sensor for sensor in recorded if sensor in here and recorded[sensor] != here[sensor]]
                if unlike:
                    return f"semantics of {unlike[0]}: {recorded[unlike[0]]} on record, {here[unlike[0]]} here"
            elif recorded != here:
                return f"{name}: {recorded} on record, {here} here"
        return None


class BaselineSample(Record, frozen=True, kw_only=True):
    """One accepted launch. `digest` covers the other fields, so that one edited launch is noticed by name."""

    launch_id: str
    started: str
    device_uuids: tuple[str, ...]
    values: dict[str, float]
    start_temp_c: dict[str, float] = {}
    digest: str = ""


class BaselineStack(Record, frozen=True, kw_only=True):
    """The launches of one accepted run under one stack, with provenance. `digest` covers the samples' digests too."""

    stack: Stack
    run_id: str
    accepted: str
    accepted_by: str
    because: str
    label: str = ""
    """"bootstrap" for the first of its kind."""
    host: str
    commit: str | None = None
    speed_on_record: bool = True
    """False: only the strict values are on record (a CPU too noisy to agree with itself)."""
    samples: tuple[BaselineSample, ...]
    digest: str = ""


class Baseline(Record, frozen=True, kw_only=True):
    """File ``baselines/<variant>/<shape>/<key>.json``. `digest` covers the head and the stacks' digests."""

    schema: int = SCHEMA
    scenario_key: str
    comparable: Comparable
    stacks: tuple[BaselineStack, ...]
    digest: str = ""

    @property
    def reference(self) -> BaselineStack:
        return self.stacks[-1]
