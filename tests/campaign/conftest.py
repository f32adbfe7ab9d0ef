"""Real campaigns in a scratch folder: store, measure and judge are the real ones, only nothing is started.

The launcher answers with what ranks and sampler would have left: reports, and on a GPU a telemetry file of the
simulated board on a virtual clock.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from pytest_charllm.campaign import campaign as campaign_module
from pytest_charllm.campaign import preflight
from pytest_charllm.campaign.campaign import Campaign
from pytest_charllm.campaign.settings import Planned, Settings
from pytest_charllm.commands.accept import Accepted, accept
from pytest_charllm.devices import find, inspection
from pytest_charllm.devices.inspection import Inspection
from pytest_charllm.devices.probe import ComputeProcess
from pytest_charllm.devices.simulated.board import PROFILES
from pytest_charllm.devices.simulated.source import Simulation
from pytest_charllm.hardware import Device, Machine
from pytest_charllm.launch.names import LAUNCH, TELEMETRY
from pytest_charllm.launch.request import LaunchRequest, Progress
from pytest_charllm.records import (
    Calibration,
    Collective,
    EndLine,
    EventLine,
    Failure,
    Launch,
    Line,
    Meta,
    Pass,
    Phases,
    RankDevice,
    RankReport,
    Reference,
    Stack,
    Status,
    StepSeries,
    Warmup,
    WindowEdges,
    tier,
    to_pretty_json,
)  # fmt: skip
from pytest_charllm.records.telemetry import QUANTITIES, DeviceLine, SampleLine, SnapshotLine
from pytest_charllm.scenario.flops import hardware_flops_per_step
from pytest_charllm.scenario.key import parse_key
from pytest_charllm.scenario.models import parameters, shape_of
from pytest_charllm.scenario.traffic import collectives
from pytest_charllm.store.baselines import BaselineStore

CPU = Machine(variant="cpu", gpus_per_node=2, cpu_model="some CPU")
HOST = "node"
T0_NS = 5_000_000_000
BEGIN_S = 2.0
STEPS, STEP_S = 50, 0.125
PERIOD_NS = 100_000_000


def h200(gpus: int = 1, power_limit_w: float = 700.0) -> Machine:
    devices = (Device(uuid=f"GPU-{n}", name="NVIDIA H200", power_limit_w=power_limit_w) for n in range(gpus))
    return Machine(variant="h200-sxm", gpus_per_node=gpus, devices=tuple(devices), driver="580.159.04")


@dataclass(frozen=True)
class Ending:
    """How a launch ends. `slowdown` is a share of the clean step, `event` a line of the sampler's, `semantics` what
    its sensors mean where that is unusual. `flops` False: the diagnostic pass counts one too many."""

    status: Status = Status.COMPLETED
    slowdown: float = 0.0
    event: tuple[str, str] | None = None
    telemetry: bytes | None = None
    """In place of the real file."""
    semantics: Mapping[str, str] | None = None
    flops: bool = True
    driver: str | None = None
    failure: tuple[str, str] | None = None
    """Kind and summary, where they matter."""


@dataclass
class FakeLauncher:
    """Ends the launches whose id matches a pattern of `endings` that way, all others well."""

    endings: dict[str, Ending] = field(default_factory=dict)
    requests: list[LaunchRequest] = field(default_factory=list)

    def run(self, request: LaunchRequest, on_progress: Callable[[Progress], None] | None = None) -> Launch:
        self.requests.append(request)
        if on_progress is not None:
            on_progress(Progress("window", 1, 1000.0, 1.0))
        ending = next((how for ids, how in self.endings.items() if fnmatchcase(request.id, ids)), Ending())
        reports: tuple[RankReport, ...] = ()
        failure, telemetry = None, None
        if ending.status is Status.COMPLETED:
            reports = tuple(_report(request, rank, ending) for rank in range(request.scenario.layout.world))
        else:
            kind, summary = ending.failure or ("exception", f"{request.id} ended {ending.status}")
            failure = Failure(kind=kind, summary=summary, rank=0)
        if request.device == "cuda" and ending.status is not Status.HARNESS:
            telemetry = TELEMETRY
            (request.directory / telemetry).write_bytes(ending.telemetry or _telemetry(request, ending))
        launch = Launch(
            id=request.id, scenario=request.scenario, pass_=request.pass_, window=request.window, status=ending.status,
            failure=failure, ranks=reports, telemetry=telemetry, stack=Stack(torch="2.11.0", driver=ending.driver),
            faults=request.faults, seed=request.seed, started=f"2026-01-01T00:00:{len(self.requests):02d}Z",
        )  # fmt: skip
        (request.directory / LAUNCH).write_bytes(to_pretty_json(launch))
        return launch

    @property
    def ids(self) -> list[str]:
        """What was launched, in order."""
        return [request.id for request in self.requests]


def _report(request: LaunchRequest, rank: int, ending: Ending) -> RankReport:
    scenario, world = request.scenario, request.scenario.layout.world
    plain = RankReport(
        nonce="n", rank=rank, world_size=world, host=HOST, pid=100 + rank, pass_=request.pass_,
        device=RankDevice(kind="cpu", name="some CPU"), tokens_per_step=8192 * world,
        parameters=parameters(shape_of(scenario)), attention_backend="flash", software=Stack(torch="2.11.0"),
        phases=Phases(compile_s=12.0),
    )  # fmt: skip
    if request.pass_ is Pass.DIAGNOSTIC:
        losses, norms = (5.5, 5.25), (1.5, 1.25)
        return msgspec.structs.replace(
            plain, losses=losses, grad_norms=norms,
            reference=Reference(losses=losses, grad_norms=norms) if rank == 0 else None,
            collectives=tuple(Collective(**row._asdict()) for row in collectives(scenario, rank)),
            flops_per_step=hardware_flops_per_step(scenario) + (not ending.flops),
        )  # fmt: skip
    step_s = (STEP_S * (1 + ending.slowdown),) * STEPS
    end_s = BEGIN_S + sum(step_s)
    timed = msgspec.structs.replace(
        plain,
        warmup=Warmup(steps=20, steady=True, reason="steady"),
        window=WindowEdges(begin_mono_ns=T0_NS + round(BEGIN_S * 1e9), end_mono_ns=T0_NS + round(end_s * 1e9)),
    )
    if request.device == "cpu":
        quiet_s = (STEP_S,) * STEPS
        calibration = [
            Calibration(kind=kind, work=1e9, work_unit="FLOP", wall_s=quiet_s, cpu_s=quiet_s)
            for kind in ("matmul", "decoder")
        ]
        steps = StepSeries(wall_s=step_s, cpu_s=step_s)
        return msgspec.structs.replace(timed, steps=steps, calibration=tuple(calibration))
    return msgspec.structs.replace(
        timed, steps=StepSeries(wall_s=step_s), peak_memory_bytes=25_000_000_000, compile_cache_cold=False,
        device=RankDevice(kind="cuda", name="NVIDIA H200", uuid=request.device_uuids[rank]),
    )  # fmt: skip


def _telemetry(request: LaunchRequest, ending: Ending) -> bytes:
    """From 2 s before the window to 1 s after it; uncapped and without communication, so that power is level. A clock
    that the scenario locks is where the board stays."""
    end_s = BEGIN_S + STEPS * STEP_S * (1 + ending.slowdown)
    limit_w = request.machine.devices[0].power_limit_w
    board = replace(PROFILES["h200"], limit_w=limit_w, demand_w=550.0, compute_share=1.0, load_until_s=end_s)
    board = replace(board, sm_max_mhz=float(request.scenario.options.sm_clock or board.sm_max_mhz))
    now = [T0_NS]
    source = Simulation(board, request.device_uuids, clock=lambda: now[0]).source()
    changes = {} if ending.semantics is None else {"semantics": dict(ending.semantics)}
    lines: list[Line] = [Meta(source="nvml", host=HOST, period_s=0.1, pid=1, mono_ns=T0_NS, wall_s=0.0)]
    lines += [msgspec.structs.replace(device, **changes) for device in source.devices()]
    while now[0] < T0_NS + round((end_s + 1) * 1e9):
        now[0] += PERIOD_NS
        lines += [source.read(uuid, QUANTITIES) for uuid in request.device_uuids]
    if ending.event is not None:
        kind, text = ending.event
        lines.append(EventLine(kind=kind, mono_ns=now[0], text=text, uuid=request.device_uuids[0]))
    lines.append(EndLine(mono_ns=now[0], samples=len(lines), cpu_s=0.1, reason="stdin closed"))
    return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)


@dataclass
class Lab:
    """Opens campaigns, and sees what they do. Scenarios are keys, or `Planned` where no speed is asked for."""

    root: Path
    launcher: FakeLauncher = field(default_factory=FakeLauncher)
    foreign: list[ComputeProcess] = field(default_factory=list)
    """Who else computes on the GPUs."""
    inspected: list[tuple[str, ...]] = field(default_factory=list)
    """Which devices were looked at, each time."""
    health: dict[str, Any] = field(default_factory=dict)
    """What they say of themselves."""
    sensors: dict[str, Any] = field(default_factory=dict)
    cooled: list[tuple[dict[str, float], str]] = field(default_factory=list)
    """Every wait asked for: targets and telemetry source."""
    still_warm: str | None = None
    """What such a wait answers."""
    opened: list[Campaign] = field(default_factory=list)

    def settings(self, machine: Machine | None = None, **changes: Any) -> Settings:
        machine = machine or h200()
        plain = {"root": self.root / ".charllm", "shipped": self.root / "baselines"}
        return Settings(**{"machine": machine, "tier": tier("smoke", machine.is_cpu)} | plain | changes)

    def open(self, *scenarios: str | Planned, machine: Machine | None = None, **changes: Any) -> Campaign:
        planned = [Planned(parse_key(each)) if isinstance(each, str) else each for each in scenarios]
        self.opened.append(Campaign.create(self.settings(machine, **changes), planned, self.launcher))
        return self.opened[-1]

    def put_on_record(self, *keys: str, machine: Machine | None = None, **changes: Any) -> None:
        """Run them once, well, and accept what was measured."""
        mine, self.launcher = self.launcher, FakeLauncher()
        campaign = self.open(*keys, machine=machine, **changes)
        for key in keys:
            campaign.judge(parse_key(key))
        campaign.close()
        self.launcher = mine
        results = accept(campaign.run, self.store, accepted_by="ada")
        assert all(isinstance(result, Accepted) for result in results), results

    @property
    def store(self) -> BaselineStore:
        return BaselineStore(self.root / "baselines", self.root / ".charllm" / "baselines")

    def cool_down(self, target_c: Mapping[str, float], source: str) -> str | None:
        self.cooled.append((dict(target_c), source))
        return self.still_warm

    def foreign_processes(self, uuids: tuple[str, ...]) -> list[ComputeProcess]:
        return [process for process in self.foreign if process.uuid in uuids]

    def inspect(self, source: str, uuids: tuple[str, ...]) -> Inspection:
        self.inspected.append(uuids)
        at = {"mono_ns": 1, "values": self.sensors}
        return Inspection(
            source=source,
            devices=tuple(DeviceLine(uuid=uuid, name="NVIDIA H200", power_limit_w=700.0) for uuid in uuids),
            samples={uuid: SampleLine(uuid=uuid, latency_ns=1, **at) for uuid in uuids},
            snapshots={uuid: SnapshotLine(uuid=uuid, when="start", mono_ns=1, values=self.health) for uuid in uuids},
        )


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory outside of any repository, and device locks that no other test can meet."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def lab(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    made = Lab(scratch)
    monkeypatch.setattr(find, "foreign_processes", made.foreign_processes)
    monkeypatch.setattr(inspection, "inspect", made.inspect)
    monkeypatch.setattr(campaign_module, "cool_down", made.cool_down)
    monkeypatch.setattr(preflight, "cool_down", made.cool_down)
    yield made
    for campaign in made.opened:
        campaign.close()


@pytest.fixture(scope="session")
def make() -> SimpleNamespace:
    """The builders above, by name."""
    return SimpleNamespace(CPU=CPU, Ending=Ending, h200=h200)
