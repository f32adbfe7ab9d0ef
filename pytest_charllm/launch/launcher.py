"""Run one scenario once: a sampler and a torchrun job, from the request to the launch record."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from msgspec.structs import replace

from pytest_charllm.errors import CharllmError, HarnessError
from pytest_charllm.launch.classify import classify
from pytest_charllm.launch.edges import edges
from pytest_charllm.launch.facts import Facts, collect
from pytest_charllm.launch.job import Job
from pytest_charllm.launch.names import LAUNCH, REQUEST, TELEMETRY
from pytest_charllm.launch.request import LaunchRequest, Progress, rank_request
from pytest_charllm.launch.stack import launch_stack
from pytest_charllm.records import (
    Failure,
    Launch,
    RankDevice,
    RankReport,
    RankRequest,
    Status,
    timestamp,
    to_pretty_json,
)
from pytest_charllm.scenario import Training
from pytest_charllm.store.atomic import write_atomically
from pytest_charllm.telemetry.client import Sampler
from pytest_charllm.telemetry.keeper import Keeper

_SAMPLING_PERIOD_S = 0.1


class TorchrunLauncher:
    """Launches by torchrun on this node. With a keeper one sampler serves all launches on the same devices."""

    def __init__(self, keeper: Keeper | None = None) -> None:
        self._keeper = keeper

    def run(self, request: LaunchRequest, on_progress: Callable[[Progress], None] | None = None) -> Launch:
        """Run it to its end. A fault of a rank, or of our own side, is in the launch that comes back.

        Only what interrupts the whole session passes through (Ctrl-C, `SystemExit`), once no process is left. Call it
        from a thread that lives as long as the launch, with a keeper as long as the run. The record is also kept as
        ``launch.json`` in the folder.
        """
        started = datetime.now(UTC)
        began_s = time.monotonic()
        reports: tuple[RankReport, ...] = ()
        notes: list[str] = []
        try:
            facts = self._run(request, on_progress or _ignore, notes)
            status, failure = classify(facts)
            reports = tuple(_on_its_device(report, request) for _, report in sorted(facts.reports.items()))
            notes += _afterwards(facts)
        except (OSError, CharllmError) as error:
            status, failure = Status.HARNESS, Failure(kind="harness", summary=f"{type(error).__name__}: {error}")
        launch = Launch(
            id=request.id,
            scenario=request.scenario,
            pass_=request.pass_,
            window=request.window,
            status=status,
            failure=failure,
            ranks=reports,
            telemetry=TELEMETRY if (request.directory / TELEMETRY).exists() else None,
            stack=launch_stack(reports, request.machine),
            faults=request.faults,
            seed=request.seed,
            started=timestamp(started),
            wall_s=time.monotonic() - began_s,
            simulated=request.machine.simulated or request.source.startswith("simulated:"),
            notes=tuple(notes),
        )
        with suppress(HarnessError):  # The record is returned all the same, and whoever stores next hits that disk.
            write_atomically(request.directory / LAUNCH, to_pretty_json(launch))
        return launch

    def _run(self, request: LaunchRequest, on_progress: Callable[[Progress], None], notes: list[str]) -> Facts:
        directory = request.directory
        asked = rank_request(request)
        _write_request(asked, directory)
        oom_kills = _oom_kills()
        sampler = Sampler(
            directory / TELEMETRY,
            request.source,
            request.device_uuids,
            _SAMPLING_PERIOD_S,
            without=left_out(request),
            keeper=self._keeper,
        )
        warms_up = isinstance(request.scenario.work, Training)
        job = Job(request)

        def tell(progress: Progress) -> None:
            for span in edges(progress, time.monotonic_ns(), warms_up=warms_up):
                sampler.announce(span)
            on_progress(progress)

        try:
            job.start()
            sampler.start()  # While torchrun imports: long before there is load.
            job.watch(tell)
        finally:
            job.end()
            # After the ranks are gone: the window has to be bracketed by telemetry on both sides.
            notes += sampler.stop()
        notes += job.notes
        now = _oom_kills()
        return collect(
            directory,
            asked,
            agent_exit=job.agent_exit,
            progress=job.progress,
            left=job.left,
            hang=job.hang,
            oom_kills=now - oom_kills if now is not None and oom_kills is not None else None,
        )


def left_out(request: LaunchRequest) -> tuple[str, ...]:
    """What is not sampled: a GPU that trains alone sends nothing over links, and asking for it takes 3 ms each time."""
    return ("link_tx_kib", "link_rx_kib") if len(request.device_uuids) == 1 else ()


def _on_its_device(report: RankReport, request: LaunchRequest) -> RankReport:
    """A rank says itself which device it ran on. On a simulated machine it cannot: it stands in for the one it got."""
    if not request.machine.simulated:
        return report
    device = request.machine.devices[report.rank]
    return replace(report, device=RankDevice(kind="cpu", name=device.name, uuid=device.uuid, pci=device.pci))


def _write_request(asked: RankRequest, directory: Path) -> None:
    if (directory / REQUEST).exists():
        raise HarnessError(f"{directory} holds a launch already; every launch needs a folder of its own")
    write_atomically(directory / REQUEST, to_pretty_json(asked))


def _afterwards(facts: Facts) -> list[str]:
    """What is worth a line of a launch that completed all the same."""
    if len(facts.reports) < facts.world or facts.agent is None:
        return []
    return [f"rank {exit_.rank} exited with {exit_.exitcode} after its report" for exit_ in facts.agent.exits]


def _oom_kills() -> int | None:
    """How many processes this host's kernel has killed for memory since it booted, None where it does not tell."""
    try:
        counters = Path("/proc/vmstat").read_text().split()
    except OSError:
        return None
    return int(counters[counters.index("oom_kill") + 1]) if "oom_kill" in counters else None


def _ignore(progress: Progress) -> None:
    pass
