"""What a row's blocks come to: rates, energy from the sampler's file, ratios by round, and the table. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tabulate import tabulate

from in_turn.told import Block, Built, Failed, Matmul, Plan, Told
from pytest_charllm.measure.energy import energy
from pytest_charllm.measure.series import Series, mean
from pytest_charllm.measure.windows import DeviceWindow
from pytest_charllm.records import Trace
from pytest_charllm.scenario import Scenario
from pytest_charllm.scenario.flops import FLOP_FORMULA, flops_per_token
from pytest_charllm.scenario.models import tokens_per_step


@dataclass(frozen=True)
class Seen:
    """The telemetry of a row, and which of its devices trained."""

    trace: Trace | None
    uuids: tuple[str, ...]

    def windows(self, block: Block) -> list[DeviceWindow]:
        """Of each device over what counts of a block; none without telemetry of all of them."""
        if self.trace is None or not all(uuid in self.trace.devices for uuid in self.uuids):
            return []
        meta = self.trace.meta
        return [
            DeviceWindow(
                uuid=uuid,
                line=self.trace.devices[uuid],
                samples=self.trace.samples[uuid],
                begin_ns=block.begin_ns,
                end_ns=block.end_ns,
                period_ns=round(max(meta.period_s, self.trace.devices[uuid].refresh_s) * 1e9),
                slow_period_ns=round(max(meta.period_s, meta.slow_period_s or 0.0) * 1e9),
            )
            for uuid in self.uuids or tuple(self.trace.devices)
        ]


def figures(scenario: Scenario, told: Sequence[Told], seen: Seen) -> dict[str, Any]:
    """One row as it goes into the file. Throughput and powers are of one GPU."""
    world, tokens = scenario.layout.world, tokens_per_step(scenario)
    plan = next((each for each in told if isinstance(each, Plan)), None)
    products = [each for each in told if isinstance(each, Matmul)]
    matmul = statistics.median(each.flop_per_s for each in products) if products else None
    flops = flops_per_token(scenario, FLOP_FORMULA)
    variants: dict[str, dict[str, Any]] = {}
    for built in (each for each in told if isinstance(each, Built)):
        blocks = [each for each in told if isinstance(each, Block) and each.variant == built.variant]
        entries = [_block(each, tokens, world, seen) for each in blocks]
        rate = _median(entries, "tokens_per_s_per_gpu")
        variants[built.variant] = {
            "tokens_per_s_per_gpu": rate,
            "share_of_matmul": None if rate is None or matmul is None else rate * flops / matmul,
            "j_per_token": _median(entries, "j_per_token"),
            "mean_power_w": _median(entries, "mean_power_w"),
            "sm_clock_mhz": _median(entries, "sm_clock_mhz"),
            "peak_bytes": max((each.peak_bytes for each in blocks if each.peak_bytes is not None), default=None),
            "held_bytes": built.held_bytes,
            "attention": built.attention,
            "experts": built.experts,
            "parameters": built.parameters,
            "first_step_s": built.first_step_s,
            "first_loss": built.first_loss,
            "last_loss": blocks[-1].last_loss if blocks else None,
            "compiled_in_blocks": sum(each.compiled for each in blocks),
            "blocks": entries,
        }
    return {
        "scenario": scenario.key,
        "gpus": world,
        "tokens_per_step": tokens,
        "flops_per_token": flops,
        "matmul_flop_per_s": matmul,
        "matmul": [{"round": each.round, "flop_per_s": each.flop_per_s, "width": each.width} for each in products],
        "rounds": None if plan is None else plan.rounds,
        "block_s": None if plan is None else plan.block_s,
        "apart": None if plan is None else plan.apart,
        "devices": [] if plan is None else [each.uuid or each.name for each in plan.devices],
        "torch": None if plan is None else plan.software.torch,
        "variants": variants,
        "ratios": _ratios(variants),
        "failed": {each.variant: each.message for each in told if isinstance(each, Failed)},
    }


def _block(block: Block, tokens: int, world: int, seen: Seen) -> dict[str, Any]:
    trained = tokens * len(block.step_s)
    windows = seen.windows(block)
    joules = [energy(window)[0] for window in windows]
    known = [each.value for each in joules if each.value is not None]
    total = sum(known) if known and len(known) == len(joules) else None
    clocks = [clock for window in windows if (clock := _clock(window)) is not None]
    return {
        "round": block.round,
        "tokens_per_s_per_gpu": trained / block.elapsed_s / world,
        "j_per_token": None if total is None else total / trained,
        "energy_source": " and ".join(sorted({each.source for each in joules if each.source})) or None,
        "energy_reason": None if total is not None else next((each.reason for each in joules if each.reason), None),
        "mean_power_w": None if total is None else total / world / ((block.end_ns - block.begin_ns) / 1e9),
        "sm_clock_mhz": statistics.mean(clocks) if clocks and len(clocks) == len(windows) else None,
        "dropped": block.dropped,
        "step_s": [round(each, 6) for each in block.step_s],
        "begin_ns": block.begin_ns,
        "end_ns": block.end_ns,
        "peak_bytes": block.peak_bytes,
    }


def _clock(window: DeviceWindow) -> float | None:
    def over(readings: Series) -> float:
        return mean(readings, window.begin_ns, window.end_ns)

    return window.sampled("sm_clock_mhz", "MHz", over).value


def _ratios(variants: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The first variant's throughput over each other's, round by round. Smallest and largest of n rounds hold the
    median of all rounds there could be with a confidence of 1 - 2^(1 - n)."""
    by_round = {
        name: {each["round"]: each["tokens_per_s_per_gpu"] for each in variant["blocks"]}
        for name, variant in variants.items()
    }
    ratios = {}
    first, *others = by_round or {"": {}}
    for other in others:
        rounds = sorted(by_round[first].keys() & by_round[other].keys())
        each = [by_round[first][number] / by_round[other][number] for number in rounds]
        if each:
            ratios[other] = {
                "of": first,
                "median": statistics.median(each),
                "smallest": min(each),
                "largest": max(each),
                "confidence": 1 - 2.0 ** (1 - len(each)),
                "rounds": each,
            }
    return ratios


def table(rows: Sequence[dict[str, Any]]) -> str:
    """A line a variant; its ratio is that of the row's first variant over it."""
    lines = []
    for row in rows:
        for name, variant in row["variants"].items():
            ratio = row["ratios"].get(name)
            peak, j_per_token = variant["peak_bytes"], variant["j_per_token"]
            lines.append([
                row["scenario"],
                name,
                variant["tokens_per_s_per_gpu"],
                None if ratio is None else "{median:.3f} ({smallest:.3f}..{largest:.3f})".format(**ratio),
                variant["share_of_matmul"],
                None if j_per_token is None else 1e3 * j_per_token,
                variant["mean_power_w"],
                None if peak is None else peak / 2**30,
                variant["attention"],
                row["tokens_per_step"],
            ])  # fmt: skip
    if not lines:
        return "nothing was measured"
    headers = [
        "scenario", "variant", "tokens/s/GPU", "first over it", "of matmul", "mJ/token", "W/GPU", "peak GiB",
        "attention", "tokens/step",
    ]  # fmt: skip
    formats = ("", "", ",.0f", "", ".3f", ".3f", ".0f", ".1f", "", "")
    return tabulate(lines, headers=headers, floatfmt=formats, missingval="-", disable_numparse=[1, 3, 8])


def _median(entries: list[dict[str, Any]], name: str) -> float | None:
    values = [each[name] for each in entries if each[name] is not None]
    return statistics.median(values) if values else None
