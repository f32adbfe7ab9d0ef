"""Which readings each metric is made of: known before anything was measured."""

from __future__ import annotations

from collections.abc import Mapping

_ENERGY = (("energy_j",), ("power_instant_w",))

NEEDS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "energy_per_token": _ENERGY,
    "mean_power": _ENERGY,
    "peak_power": (("power_instant_w",),),
    "peak_power_max": (("power_instant_w",),),
    "power_burstiness": (("power_instant_w",),),
    "core_temp_end": (("core_temp_c",),),
    "hbm_temp_end": (("hbm_temp_c",),),
    "core_temp_p95": (("core_temp_c",),),
    "hbm_temp_p95": (("hbm_temp_c",),),
    "core_temp_spread": (("core_temp_c",),),
    "core_temp_slope": (("core_temp_c",),),
    "core_temp_steady": (("core_temp_c",),),
    "heating": (("core_temp_c", "energy_j"), ("core_temp_c", "power_instant_w")),
    "thermal_resistance": (("core_temp_c", "power_instant_w"),),
    "margin_min": (("margin_c",),),
    "throttle_power_cap": (("throttle_power_cap_ns",),),
    "throttle_sw_thermal": (("throttle_sw_thermal_ns",),),
    "throttle_hw": (("throttle_hw_thermal_ns", "throttle_hw_brake_ns"),),
    "throttle_hw_thermal": (("throttle_hw_thermal_ns",),),
    "throttle_hw_brake": (("throttle_hw_brake_ns",),),
    "sm_clock": (("sm_clock_mhz",),),
    "sm_clock_p5": (("sm_clock_mhz",),),
    "link_bytes": (("link_tx_kib",),),
}
"""GPU metric -> ways to it, each the quantities that it takes. Those that are not in here need no sensor."""


def missing_readings(metric: str, capabilities: Mapping[str, str]) -> str | None:
    """Why a device of these capabilities cannot give the metric, or None. Tells what each way lacks."""
    lacking = []
    for way in NEEDS.get(metric, ((),)):
        lacks = [each for each in way if capabilities.get(each, "not read here") != "ok"]
        if not lacks:
            return None
        lacking += [f"{each}: {capabilities.get(each, 'not read here')}" for each in lacks]
    return "; ".join(dict.fromkeys(lacking))
