"""Baseline files: ``<folder>/<variant>/<shape>/<key>.json``, read with suspicion and written by `accept` alone.

GPU baselines ship in the repository. A CPU's stay on its machine, and so do trial ones: what is local wins.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pytest_charllm.errors import BadRecord
from pytest_charllm.hardware import Machine
from pytest_charllm.records import Baseline, from_json
from pytest_charllm.store.atomic import write_atomically
from pytest_charllm.store.paths import shown
from pytest_charllm.store.reading import find, read_bytes
from pytest_charllm.store.seal import edited, seal

RESERVED = "published"
"""Folder of figures from papers, beside the variants. Never read as baselines."""


@dataclass(frozen=True)
class Entry:
    """One baseline file, not read yet."""

    path: Path
    variant: str
    shape: str
    key: str


class BaselineStore:
    """`shipped` is under version control, `local` is not."""

    def __init__(self, shipped: Path, local: Path) -> None:
        self.shipped = shipped
        self.local = local

    @classmethod
    def of(cls, root: Path, shipped: Path) -> BaselineStore:
        """Local baselines where everybody looks for them: beside the runs under `root`."""
        return cls(shipped, root / "baselines")

    def find(self, machine: Machine, key: str) -> Baseline | None:
        """What is on record for this scenario on this variant and machine shape, None when nothing is.

        Raises `BadRecord` for a file that is corrupt, of a foreign schema, misplaced or was edited by hand.
        """
        for folder in (self.local, self.shipped):
            baseline = read(_path(folder, machine, key))
            if baseline is not None:
                return baseline
        return None

    def path(self, machine: Machine, key: str) -> Path:
        """Where `write` puts it: local for a CPU, whose speed means nothing elsewhere, shipped for GPUs."""
        return _path(self.local if machine.is_cpu else self.shipped, machine, key)

    def write(self, baseline: Baseline, machine: Machine) -> Path:
        """Seal and write, replacing what is there.

        Raises `BadRecord` instead of writing what could not be read back (a NaN), `HarnessError` when the disk refuses.
        """
        path = self.path(machine, baseline.scenario_key)
        data = seal(baseline, shown(path))
        _parse(path, data)
        write_atomically(path, data, "--charllm-dir" if machine.is_cpu else "--charllm-baselines")
        return path

    def entries(self) -> list[Entry]:
        """Every baseline file by variant, shape and key. A local one hides a shipped one of the same name."""
        entries = {}
        for folder in (self.shipped, self.local):
            for entry in _entries(folder):
                entries[entry.variant, entry.shape, entry.key] = entry
        return [entries[name] for name in sorted(entries)]

    def run_ids(self) -> set[str]:
        """Every run whose launches are on record, in hidden files and in history too.

        Raises `BadRecord` for a file that cannot be trusted: what it names is not known.
        """
        files = [entry.path for folder in (self.shipped, self.local) for entry in _entries(folder)]
        return {stack.run_id for path in files if (found := read(path)) is not None for stack in found.stacks}


def read(path: Path) -> Baseline | None:
    """One baseline file, checked: schema, place, digests. Raises `BadRecord` naming file and field."""
    data = read_bytes(path)
    return _parse(path, data) if data is not None else None


def _parse(path: Path, data: bytes) -> Baseline:
    where = shown(path)
    baseline = from_json(data, Baseline, where)
    if not baseline.stacks or not all(stack.samples for stack in baseline.stacks):
        raise BadRecord(f"{where}: field stacks holds no launches; restore it from git or delete it")
    part = edited(data)
    if part is not None:
        raise BadRecord(
            f"{where}: {part} was edited after it was accepted (digest differs); "
            "restore it from git, or delete it and accept a new run"
        )
    for field, inside, outside in (
        ("scenario_key", baseline.scenario_key, path.name.removesuffix(".json")),
        ("comparable.shape", baseline.comparable.shape, path.parent.name),
        ("comparable.variant", baseline.comparable.variant, path.parent.parent.name),
    ):
        if inside != outside:
            raise BadRecord(f"{where}: field {field} is {inside}, its place says {outside}; move it back")
    return baseline


def _path(folder: Path, machine: Machine, key: str) -> Path:
    return folder / machine.variant / machine.shape / f"{key}.json"


def _entries(folder: Path) -> Iterator[Entry]:
    for path in find(folder, "*/*/*.json"):
        variant, shape = path.parent.parent.name, path.parent.name
        if variant != RESERVED and not path.name.startswith("."):
            yield Entry(path, variant, shape, path.name.removesuffix(".json"))
