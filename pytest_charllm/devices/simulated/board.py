"""A simulated board with sensors as flawed as real ones, and the exact truth behind them.

Everything is a closed form of the time since opening, so a read costs nothing, threads cannot disturb it, and a
virtual clock may jump. The board's load is a square wave (compute, then communication), its power what the load
demands up to the limit. Constants are chosen to look like such a board under training; they are no measurement of one.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

REFRESH_S = 0.1
INSTANT_S = 0.025
"""The "instant" reading averages this much before a refresh and does not see the rest."""
FAULT_AFTER_READS = 10

_COUNTER_START_J = 1e6
_GAIN_SPREAD = 0.02
_INSTANT_NOISE, _AVERAGE_NOISE = 0.004, 0.001
"""Relative, from one refresh to the next: no two readings of a loaded board are the same."""
_AMBIENT_SPREAD_C = 2.0


@dataclass(frozen=True, kw_only=True)
class Profile:
    """A board and its load: from `load_from_s` to `load_until_s`, steps of `step_s` that compute for `compute_share`.

    Temperatures follow power through one thermal resistance and time constant each; `demand_w` above `limit_w` is
    what the power cap cuts.
    """

    title: str
    """As the driver names it."""
    vendor: str
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
    gpus_per_package: int = 1


PROFILES = {
    "h200": Profile(
        title="NVIDIA H200", vendor="nvidia", limit_w=700.0, idle_w=75.0, demand_w=790.0, communication_w=420.0,
        step_s=0.137, compute_share=0.8, load_from_s=1.0, load_until_s=math.inf, ambient_c=28.0, core_c_per_w=0.05,
        hbm_c_per_w=0.025, tau_s=12.0, slowdown_c=89.0, shutdown_c=95.0, sm_idle_mhz=345.0, sm_max_mhz=1980.0,
        mem_mhz=3201.0,
    ),
    "h100": Profile(
        title="NVIDIA H100 80GB HBM3", vendor="nvidia", limit_w=700.0, idle_w=70.0, demand_w=760.0,
        communication_w=400.0, step_s=0.137, compute_share=0.8, load_from_s=1.0, load_until_s=math.inf, ambient_c=28.0,
        core_c_per_w=0.05, hbm_c_per_w=0.03, tau_s=12.0, slowdown_c=87.0, shutdown_c=92.0, sm_idle_mhz=345.0,
        sm_max_mhz=1980.0, mem_mhz=2619.0,
    ),
    "mi250": Profile(
        title="AMD Instinct MI250", vendor="amd", limit_w=500.0, idle_w=90.0, demand_w=540.0, communication_w=320.0,
        step_s=0.211, compute_share=0.75, load_from_s=1.0, load_until_s=math.inf, ambient_c=30.0, core_c_per_w=0.07,
        hbm_c_per_w=0.05, tau_s=10.0, slowdown_c=110.0, shutdown_c=115.0, sm_idle_mhz=800.0, sm_max_mhz=1700.0,
        mem_mhz=1600.0, gpus_per_package=2,
    ),
    "mi300x": Profile(
        title="AMD Instinct MI300X", vendor="amd", limit_w=750.0, idle_w=140.0, demand_w=820.0, communication_w=480.0,
        step_s=0.151, compute_share=0.8, load_from_s=1.0, load_until_s=math.inf, ambient_c=32.0, core_c_per_w=0.06,
        hbm_c_per_w=0.035, tau_s=14.0, slowdown_c=100.0, shutdown_c=110.0, sm_idle_mhz=132.0, sm_max_mhz=2100.0,
        mem_mhz=1300.0,
    ),
}  # fmt: skip
FAULTS = ("hang", "stall", "lost", "slow", "unknown", "broken", "stuck", "reset", "spike", "company")
"""What befalls the first board after `FAULT_AFTER_READS` passes.

hang: a call never returns. stall: one call takes 1 s. lost: the board is gone. slow: every pass takes 50 ms. unknown:
the library refuses everything until it is started anew; broken: even then. stuck: power and energy read the same for
ever. reset: the energy counter starts again. spike: one reading in ten is 10 kW. company: somebody else's process
computes there as well.
"""


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


class Readings(NamedTuple):
    """What the board's sensors say, in our units."""

    power_instant_w: float
    power_average_w: float
    energy_j: float
    core_temp_c: float
    hbm_temp_c: float
    sm_clock_mhz: float
    capped: bool
    loaded: bool
    power_cap_s: float


class Board:
    """One package: the true board, and its own flaws, drawn from the seed: gain of the power readings, phase of the
    refresh, ambient of the slot. `clock` in nanoseconds.
    """

    def __init__(
        self, profile: Profile, name: str, *, seed: int, clock: Callable[[], int], opened_ns: int, fault: str = ""
    ) -> None:
        rng = random.Random(f"{seed}/{name}")
        self.profile, self.gpu = profile, SimulatedGpu(profile)
        self._name = f"{seed}/{name}"
        self._gain = rng.gauss(1.0, _GAIN_SPREAD)
        self._phase_s = rng.uniform(0.0, REFRESH_S)
        self._ambient_c = profile.ambient_c + rng.uniform(-_AMBIENT_SPREAD_C, _AMBIENT_SPREAD_C)
        self._clock, self._opened_ns = clock, opened_ns
        self._fault = fault
        self._passes = 0
        self._frozen: Readings | None = None
        self._reset_j = 0.0

    def now_s(self) -> float:
        """Since opening."""
        return (self._clock() - self._opened_ns) / 1e9

    def read(self) -> Readings:
        """All sensors at this moment. Reading changes nothing."""
        t, gpu, profile = self.now_s(), self.gpu, self.profile
        refreshed = self.refreshed_s(t)
        settled_w = gpu.power_w_settled(t)
        noise = random.Random(f"{self._name}/{round(refreshed / REFRESH_S)}")
        instant, average = noise.gauss(1.0, _INSTANT_NOISE), noise.gauss(1.0, _AVERAGE_NOISE)
        readings = Readings(
            power_instant_w=self._gain * instant * self._mean_w(refreshed, INSTANT_S),
            power_average_w=self._gain * average * self._mean_w(refreshed, 1.0),
            energy_j=_COUNTER_START_J + gpu.energy_j(refreshed),
            core_temp_c=self._ambient_c + profile.core_c_per_w * settled_w,
            hbm_temp_c=self._ambient_c + profile.hbm_c_per_w * settled_w,
            sm_clock_mhz=gpu.sm_clock_mhz(t),
            capped=gpu.is_computing(t) and profile.demand_w > profile.limit_w,
            loaded=gpu.is_loaded(t),
            power_cap_s=gpu.power_cap_s(t),
        )
        return self._wrong(readings) if self.is_faulty else readings

    def refreshed_s(self, t: float) -> float:
        """When the sensors were last brought up to date, seconds since opening."""
        return math.floor((t - self._phase_s) / REFRESH_S) * REFRESH_S + self._phase_s

    @property
    def is_faulty(self) -> bool:
        return bool(self._fault) and self._passes > FAULT_AFTER_READS

    @property
    def refuses(self) -> str | None:
        """The fault that makes every call fail, if it is one of those and has come."""
        return self._fault if self.is_faulty and self._fault in ("lost", "unknown", "broken") else None

    @property
    def has_company(self) -> bool:
        return self.is_faulty and self._fault == "company"

    def begin_pass(self) -> None:
        """Once a pass, before anything is read. May never come back."""
        self._passes += 1
        if not self.is_faulty:
            return
        if self._fault == "hang":
            threading.Event().wait()
        elif self._fault == "stall" and self._passes == FAULT_AFTER_READS + 1:
            time.sleep(1.0)
        elif self._fault == "slow":
            time.sleep(0.05)

    def restarted(self) -> None:
        """The library was started anew."""
        if self._fault == "unknown" and self.is_faulty:
            self._fault = ""

    def _wrong(self, readings: Readings) -> Readings:
        if self._fault == "stuck":
            self._frozen = self._frozen or readings
            power, average, energy = self._frozen[:3]
            return readings._replace(power_instant_w=power, power_average_w=average, energy_j=energy)
        if self._fault == "reset":
            self._reset_j = self._reset_j or readings.energy_j
            return readings._replace(energy_j=max(0.0, readings.energy_j - self._reset_j))
        if self._fault == "spike" and self._passes % 10 == 0:
            return readings._replace(power_instant_w=10_000.0)
        return readings

    def _mean_w(self, end: float, window_s: float) -> float:
        return (self.gpu.energy_j(end) - self.gpu.energy_j(end - window_s)) / window_s
