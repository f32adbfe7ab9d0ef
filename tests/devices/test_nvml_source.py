from __future__ import annotations

import re

import pynvml
import pytest

from pytest_charllm.devices import nvml_fields as table
from pytest_charllm.devices.nvml import NvmlSource
from pytest_charllm.devices.nvml_calls import Batch, NvmlError, read_fields
from pytest_charllm.devices.nvml_fields import Field
from pytest_charllm.devices.source import DeviceLostError
from pytest_charllm.errors import DeviceError
from pytest_charllm.records.telemetry import QUANTITIES, DeviceLine, SampleLine

UINT, ULL, SINT = 1, 3, 5


def opened(nvml) -> tuple[NvmlSource, DeviceLine]:
    source = NvmlSource(nvml, (nvml.UUID,))
    return source, source.devices()[0]


def read(source: NvmlSource, line: DeviceLine) -> SampleLine:
    return source.read(line.uuid, {quantity for quantity, answer in line.capabilities.items() if answer == "ok"})


def test_every_quantity_comes_in_its_unit(nvml):
    """A milliwatt, millijoule or kilohertz that slips through makes every later number wrong by a thousand."""
    source, line = opened(nvml)
    sample = read(source, line)
    assert sample.values == {
        "power_instant_w": 651.327,
        "power_average_w": 659.811,
        "energy_j": 3581406.123,
        "power_limit_w": 700.0,
        "core_temp_c": 63.0,
        "hbm_temp_c": 49.0,
        "margin_c": 24.0,
        "sm_clock_mhz": 1425.0,
        "mem_clock_mhz": 3201.0,
        "event_reasons": 4.0,
        "throttle_power_cap_ns": 2.0**40 + 7,
        "throttle_sw_thermal_ns": 0.0,
        "throttle_hw_thermal_ns": 0.0,
        "throttle_hw_brake_ns": 0.0,
        "throttle_sync_boost_ns": 0.0,
    }
    assert sample.missing == {}
    assert set(sample.values) <= set(QUANTITIES)


def test_fields_read_without_the_binding_are_the_same(nvml):
    """A member taken from the wrong place, or in the wrong width, is a plausible number of something else."""
    for id_, answer in enumerate(
        ((UINT, 2**32 - 1), (2, 2**64 - 1), (ULL, 2**64 - 2), (4, -(2**63)), (SINT, -8), (6, 65_535), (9, 1), 3)
    ):
        nvml.fields[id_, 0] = answer
    nvml.fields[8, table.ALL_LINKS] = (0, 0.25)
    fields = [*(Field(id_) for id_ in range(8)), Field(8, table.ALL_LINKS)]
    expected = list(map(repr, read_fields(nvml, "handle", fields)))
    nvml.has_bare_functions()
    batch = Batch(nvml, fields)
    for _ in range(2):
        assert list(map(repr, batch.read("handle"))) == expected
    nvml.refusals["nvmlDeviceGetFieldValues"] = 15
    with pytest.raises(NvmlError, match="GpuIsLost"):
        batch.read("handle")


def test_passes_of_either_sort_alternate(nvml):
    """How a pass is read is worked out once for each set that is wanted; they must not get into each other's way."""
    known = {"power_instant_w": 651.327, "energy_j": 3581406.123, "core_temp_c": 63.0}
    nvml.has_bare_functions()
    source, line = opened(nvml)
    nvml.called.clear()
    for wanted in ({"power_instant_w"}, {"power_instant_w", "energy_j"}, {"core_temp_c"}, {"power_instant_w"}):
        assert source.read(line.uuid, wanted).values == {quantity: known[quantity] for quantity in wanted}
    assert nvml.called.count("bare nvmlDeviceGetFieldValues") == 3
    assert "nvmlDeviceGetFieldValues" not in nvml.called


def test_the_device_line_tells_identity_limits_and_semantics(nvml):
    """NVML writes PCI addresses with eight digits of domain and sysfs with four; records must agree on one."""
    source, line = opened(nvml)
    assert (line.uuid, line.name, line.pci) == (nvml.UUID, "NVIDIA H200", "0000:17:00.0")
    assert (line.power_limit_w, line.slowdown_temp_c, line.shutdown_temp_c) == (700.0, 89.0, 95.0)
    assert line.semantics["power_instant_w"] == "instant, GPU scope"
    assert (source.driver, source.library) == ("580.159.04", "NVML 13.580.159.04")


def test_what_is_read_ten_times_a_second(nvml):
    """Each of them is read 150 times in a nightly window. Bits at an instant tell nothing beside counters of time."""
    line = opened(nvml)[1]
    fast = {quantity for quantity, answer in line.capabilities.items() if answer == "ok"} - set(line.slow)
    assert fast == {
        "power_instant_w", "power_average_w", "core_temp_c", "hbm_temp_c", "sm_clock_mhz", "throttle_power_cap_ns",
        "throttle_sw_thermal_ns", "throttle_sync_boost_ns",
    }  # fmt: skip


def test_fault_18_signed_limits_keep_their_sign(nvml):
    """T.Limit offsets are signed; read through the unsigned member, -2 becomes 4294967294 degC."""
    line = opened(nvml)[1]
    assert (line.slowdown_tlimit_c, line.shutdown_tlimit_c) == (-2.0, -8.0)


def test_fault_18_margin_may_be_zero_or_below(nvml):
    """Under load the margin is legally 0 or slightly negative; that is a finding for the judge, not bad data."""
    nvml.answers["nvmlDeviceGetMarginTemperature"] = -1
    source, line = opened(nvml)
    assert read(source, line).values["margin_c"] == -1.0


def test_fault_07_a_field_refused_within_a_successful_batch_is_off_with_its_reason(nvml):
    """The batch returns success although single fields failed: a reader that ignores that stores 0 degC for HBM."""
    nvml.fields[(82, 0)] = 3
    source, line = opened(nvml)
    assert line.capabilities["hbm_temp_c"] == "field 82: NotSupported (3)"
    sample = read(source, line)
    assert "hbm_temp_c" not in sample.values
    assert sample.values["power_instant_w"] == 651.327


def test_zero_degrees_of_memory_is_no_sensor(nvml):
    """Boards without the sensor may answer success and 0; no HBM runs at the freezing point."""
    nvml.fields[(82, 0)] = (UINT, 0)
    assert "no sensor" in opened(nvml)[1].capabilities["hbm_temp_c"]


def test_a_later_refusal_is_a_gap_with_its_reason(nvml):
    """Fast polling gave spurious NotSupported on real cards: that pass has no value, but the sensor is not off."""
    source, line = opened(nvml)
    nvml.fields[(186, 0)] = 3
    nvml.refusals["nvmlDeviceGetMarginTemperature"] = 10
    sample = read(source, line)
    assert sample.values["power_instant_w"] is None
    assert sample.values["margin_c"] is None
    assert sample.missing == {"power_instant_w": "NotSupported (3)", "margin_c": "Timeout (10)"}
    del nvml.fields[(186, 0)], nvml.refusals["nvmlDeviceGetMarginTemperature"]
    nvml.fields[(186, 0)] = (UINT, 100_000)
    assert read(source, line).missing == {}


def test_a_batch_refused_as_a_whole_leaves_the_other_reads(nvml):
    """One failing call must not take the temperatures and clocks of that pass with it."""
    source, line = opened(nvml)
    nvml.refusals["nvmlDeviceGetFieldValues"] = 999
    sample = read(source, line)
    assert sample.values["energy_j"] is None
    assert sample.missing["energy_j"] == "Unknown (999)"
    assert sample.values["core_temp_c"] == 63.0


@pytest.mark.parametrize("place", ["field", "call", "batch"])
def test_a_lost_gpu_is_lost_wherever_it_shows(nvml, place):
    """A GPU off the bus answers GpuIsLost to everything; going on would record a launch full of nulls as a slow one."""
    source, line = opened(nvml)
    if place == "field":
        nvml.fields[(186, 0)] = 15
    else:
        nvml.refusals["nvmlDeviceGetFieldValues" if place == "batch" else "nvmlDeviceGetClockInfo"] = 15
    with pytest.raises(DeviceLostError, match=r"GpuIsLost \(15\).*Xid 79"):
        read(source, line)


def test_fault_19_implausible_values_are_null_with_the_raw_value_kept(nvml):
    """Single power readings of 10 kW and clocks of 4 GHz were seen on real cards; a peak must not be made of them."""
    source, line = opened(nvml)
    nvml.fields[(186, 0)] = (UINT, 10_000_000)
    nvml.fields[(185, 0)] = (UINT, 0)
    nvml.fields[(82, 0)] = (UINT, 255)
    nvml.answers["nvmlDeviceGetClockInfo"] = lambda handle, which: {1: 4000, 2: 3201}[which]
    sample = read(source, line)
    assert sample.missing == {
        "power_instant_w": "implausible: 10000",
        "power_average_w": "implausible: 0",
        "hbm_temp_c": "implausible: 255",
        "sm_clock_mhz": "implausible: 4000",
    }
    assert all(sample.values[quantity] is None for quantity in sample.missing)


def test_an_unknown_value_type_is_not_guessed(nvml):
    """A new driver may add value types; any union member would then be garbage that looks like a number."""
    source, line = opened(nvml)
    nvml.fields[(186, 0)] = (9, 651_327)
    sample = read(source, line)
    assert sample.values["power_instant_w"] is None
    assert sample.missing["power_instant_w"] == "unknown value type 9"


@pytest.mark.parametrize("age", ["driver", "binding"])
@pytest.mark.parametrize(
    ("quantity", "new", "old", "value"),
    [
        ("core_temp_c", "nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature", 63),
        ("event_reasons", "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons", 4),
    ],
)
def test_renamed_functions_fall_back_to_their_old_names(nvml, age, quantity, new, old, value):
    """The newer name is missing on older drivers (FunctionNotFound) and in older bindings (no attribute)."""
    if age == "driver":
        nvml.refusals[new] = 13
    else:
        nvml.absent.add(new)
    nvml.answers[old] = value
    source, line = opened(nvml)
    assert line.capabilities[quantity] == "ok"
    assert read(source, line).values[quantity] == value


def test_a_driver_that_tells_no_margin_tells_the_threshold(nvml):
    """Before driver 570 a card at its slowdown temperature was not seen: the one limit that needs no record."""
    nvml.absent.add("nvmlDeviceGetMarginTemperature")
    source, line = opened(nvml)
    assert line.capabilities["margin_c"] == "ok"
    assert line.semantics["margin_c"] == "slowdown threshold minus core temperature"
    assert read(source, line).values["margin_c"] == 89.0 - 63.0
    assert source.read(line.uuid, {"margin_c"}).values == {"margin_c": 89.0 - 63.0}
    nvml.refusals["nvmlDeviceGetTemperatureV"] = 10
    assert read(source, line).missing["margin_c"] == "Timeout (10)"
    assert "margin_c" not in opened(type(nvml)())[1].semantics


def test_energy_falls_back_to_the_call_with_the_same_meaning(nvml):
    """Older drivers lack field 191; the call reads the same counter, so both must stay comparable."""
    before = opened(nvml)[1].semantics["energy_j"]
    nvml.fields[(191, 0)] = 2
    nvml.answers["nvmlDeviceGetTotalEnergyConsumption"] = 5_000
    source, line = opened(nvml)
    assert read(source, line).values["energy_j"] == 5.0
    assert line.semantics["energy_j"] == before


def test_fault_29_module_scope_is_labelled(nvml):
    """A superchip may only know the power of its whole module, CPU included: never to be compared with GPU scope."""
    nvml.fields[(186, 0)] = 3
    nvml.fields[(186, 1)] = (UINT, 800_000)
    source, line = opened(nvml)
    assert line.semantics["power_instant_w"] == "instant, module scope"
    assert read(source, line).values["power_instant_w"] == 800.0
    assert line.semantics["energy_j"] == "counter, module scope"


def test_fault_29_a_superchips_counter_is_that_of_its_module(nvml):
    """GPU scope may answer for power while the energy counter includes the CPU: added to RAPL it counts twice."""
    nvml.answers["nvmlDeviceGetName"] = "NVIDIA GH200 480GB"
    line = opened(nvml)[1]
    assert line.semantics["power_instant_w"] == "instant, GPU scope"
    assert line.semantics["energy_j"] == "counter, module scope"


def test_only_what_is_wanted_is_read(nvml):
    """The dear reads (energy, margin) cost milliseconds: a caller that does not want them must not pay for them."""
    source, line = opened(nvml)
    nvml.called.clear()
    assert set(source.read(line.uuid, {"sm_clock_mhz"}).values) == {"sm_clock_mhz"}
    assert nvml.called == ["nvmlDeviceGetClockInfo"]


def test_a_source_only_ever_reads(nvml):
    """A sampler that changes a clock or a limit would change what it measures, on somebody's production node."""
    source, line = opened(nvml)
    read(source, line)
    reads = r"nvml(Init$|DeviceGet|SystemGet|Gpm(Query|Sample|Metrics)|EventSet|DeviceRegisterEvents$)"
    assert all(re.match(reads, name) for name in nvml.called), nvml.called


def test_without_names_all_devices_are_opened(nvml):
    """An empty list of UUIDs means every device, not none."""
    assert [line.uuid for line in NvmlSource(nvml, ()).devices()] == [nvml.UUID]


def test_a_named_device_that_is_not_here_is_an_error(nvml):
    """A device that never appears must not look like a launch with one GPU fewer."""
    nvml.refusals["nvmlDeviceGetHandleByUUID"] = 6
    with pytest.raises(DeviceError, match=r"GPU-gone: NotFound \(6\)"):
        NvmlSource(nvml, ("GPU-gone",))


def test_a_mismatched_driver_says_what_to_do(nvml):
    """After a driver upgrade without a reboot NVML answers 18; the line must name the remedy."""
    nvml.refusals["nvmlInit"] = 18
    with pytest.raises(DeviceError, match=r"LibRmVersionMismatch \(18\).*reboot"):
        NvmlSource(nvml, ())


def test_tables_agree_with_the_binding():
    """The numbers are typed by hand; one wrong digit reads another sensor."""
    fields = {read.id for reads in table.READS.values() for read in reads if isinstance(read, table.Field)}
    named = {
        186: pynvml.NVML_FI_DEV_POWER_INSTANT,
        185: pynvml.NVML_FI_DEV_POWER_AVERAGE,
        190: pynvml.NVML_FI_DEV_POWER_CURRENT_LIMIT,
        191: pynvml.NVML_FI_DEV_ENERGY,
        82: pynvml.NVML_FI_DEV_MEMORY_TEMP,
        74: pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP,
        269: pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN,
        270: pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN,
        271: pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN,
        76: pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_SYNC_BOOST,
        138: pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX,
        139: pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX,
        197: pynvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES,
        198: pynvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES,
    }
    assert fields == set(named)
    health = {
        "ecc_corrected": (pynvml.NVML_FI_DEV_ECC_SBE_VOL_TOTAL,),
        "ecc_uncorrected": (pynvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL,),
        "remapped_rows": (pynvml.NVML_FI_DEV_REMAPPED_COR, pynvml.NVML_FI_DEV_REMAPPED_UNC),
        "remap_pending": (pynvml.NVML_FI_DEV_REMAPPED_PENDING, pynvml.NVML_FI_DEV_RETIRED_PENDING),
        "remap_failed": (pynvml.NVML_FI_DEV_REMAPPED_FAILURE,),
        "pcie_replays": (pynvml.NVML_FI_DEV_PCIE_REPLAY_COUNTER,),
        "pcie_errors": (
            pynvml.NVML_FI_DEV_PCIE_COUNT_CORRECTABLE_ERRORS, pynvml.NVML_FI_DEV_PCIE_COUNT_NON_FATAL_ERROR,
            pynvml.NVML_FI_DEV_PCIE_COUNT_FATAL_ERROR,
        ),
        "link_count": (pynvml.NVML_FI_DEV_NVLINK_LINK_COUNT,),
        "link_errors": (
            pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY, pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY,
            pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_CRC,
        ),
    }  # fmt: skip
    assert {entry: tuple(field.id for field in reads) for entry, reads in table.HEALTH_FIELDS.items()} == health
    assert table.GPM["tensor_active_share"][0] == pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL
    assert table.GPM["sm_active_share"][0] == pynvml.NVML_GPM_METRIC_SM_UTIL
    assert table.GPM["dram_active_share"][0] == pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL
    assert table.GPM["pcie_tx_mib_per_s"][0] == pynvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC
    assert table.GPM["pcie_rx_mib_per_s"][0] == pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC
    assert table.GPM["link_rx_mib_per_s"][0] == pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC
    assert table.GPM["link_tx_mib_per_s"][0] == pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC
    policies = (table.POLICY_POWER, table.POLICY_THERMAL, table.POLICY_SYNC_BOOST, table.POLICY_BOARD)
    assert policies == (
        pynvml.NVML_PERF_POLICY_POWER, pynvml.NVML_PERF_POLICY_THERMAL, pynvml.NVML_PERF_POLICY_SYNC_BOOST,
        pynvml.NVML_PERF_POLICY_BOARD_LIMIT,
    )  # fmt: skip
    assert all(number == constant for number, constant in named.items())
    assert pynvml.NVML_FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT == table.FIELD_SLOWDOWN_TLIMIT
    assert pynvml.NVML_FI_DEV_TEMPERATURE_SHUTDOWN_TLIMIT == table.FIELD_SHUTDOWN_TLIMIT
    assert pynvml.NVML_FI_DEV_POWER_MAX_LIMIT == table.FIELD_POWER_MAX_LIMIT
    assert (pynvml.NVML_CLOCK_SM, pynvml.NVML_CLOCK_MEM) == (table.CLOCK_SM, table.CLOCK_MEM)
    assert pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN == table.THRESHOLD_SLOWDOWN
    members = {name for name, _ in pynvml.c_nvmlValue_t._fields_}
    assert set(table.VALUE_MEMBERS.values()) == members
    assert len(table.VALUE_MEMBERS) == pynvml.NVML_VALUE_TYPE_COUNT
    assert all(getattr(pynvml, _constant(name)) == code for code, name in table.RETURN_CODES.items())


def _constant(name: str) -> str:
    return "NVML_ERROR_" + re.sub(r"(?<!^)(?=[A-Z])", "_", name).upper()
