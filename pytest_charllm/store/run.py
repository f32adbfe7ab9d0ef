"""The directory of one run: ``<root>/runs/<id>``, where a run that was killed can still be read.

```
run.json                                   what was asked for, where, how it ended
launches/<key>/<pass>-<n>/                 one launch, written by its launcher: launch.json, rank reports, logs...
measurements/<key>/<pass>/<launch id>.json
comparable/<key>.json                      what its numbers may be compared with
judgements/<key>.json
ended/<key>.json                           what pytest's summary says: the verdict, or that a launch crashed...
cache/round-<n>/                           compiler cache: the first launch of a round compiles cold
```
"""

from __future__ import annotations

import difflib
import fcntl
import os
import secrets
import socket
import subprocess
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

import msgspec

from pytest_charllm.errors import BadInput, HarnessError
from pytest_charllm.hardware import Machine
from pytest_charllm.records import (
    Comparable,
    Fault,
    Judgement,
    Launch,
    Measurement,
    Pass,
    Record,
    timestamp,
    to_pretty_json,
)
from pytest_charllm.records.run import Ended, RunInfo, RunStatus
from pytest_charllm.store.atomic import write_atomically
from pytest_charllm.store.paths import shown
from pytest_charllm.store.reading import R, find, read_bytes, read_record


class RunDirectory:
    """One run on disk. Make it with `create` or `open`; only the process that created it writes."""

    def __init__(self, path: Path, info: RunInfo, lock: int | None = None) -> None:
        self.path = path
        self.info = info
        self._lock = lock

    @classmethod
    def create(
        cls,
        root: Path,
        *,
        machine: Machine,
        tier: str,
        arguments: str = "",
        faults: tuple[Fault, ...] = (),
        seed: int = 1234,
        replayed: bool = False,
    ) -> RunDirectory:
        """A fresh directory under `root`, which ``latest`` then names. Raises `BadInput` when it cannot be written."""
        started = datetime.now(UTC)
        run_id = f"{started:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
        path = root.absolute() / "runs" / run_id
        info = RunInfo(
            id=run_id,
            started=timestamp(started),
            machine=machine,
            tier=tier,
            host=socket.gethostname(),
            commit=_git_commit(),
            arguments=arguments,
            seed=seed,
            faults=faults,
            replayed=replayed,
        )
        try:
            path.mkdir(parents=True)
            _keep_out_of_git(root)
            run = cls(path, info, lock=_lock(path))
            run._save_info()
            write_atomically(path.parent / "latest", f"{run_id}\n".encode())
        except HarnessError as error:
            raise BadInput(str(error)) from None
        except OSError as error:
            raise BadInput(
                f"run directory {shown(path)} not writable: {error.strerror}; choose another folder with --charllm-dir"
            ) from None
        return run

    @classmethod
    def open(cls, root: Path, name: str) -> RunDirectory:
        """The run of that id, or the one started last for ``latest``.

        Raises `BadInput` naming the nearest runs when there is none, `BadRecord` when its record cannot be trusted.
        """
        known = run_ids(root)
        folder = root / "runs"
        if name == "latest":
            name = _latest(folder) or max(known, default=name)
        if name not in known:
            raise BadInput(_why_not_found(root, name, known))
        path = folder.absolute() / name
        info = read_record(path / "run.json", RunInfo)
        if info is None:
            raise BadInput(f"run {name} in {shown(folder)} was deleted just now")
        return cls(path, info)

    @property
    def id(self) -> str:
        return self.info.id

    @property
    def cache(self) -> Path:
        """For the compilers, a folder a round. Never shared between runs: compile time means the same every night."""
        return self.path / "cache"

    @property
    def status(self) -> RunStatus:
        """How it ended: a run whose record says running while no process holds its lock was killed."""
        if self.info.status is RunStatus.RUNNING and not is_locked(self.path):
            return RunStatus.INTERRUPTED
        return self.info.status

    def finish(self, *, interrupted: bool = False) -> None:
        """Record how the run ended and give up its lock."""
        status = RunStatus.INTERRUPTED if interrupted else RunStatus.FINISHED
        self._save_info(status=status, finished=timestamp(datetime.now(UTC)))
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def note(self, text: str) -> None:
        """Keep one line that is worth reading next to the results."""
        self._save_info(notes=(*self.info.notes, text))

    def launch_directory(self, scenario_key: str, pass_: Pass, n: int) -> Path:
        """A new, empty folder for the n-th launch of this pass.

        Raises `HarnessError` when it cannot be made, or is there already: answers of two launches must never mix.
        """
        path = self.path / "launches" / scenario_key / f"{pass_}-{n}"
        try:
            path.mkdir(parents=True)
        except OSError as error:
            raise HarnessError(
                f"launch folder {shown(path)} cannot be made: {error.strerror}; choose another with --charllm-dir"
            ) from None
        return path

    def launches(self, scenario_key: str) -> list[Launch]:
        """As their launchers recorded them, every pass, in the order in which they started."""
        files = (self.path / "launches" / scenario_key).glob("*/launch.json")
        return sorted(self._load_all(files, Launch), key=lambda launch: (launch.started, len(launch.id), launch.id))

    def save_measurement(self, measurement: Measurement, pass_: Pass = Pass.TIMED) -> None:
        """A second one of the same launch replaces the first: a launch counts once."""
        name = quote(measurement.launch_id, safe="+")
        self._save(measurement, "measurements", measurement.scenario_key, pass_, f"{name}.json")

    def measurements(self, scenario_key: str, pass_: Pass = Pass.TIMED) -> list[Measurement]:
        """In the order in which their launches started."""
        files = (self.path / "measurements" / scenario_key / pass_).glob("*.json")
        found = self._load_all(files, Measurement)
        # Within one second by name, the shorter first: timed-2 before timed-10.
        return sorted(found, key=lambda m: (m.started, len(m.launch_id), m.launch_id))

    def save_judgement(self, judgement: Judgement) -> None:
        self._save(judgement, "judgements", f"{judgement.scenario_key}.json")

    def judgement(self, scenario_key: str) -> Judgement | None:
        return self._load(self.path / "judgements" / f"{scenario_key}.json", Judgement)

    def judgements(self) -> list[Judgement]:
        """By scenario key."""
        return self._load_all((self.path / "judgements").glob("*.json"), Judgement)

    def save_ended(self, ended: Ended) -> None:
        self._save(ended, "ended", f"{ended.scenario_key}.json")

    def ended(self) -> dict[str, Ended]:
        """Scenario key -> how it stands in pytest's summary."""
        return {ended.scenario_key: ended for ended in self._load_all((self.path / "ended").glob("*.json"), Ended)}

    def save_comparable(self, scenario_key: str, comparable: Comparable) -> None:
        self._save(comparable, "comparable", f"{scenario_key}.json")

    def comparable(self, scenario_key: str) -> Comparable | None:
        return self._load(self.path / "comparable" / f"{scenario_key}.json", Comparable)

    def scenario_keys(self) -> list[str]:
        """Every scenario that was launched, measured or judged here."""
        folders = [path.name for kind in ("launches", "measurements") for path in (self.path / kind).glob("*")]
        judged = [path.name.removesuffix(".json") for path in (self.path / "judgements").glob("*.json")]
        return sorted({*folders, *judged})

    def _save_info(self, **changes: object) -> None:
        self.info = msgspec.structs.replace(self.info, **changes)
        self._save(self.info, "run.json")

    def _save(self, record: Record, *parts: str) -> None:
        write_atomically(self.path.joinpath(*parts), to_pretty_json(record))

    def _load(self, path: Path, kind: type[R]) -> R | None:
        return read_record(path, kind)

    def _load_all(self, paths: Iterable[Path], kind: type[R]) -> list[R]:
        found = (read_record(path, kind) for path in sorted(paths))
        return [record for record in found if record is not None]


def run_ids(root: Path) -> list[str]:
    """Every run under `root`, oldest first. A folder without its record is not a run."""
    return [path.parent.name for path in find(root / "runs", "*/run.json")]


def strays(root: Path) -> list[Path]:
    """Folders of runs that lost their record, which no command can read any more: with launches or what was measured,
    so not one that just begins. Locks are left alone: who probes one may keep it from the run that is about to take it.
    """
    kept = {path.parent for kind in ("launches", "measurements") for path in find(root / "runs", f"*/{kind}")}
    return sorted(path for path in kept if not os.path.exists(path / "run.json"))


def why_lost(path: Path) -> str:
    return f"{shown(path)}: its run.json is gone, and no command reads it; restore it, or delete the folder"


def _why_not_found(root: Path, name: str, known: Sequence[str]) -> str:
    folder = shown(root / "runs")
    lost = {path.name: path for path in strays(root)}
    if name in lost or (lost and name == "latest"):
        return why_lost(lost.get(name, lost[max(lost)]))
    if lost and not known:
        return f"no run {name} in {folder}; {why_lost(lost[max(lost)])}"
    if not known:
        return f"no runs in {folder}; run pytest suites/ first, or name the folder: --charllm-dir"
    near = difflib.get_close_matches(name, known, n=3)
    told = f"close to it: {', '.join(near)}" if near else f"the last of {len(known)}: {', '.join(known[-3:])}"
    return f"no run {name} in {folder}; {told}"


def _latest(folder: Path) -> str | None:
    data = read_bytes(folder / "latest")
    return data.decode(errors="replace").strip() if data is not None else None


def _keep_out_of_git(root: Path) -> None:
    ignore = root / ".gitignore"
    if not ignore.exists():
        write_atomically(ignore, b"# Made by pytest-charllm: runs and local baselines stay on this machine.\n*\n")


def _lock(path: Path) -> int:
    """Held for the life of this process; the kernel drops it even after SIGKILL, so no dead run is thought alive."""
    descriptor = os.open(path / "lock", os.O_CREAT | os.O_RDWR, 0o666)
    with suppress(OSError):  # A file system without locks: the run works, only nobody can tell that it still does.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return descriptor


def is_locked(path: Path) -> bool:
    """Whether the process that created the run directory `path` is still at work in it."""
    try:
        descriptor = os.open(path / "lock", os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)
    finally:
        os.close(descriptor)
    return False


def _git_commit() -> str | None:
    """Of the working directory; None outside of a repository or without git."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
