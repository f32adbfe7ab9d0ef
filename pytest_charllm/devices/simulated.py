"""A simulated GPU with sensors as flawed as real ones, and the exact truth behind them to test estimators against.

Everything is a closed form of the time since opening, so a read costs nothing, threads cannot disturb it, and a
virtual clock may jump. The board's load is a square wave (compute, then communication), its power what the load
demands up to the limit. Constants are chosen to look like an H200 under training; they are no measurement of one.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import NamedTuple

from pytest_charllm.devices.source import DeviceLostError
from pytest_charllm.errors import BadInput
from pytest_charllm.records.telemetry import DeviceLine, SampleLine

REFRESH_S = 0.1
INSTANT_S = 0.025
"""The "instant" reading averages this much before a refresh and does not see the rest."""
FAULT_AFTER_READS = 10

_IDLE_BIT, _POWER_CAP_BIT = 0x1, 0x4
_COUNTER_START_J = 1e6
_GAIN_SPREAD = 0.02
_AMBIENT_SPREAD_C = 2.0


@dataclass(frozen=True, kw_only=True)
class Profile:
    """A board and its load: from `load_from_s` to `load_until_s`, steps of `step_s` that compute for `compute_share`.

    Temperatures follow power through one thermal resistance and time constant each; `demand_w` above `limit_w` is
    what the power cap cuts.
    """

    title: str
    limit_w: float
    idle_w: float
    demand_w: float
    communication_w: float
    step_s: float
    compute_share: float
    load_from_s: float
    load_until_s: float
    ambient_c: float
    core_c_per_w: float
    hbm_c_per_w: float
    tau_s: float
    slowdown_c: float
    shutdown_c: float
    sm_idle_mhz: float
    sm_max_mhz: float
    mem_mhz: float


PROFILES = {
    "h200": Profile(
        title="Simulated H200", limit_w=700.0, idle_w=75.0, demand_w=790.0, communication_w=420.0, step_s=0.137,
        compute_share=0.8, load_from_s=1.0, load_until_s=math.inf, ambient_c=28.0, core_c_per_w=0.05,
        hbm_c_per_w=0.025, tau_s=12.0, slowdown_c=89.0, shutdown_c=95.0, sm_idle_mhz=345.0, sm_max_mhz=1980.0,
        mem_mhz=3201.0,
    ),
}  # fmt: skip
FAULTS = ("hang", "stall", "lost", "slow")
"""What befalls the first device after `FAULT_AFTER_READS`: a read never returns, one read takes 1 s, the device is
gone, or every read takes 50 ms."""


class Truth(NamedTuple):
    """What really happened between two instants."""

    energy_j: float
    mean_power_w: float
    power_cap_s: float


class SimulatedGpu:
    """The board itself: true energy, throttled time and temperature at time `t` seconds after opening."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.compute_w = min(profile.demand_w, profile.limit_w)
        self.compute_s = profile.compute_share * profile.step_s
        self.load_w = self.compute_w * profile.compute_share + profile.communication_w * (1 - profile.compute_share)

    def _loaded_s(self, t: float) -> float:
        return min(max(t - self.profile.load_from_s, 0.0), self.profile.load_until_s - self.profile.load_from_s)

    def is_loaded(self, t: float) -> bool:
        return self.profile.load_from_s <= t < self.profile.load_until_s

    def is_computing(self, t: float) -> bool:
        return self.is_loaded(t) and (t - self.profile.load_from_s) % self.profile.step_s < self.compute_s

    def computed_s(self, t: float) -> float:
        """Time spent computing until `t`."""
        steps, rest = divmod(self._loaded_s(t), self.profile.step_s)
        return steps * self.compute_s + min(rest, self.compute_s)

    def energy_j(self, t: float) -> float:
        loaded, computed = self._loaded_s(t), self.computed_s(t)
        idle = t - loaded
        return (
            self.profile.idle_w * idle + self.compute_w * computed + self.profile.communication_w * (loaded - computed)
        )

    def power_cap_s(self, t: float) -> float:
        return self.computed_s(t) if self.profile.demand_w > self.profile.limit_w else 0.0

    def power_w_settled(self, t: float) -> float:
        """Mean power as a slow heat sink sees it: approaches idle or load power with the time constant."""
        profile = self.profile
        loaded, cooling = self._loaded_s(t), max(t - profile.load_until_s, 0.0)
        share = (1 - math.exp(-loaded / profile.tau_s)) * math.exp(-cooling / profile.tau_s)
        return profile.idle_w + (self.load_w - profile.idle_w) * share

    def sm_clock_mhz(self, t: float) -> float:
        """Power goes with about the cube of the clock, so a capped board slows by the cube root."""
        profile = self.profile
        if not self.is_loaded(t):
            return profile.sm_idle_mhz
        return profile.sm_max_mhz * (self.compute_w / profile.demand_w) ** (1 / 3 if self.is_computing(t) else 0)


@dataclass(frozen=True)
class _Sensors:
    """One device's own flaws: gain of its power readings, phase of its refresh, ambient of its slot."""

    gain: float
    phase_s: float
    ambient_c: float


class SimulatedSource:
    """``<profile>`` or ``<profile>+<fault>``. `clock` in nanoseconds; raises `BadInput` for an unknown profile."""

    library: str | None = None
    driver: str | None = None

    def __init__(
        self,
        profile: str | Profile,
        uuids: tuple[str, ...] = (),
        *,
        seed: int = 0,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        name, _, fault = profile.partition("+") if isinstance(profile, str) else (profile.title, "", "")
        if isinstance(profile, str) and name not in PROFILES:
            raise BadInput(f"simulated profile {name!r} is unknown: use {', '.join(PROFILES)}")
        if fault and fault not in FAULTS:
            raise BadInput(f"simulated fault {fault!r} is unknown: use {', '.join(FAULTS)}")
        self.name = f"simulated:{profile if isinstance(profile, str) else name}"
        self.gpu = SimulatedGpu(PROFILES[name] if isinstance(profile, str) else profile)
        self._fault = fault
        self._reads = 0
        self._sensors = {uuid: _sensors(self.gpu.profile, seed, uuid) for uuid in uuids or ("GPU-simulated-0",)}
        self._clock = clock
        self._opened_ns = clock()

    def devices(self) -> tuple[DeviceLine, ...]:
        profile = self.gpu.profile
        return tuple(
            DeviceLine(
                uuid=uuid,
                name=profile.title,
                power_limit_w=profile.limit_w,
                slowdown_temp_c=profile.slowdown_c,
                shutdown_temp_c=profile.shutdown_c,
                refresh_s=REFRESH_S,
                semantics={
                    "power_instant_w": "instant, GPU scope",
                    "power_average_w": "1 s average, GPU scope",
                    "energy_j": "counter",
                    "power_limit_w": "enforced",
                },
                capabilities=dict.fromkeys(self._values(uuid, 0.0), "ok"),
            )
            for uuid in self._sensors
        )

    def read(self, uuid: str, wanted: Collection[str]) -> SampleLine:
        begin_ns = self._clock()
        if self._fault and uuid == next(iter(self._sensors)):
            self._misbehave(uuid)
        values = self._values(uuid, (begin_ns - self._opened_ns) / 1e9)
        end_ns = self._clock()
        return SampleLine(
            uuid=uuid,
            mono_ns=(begin_ns + end_ns) // 2,
            latency_ns=end_ns - begin_ns,
            values={quantity: value for quantity, value in values.items() if quantity in wanted},
        )

    def truth(self, begin_ns: int, end_ns: int) -> Truth:
        """The exact answers for a window of the source's clock, for every device alike."""
        begin, end = (begin_ns - self._opened_ns) / 1e9, (end_ns - self._opened_ns) / 1e9
        energy_j = self.gpu.energy_j(end) - self.gpu.energy_j(begin)
        capped_s = self.gpu.power_cap_s(end) - self.gpu.power_cap_s(begin)
        return Truth(energy_j, energy_j / (end - begin), capped_s)

    def _values(self, uuid: str, t: float) -> dict[str, float | None]:
        gpu, sensors, profile = self.gpu, self._sensors[uuid], self.gpu.profile
        refreshed = math.floor((t - sensors.phase_s) / REFRESH_S) * REFRESH_S + sensors.phase_s
        settled_w = gpu.power_w_settled(t)
        core_c = sensors.ambient_c + profile.core_c_per_w * settled_w
        capped = gpu.is_computing(t) and profile.demand_w > profile.limit_w
        return {
            "power_instant_w": round(sensors.gain * self._mean_w(refreshed, INSTANT_S), 3),
            "power_average_w": round(sensors.gain * self._mean_w(refreshed, 1.0), 3),
            "energy_j": round(_COUNTER_START_J + gpu.energy_j(refreshed), 3),
            "power_limit_w": profile.limit_w,
            "core_temp_c": float(round(core_c)),
            "hbm_temp_c": float(round(sensors.ambient_c + profile.hbm_c_per_w * settled_w)),
            "margin_c": float(round(profile.slowdown_c - core_c)),
            "sm_clock_mhz": float(round(gpu.sm_clock_mhz(t))),
            "mem_clock_mhz": profile.mem_mhz,
            "event_reasons": float(_POWER_CAP_BIT if capped else 0 if gpu.is_loaded(t) else _IDLE_BIT),
            "throttle_power_cap_ns": float(round(gpu.power_cap_s(t) * 1e9)),
            "throttle_sw_thermal_ns": 0.0,
            "throttle_hw_thermal_ns": 0.0,
            "throttle_hw_brake_ns": 0.0,
        }

    def _mean_w(self, end: float, window_s: float) -> float:
        return (self.gpu.energy_j(end) - self.gpu.energy_j(end - window_s)) / window_s

    def _misbehave(self, uuid: str) -> None:
        self._reads += 1
        if self._reads <= FAULT_AFTER_READS:
            return
        if self._fault == "hang":
            threading.Event().wait()
        elif self._fault == "stall" and self._reads == FAULT_AFTER_READS + 1:
            time.sleep(1.0)
        elif self._fault == "lost":
            raise DeviceLostError(f"{uuid}: GpuIsLost (15), simulated")
        elif self._fault == "slow":
            time.sleep(0.05)


def _sensors(profile: Profile, seed: int, uuid: str) -> _Sensors:
    rng = random.Random(f"{seed}/{uuid}")
    return _Sensors(
        gain=rng.gauss(1.0, _GAIN_SPREAD),
        phase_s=rng.uniform(0.0, REFRESH_S),
        ambient_c=profile.ambient_c + rng.uniform(-_AMBIENT_SPREAD_C, _AMBIENT_SPREAD_C),
    )
