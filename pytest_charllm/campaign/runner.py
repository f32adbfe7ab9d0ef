"""One launch of one scenario: preflight, launch, read the trace, measure, put everything into the run directory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from pytest_charllm.campaign.preflight import preflight
from pytest_charllm.campaign.settings import CampaignProgress, Evidence, Settings
from pytest_charllm.devices import find
from pytest_charllm.devices.clock_guard import locked_clocks
from pytest_charllm.devices.probe import ComputeProcess
from pytest_charllm.errors import CharllmError
from pytest_charllm.launch.repro import write_repro
from pytest_charllm.launch.request import LaunchRequest, Progress, limits_of
from pytest_charllm.measure.measurement import measure
from pytest_charllm.records import Launch, Measurement, Pass, Status, Validity
from pytest_charllm.records.tiers import window_of
from pytest_charllm.store.run import RunDirectory
from pytest_charllm.telemetry.reader import read_trace


class Launcher(Protocol):
    """Starts one job and waits for its end. Never raises for a rank's fault: the launch says what happened."""

    def run(self, request: LaunchRequest, on_progress: Callable[[Progress], None] | None = None) -> Launch: ...


class Runner:
    """Runs launches one at a time and files what they leave."""

    def __init__(self, settings: Settings, launcher: Launcher, run: RunDirectory) -> None:
        self._settings = settings
        self._launcher = launcher
        self._run = run
        self._requests: dict[str, LaunchRequest] = {}
        self._count: dict[tuple[str, Pass], int] = {}
        self._fit: set[tuple[str, ...]] = set()

    def __call__(self, evidence: Evidence, pass_: Pass, of: int) -> Measurement | None:
        """Run the next launch of this pass. None where it gave nothing to measure; `evidence` then says why."""
        try:
            return self._launch(evidence, pass_, of)
        except CharllmError as error:
            # Kept with this scenario: the test that waits now may have asked for one of its neighbours.
            evidence.invalid, evidence.harness = str(error), True
            return None

    def trace(self, evidence: Evidence) -> Measurement | None:
        """A launch under the profiler, beside what was judged: where it fails a note says so, and that is all."""
        aside = Evidence(evidence.planned)
        measurement = self(aside, Pass.TRACED, of=1)
        evidence.launches += aside.launches
        evidence.directories |= aside.directories
        failure = aside.invalid or (aside.failed.first_cause if aside.failed is not None else None)
        if failure is None:
            return measurement
        self._run.note(f"{evidence.scenario.key}: no trace: {failure}")
        return None

    def write_repro(self, evidence: Evidence, launch: Launch) -> None:
        """Write the bundle that repeats this launch without pytest, once per scenario."""
        if evidence.repro is None and not launch.replayed:
            request = self._requests[launch.id]
            evidence.repro = write_repro(launch, request, request.directory / "repro")

    def _launch(self, evidence: Evidence, pass_: Pass, of: int) -> Measurement | None:
        request = self._request(evidence, pass_)
        unfit = self._foreign_processes(request) or self._preflight(request)
        if unfit is not None:
            evidence.invalid = unfit
            return None
        number = self._count[(evidence.scenario.key, pass_)]

        def report(progress: Progress) -> None:
            whole = progress.tokens_per_s
            a_rank = None if whole is None else whole / evidence.scenario.layout.world
            self._settings.on_progress(
                CampaignProgress(evidence.scenario.key, pass_, number, max(of, number), progress.phase, a_rank)
            )

        with self._clocks(request):
            launch = self._launcher.run(request, report)
        evidence.launches.append(launch)
        evidence.directories[launch.id] = request.directory
        if launch.status is Status.HARNESS:
            evidence.invalid, evidence.harness = launch.first_cause, True
            return None
        if launch.status is not Status.COMPLETED:
            evidence.failed = evidence.failed or launch
            self.write_repro(evidence, launch)
            return None
        return self._measure(evidence, launch, request)

    def _request(self, evidence: Evidence, pass_: Pass) -> LaunchRequest:
        scenario, settings = evidence.scenario, self._settings
        key = (scenario.key, pass_)
        self._count[key] = number = self._count.get(key, 0) + 1
        uuids = tuple(device.uuid for device in settings.machine.together(scenario.layout.world))
        request = LaunchRequest(
            id=f"{scenario.key}.{pass_.value}-{number}",
            scenario=scenario,
            pass_=pass_,
            window=window_of(settings.tier.window, scenario),
            machine=settings.machine,
            device_uuids=uuids,
            # The diagnostic pass proves that the work is right, so nothing is injected into it.
            faults=settings.faults if pass_ is not Pass.DIAGNOSTIC else (),
            seed=settings.seed,
            directory=self._run.launch_directory(scenario.key, pass_, number),
            # A confirmation compiles once more from cold, so that a slow compiler can be confirmed too.
            cache_dir=self._run.cache / f"round-{max(1, len(evidence.rounds))}",
            source=settings.telemetry_source,
            limits=limits_of(scenario),
        )
        self._requests[request.id] = request
        return request

    def _foreign_processes(self, request: LaunchRequest) -> str | None:
        """A neighbour on our devices spoils the measurement: say who, before anything is started."""
        if not self._on_real_devices(request):
            return None
        found = find.foreign_processes(request.device_uuids)
        return f"another process is using the device: {_names(found)}; end it and run again" if found else None

    def _preflight(self, request: LaunchRequest) -> str | None:
        """Why these devices are not measured, or None; asked once a campaign."""
        devices = request.device_uuids
        if not self._on_real_devices(request) or devices in self._fit:
            return None
        refused, notes = preflight(request.source, devices)
        for note in notes:
            self._run.note(f"preflight: {note}")
        if refused is None:
            self._fit.add(devices)
            return None
        return f"preflight: {refused}"

    def _on_real_devices(self, request: LaunchRequest) -> bool:
        return bool(request.device_uuids) and not request.machine.simulated and self._settings.replay is None

    def _clocks(self, request: LaunchRequest) -> AbstractContextManager[None]:
        """Locked for this launch alone, where its scenario asks for it; only ever on real devices."""
        mhz = request.scenario.options.sm_clock
        return locked_clocks(request.device_uuids, mhz) if mhz and self._on_real_devices(request) else nullcontext()

    def _measure(self, evidence: Evidence, launch: Launch, request: LaunchRequest) -> Measurement:
        trace = read_trace(request.directory / launch.telemetry) if launch.telemetry is not None else None
        measurement = measure(launch, trace, self._settings.machine)
        self._run.save_measurement(measurement, launch.pass_)
        if measurement.validity is Validity.INVALID and evidence.invalid is None:
            evidence.invalid = measurement.reason or "the measurement is not valid"
        return measurement


def _names(processes: Sequence[ComputeProcess]) -> str:
    return ", ".join(f"pid {process.pid} on {process.uuid}" for process in processes)
