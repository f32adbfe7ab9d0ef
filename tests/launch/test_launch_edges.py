from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_charllm.launch.edges import EARLY_SHARE, LATE_SHARE, START_S, edges
from pytest_charllm.launch.launcher import left_out
from pytest_charllm.launch.request import Progress
from pytest_charllm.telemetry.dense import Kind, Spans

S = 1_000_000_000


def announced(phase: str, at_s: float = 0.0, *, warms_up: bool = True, **told) -> list[tuple[Kind, float, float]]:
    """Kind, and seconds from now."""
    progress = Progress(phase, told.get("step"), None, at_s, told.get("expected_s"))
    found = edges(progress, 100 * S, warms_up=warms_up)
    return [(each.kind, (each.begin_ns - 100 * S) / S, (each.end_ns - 100 * S) / S) for each in found]


def spans(expected_s: float) -> list[tuple[float, float]]:
    """Where a window of this length is looked at closely."""
    told = announced("window", expected_s=expected_s)
    assert {kind for kind, _, _ in told} == {Kind.DENSE}
    return [(begin, end) for _, begin, end in told]


@given(st.floats(0.01, 3600.0), st.floats(1 - EARLY_SHARE, 1 + LATE_SHARE))
def test_a_window_is_announced_at_both_ends(expected_s, off):
    """The energy counter is read once a second: without dense reads an edge lies up to a second from any of them."""
    covered = spans(expected_s)
    begins_s = 0.18, 0.28  # after its word
    ends_s = begins_s[0] + off * expected_s
    for moment in (0.0, *begins_s, begins_s[1] + 0.15, ends_s - 0.1, ends_s + 0.1):
        assert any(begin <= moment < end for begin, end in covered), moment


def test_the_middle_of_a_long_window_is_left_alone():
    """Dear reads at 10 Hz for a whole window would cost more than the sampler may."""
    assert not any(begin <= 30.0 < end for begin, end in spans(60.0))


@pytest.mark.parametrize(("phase", "step"), [("warm-up", 8), ("compile", None), ("window", 3), ("start", None)])
def test_what_is_no_edge_is_not_looked_at_closely(phase, step):
    """Warm-up is a row of short groups: looking closely at the end of each was half of what the sampler cost."""
    assert not {kind for kind, _, _ in announced(phase, step=step, expected_s=2.0)} & {Kind.DENSE, Kind.LAST}


def test_it_rests_until_warm_up():
    """Half of a launch is start, build and compile: read at full pace they cost as much as the window. The first second
    is not rested, since it tells how warm the device is; and a rank that is quick must not cut that short."""
    assert announced("start") == [(Kind.REST, START_S, 120.0)]
    assert announced("build", at_s=0.5) == [(Kind.REST, pytest.approx(START_S - 0.5), 120.0)]
    assert announced("compile", at_s=9.0) == [(Kind.REST, 0.0, 120.0)]
    ((kind, begin, _),) = announced("warm-up", step=1)
    assert (kind, begin) == (Kind.NEAR, 0.0)


@pytest.mark.parametrize("phase", ["start", "build", "compile", "script", "trace", "window"])
def test_what_has_no_warm_up_never_rests(phase):
    """Where a script's window lies is known from its marks alone, afterwards; a sweep begins right after its start."""
    assert Kind.REST not in {kind for kind, _, _ in announced(phase, warms_up=False, step=1)}


def test_the_report_ends_the_close_look():
    """It follows the end of the window, however late that was; calibration comes next, is no edge, and nobody asks how
    warm it was."""
    announced = Spans()
    for phase, at_s in (("window", 0.0), ("report", 11.4)):
        for span in edges(Progress(phase, None, None, 1.0, 10.0), round(at_s * S), warms_up=True):
            announced.add(span, round(at_s * S))
    held = [announced.at(round(at_s * S)) for at_s in (11.4, 11.45, 11.55, 12.5)]
    assert held == [Kind.DENSE, Kind.DENSE, Kind.REST, Kind.REST]


@pytest.mark.parametrize(("uuids", "left"), [(("GPU-a",), {"link_tx_kib", "link_rx_kib"}), (("GPU-a", "GPU-b"), set())])
def test_links_are_not_asked_of_a_gpu_that_is_alone(make_request, uuids, left):
    """They take 3 of the 9 ms of a full pass, and tell nothing where there is nobody to talk to."""
    assert set(left_out(make_request(device_uuids=uuids))) == left
