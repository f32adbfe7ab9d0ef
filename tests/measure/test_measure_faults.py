"""Faults of sensors, clocks and boards, as a measurement has to come out of them. Numbered as they are listed."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from pytest_charllm.measure.measurement import measure
from pytest_charllm.records import EventLine, Finding, Measurement, Stack, Trace, Validity
from pytest_charllm.records.telemetry import DevicePace, SnapshotLine
from pytest_charllm.telemetry.reader import read_trace

RECORDED = Path(__file__).parents[1] / "data" / "traces" / "h200-sxm-recorded.jsonl"


def moving(make: SimpleNamespace) -> dict[str, Any]:
    """A load that is not flat: every reading of power differs from the one before."""
    noise = random.Random(0)
    powers = [600.0 + noise.uniform(-40, 40) for _ in range(2000)]

    def power(t: float) -> float:
        return powers[round(10 * t)]

    return make.healthy() | {"energy_j": make.counter(power), "power_instant_w": power, "power_average_w": power}


def measured(make: SimpleNamespace, signals: dict[str, Any], **options: Any) -> Measurement:
    return measure(make.launch(), make.trace(signals, **options), make.machine())


def found(measurement: Measurement, kind: str) -> list[Finding]:
    return [finding for finding in measurement.findings if finding.kind == kind]


def test_fault_06_without_a_counter_the_integral_is_used_and_labelled(make: SimpleNamespace) -> None:
    """A virtual GPU has no energy counter; its sum over samples must not pass for one."""
    signals = {q: signal for q, signal in make.healthy().items() if q != "energy_j"}
    capabilities = dict.fromkeys(signals, "ok") | {"energy_j": "field 191: NotSupported (3)"}
    value = measured(make, signals, capabilities=capabilities).values["mean_power"]
    assert value.value == pytest.approx(600.0)
    assert value.source == "integral"
    assert value.reason == "no counter to check against: energy_j: field 191: NotSupported (3)"
    measurement = measured(make, signals, capabilities=capabilities)
    assert measurement.semantics["energy_j"] == "integral of power_instant_w"


def test_fault_08_a_counter_that_was_reset_is_not_used(make: SimpleNamespace) -> None:
    """Its difference is negative, or terawatts where it is taken for a wrap; the integral is told beside the reason."""
    joules = make.counter(lambda t: 600.0)
    signals = make.healthy() | {"energy_j": lambda t: joules(t) if t < 4 else joules(t) - joules(4.0)}
    measurement = measured(make, signals)
    value = measurement.values["energy_per_token"]
    assert value.source == "integral"
    assert "energy_j went backwards: the counter was reset" in (value.reason or "")
    alone = {q: signal for q, signal in signals.items() if q != "power_instant_w"}
    assert measured(make, alone).number("energy_per_token") is None


@pytest.mark.parametrize(("glitches", "kept"), [(1, True), (3, False)])
def test_fault_19_one_glitch_is_forgiven_a_broken_sensor_is_not(
    make: SimpleNamespace, glitches: int, kept: bool
) -> None:
    """A reading of 10 kW leaves the peak as it was; where they come in numbers, what is left is no evidence either."""
    trace = make.trace(moving(make))
    samples = [
        replace(
            sample,
            values=sample.values | {"power_instant_w": None},
            missing={"power_instant_w": "implausible: 10000"},
        )
        if 40 <= i < 40 + 4 * glitches and i % 4 == 0
        else sample
        for i, sample in enumerate(trace.samples["GPU-0"])
    ]
    measurement = measure(make.launch(), replace(trace, samples={"GPU-0": tuple(samples)}), make.machine())
    peak = measurement.values["peak_power"]
    if kept:
        assert peak.value is not None
        assert 600 < peak.value < 700
    else:
        assert peak.value is None
        assert peak.reason == "power_instant_w implausible in 3 of 51 readings, the first 10000"
    assert measurement.number("mean_power") is not None


def test_fault_20_a_stuck_sensor_is_stale(make: SimpleNamespace) -> None:
    """Power reads the same for ever while its neighbour moves: a meter that contradicts itself proves nothing."""
    measurement = measured(make, moving(make) | {"power_instant_w": lambda t: 612.5})
    for metric in ("peak_power", "mean_power", "energy_per_token"):
        value = measurement.values[metric]
        assert value.value is None
        assert value.reason == "power_instant_w stale: unchanged for 5.0 s while power_average_w moved"
    assert measurement.number("throughput") is not None


def test_fault_20_power_and_counter_stuck_together(make: SimpleNamespace) -> None:
    """The whole meter hangs: a positive power and a counter that stands still cannot both be true."""
    stuck = {"power_instant_w": lambda t: 612.5, "power_average_w": lambda t: 612.5, "energy_j": lambda t: 1000.0}
    measurement = measured(make, moving(make) | stuck)
    for metric in ("energy_per_token", "mean_power", "peak_power"):
        assert measurement.values[metric].value is None
        assert "stale: unchanged for 5.0 s" in (measurement.values[metric].reason or "")


def test_fault_20_a_counter_that_stops_in_mid_window(make: SimpleNamespace) -> None:
    """Two seconds without a joule on a board under load are two seconds of an old reading."""
    signals = moving(make)
    joules = signals["energy_j"]
    signals["energy_j"] = lambda t: joules(4.0) if 4 <= t < 6 else joules(t)
    value = measured(make, signals).values["mean_power"]
    assert (value.value, value.reason) == (None, "energy_j stale: unchanged for 1.9 s")


def test_fault_20_a_flat_load_is_not_stuck(make: SimpleNamespace) -> None:
    """The counter advances evenly at that power, and nobody saw it move."""
    measurement = measured(make, make.healthy())
    assert measurement.number("peak_power") == pytest.approx(600.0)
    assert measurement.values["mean_power"].source == "counter"


def test_fault_20_a_temperature_that_never_warms_is_stuck(make: SimpleNamespace) -> None:
    """Whole degrees stand still for minutes, but not from idle to full load."""
    power = {"power_instant_w": lambda t: 80.0 if t < 1 else 600.0 + t, "core_temp_c": lambda t: 35.0}
    value = measured(make, make.healthy() | power).values["core_temp_end"]
    assert value.reason == "core_temp_c stale: 35 degC all the time while power more than doubled"


def test_fault_21_telemetry_cut_off_in_the_window(make: SimpleNamespace) -> None:
    """The sampler was killed: what it left is read, and carries nothing about the whole window."""
    trace = replace(make.trace(make.healthy(), end_s=6.0), end=None, torn_lines=1)
    measurement = measure(make.launch(), trace, make.machine())
    assert "not bracketed: no reading after the window's end" in (measurement.values["mean_power"].reason or "")
    assert measurement.number("throughput") is not None
    assert found(measurement, "telemetry-cut-off")[0].text == "the sampler did not end on its own terms, 1 torn"


def test_fault_23_a_suspended_machine_is_invalid(make: SimpleNamespace) -> None:
    """The clock of the window stands still while the machine sleeps, and the boards cool."""
    event = EventLine(kind="suspended", mono_ns=make.T0_NS + 4 * 10**9, text="the machine was suspended for 30.0 s")
    trace = replace(make.trace(make.healthy()), events=(event,))
    measurement = measure(make.launch(), trace, make.machine())
    assert (measurement.validity, measurement.reason) == (Validity.INVALID, "the machine was suspended for 30.0 s")
    before = replace(event, mono_ns=make.T0_NS)
    assert measure(make.launch(), replace(trace, events=(before,)), make.machine()).validity is Validity.VALID


def test_a_suspension_noticed_after_the_window_counts(make: SimpleNamespace) -> None:
    """The sampler looks once a second: asleep in the last of a window of 2 to 7 s, it is told at 7.6 s."""
    event = EventLine(kind="suspended", mono_ns=make.T0_NS + 7_600_000_000, text="the machine was suspended for 30.0 s")
    trace = replace(make.trace(make.healthy()), events=(event,))
    assert measure(make.launch(), trace, make.machine()).validity is Validity.INVALID
    later = replace(event, mono_ns=make.T0_NS + 8_600_000_000)
    assert measure(make.launch(), replace(trace, events=(later,)), make.machine()).validity is Validity.VALID


def test_an_xid_of_no_known_device_taints(make: SimpleNamespace) -> None:
    """A handle that is not recognised left the error untold, anywhere."""
    event = EventLine(kind="xid", mono_ns=make.T0_NS + 4 * 10**9, text="Xid 79: fell off the bus")
    measurement = measure(make.launch(), replace(make.trace(make.healthy()), events=(event,)), make.machine())
    assert measurement.validity is Validity.TAINTED
    assert measurement.reason == "a device of this node: Xid 79: fell off the bus"


def test_fault_24_a_short_or_empty_window_has_no_energy(make: SimpleNamespace) -> None:
    """Ten refreshes are too few; a window without length must not end in a division by zero."""
    trace = make.trace(make.healthy())
    short = measure(make.launch([make.report(window=make.window_ns(3.0, 3.6))]), trace, make.machine())
    for metric in ("mean_power", "energy_per_token"):
        value = short.values[metric]
        assert (value.value, value.reason) == (None, "a window of 0.60 s is shorter than 1 s")
    empty = measure(make.launch([make.report(window=make.window_ns(3.0, 3.0))]), trace, make.machine())
    assert empty.values["mean_power"].reason == "the window of rank 0 has no length"
    no_steps = measure(make.launch([make.report(steps=None)]), trace, make.machine())
    assert (no_steps.validity, no_steps.reason) == (Validity.INVALID, "rank 0 reports no steps")


def node(make: SimpleNamespace, odd: dict[str, Any], **line: Any) -> Measurement:
    """Four GPUs, the third of them with other signals and another line."""
    uuids = tuple(f"GPU-{i}" for i in range(4))
    trace = make.trace(make.healthy(), uuids)
    other = make.trace(make.healthy() | odd, ("GPU-2",), pci="0000:4b:00.0", **line)
    trace = replace(trace, devices=trace.devices | other.devices, samples=trace.samples | other.samples)
    return measure(make.launch([make.report(rank, 4) for rank in range(4)]), trace, make.machine(uuids))


def test_fault_27_a_capped_gpu_among_others_is_named(make: SimpleNamespace) -> None:
    """All ranks wait for it, so no step time tells which it is: UUID, slot and cause come from its own sensors."""
    odd = {"sm_clock_mhz": lambda t: 1100.0, "throttle_power_cap_ns": lambda t: t * 0.98e9}
    (finding,) = found(node(make, odd, power_limit_w=500.0), "slow-device")
    assert finding.text == (
        "GPU-2 in slot 0000:4b:00.0: SM clock 1,100 MHz, the others 1,500; power limit 500 W, the others 700; "
        "power cap 98 % of the window; power brake 1 % of the window"
    )


def test_fault_27_a_locked_clock_has_no_cause(make: SimpleNamespace) -> None:
    """A clock that somebody locked throttles for no reason that a counter would show."""
    silent = {q: (lambda t: 0.0) for q in make.healthy() if q.startswith("throttle_")}
    (finding,) = found(node(make, silent | {"sm_clock_mhz": lambda t: 1100.0}), "slow-device")
    assert finding.text.endswith("nothing throttles it: are clocks locked?")
    assert found(node(make, {}), "slow-device") == []


def long_run(make: SimpleNamespace, core: Any) -> Measurement:
    """A window of 130 s."""
    signals = make.healthy() | {
        "core_temp_c": core,
        "power_instant_w": lambda t: 100.0 if t < 1.5 else 600.0,
        "energy_j": make.counter(lambda t: 600.0, refresh_s=0.5),
    }
    report = make.report(window=make.window_ns(2.0, 132.0))
    return measure(make.launch([report]), make.trace(signals, end_s=134.0, period_s=0.5, refresh_s=0.5), make.machine())


def test_fault_28_never_steady_withholds_temperatures_alone(make: SimpleNamespace) -> None:
    """A board that still warms has no steady temperature; how fast it trained is known all the same."""
    measurement = long_run(make, lambda t: 30.0 + t / 60)
    assert measurement.number("core_temp_slope") == pytest.approx(1.0)
    for metric in ("core_temp_steady", "thermal_resistance"):
        assert measurement.values[metric].reason == "not steady: core at +1.0 degC/min"
    assert measurement.number("throughput") is not None
    assert measurement.number("core_temp_end") is not None


def test_a_steady_board_has_a_thermal_resistance(make: SimpleNamespace) -> None:
    """30 degrees more for 500 W more than at the start."""
    measurement = long_run(make, lambda t: 30.0 if t < 1.5 else 60.0)
    assert measurement.number("core_temp_steady") == pytest.approx(60.0)
    assert measurement.number("thermal_resistance") == pytest.approx(30 / 500)


def test_fault_32_a_node_without_telemetry_leaves_no_total(make: SimpleNamespace) -> None:
    """The energy of one of two nodes would look like a job that halved its bill."""
    ranks = [make.report(0, 2), make.report(1, 2, host="node-2")]
    measurement = measure(make.launch(ranks), make.trace(make.healthy(), ("GPU-0", "GPU-1")), make.machine())
    assert measurement.values["energy_per_token"].reason == "rank 1 ran on node-2, telemetry is of node"
    assert measurement.number("energy_per_token") is None


def recorded_launch(make: SimpleNamespace, trace: Trace) -> Measurement:
    """The recorded trace, with a window in its load."""
    (uuid,) = trace.devices
    last_ns = trace.samples[uuid][-1].mono_ns
    report = make.report(host=trace.meta.host)
    edges = replace(make.window_ns(0, 1), begin_mono_ns=last_ns - 9 * 10**9, end_mono_ns=last_ns - 4 * 10**9)
    report = replace(report, window=edges, device=replace(report.device, uuid=uuid))
    return measure(make.launch([report]), trace, make.machine((uuid,)))


@pytest.mark.parametrize("how", ["at-random", "in-one-piece"])
def test_a_recorded_trace_with_holes_is_not_measured(make: SimpleNamespace, how: str) -> None:
    """40 % of the readings lost: also where no two of them are far apart, the rest is no sample of the whole."""
    trace = read_trace(RECORDED)
    whole = recorded_launch(make, trace)
    (uuid, samples), *_ = trace.samples.items()
    chosen = random.Random(1)
    end_ns = samples[-1].mono_ns
    left = tuple(
        sample
        for sample in samples
        if (
            chosen.random() < 0.6
            if how == "at-random"
            else not end_ns - 8 * 10**9 < sample.mono_ns < end_ns - 6 * 10**9
        )
    )
    holed = recorded_launch(make, replace(trace, samples={uuid: left}))
    for metric in ("core_temp_end", "hbm_temp_end", "peak_power", "margin_min", "sm_clock"):
        assert whole.number(metric) is not None
        value = holed.values[metric]
        assert value.value is None
        assert "% of the window, 95 % needed" in (value.reason or "")


def test_a_slowed_sampler_is_held_to_its_own_pace(make: SimpleNamespace) -> None:
    """It said that it reads half as often: that is on record, and no loss of readings."""
    trace = make.trace(moving(make), period_s=0.2)
    trace = replace(trace, meta=replace(trace.meta, period_s=0.1))
    assert measure(make.launch(), trace, make.machine()).number("peak_power") is None
    pace = DevicePace(passes=46, period_s=0.2, latency_p50_ns=1, latency_p95_ns=1, latency_max_ns=1)
    assert trace.end is not None
    slowed = replace(trace, end=replace(trace.end, pace={"GPU-0": pace}))
    assert measure(make.launch(), slowed, make.machine()).number("peak_power") is not None


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ({"ecc_uncorrected": 0.0}, {"ecc_uncorrected": 2.0}, "GPU-0: 2 uncorrected memory errors during the launch"),
        ({"link_errors": 5.0}, {"link_errors": 9.0}, "GPU-0: 4 link errors during the launch"),
        ({"pcie_replays": 5.0}, {"pcie_replays": 9.0}, None),
        ({"ecc_uncorrected": None}, {"ecc_uncorrected": 2.0}, None),
    ],
)
def test_errors_counted_meanwhile_taint(
    make: SimpleNamespace, before: dict[str, Any], after: dict[str, Any], said: str | None
) -> None:
    """Memory that corrects itself and links that send twice are slow in a way that is not the software's."""
    snapshots = tuple(
        SnapshotLine(uuid="GPU-0", when=when, mono_ns=1, values=values)
        for when, values in (("start", before), ("end", after))
    )
    trace = replace(make.trace(make.healthy()), snapshots=snapshots)
    measurement = measure(make.launch(), trace, make.machine())
    assert measurement.reason == said
    assert measurement.validity is (Validity.TAINTED if said else Validity.VALID)


def test_bursts_come_from_the_driver_s_ring_where_it_has_them(make: SimpleNamespace) -> None:
    """A burst between two samples is seen by the driver alone; the spacing says what could be seen at all."""
    trace = make.trace(make.healthy())
    sampled = measure(make.launch(), trace, make.machine()).values["power_burstiness"]
    assert (sampled.value, sampled.source) == (pytest.approx(0.0), "samples, one every 100 ms")
    ring = tuple((make.T0_NS + i * 20_000_000, 900.0 if i % 20 == 0 else 600.0) for i in range(450))
    dense = measure(make.launch(), replace(trace, power_ring={"GPU-0": ring}), make.machine())
    value = dense.values["power_burstiness"]
    assert (value.value, value.source) == (pytest.approx(0.5), "driver's ring, one every 20 ms")


def snapshot(values: dict[str, Any]) -> tuple[SnapshotLine, ...]:
    return (SnapshotLine(uuid="GPU-0", when="start", mono_ns=1, values=values),)


def test_a_device_that_is_not_fit_is_invalid_and_says_which_command_shows_it(make: SimpleNamespace) -> None:
    """Found out a week later, a broken board would have been a week of regressions."""
    trace = replace(make.trace(make.healthy()), snapshots=snapshot({"remap_failed": 1.0}))
    measurement = measure(make.launch(), trace, make.machine())
    assert measurement.validity is Validity.INVALID
    assert measurement.reason == (
        "GPU-0: a memory row could not be remapped: have the board replaced "
        "(see nvidia-smi -q -d ECC,ROW_REMAPPER -i GPU-0)"
    )


def test_the_power_limit_is_the_one_of_this_trace(make: SimpleNamespace) -> None:
    """A sampler that serves a run knows the limit of its start; a prologue between two launches may have lowered it."""
    trace = make.trace(make.healthy() | {"power_limit_w": lambda t: 600.0})
    assert measure(make.launch(), trace, make.machine()).power_limit_w == 600.0


def test_a_lower_power_limit_is_a_line_and_no_more(make: SimpleNamespace) -> None:
    """Sites cap their cards for good reasons; such numbers are compared among themselves."""
    trace = replace(make.trace(make.healthy()), snapshots=snapshot({"default_power_limit_w": 1000.0}))
    measurement = measure(make.launch(), trace, make.machine())
    assert measurement.validity is Validity.VALID
    assert "power limit 700 W, below its default of 1000 W" in found(measurement, "preflight")[0].text


@pytest.mark.parametrize(
    ("highest", "share", "locked"), [(1980.0, 0.0, True), (1980.0, 0.5, False), (1500.0, 0.0, False)]
)
def test_a_locked_clock_taints(make: SimpleNamespace, highest: float, share: float, locked: bool) -> None:
    """A plateau that nothing explains; at the highest clock, or under a cap, there is an explanation."""
    still = {q: (lambda t: 0.0) for q in make.healthy() if q.startswith("throttle_")}
    still["throttle_power_cap_ns"] = lambda t: share * t * 1e9
    trace = replace(make.trace(make.healthy() | still), snapshots=snapshot({"sm_clock_max_mhz": highest}))
    measurement = measure(make.launch(), trace, make.machine())
    assert measurement.validity is (Validity.TAINTED if locked else Validity.VALID)
    assert ("SM clock stands at 1,500 of 1,980 MHz" in (measurement.reason or "")) is locked


@pytest.mark.parametrize(
    ("asked", "validity", "told"),
    [(1500, Validity.VALID, False), (1200, Validity.TAINTED, True), (1800, Validity.VALID, True)],
)
def test_a_clock_that_the_scenario_locks_is_held_to_it(
    make: SimpleNamespace, asked: int, validity: Validity, told: bool
) -> None:
    """Tainted for the lock that was asked for, it could never go on record; and above it there is no lock at all."""
    silent = {q: (lambda t: 0.0) for q in make.healthy() if q.startswith("throttle_")}
    trace = replace(make.trace(make.healthy() | silent), snapshots=snapshot({"sm_clock_max_mhz": 1980.0}))
    scenario = make.scenario()
    locked = replace(scenario, options=replace(scenario.options, sm_clock=asked))
    measurement = measure(make.launch(scenario=locked), trace, make.machine())
    assert measurement.validity is validity
    texts = [finding.text for finding in measurement.findings]
    assert any(text.endswith(f"SM clock of 1,500 MHz on average, locked to {asked:,}") for text in texts) is told


def test_mixed_drivers_are_invalid(make: SimpleNamespace) -> None:
    """A node that missed the update slows all others, and neither driver could be blamed."""
    ranks = [make.report(0, 2, software=Stack(driver="580.1")), make.report(1, 2, software=Stack(driver="570.2"))]
    measurement = measure(make.launch(ranks), None, make.machine())
    assert measurement.reason == "ranks ran on different drivers: 570.2 and 580.1"


def read_once_a_second(signal: Any) -> Any:
    return lambda t: signal(t) if abs(t - round(t)) < 0.01 else None


def test_a_slow_quantity_is_expected_once_a_second(make: SimpleNamespace) -> None:
    """What is dear is read ten times more seldom: with one period for all, every window of a GPU would have gaps."""
    signals = make.healthy()
    signals |= {quantity: read_once_a_second(signals[quantity]) for quantity in ("margin_c", "power_instant_w")}
    trace = make.trace(signals, slow=("margin_c",))
    trace = replace(trace, meta=replace(trace.meta, slow_period_s=1.0))
    measurement = measure(make.launch(), trace, make.machine())
    assert measurement.number("margin_min") is not None
    assert "power_instant_w seen in" in (measurement.values["peak_power"].reason or "")
