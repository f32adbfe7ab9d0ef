"""What is judged of a collective alone on GPUs: one number a message size, so that the size that moved has a name.

On a CPU nothing is: gloo's threads share their cores with everything else.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from pytest_charllm.judge.noise import launches_together
from pytest_charllm.judge.reference import Recorded, scaled_runs
from pytest_charllm.judge.tolerances import Tolerance
from pytest_charllm.records import Noise
from pytest_charllm.records.curve import LATENCY_BOUND, judged, latency
from pytest_charllm.scenario import Collective
from pytest_charllm.scenario.collective import sizes_of

LATENCY = Tolerance(floor=0.15, cap=0.40, prior_sigma=0.04)
BANDWIDTH = Tolerance(floor=0.05, cap=0.15, prior_sigma=0.015)
"""Of changes that people reported of NCCL and drivers, the smallest would be seen: -9 % of bandwidth at large messages
(nccl-tests 297), some 10 us of 33 below 32 KiB (nccl 2094) where the host starts calls at an even pace."""
HOST_BOUND = 1.5
"""A message that takes at most so many times as long as the smallest one waits for its host, which starts the call, and
not for its links. On two H200s that is so up to 4 MiB, of p2p up to 16, and launches were 20 to 60 % apart."""
REQUIRED_FROM = 64 << 20
"""Bytes from which on two H200s a call waits for its links: three launches of each operation were within 3 %, and those
of three other pairs."""


def collective_rules(work: Collective) -> dict[str, Tolerance]:
    """By metric, the smallest message first."""
    return {judged(size): LATENCY if size <= LATENCY_BOUND else BANDWIDTH for size in sizes_of(work)}


def collective_required(work: Collective) -> tuple[str, ...]:
    """The metrics without which there is no PASS: of large messages, or of the largest that is sent."""
    sizes = sizes_of(work)
    return tuple(judged(size) for size in sizes if size >= min(REQUIRED_FROM, sizes[-1]))


def noise_of_small(work: Collective, recorded: Sequence[Recorded]) -> dict[str, Noise]:
    """By metric, how far launches are apart of messages that wait for the host (`HOST_BOUND`), by all of them together:
    one host starts them all, so one size whose few launches agree is calm by luck. Empty where they are too few."""
    times_s = {
        size: [seconds for run in recorded for each in run.samples if (seconds := each.values.get(latency(size)))]
        for size in sizes_of(work)
    }
    medians_s = {size: statistics.median(each) for size, each in times_s.items() if each}
    shortest_s = next(iter(medians_s.values()), 0.0)
    waiting = [judged(size) for size, seconds in medians_s.items() if seconds <= HOST_BOUND * shortest_s]
    launch = launches_together([run for metric in waiting for run in scaled_runs(metric, recorded)])
    return dict.fromkeys(waiting, Noise(launch=launch)) if launch else {}
