"""The rules, the most specific first. Each looks at the evidence and says one line, or nothing.

A change explains a loss of which it is at least half. A rule that needs what was not measured is silent; `unknown` then
says what was missing.
"""

from __future__ import annotations

from collections.abc import Callable

from pytest_charllm.judge.diagnosis.cards import (
    EXPLAINS,
    KERNEL,
    hottest,
    late_rank,
    slow_card,
    slow_rank,
)
from pytest_charllm.judge.diagnosis.evidence import Evidence, Move
from pytest_charllm.judge.diagnosis.words import added, seconds, told
from pytest_charllm.judge.wording import moved
from pytest_charllm.records import Diagnosis

CLOCK = 0.01
"""SM clocks of unchanged code on one H200 were within 0.5 % of each other."""
POWER = 0.03
"""The floor of mean power."""
THROTTLED = 0.02
"""More of the window under thermal slowdown than on record, as a share: the floor of its tolerance."""
BRAKE = 0.001
AT_THE_LIMIT = 0.5
LINK = 0.05
"""An all-reduce of 256 MiB this much slower than on record."""
NOT_TIMED = "time in communication and gaps of the host are not on record"


def workload(e: Evidence) -> Diagnosis | None:
    """Other kernels, other collectives or another script did the work: that is what changed, whatever it did to the
    speed."""
    if not e.workload:
        return None
    parts = "; ".join(f"{part} {before} on record, {here} here" for part, before, here in e.workload)
    return Diagnosis(
        rule="workload", cause=f"the workload changed: {parts}", text=f"the workload changed: {parts}; {e.changed}"
    )


def thermal(e: Evidence) -> Diagnosis | None:
    return _throttled(e, ("throttle_sw_thermal", "throttle_hw_thermal"), THROTTLED, "thermal slowdown", "cooling")


def brake(e: Evidence) -> Diagnosis | None:
    return _throttled(e, ("throttle_hw_brake",), BRAKE, "hardware power brake", "power supply")


def power_cap(e: Evidence) -> Diagnosis | None:
    """Lower clocks at the power limit, with a calibration that is as fast as ever: the step draws more a cycle."""
    clock, share, matmul = e.move("sm_clock"), e.move("throttle_power_cap"), e.move("matmul_time")
    if not _explains(e, clock, CLOCK) or share.now is None or share.now < AT_THE_LIMIT:
        return None
    evidence = [clock.text, f"held at the power limit {seconds(e, share)}"]
    evidence += [matmul.text] if matmul.change is not None else []
    step = e.product_slower is not None and e.product_slower < KERNEL
    return told(
        e, "power-cap", evidence, f"power limit{', more power a cycle of the step' if step else ''}; {e.changed}"
    )


def lower_clock(e: Evidence) -> Diagnosis | None:
    """Lower clocks that no counter accounts for."""
    move = e.move("sm_clock")
    limits = {"throttle_sw_thermal": THROTTLED, "throttle_hw": BRAKE, "throttle_power_cap": AT_THE_LIMIT}
    counters = [e.move(metric) for metric in limits]
    if not _explains(e, move, CLOCK):
        return None
    if any(counter.now is None or counter.now >= limits[counter.metric] for counter in counters):
        return None
    cause = f"a lower clock that nothing throttles: application clocks or clock limits; {e.changed}"
    return told(e, "clock", [move.text, *(counter.text for counter in counters)], cause)


def link(e: Evidence) -> Diagnosis | None:
    """The same all-reduce takes longer, though the cards are as fast as before."""
    reduce, matmul = e.move("all_reduce_time"), e.move("matmul_time")
    if reduce.change is None or reduce.change < LINK or e.product_slower is None or e.product_slower >= KERNEL:
        return None
    return told(e, "link", [reduce.text, matmul.text], f"links or the collective library; {e.changed}")


def exposed(e: Evidence) -> Diagnosis | None:
    """Communication that computation hid before: lost overlap, or more of it than there is to hide it.

    Where one rank is late that is in what the others show, so the late one's own counts, which waits for nobody.
    """
    move, whole = e.move("exposed_communication"), e.move("communication_time")
    late = late_rank(e)
    if late is not None:
        move = move._replace(now=e.ranks(move.metric)[late.rank])
    if not _lengthens(e, move):
        return None
    return told(e, "exposed", [added(move), added(whole)], f"communication is exposed; {e.changed}")


def host_gap(e: Evidence) -> Diagnosis | None:
    """Time in which nothing was on the device: whatever feeds it became slower."""
    move = e.move("host_gap")
    if not _lengthens(e, move):
        return None
    return told(e, "host-gap", [added(move)], f"the device is idle, waiting for its host; {e.changed}")


def waiting(e: Evidence) -> Diagnosis | None:
    """The clock is there, or lower by too little to tell, the watts are not: the GPU had nothing to do."""
    clock, power = e.move("sm_clock"), e.move("mean_power")
    if not e.lost or clock.change is None or _explains(e, clock, CLOCK):
        return None
    if power.change is None or power.change > -POWER:
        return None
    unknown = "" if e.traced_both else f" ({NOT_TIMED})"
    cause = f"the GPU waited for host, input or communication{unknown}; {e.changed}"
    return told(e, "waiting", [clock.text, power.text, e.move("matmul_time").text], cause)


def software(e: Evidence) -> Diagnosis | None:
    """Neither clock, nor watts, nor the card's own kernels fell by enough to tell: more work, or slower kernels."""
    clock, power, matmul = e.move("sm_clock"), e.move("mean_power"), e.move("matmul_time")
    if not e.lost or clock.change is None or _explains(e, clock, CLOCK):
        return None
    if power.change is None or power.change <= -POWER:
        return None
    if e.product_slower is None:
        cause = f"software, or a card that is slower at the same clock; {e.changed}"
    elif e.product_slower < max(KERNEL, EXPLAINS * e.lost):
        cause = f"software: kernels or framework; {e.changed}"
    else:
        return None
    return told(e, "software", [clock.text, power.text, matmul.text], cause)


def cpu_work(e: Evidence) -> Diagnosis | None:
    """On a CPU the calibration beside every step already stands for the machine."""
    if not e.regressed("cost_cpu"):
        return None
    evidence = [f"CPU time of a step against the calibrations beside it, {e.move('matmul_time').text}"]
    return told(e, "software", evidence, f"software: more CPU work a step; {e.changed}")


def cpu_waiting(e: Evidence) -> Diagnosis | None:
    cpu = e.move("cost_cpu")
    if not e.regressed("cost_wall") or e.regressed("cost_cpu") or cpu.change is None:
        return None
    return told(
        e, "waiting", [f"Gate A {moved('cost_cpu', cpu.change)}"], f"ranks wait, they do not compute; {e.changed}"
    )


def draws_more(e: Evidence) -> Diagnosis | None:
    """More watts or joules, though not for a loss of speed."""
    power, speed = e.move("mean_power"), e.move("throughput")
    if e.lost or not e.regressed("energy_per_token", "mean_power") or power.change is None or power.change < 0:
        return None
    faster = speed.change is not None and speed.change > POWER
    cause = f"more power at {'a higher' if faster else 'the same'} speed; {e.changed}"
    return told(e, "power", [power.text, speed.text, e.move("sm_clock").text], cause)


def hotter(e: Evidence) -> Diagnosis | None:
    """More degrees at the same watts."""
    power = e.move("mean_power")
    if not e.regressed("core_temp_end", "hbm_temp_end", "margin_min", "heating", "core_temp_spread"):
        return None
    if power.change is None or power.change >= POWER:
        return None
    rank = hottest(e, "throttle_sw_thermal")
    degrees = [e.move(metric).text for metric in ("core_temp_end", "hbm_temp_end") if e.move(metric).change is not None]
    return told(e, "cooling", [*degrees, power.text], f"cooling{'' if rank is None else f', {e.slot(rank)}'}")


def memory(e: Evidence) -> Diagnosis | None:
    move = e.move("peak_memory")
    if not e.regressed("peak_memory") or move.now is None or move.before is None:
        return None
    return told(e, "memory", [f"{(move.now - move.before) / 2**20:+,.0f} MiB at the peak"], f"allocation; {e.changed}")


def compilation(e: Evidence) -> Diagnosis | None:
    move = e.move("compile_time")
    if not e.regressed("compile_time") or move.now is None or move.before is None:
        return None
    return told(
        e, "compile", [f"{move.now:.0f} s with a cold cache, {move.before:.0f} s on record"], f"compiler; {e.changed}"
    )


def unknown(e: Evidence) -> Diagnosis:
    """What would have to be known. A CPU has neither clocks nor watts to ask for, but time of two kinds."""
    if not e.launches[0].device_uuids:
        by_wall = e.regressed("throughput", "step_time")
        other = e.move("step_cpu_time" if by_wall else "step_time")
        return told(e, "unknown", [other.text] if other.change is not None else [], f"cause not known; {e.changed}")
    asked = ("sm_clock", "mean_power", "throttle_sw_thermal", "matmul_time")
    missing = [move.text for move in map(e.move, asked) if move.change is None]
    evidence = missing or [e.move(metric).text for metric in asked]
    return told(e, "unknown", evidence, f"cause not known; {e.changed}")


Rule = Callable[[Evidence], Diagnosis | None]
OF_CARDS: tuple[Rule, ...] = (slow_rank, slow_card)
"""Asked whatever the verdict: a card may be slow within the tolerance of every scenario."""
CAUSES: tuple[Rule, ...] = (
    thermal, brake, slow_rank, slow_card, power_cap, lower_clock, link, exposed, host_gap,
)  # fmt: skip
"""Each with evidence of its own."""
BY_EXCLUSION: tuple[Rule, ...] = (waiting, software)
"""Asked where no cause has spoken: they conclude from what did not move."""
BESIDE: tuple[Rule, ...] = (cpu_work, cpu_waiting, draws_more, hotter, memory, compilation)
"""Of metrics that move for reasons of their own."""


def _throttled(e: Evidence, metrics: tuple[str, ...], limit: float, what: str, cause: str) -> Diagnosis | None:
    """More throttled time than on record: on one of several cards that card is named."""
    moves = [e.move(metric) for metric in metrics]
    over = [move for move in moves if move.now is not None and move.now - (move.before or 0.0) >= limit]
    if not over:
        return None
    worst = max(over, key=lambda move: move.now or 0.0)
    rank = hottest(e, worst.metric)
    uuid = None if rank is None else e.uuid(rank)
    evidence = [e.move("sm_clock").text, f"{what} {seconds(e, worst)}"]
    return told(
        e, worst.metric.removeprefix("throttle_"), evidence, cause if rank is None else f"{cause}, {e.slot(rank)}",
        () if uuid is None else (uuid,),
    )  # fmt: skip


def _explains(e: Evidence, move: Move, least: float) -> bool:
    """Whether something fell by enough to account for the loss. At the power cap another card's clock is no reason: one
    that needs more watts runs at a lower one, by 7 % where its product took 2.8 % longer."""
    if e.foreign and move.metric == "sm_clock" and (e.move("throttle_power_cap").now or 0.0) >= AT_THE_LIMIT:
        return False
    return bool(e.lost) and move.change is not None and -move.change >= max(least, EXPLAINS * e.lost)


def _lengthens(e: Evidence, move: Move) -> bool:
    """Whether this part of a traced step grew by enough to account for the loss."""
    return bool(e.lost) and e.traced_both and move.change is not None and move.change >= EXPLAINS * e.lost_s
