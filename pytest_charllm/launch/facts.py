"""What a launch left behind, read from its folder: the material from which its end is classified."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pytest_charllm.errors import BadRecord
from pytest_charllm.launch.exchange import AgentReport, RankError, RankProgress
from pytest_charllm.launch.names import AGENT_LOG, AGENT_REPORT, LOGS, error_file, progress_file, report_file
from pytest_charllm.records import RankReport, RankRequest
from pytest_charllm.store.reading import read_record

_TAIL_LINES = 30
_TAIL_BYTES = 64 * 1024


@dataclass(frozen=True)
class Hang:
    """Seen by the launcher, which then ended the launch. `stacks` is what each rank answered, "" for nothing; `silent`
    what the kernel says of those that gave no answer."""

    reason: str
    at_s: float
    stacks: Mapping[int, str]
    silent: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Log:
    path: str
    tail: str


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Ranks are keys everywhere. `refused`: reports that are there but not ours, with the reason.

    `left`: ranks whose process was gone without any answer while the agent still ran. `agent_exit` is None when the
    agent had to be killed. `oom_kills`: processes this host's kernel killed for memory meanwhile, None if not told.
    """

    world: int
    reports: Mapping[int, RankReport] = field(default_factory=dict)
    refused: Mapping[int, str] = field(default_factory=dict)
    errors: Mapping[int, RankError] = field(default_factory=dict)
    progress: Mapping[int, RankProgress] = field(default_factory=dict)
    agent: AgentReport | None = None
    agent_exit: int | None = None
    left: tuple[int, ...] = ()
    hang: Hang | None = None
    logs: Mapping[int, Log] = field(default_factory=dict)
    agent_log: Log | None = None
    oom_kills: int | None = None


def collect(
    directory: Path,
    request: RankRequest,
    *,
    agent_exit: int | None,
    progress: Mapping[int, RankProgress],
    left: tuple[int, ...],
    hang: Hang | None,
    oom_kills: int | None,
) -> Facts:
    """Read everything in a launch's folder once its processes are gone."""
    world = request.scenario.layout.world
    reports: dict[int, RankReport] = {}
    refused: dict[int, str] = {}
    errors: dict[int, RankError] = {}
    for rank in range(world):
        try:
            report = read_record(report_file(directory, rank), RankReport)
            error = read_record(error_file(directory, rank), RankError)
        except BadRecord as trouble:
            refused[rank] = str(trouble)
            continue
        if error is not None:
            errors[rank] = error
        if report is not None:
            reason = _foreign(report, rank, request)
            if reason is None:
                reports[rank] = report
            else:
                refused[rank] = f"{report_file(directory, rank)}: {reason}"
    try:
        agent = read_record(directory / AGENT_REPORT, AgentReport)
    except BadRecord:
        agent = None  # Killed while writing it: its exit code and its log are left.
    return Facts(
        world=world,
        reports=reports,
        refused=refused,
        errors=errors,
        progress=progress,
        agent=agent,
        agent_exit=agent_exit,
        left=left,
        hang=hang,
        logs={rank: read_log(path) for rank, path in log_files(directory).items()},
        agent_log=read_log(directory / AGENT_LOG),
        oom_kills=oom_kills,
    )


def read_progress(directory: Path, ranks: range) -> dict[int, RankProgress]:
    """What each rank told last; a rank that has told nothing yet is absent."""
    told: dict[int, RankProgress] = {}
    for rank in ranks:
        progress = read_record(progress_file(directory, rank), RankProgress)
        if progress is not None:
            told[rank] = progress
    return told


def log_files(directory: Path) -> dict[int, Path]:
    """stderr of each rank that was started."""
    paths = (directory / LOGS).glob("*/attempt_0/*/stderr.log")
    return {int(path.parent.name): path for path in sorted(paths)}


def read_log(path: Path) -> Log:
    """The last lines of a log, whatever is in it; empty when there is none."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, file.seek(0, 2) - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        lines = []
    return Log(path=str(path), tail="\n".join(lines[-_TAIL_LINES:]))


def _foreign(report: RankReport, rank: int, request: RankRequest) -> str | None:
    """Why a report cannot be the answer to this request, or None."""
    world = request.scenario.layout.world
    for name, expected, found in (
        ("nonce", request.nonce, report.nonce),
        ("rank", rank, report.rank),
        ("world_size", world, report.world_size),
        ("pass_", request.pass_, report.pass_),
    ):
        if found != expected:
            return f"field {name} is {found}, this launch asked for {expected}: not the answer to its request"
    return None
