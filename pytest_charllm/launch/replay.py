"""Recorded launches in the place of real ones: the same interface, without hardware or processes."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec

from pytest_charllm.errors import CharllmError
from pytest_charllm.launch.names import LAUNCH, TELEMETRY
from pytest_charllm.launch.request import LaunchRequest, Progress
from pytest_charllm.records import Failure, Launch, Pass, Status, from_json, to_pretty_json
from pytest_charllm.store.atomic import write_atomically


class ReplayLauncher:
    """Answers from `directory`, which is laid out as the ``launches`` folder of a run: ``<key>/<pass>-<n>/launch.json``
    with its telemetry beside it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._used: Counter[tuple[str, Pass]] = Counter()

    def run(self, request: LaunchRequest, on_progress: Callable[[Progress], None] | None = None) -> Launch:
        """The next recorded launch of this scenario and pass, under the id of the request.

        Ends as HARNESS when none is left or the record cannot be read.
        """
        if on_progress is not None:
            on_progress(Progress("replay", None, None, 0.0))
        try:
            return self._replay(request)
        except FileNotFoundError as error:
            told = f"{error.filename}: {error.strerror}; copy the whole launch, or leave its scenario out"
            return self._failed(request, told)
        except (OSError, CharllmError) as error:
            return self._failed(request, str(error))

    def _replay(self, request: LaunchRequest) -> Launch:
        key = request.scenario.key
        folders = recorded(self._directory, key, request.pass_)
        number = self._used[(key, request.pass_)]
        self._used[(key, request.pass_)] += 1
        if number >= len(folders):
            where = self._directory / key
            return self._failed(request, f"{where}: no recorded {request.pass_} launch is left, it has {len(folders)}")
        source = folders[number] / LAUNCH
        launch = from_json(source.read_bytes(), Launch, source)
        if launch.scenario.key != key:
            return self._failed(request, f"{source}: field scenario is {launch.scenario.key}, not {key}")
        if launch.telemetry is not None:
            shutil.copyfile(source.parent / launch.telemetry, request.directory / TELEMETRY)
        launch = msgspec.structs.replace(
            launch, id=request.id, telemetry=TELEMETRY if launch.telemetry is not None else None, replayed=True
        )
        write_atomically(request.directory / LAUNCH, to_pretty_json(launch))
        return launch

    def _failed(self, request: LaunchRequest, summary: str) -> Launch:
        return Launch(
            id=request.id,
            scenario=request.scenario,
            pass_=request.pass_,
            window=request.window,
            status=Status.HARNESS,
            failure=Failure(kind="harness", summary=f"replay: {summary}"),
            faults=request.faults,
            seed=request.seed,
            replayed=True,
        )


def recorded(directory: Path, key: str, pass_: Pass) -> list[Path]:
    """Folders of the recorded launches of one scenario and pass, in the order in which they ran."""
    found = [path.parent for path in (directory / key).glob(f"{pass_.value}-*/{LAUNCH}")]
    numbered = [(path.name.rpartition("-")[2], path) for path in found]
    return [path for number, path in sorted((int(text), path) for text, path in numbered if text.isdecimal())]
