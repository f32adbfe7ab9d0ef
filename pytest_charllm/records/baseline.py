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
    units: dict[str, str] = {}
    """Metric -> the unit of its values. Absent in older files: those of the metric table."""
    workload: dict[str, str] = {}
    """The sizes of the work: "parameters", "FLOPs/token", "tokens/step". Absent in older files, and of scripts."""
    flop_formula: str
    window: str
    """Tier and rule in one string, e.g. ``nightly 30 steps 15 s``."""
    measuring: int

    def difference(self, other: Comparable) -> str | None:
        """The first field that differs, as ``power_limit_w: 700.0 on record, 600.0 here``; None when comparable.

        Semantics, units and workload are compared for what is known on both sides: a sensor that is silent here leaves
        its metrics without evidence, which the judge says of those metrics alone.
        """
        for name in self.__struct_fields__:
            recorded, here = getattr(self, name), getattr(other, name)
            if isinstance(recorded, dict):
                unlike = [key for key in recorded if key in here and recorded[key] != here[key]]
                if unlike:
                    return f"{name} of {unlike[0]}: {recorded[unlike[0]]} on record, {here[unlike[0]]} here"
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
    per_rank: dict[str, tuple[float | None, ...]] = {}
    """As in `Measurement`; absent in older files."""
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
    new_level: bool = False
    """Accepted although it had moved (IMPROVED, or a REGRESSION with its reason): what is older is no reference."""
    speed_on_record: bool = True
    """False: only the strict values are on record (a CPU too noisy to agree with itself)."""
    workload: dict[str, str] = {}
    """The whole fingerprint, as in `Measurement`; empty in older files."""
    traced: dict[str, float] = {}
    """Metrics of a step under the profiler, of one launch beside the samples; empty where none was made."""
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

    def segments(self) -> list[list[BaselineStack]]:
        """Runs that may be pooled, oldest first: neighbours of one software stack, until one is a new level.

        The last segment is what is held against. A run that is on record twice counts once.
        """
        found: list[list[BaselineStack]] = []
        known: set[str] = set()
        for run in self.stacks:
            if run.run_id in known:
                continue
            known.add(run.run_id)
            if not found or run.new_level or run.stack != found[-1][-1].stack:
                found.append([])
            found[-1].append(run)
        return found
