"""Energy of a window: interpolation between refreshes, cross-check, and every way in which it can be missing."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_charllm.measure.energy import counter_energy, energy, integral_energy
from pytest_charllm.measure.series import Series, integral
from pytest_charllm.measure.windows import DeviceWindow, device_windows
from pytest_charllm.records import Trace


def window_of(make: SimpleNamespace, trace: Trace, begin_s: float = 2.0, end_s: float = 7.0) -> DeviceWindow:
    launch = make.launch([make.report(window=make.window_ns(begin_s, end_s))])
    (window,), reason = device_windows(launch, trace, is_cpu=False)
    assert reason is None
    return window


def power_trace(make: SimpleNamespace, power: Any, **options: Any) -> Trace:
    return make.trace({"energy_j": make.counter(power), "power_instant_w": power}, **options)


@settings(deadline=None)
@given(begin_s=st.floats(0.5, 5.0), length_s=st.floats(1.0, 3.0), power_w=st.floats(50.0, 700.0))
def test_constant_power_is_power_times_time_at_any_edge(
    make: SimpleNamespace, begin_s: float, length_s: float, power_w: float
) -> None:
    """The raw counter difference is quantised by the 100 ms refresh: equal launches read 10.72 or 10.94 mJ/token."""
    window = window_of(make, power_trace(make, lambda t: power_w), begin_s, begin_s + length_s)
    assert counter_energy(window).value == pytest.approx(power_w * window.duration_s, rel=1e-6)
    assert integral_energy(window).value == pytest.approx(power_w * window.duration_s, rel=1e-6)


@settings(deadline=None)
@given(
    powers=st.lists(st.floats(50.0, 700.0), min_size=91, max_size=91),
    edges=st.lists(st.floats(0.5, 8.5), min_size=3, max_size=3).map(sorted).filter(
        lambda e: e[1] - e[0] > 1.0 and e[2] - e[1] > 1.0
    ),
)  # fmt: skip
def test_energy_adds_up_over_adjoining_windows(make: SimpleNamespace, powers: list[float], edges: list[float]) -> None:
    """An edge counted twice or lost would make the energy of a launch depend on where its window was cut."""
    trace = power_trace(make, lambda t: powers[round(t * 10)])
    a, b, c = edges
    for way in (counter_energy, integral_energy):
        first, second, whole = (way(window_of(make, trace, *span)).value for span in ((a, b), (b, c), (a, c)))
        assert None not in (first, second, whole)
        assert first + second == pytest.approx(whole, rel=1e-6)


def test_sampling_faster_than_the_refresh_changes_nothing(make: SimpleNamespace) -> None:
    """A repeated counter value taken as fresh would bend the line between two refreshes."""
    slow = window_of(make, power_trace(make, lambda t: 600.0, period_s=0.1), 2.03, 7.08)
    fast = window_of(make, power_trace(make, lambda t: 600.0, period_s=0.02), 2.03, 7.08)
    assert counter_energy(fast).value == pytest.approx(counter_energy(slow).value, rel=1e-6)


@pytest.mark.parametrize(
    ("begin_s", "end_s", "edge"), [(2.5, 9.0, "before the window's begin"), (0.0, 6.9, "after the window's end")]
)
def test_not_bracketed_is_missing(make: SimpleNamespace, begin_s: float, end_s: float, edge: str) -> None:
    """Extrapolating to an edge that nobody watched would invent joules."""
    trace = power_trace(make, lambda t: 600.0, begin_s=begin_s, end_s=end_s)
    value, _ = energy(window_of(make, trace))
    assert value.value is None
    assert f"no reading {edge}" in (value.reason or "")


def test_first_reading_of_the_counter_brackets_nothing(make: SimpleNamespace) -> None:
    """How old the first value already was is not known, so it cannot hold an edge."""
    trace = power_trace(make, lambda t: 600.0, begin_s=1.95)
    assert "not bracketed" in (counter_energy(window_of(make, trace, 2.0, 7.0)).reason or "")


def test_edge_inside_a_hole_is_not_bracketed(make: SimpleNamespace) -> None:
    """A line drawn over two seconds around an edge would mix load with what came before or after."""
    joules = make.counter(lambda t: 600.0)
    window = window_of(make, make.trace({"energy_j": lambda t: None if 6 < t < 8 else joules(t)}))
    assert "around the window's end" in (counter_energy(window).reason or "")


def test_reset_counter_is_missing_and_integral_steps_in(make: SimpleNamespace) -> None:
    """A driver reload in the window would leave tiny or negative energy that looks like a great improvement."""
    joules = make.counter(lambda t: 600.0)
    trace = make.trace({"energy_j": lambda t: joules(t) - (3000 if t > 5 else 0), "power_instant_w": lambda t: 600.0})
    value, finding = energy(window_of(make, trace))
    assert value.value == pytest.approx(3000.0)
    assert value.source == "integral"
    assert "went backwards" in (value.reason or "")
    assert finding is None


@pytest.mark.parametrize(
    ("factor", "kept", "told"), [(1.04, True, False), (1.10, True, True), (0.90, True, True), (1.30, False, False)]
)
def test_counter_and_integral_check_each_other(make: SimpleNamespace, factor: float, kept: bool, told: bool) -> None:
    """A counter that covers another scope than the power reading has to be noticed, not averaged away."""
    signals = {"energy_j": make.counter(lambda t: 500.0), "power_instant_w": lambda t: 500.0 * factor}
    value, finding = energy(window_of(make, make.trace(signals)))
    assert (value.value is not None) is kept
    assert (finding is not None) is told
    if kept:
        assert value.source == "counter"
        assert value.value == pytest.approx(2500.0)
    else:
        assert "apart" in (value.reason or "")


@pytest.mark.parametrize(
    ("samples", "ring", "share", "told"),
    [
        (1.06, 1.004, 1.0, ""),
        (1.00, 1.10, 1.0, "counter 2500 J and the driver's own readings 2750 J are 10 % apart"),
        (1.06, 1.004, 0.9, "counter 2500 J and integral 2650 J are 6 % apart"),
    ],
)
def test_the_ring_checks_better_than_samples(
    make: SimpleNamespace, samples: float, ring: float, share: float, told: str
) -> None:
    """A night of FSDP2 on two H200s could not go on record: power swings within its steps, and 150 samples of a window
    were 5.1 % above the counter by luck, where 832 readings of the driver's ring agreed with it to 0.4 %."""
    value, finding = energy(with_ring(make, samples, ring, share))
    assert value.value == pytest.approx(2500.0)
    assert (finding.text.partition(": ")[2] if finding else "") == told


def with_ring(make: SimpleNamespace, samples: float, ring: float, share: float = 1.0) -> DeviceWindow:
    """A window of 500 W by the counter; samples and ring as shares of that, the ring over a share of the window."""
    signals = {"energy_j": make.counter(lambda t: 500.0), "power_instant_w": lambda t: 500.0 * samples}
    window = window_of(make, make.trace(signals))
    times_ns = tuple(range(window.begin_ns, window.begin_ns + round(share * window.duration_ns), 20_000_000))
    powers_w = tuple(500.0 * ring + (1 if n % 2 else -1) for n in range(len(times_ns)))
    return dataclasses.replace(window, ring=Series(times_ns, powers_w))


def test_a_ring_with_a_hole_or_stuck_checks_nothing(make: SimpleNamespace) -> None:
    """It holds 2.4 s on an H200: one read that comes later leaves a hole, which the readings at both ends of it would
    be drawn across. And one that stands still was 20 % off where counter and samples agreed, which cost the energy."""
    window = with_ring(make, 1.0, 0.7)
    times_ns, powers_w = window.ring
    middle = slice(len(times_ns) // 4, len(times_ns) // 2)
    holed = Series(
        times_ns[: middle.start] + times_ns[middle.stop :], powers_w[: middle.start] + powers_w[middle.stop :]
    )
    stuck = Series(times_ns, (350.0,) * len(times_ns))
    assert energy(window)[0].value is None
    for ring in (holed, stuck):
        value, finding = energy(dataclasses.replace(window, ring=ring))
        assert (value.value, finding) == (pytest.approx(2500.0), None)


def test_samples_that_are_wrong_are_told_though_the_ring_is_right(make: SimpleNamespace) -> None:
    """The ring excuses what 150 samples miss by luck, not a reading of another scope: peaks are made of samples."""
    value, finding = energy(with_ring(make, 2.0, 1.0))
    assert value.value == pytest.approx(2500.0)
    assert finding is not None
    assert "integral 5000 J are 100 % apart" in finding.text


def test_the_ring_of_a_board_says_nothing_of_its_module(make: SimpleNamespace) -> None:
    """On a superchip the counter is of GPU and CPU together."""
    window = with_ring(make, 1.0, 0.5)
    line = msgspec.structs.replace(window.line, semantics={"energy_j": "counter, module scope"})
    assert energy(dataclasses.replace(window, line=line)) == (energy(with_ring(make, 1.0, 1.0))[0], None)


@pytest.mark.parametrize(("factor", "kept", "told"), [(1.10, True, False), (1.19, False, False), (0.85, True, False)])
def test_a_short_window_is_not_blamed_for_its_edges(
    make: SimpleNamespace, factor: float, kept: bool, told: bool
) -> None:
    """Sweeps of collectives on two H200s last 1.2 to 1.7 s: four of five launches were tainted by their own edges, 5 to
    14 % apart, so that no curve could go on record."""
    signals = {"energy_j": make.counter(lambda t: 500.0), "power_instant_w": lambda t: 500.0 * factor}
    value, finding = energy(window_of(make, make.trace(signals), 2.0, 3.2))
    assert (value.value is not None) is kept
    assert (finding is not None) is told


def test_without_power_the_counter_stands_alone_and_says_so(make: SimpleNamespace) -> None:
    """A silent fallback would make two kinds of numbers look alike."""
    trace = make.trace(
        {"energy_j": make.counter(lambda t: 600.0)}, capabilities={"energy_j": "ok", "power_instant_w": "NotSupported"}
    )
    value, _ = energy(window_of(make, trace))
    assert value.value == pytest.approx(3000.0)
    assert value.source == "counter"
    assert "NotSupported" in (value.reason or "")


def test_hole_in_the_window_hurts_the_integral_alone(make: SimpleNamespace) -> None:
    """A counter knows what passed while nobody looked; an integral would draw a straight line over it."""
    joules = make.counter(lambda t: 600.0)
    seen = {
        "energy_j": lambda t: None if 4 < t < 6 else joules(t),
        "power_instant_w": lambda t: None if 4 < t < 6 else 600.0,
    }
    window = window_of(make, make.trace(seen))
    assert counter_energy(window).value == pytest.approx(3000.0)
    area = integral_energy(window)
    assert area.value is None
    assert area.coverage == pytest.approx(0.6, abs=0.03)


def test_counter_above_any_possible_power_is_missing(make: SimpleNamespace) -> None:
    """A counter in other units than believed reads a thousand times too much."""
    value = counter_energy(window_of(make, make.trace({"energy_j": make.counter(lambda t: 900.0)})))
    assert value.value is None
    assert "limit of 700 W" in (value.reason or "")


def test_window_shorter_than_a_second_has_no_counter_energy(make: SimpleNamespace) -> None:
    """Ten refreshes are too few to interpolate between."""
    window = window_of(make, power_trace(make, lambda t: 600.0), 3.0, 3.5)
    assert "shorter" in (counter_energy(window).reason or "")


@pytest.mark.parametrize("tag", ["aa_1", "g3_2", "unfused"])
def test_integral_of_recorded_power_agrees_with_the_counter(recorded: dict[str, dict[str, Any]], tag: str) -> None:
    """On an H200 the two ways have to stay within the band that taints a measurement."""
    row = recorded[tag]
    readings = Series(
        tuple(round(sample[0] * 1e9) for sample in row["telemetry"]), tuple(sample[2] for sample in row["telemetry"])
    )
    begin_ns, end_ns = readings.times_ns[0], readings.times_ns[-1]
    mean_w = integral(readings, begin_ns, end_ns) / ((end_ns - begin_ns) / 1e9)
    assert mean_w == pytest.approx(row["energy_counter_delta_j"] / row["window_s"], rel=0.03)


def test_a_stamped_counter_is_read_at_its_stamp(make: SimpleNamespace) -> None:
    """An AMD board says when its joules were true, here 100 ms before they were read: by the time of the read a window
    of 5 s that begins and ends with its load has a fiftieth of it outside."""
    joules = make.counter(lambda t: 600.0 if 2 <= t < 7 else 100.0, refresh_s=0.001)
    trace = make.trace({"energy_j": lambda t: joules(t - 0.1)})
    stamped = tuple(
        msgspec.structs.replace(sample, at_ns={"energy_j": sample.mono_ns - 100_000_000})
        for sample in trace.samples["GPU-0"]
    )
    by_stamp = window_of(make, msgspec.structs.replace(trace, samples={"GPU-0": stamped}))
    assert counter_energy(window_of(make, trace)).value == pytest.approx(2950, abs=1)
    assert counter_energy(by_stamp).value == pytest.approx(3000, abs=1)
