"""amdsmi as each ROCm answers it, over simulated boards. No AMD device was ever at hand: nothing here is measured."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from pytest_charllm.devices.amd import AmdSource
from pytest_charllm.devices.amd_calls import AmdError
from pytest_charllm.devices.simulated.amdsmi import LIBRARIES, AmdSmiLibraryException, SimulatedAmdsmi
from pytest_charllm.devices.simulated.source import Simulation
from pytest_charllm.devices.source import DeviceLostError
from pytest_charllm.errors import DeviceError
from pytest_charllm.records.telemetry import QUANTITIES, DeviceLine, SampleLine

S = 1_000_000_000


class Bench:
    """A source on simulated boards, whose clock stands still between reads. `answers` replaces what a call says."""

    def __init__(self, profile: str, uuids: tuple[str, ...] = ("GPU-0",), rocm: str = "7.0", **options: Any) -> None:
        self.now_ns = 5 * S
        self.simulation = Simulation(profile, uuids, clock=lambda: self.now_ns, sleep=self.sleep, **options)
        dies = self.simulation.module._dies
        self.smi = SimulatedAmdsmi(self.simulation.profile, dies, rocm)
        self.answers: dict[str, Callable[..., Any]] = {}

    def sleep(self, seconds: float) -> None:
        self.now_ns += round(seconds * S)

    def open(self, uuids: tuple[str, ...] = ()) -> AmdSource:
        for name, answer in self.answers.items():
            setattr(self.smi, name, answer)
        return AmdSource(self.smi, uuids, clock=lambda: self.now_ns, sleep=self.sleep)

    def device(self) -> DeviceLine:
        return self.open().devices()[0]

    def samples(self, source: AmdSource, seconds: float, period_s: float = 0.1) -> list[SampleLine]:
        line = source.devices()[0]
        wanted = [quantity for quantity, answer in line.capabilities.items() if answer == "ok"]
        told = []
        for _ in range(round(seconds / period_s)):
            self.sleep(period_s)
            told.append(source.read(line.uuid, wanted))
        return told


def power(**keys: Any) -> Callable[..., Any]:
    return lambda handle: keys


@pytest.mark.parametrize("rocm", LIBRARIES)
@pytest.mark.parametrize("profile", ["mi250", "mi300x"])
def test_every_release_gives_the_same_energy(rocm, profile):
    """The counter was called `power`, then both, then `energy_accumulator`; the clock `cur_clk`, then `clk`."""
    bench = Bench(profile, ("GPU-0", "GPU-1") if profile == "mi250" else ("GPU-0",), rocm)
    first, *_, last = bench.samples(bench.open(), 20.0)
    truth = bench.simulation.truth(first.mono_ns, last.mono_ns)
    assert last.values["energy_j"] - first.values["energy_j"] == pytest.approx(truth.energy_j, rel=0.01)
    assert last.values["sm_clock_mhz"] > 1000
    assert set(last.values) <= set(QUANTITIES)


@pytest.mark.parametrize("none", ["N/A", 65535, 4294967295, 2**64 - 1, None])
def test_fault_10_what_means_missing_is_missing(none):
    """Four spellings of "no such value", each of which was seen in somebody's average: the next key is taken."""
    bench = Bench("mi300x")
    bench.answers["amdsmi_get_power_info"] = power(
        socket_power=none, current_socket_power=none, average_socket_power=412
    )
    line = bench.device()
    assert line.capabilities["power_instant_w"].startswith("amdsmi_get_power_info: current_socket_power is ")
    assert line.semantics["power_average_w"] == "average_socket_power, whole package"
    assert "power_instant_w" not in line.semantics
    bench.answers["amdsmi_get_power_info"] = power(socket_power=none, current_socket_power=none)
    assert bench.device().capabilities["power_average_w"] != "ok"


def test_fault_10_an_average_is_never_called_an_instant():
    """`socket_power` of 7.x repeats the average on an MI250: what it means is told by the other two keys."""
    bench = Bench("mi250", ("GPU-0", "GPU-1"))
    line = bench.device()
    assert line.capabilities["power_instant_w"] != "ok"
    assert line.capabilities["power_average_w"] == "ok"
    bench = Bench("mi300x")
    bench.answers["amdsmi_get_power_info"] = power(socket_power=300, current_socket_power="N/A")
    assert bench.device().semantics["power_instant_w"] == "socket_power, whole package"


def test_fault_11_eight_dies_are_four_packages():
    """Only the first die of an MI250 reports power, for both: a sum over eight GPUs counts four packages."""
    bench = Bench("mi250", tuple(f"GPU-{i}" for i in range(8)))
    source = bench.open()
    lines = source.devices()
    assert [line.uuid for line in lines] == ["GPU-0", "GPU-2", "GPU-4", "GPU-6"]
    assert [part.uuid for part in lines[1].parts] == ["GPU-2", "GPU-3"]
    bench.sleep(5.0)
    total_w = sum(source.read(line.uuid, QUANTITIES).values["power_average_w"] for line in lines)
    assert total_w == pytest.approx(4 * bench.simulation.gpu.load_w, rel=0.1)


def test_fault_11_a_job_on_one_die_shares_its_package():
    """Power of one die cannot be told from its neighbour's: the device says what else is in it."""
    bench = Bench("mi250", tuple(f"GPU-{i}" for i in range(4)))
    (line,) = bench.open(("GPU-3",)).devices()
    assert line.uuid == "GPU-2"
    assert line.is_or_holds("GPU-3", None)
    assert {part.uuid for part in line.parts} - {"GPU-3"} == {"GPU-2"}


def test_fault_11_two_dies_that_both_claim_power_are_not_believed():
    """Adding them may count twice, taking one may count half: without knowing there is no number."""
    bench = Bench("mi250", ("GPU-0", "GPU-1"))
    bench.answers["amdsmi_get_power_info"] = lambda handle: {"average_socket_power": 300 + 60 * handle}
    assert "300 W, 360 W" in bench.device().capabilities["energy_j"]


def test_dies_without_serial_numbers_pair_by_their_place():
    """Not every board tells its serial number; the two dies of one then lie next to each other on the bus."""
    bench = Bench("mi250", tuple(f"GPU-{i}" for i in range(4)))
    bench.answers["amdsmi_get_gpu_board_info"] = lambda handle: {"product_serial": "N/A"}
    assert [[part.uuid for part in line.parts] for line in bench.open().devices()] == [
        ["GPU-0", "GPU-1"],
        ["GPU-2", "GPU-3"],
    ]


def test_fault_12_partitions_of_a_board_are_counted_once():
    """In CPX mode one MI300X is eight GPUs that all report the power of the whole socket."""
    bench = Bench("mi300x", tuple(f"GPU-{i}" for i in range(8)))
    bench.answers["amdsmi_get_gpu_device_bdf"] = lambda handle: f"0000:c1:00.{handle}"
    bench.answers["amdsmi_get_power_info"] = power(current_socket_power=600)
    (line,) = bench.open().devices()
    assert len(line.parts) == 8
    assert line.capabilities["power_instant_w"] == "ok"
    assert line.is_or_holds(None, "00000000:C1:00.5")


@pytest.mark.parametrize(("told", "degrees"), [(45000, 45.0), (45, 45.0), (0, None)])
def test_fault_17_degrees_and_thousandths(told, degrees):
    """The documentation says thousandths, the library divides already, and some divide again: nothing is at 0 degC."""
    bench = Bench("mi300x")
    bench.answers["amdsmi_get_temp_metric"] = lambda handle, kind, metric: told
    source = bench.open()
    line = source.devices()[0]
    if degrees is None:
        assert line.capabilities["core_temp_c"].endswith("implausible: 0")
    else:
        assert source.read(line.uuid, {"core_temp_c"}).values == {"core_temp_c": degrees}


def test_a_board_without_an_edge_sensor_uses_the_hot_spot():
    """MI300 has no edge sensor; readers that ask for it alone show no temperature at all."""
    line = Bench("mi300x").device()
    assert (line.capabilities["core_temp_c"], line.semantics["core_temp_c"]) == ("ok", "hot spot, hottest die")
    assert line.slowdown_temp_c == 100.0


@pytest.mark.parametrize(("told", "watts"), [(750_000_000, 750.0), (750, 750.0), ("N/A", None)])
def test_a_power_limit_is_in_watts_whatever_the_release(told, watts):
    """The same key was in watts, then in microwatts."""
    bench = Bench("mi300x")
    bench.answers["amdsmi_get_power_cap_info"] = lambda handle: {"power_cap": told}
    assert bench.device().power_limit_w == watts


def test_throttling_is_the_share_of_ticks_under_its_cause():
    """Accumulators count firmware ticks of a length nobody tells; their ratio is the share of time."""
    bench = Bench("mi300x")
    samples = bench.samples(bench.open(), 20.0)
    capped_ns = samples[-1].values["throttle_power_cap_ns"] - samples[0].values["throttle_power_cap_ns"]
    truth = bench.simulation.truth(samples[0].mono_ns, samples[-1].mono_ns)
    assert capped_ns / S == pytest.approx(truth.power_cap_s, rel=0.02)
    assert all(a.values["throttle_power_cap_ns"] <= b.values["throttle_power_cap_ns"] for a, b in pairwise(samples))


def test_energy_carries_the_time_at_which_it_was_true():
    """The counter has a stamp of its own, of another clock: placed on ours it never lies after the read."""
    bench = Bench("mi300x")
    samples = bench.samples(bench.open(), 3.0, 0.03)
    assert all(sample.at_ns["energy_j"] <= sample.mono_ns for sample in samples)
    assert max(sample.mono_ns - sample.at_ns["energy_j"] for sample in samples) > 0.05 * S


def restamped(bench: Bench, stamp: Callable[[int], int]) -> list[SampleLine]:
    """Ten minutes of reads, whose stamps are what `stamp` makes of the right ones."""
    answered = bench.smi.amdsmi_get_energy_count

    def answer(handle: int) -> dict[str, Any]:
        told = answered(handle)
        return told | {"timestamp": stamp(told["timestamp"])}

    bench.answers["amdsmi_get_energy_count"] = answer
    return bench.samples(bench.open(), 600.0, 1.0)


def test_the_two_clocks_may_drift_apart():
    """One source serves a whole night, in which a stamp's clock that loses a thousandth falls half a minute behind."""
    samples = restamped(Bench("mi300x"), lambda stamp: round(0.999 * stamp))
    assert max(sample.mono_ns - sample.at_ns["energy_j"] for sample in samples) < 0.25 * S


def test_a_stamp_of_another_unit_is_not_believed():
    """Microseconds would put a joule a minute before its time, and the window with it."""
    samples = restamped(Bench("mi300x"), lambda stamp: stamp // 1000)
    assert not any("energy_j" in sample.at_ns for sample in samples[1:])
    assert samples[-1].values["energy_j"] > 0


def test_a_counter_that_disagrees_with_power_is_off():
    """Counters that stand still, or count in another unit, were seen with mixed versions."""
    bench = Bench("mi300x")
    bench.answers["amdsmi_get_energy_count"] = lambda handle: {
        "energy_accumulator": 1000, "counter_resolution": 15.259, "timestamp": bench.now_ns
    }  # fmt: skip
    assert bench.device().capabilities["energy_j"] == "counted 0.00 times what power says: not believed"


def test_none_of_the_slow_calls_is_made():
    """These sleep for a tenth of a second to a second inside, or have locked up a kernel."""
    bench = Bench("mi250", ("GPU-0", "GPU-1"))
    called = []

    def refuse(name: str) -> Callable[..., Any]:
        def function(*_: Any) -> Any:
            called.append(name)
            raise AmdSmiLibraryException(2)

        return function

    for name in ("violation_status", "pcie_info", "pcie_throughput", "vram_usage", "memory_usage"):
        bench.answers[f"amdsmi_get_{name}"] = bench.answers[f"amdsmi_get_gpu_{name}"] = refuse(name)
    source = bench.open()
    bench.samples(source, 1.0)
    source.snapshot("GPU-0", "end")
    assert called == []


def test_a_lost_board_is_lost():
    """NOT_FOUND for a board that was found: it fell off the bus, and no later read can succeed."""
    bench = Bench("mi300x+lost")
    source = bench.open()
    with pytest.raises(DeviceLostError, match=r"NOT_FOUND \(31\)"):
        bench.samples(source, 3.0)


def test_a_pass_waits_for_its_turn_but_not_for_ever(monkeypatch):
    """amdsmi is not safe in two threads; a call that hangs on one GPU must leave a gap of the others, not hang them."""
    monkeypatch.setattr("pytest_charllm.devices.amd.BUSY_S", 0.01)
    bench = Bench("mi300x")
    source = bench.open()
    with source._turn:
        sample = source.read("GPU-0", {"core_temp_c"})
    assert sample.values == {"core_temp_c": None}
    assert "held by another GPU's call" in sample.missing["core_temp_c"]


def test_a_named_gpu_that_is_not_here_is_an_error():
    """One GPU fewer must not look like a job that was smaller."""
    with pytest.raises(DeviceError, match=r"amdsmi lists no GPU-9; here are: GPU-0"):
        Bench("mi300x").open(("GPU-9",))


def test_a_refusal_keeps_its_code():
    """A bug report without the code cannot be looked up."""
    assert str(AmdError(10)) == "NO_PERM (10)"
    assert "render and video" in AmdError(10).explain("amdsmi does not start")
