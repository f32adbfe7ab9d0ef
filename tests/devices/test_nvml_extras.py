"""What newer NVIDIA drivers tell besides: metrics, the ring of power, errors as they come, health."""

from __future__ import annotations

import math
import time
from types import SimpleNamespace

import pynvml
import pytest

from pytest_charllm.devices import inspection, nvml_versions
from pytest_charllm.devices.nvml import REVIVE_S, NvmlSource
from pytest_charllm.devices.nvml_fields import ALL_LINKS, GPM
from pytest_charllm.devices.probe import find
from pytest_charllm.devices.simulated.source import Simulation
from pytest_charllm.records.telemetry import HEALTH, QUANTITIES

S = 1_000_000_000
UINT, ULL = 1, 3


class Clock:
    now_ns = 5 * S

    def __call__(self) -> int:
        return self.now_ns


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def gpm(nvml):
    """Metrics in the structures of the real binding; `values[metric id]` is a number or a return code as a string."""
    values: dict[int, float | str] = dict.fromkeys((metric for metric, _ in GPM.values()), 50.0)

    def get(asked):
        assert (asked.version, asked.numMetrics) == (1, len(GPM))
        for slot in range(asked.numMetrics):
            value = values[asked.metrics[slot].metricId]
            asked.metrics[slot].nvmlReturn = int(value) if isinstance(value, str) else 0
            asked.metrics[slot].value = 0.0 if isinstance(value, str) else value
        return asked

    nvml.c_nvmlGpmMetricsGet_t = pynvml.c_nvmlGpmMetricsGet_t
    nvml.answers |= {
        "nvmlGpmQueryDeviceSupport": SimpleNamespace(isSupportedDevice=1),
        "nvmlGpmSampleAlloc": lambda: pynvml.c_nvmlGpmSample_t(),
        "nvmlGpmSampleGet": None,
        "nvmlGpmMetricsGet": get,
    }
    return values


def test_metrics_are_means_between_two_reads(nvml, gpm, clock):
    """Each has its own return code, and NaN with success was seen: neither may become a number."""
    gpm[5], gpm[10], gpm[20] = math.nan, "3", 1500.0
    source = NvmlSource(nvml, (nvml.UUID,), clock=clock)
    assert set(GPM) <= set(source.devices()[0].slow)
    assert source.read(nvml.UUID, GPM).values == {}, "too soon after the one at the probe"
    clock.now_ns += S
    sample = source.read(nvml.UUID, GPM)
    assert sample.values["sm_active_share"] == 0.5
    assert sample.values["pcie_tx_mib_per_s"] == 1500.0
    assert sample.missing == {"tensor_active_share": "not a number", "dram_active_share": "NotSupported (3)"}


def test_a_single_look_sees_rates_too(nvml, gpm, monkeypatch):
    """Means since the read before have no value in the first: the doctor's page read as if they were missing."""
    nvml.answers["nvmlDeviceGetSamples"] = ring((-0.3, 100_000))
    source = NvmlSource(nvml, (nvml.UUID,))
    nvml.answers["nvmlDeviceGetSamples"] = ring((-0.2, 700_000), (-0.1, 690_000))
    monkeypatch.setattr(inspection, "open_source", lambda *_: source)
    seen = inspection.look("nvml", (nvml.UUID,))
    assert seen.samples[nvml.UUID].values["sm_active_share"] == 0.5
    assert seen.rings[nvml.UUID].power_w == (700.0, 690.0)


def test_without_metrics_the_reason_is_on_record(nvml):
    """Before Hopper there are none."""
    assert NvmlSource(nvml, ()).devices()[0].capabilities["sm_active_share"] == "GPM: NotSupported (3)"


def test_a_binding_of_other_structures_costs_the_extras_only(nvml, gpm, clock):
    """Structures of GPM and rings change between bindings; a TypeError in one must not end the reading of a GPU."""
    nvml.answers["nvmlDeviceGetSamples"] = lambda *_: 1 / 0
    nvml.answers["nvmlEventSetCreate"] = lambda: 1 / 0
    source = NvmlSource(nvml, (), clock=clock)
    assert "ZeroDivisionError" in source.devices()[0].capabilities["power_ring"]
    nvml.answers["nvmlGpmMetricsGet"] = lambda asked: None
    clock.now_ns += S
    sample = source.read(nvml.UUID, {*GPM, "power_instant_w"})
    assert sample.values["power_instant_w"] == 651.327
    assert "not asked again" in sample.missing["sm_active_share"]
    assert source.power_ring(nvml.UUID) is None
    clock.now_ns += S
    assert "sm_active_share" not in source.read(nvml.UUID, GPM).values


def ring(*readings: tuple[float, int]):
    """What nvmlDeviceGetSamples answers: seconds from now, and milliwatts."""
    now_us = time.time_ns() // 1000
    samples = [
        SimpleNamespace(timeStamp=now_us + round(at_s * 1e6), sampleValue=SimpleNamespace(uiVal=milliwatts))
        for at_s, milliwatts in readings
    ]
    return (UINT, samples)


@pytest.mark.parametrize("is_bare", [False, True])
def test_the_drivers_own_series_is_placed_on_our_clock(nvml, is_bare):
    """The driver keeps power finer than we may ask for it; its stamps are of the wall clock."""
    nvml.answers["nvmlDeviceGetSamples"] = ring((-0.3, 100_000), (-0.35, 90_000))
    if is_bare:
        nvml.has_bare_functions()
    source = NvmlSource(nvml, (nvml.UUID,))
    assert source.devices()[0].capabilities["power_ring"] == "ok"
    nvml.answers["nvmlDeviceGetSamples"] = ring((-0.4, 90_000), (-0.2, 700_000), (-0.1, 690_000))
    line = source.power_ring(nvml.UUID)
    assert line.power_w == (700.0, 690.0)
    assert all(0 < time.monotonic_ns() - mono_ns < S for mono_ns in line.mono_ns)
    nvml.refusals["nvmlDeviceGetSamples"] = 6
    assert source.power_ring(nvml.UUID) is None


def test_a_series_takes_one_call_and_is_never_cut(nvml):
    """The binding asks each time how many there can be, which costs as much again. More than there ever were it fetches
    all the same."""
    nvml.answers["nvmlDeviceGetSamples"] = ring((-0.9, 100_000), (-0.8, 100_000))
    nvml.has_bare_functions()
    source = NvmlSource(nvml, (nvml.UUID,))
    for times_s, whole_by_binding in (
        ((-0.7, -0.6), 0),
        ((-0.5, -0.4, -0.35, -0.3), 1),
        ((-0.2, -0.15, -0.12, -0.1, 0), 1),
    ):
        nvml.called.clear()
        nvml.answers["nvmlDeviceGetSamples"] = ring(*((at_s, 500_000) for at_s in times_s))
        line = source.power_ring(nvml.UUID)
        assert line.power_w == (500.0,) * len(times_s)
        assert nvml.called.count("bare nvmlDeviceGetSamples") == 1
        assert nvml.called.count("nvmlDeviceGetSamples") == whole_by_binding


def test_a_series_of_another_clock_is_not_used(nvml):
    """Readings that cannot be placed in time are no evidence for any window."""
    nvml.answers["nvmlDeviceGetSamples"] = ring((-1e6, 100_000))
    assert NvmlSource(nvml, ()).devices()[0].capabilities["power_ring"] == "nvmlDeviceGetSamples: Timeout (10)"


def test_errors_of_the_driver_come_as_events(nvml):
    """XIDs have no history: who does not wait for them never learns that the GPU fell off the bus."""
    nvml.answers |= {
        "nvmlEventSetCreate": "set",
        "nvmlDeviceRegisterEvents": None,
        "nvmlEventSetWait_v2": SimpleNamespace(device="handle", eventData=79),
    }
    source = NvmlSource(nvml, (nvml.UUID,))
    (event,) = source.wait_events(0.01)
    assert (event.kind, event.uuid, event.text) == ("xid", nvml.UUID, "Xid 79, fell off the bus")
    nvml.refusals["nvmlEventSetWait_v2"] = 10
    assert source.wait_events(0.01) == ()


def test_health_is_told_with_what_is_unknown(nvml):
    """A remapping that waits for a reset, a fabric that is not up: found before a launch, not guessed after it."""
    nvml.fields |= {
        (3, 0): (ULL, 2), (4, 0): (ULL, 0), (142, 0): (UINT, 1), (143, 0): (UINT, 2), (144, 0): (UINT, 1),
        (91, 0): (UINT, 18), (161, ALL_LINKS): (ULL, 5),
    }  # fmt: skip
    nvml.answers |= {
        "nvmlDeviceGetNvLinkState": lambda handle, link: int(link != 3),
        "nvmlDeviceGetPowerManagementDefaultLimit": 700_000,
        "nvmlDeviceGetPersistenceMode": 0,
    }
    snapshot = NvmlSource(nvml, ()).snapshot(nvml.UUID, "start")
    values = snapshot.values
    assert set(values) == set(HEALTH)
    assert (values["ecc_corrected"], values["ecc_uncorrected"], values["remapped_rows"]) == (2.0, 0.0, 3.0)
    assert (values["remap_pending"], values["link_errors"]) == (1.0, 5.0)
    assert (values["link_count"], values["links_active"]) == (18.0, 17.0)
    assert (values["default_power_limit_w"], values["persistence"], values["partition"]) == (700.0, 0.0, "none")
    assert values["pcie_width"] is None
    assert snapshot.missing["pcie_width"] == "nvmlDeviceGetCurrPcieLinkWidth: NotSupported (3)"


@pytest.mark.parametrize(
    ("mask", "state", "health"),
    [
        (0b10_10_10_10, 3, ""),
        (0b10_01_10_01, 3, "degraded bandwidth, route unhealthy"),
        (0x300, 2, "incorrect configuration"),
    ],
)
def test_the_fabric_tells_what_is_wrong(nvml, mask, state, health):
    """On NVSwitch boards a fabric that is not completed fails CUDA's start, hours into a queue.

    Pins: a structure given by value, as the binding does with one that comes without `byref`, crashed the process.
    """

    def fill(handle, reference):
        info = reference._obj
        info.state, info.status, info.healthMask = state, 0, mask

    nvml.c_nvmlGpuFabricInfo_v2_t = pynvml.c_nvmlGpuFabricInfo_v2_t
    nvml.answers["nvmlDeviceGetGpuFabricInfoV"] = fill
    values = NvmlSource(nvml, ()).snapshot(nvml.UUID, "end").values
    assert values["fabric_state"] == {3: "completed", 2: "in progress"}[state]
    assert values["fabric_health"] == health


def test_older_drivers_tell_throttling_by_violation_status(nvml):
    """The same time under a cause, by a dearer call and under another name: labelled, and read once a second."""
    nvml.fields[(74, 0)] = nvml.fields[(269, 0)] = 3
    nvml.answers["nvmlDeviceGetViolationStatus"] = lambda handle, policy: SimpleNamespace(violationTime=7 + policy)
    source = NvmlSource(nvml, ())
    line = source.devices()[0]
    wanted = {"throttle_power_cap_ns", "throttle_sw_thermal_ns"}
    assert source.read(nvml.UUID, wanted).values == {"throttle_power_cap_ns": 7.0, "throttle_sw_thermal_ns": 8.0}
    assert line.semantics["throttle_power_cap_ns"] == "violation status"
    assert wanted <= set(line.slow)


def test_without_any_counter_the_sampled_bits_are_added_up_and_labelled(nvml, clock):
    """A lower bound is better than nothing, as long as nobody holds it against a counter."""
    for field in (74, 76, 269, 270, 271):
        nvml.fields[(field, 0)] = 3
    source = NvmlSource(nvml, (), clock=clock)
    line = source.devices()[0]
    wanted = {"event_reasons", "throttle_power_cap_ns", "throttle_hw_brake_ns"}
    told = []
    for reasons in (0x4, 0x84, 0x0, 0x4, 0x4):
        nvml.answers["nvmlDeviceGetCurrentClocksEventReasons"] = reasons
        told.append(source.read(nvml.UUID, wanted).values)
        clock.now_ns += S // 10
    assert [values["throttle_power_cap_ns"] / S for values in told] == pytest.approx([0.0, 0.1, 0.2, 0.2, 0.3])
    assert told[-1]["throttle_hw_brake_ns"] / S == pytest.approx(0.1)
    assert line.capabilities["throttle_power_cap_ns"] == "ok"
    assert line.semantics["throttle_power_cap_ns"].startswith("sampled reason bits")
    assert "event_reasons" not in line.slow


def test_links_are_summed_by_the_driver(nvml):
    """Scope 0 is the first link alone, an eighteenth of an H100's traffic."""
    nvml.fields |= {(138, 0): (ULL, 1), (138, ALL_LINKS): (ULL, 18)}
    assert NvmlSource(nvml, ()).read(nvml.UUID, {"link_tx_kib"}).values == {"link_tx_kib": 18.0}


def test_fault_02_a_mismatch_names_both_versions(tmp_path, nvml, monkeypatch):
    """After an upgrade without a reboot: which side is old decides between a reboot and a downgrade."""
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/self").mkdir()
    (tmp_path / "proc/driver/nvidia/version").write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\nGCC version: 12.3.0\n"
    )
    (tmp_path / "proc/self/maps").write_text("7f00-7f01 r-xp 0 08:01 1  /usr/lib/libnvidia-ml.so.580.159.04\n")
    assert nvml_versions.versions(tmp_path) == "kernel module 570.86.15, library 580.159.04"
    assert nvml_versions.versions(tmp_path / "nowhere") == ""
    monkeypatch.setattr(nvml_versions, "_ROOT", tmp_path)
    found = nvml_versions.versions(tmp_path)
    monkeypatch.setattr(nvml_versions, "versions", lambda: found)
    nvml.refusals["nvmlInit"] = 18
    found = find(nvml)
    assert "LibRmVersionMismatch (18) (kernel module 570.86.15, library 580.159.04): " in found.error
    assert not found.absent


def test_fault_04_what_never_comes_back_is_no_measurement(clock, window_of):
    """Unknown (999) for the rest of a launch: attempts to start anew are on record, bounded, and nothing passes."""
    simulation = Simulation("h200+broken", clock=clock)
    source = simulation.source()
    (line,) = source.devices()
    samples = []
    for _ in range(200):
        clock.now_ns += S // 10
        samples.append(source.read(line.uuid, QUANTITIES))
    restarts = [event for event in source.wait_events(0.0) if event.kind == "restarted"]
    assert 1 <= len(restarts) <= 20 / REVIVE_S
    window = window_of(line, samples, samples[5].mono_ns, samples[-5].mono_ns)
    value = window.sampled("power_instant_w", "W", max)
    assert (value.value, value.reason is not None) == (None, True)


def test_one_refused_field_does_not_restart_the_library(nvml):
    """A card polled fast answers Unknown for a field now and then: shutting NVML down would cost every GPU a pass."""
    source = NvmlSource(nvml, ())
    nvml.fields[(186, 0)] = 999
    assert source.read(nvml.UUID, QUANTITIES).missing["power_instant_w"] == "Unknown (999)"
    assert "nvmlShutdown" not in nvml.called
    assert source.wait_events(0.0) == ()


def test_fault_12_instances_of_one_gpu_are_that_gpu_once(nvml):
    """Power, heat and clocks of a MIG instance are those of the whole board: two are not twice as many watts."""
    nvml.answers |= {
        "nvmlDeviceGetHandleByUUID": lambda uuid: uuid,
        "nvmlDeviceGetDeviceHandleFromMigDeviceHandle": "handle",
    }
    (line,) = NvmlSource(nvml, ("MIG-1", "MIG-2")).devices()
    assert line.uuid == nvml.UUID
    assert [part.uuid for part in line.parts] == ["MIG-1", "MIG-2"]
    assert line.is_or_holds("MIG-2", None)


def test_fault_33_where_only_some_calls_exist_each_has_its_code(nvml):
    """gVisor and vGPU guests lack whole families of calls: the map names the call and the code, and the rest works."""
    for function in ("nvmlDeviceGetMarginTemperature", "nvmlDeviceGetTemperatureV", "nvmlDeviceGetClockInfo"):
        del nvml.answers[function]
    nvml.fields = {(186, 0): (UINT, 300_000), (191, 0): 4}
    nvml.refusals["nvmlDeviceGetTotalEnergyConsumption"] = 17
    source = NvmlSource(nvml, ())
    line = source.devices()[0]
    assert line.capabilities["energy_j"] == (
        "field 191: NoPermission (4); nvmlDeviceGetTotalEnergyConsumption: OperatingSystem (17)"
    )
    assert line.capabilities["margin_c"] == "nvmlDeviceGetMarginTemperature: NotSupported (3)"
    assert source.read(nvml.UUID, {"power_instant_w"}).values == {"power_instant_w": 300.0}
    assert source.snapshot(nvml.UUID, "start").values["ecc_corrected"] is None


def test_fault_01_without_a_driver_the_source_says_so_in_one_line(nvml):
    """A machine without a GPU: performance is tested, power is not, and no traceback is shown for it."""
    from pytest_charllm.errors import DeviceError

    nvml.refusals["nvmlInit"] = 12
    with pytest.raises(DeviceError) as error:
        NvmlSource(nvml, ())
    assert str(error.value).startswith("NVML does not start: LibraryNotFound (12): install")
    assert "\n" not in str(error.value)
