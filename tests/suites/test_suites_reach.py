"""Every training row of the CharLLM study can be named as a test id. The tables are written out here a second time, in
the study's own terms, so that a slip in the suites has something to disagree with."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from pytest_charllm.hardware.catalogue import CATALOGUE, parse_assume
from pytest_charllm.scenario import Scenario
from pytest_charllm.scenario.feasibility import infeasible
from pytest_charllm.scenario.key import parse_key
from pytest_charllm.scenario.spec import Recompute, Sharding

ROOT = Path(__file__).parents[2]

# (TP, PP, EP) by index; DP is what remains of 32 or 64 GPUs, and EP partitions it. Index 5 shards with FSDP.
H200 = {
    "gpt3-175b": {1: (2, 16, 1), 2: (4, 8, 1), 3: (8, 4, 1), 4: (1, 32, 1), 5: (8, 1, 1)},
    "llama3-70b": {1: (8, 2, 1), 2: (4, 4, 1), 3: (2, 8, 1), 4: (1, 16, 1), 5: (8, 1, 1)},
    "mixtral-8x7b": {1: (1, 1, 8), 2: (2, 1, 4)},
    "mixtral-8x22b": {1: (1, 4, 8), 2: (2, 2, 8), 3: (4, 1, 8)},
}
H100 = {
    "gpt3-175b": {1: (2, 32, 1), 2: (4, 16, 1), 3: (8, 8, 1), 5: (8, 1, 1)},
    "llama3-70b": {1: (8, 4, 1), 2: (4, 8, 1), 3: (2, 16, 1), 4: (1, 32, 1), 5: (8, 1, 1)},
    "mixtral-8x7b": {1: (1, 2, 8), 2: (4, 1, 4), 3: (2, 2, 4), 4: (1, 4, 4)},
    "mixtral-8x22b": {1: (8, 1, 8), 2: (4, 2, 8), 3: (2, 4, 8), 4: (1, 8, 8)},
}
BITMAPS = {"00000": (False, False), "10000": (True, False), "01000": (False, True), "11000": (True, True)}
"""Suffix: (overlap, recomputation)."""
REPLICAS = {"gpt3-175b": 5, "llama3-70b": 5, "mixtral-8x7b": 3, "mixtral-8x22b": 4}
"""Index of LoRA's rows in which nothing is split and nothing sharded."""


class Row(NamedTuple):
    model: str
    tp: int
    pp: int
    dp: int
    ep: int
    fsdp: bool
    sequence_parallel: bool
    shares_optimizer: bool
    microbatch: int
    global_batch: int
    overlap: bool
    recompute: bool
    lora: int


def optimizations(table: dict[str, dict[int, tuple[int, int, int]]], world: int) -> Iterator[Row]:
    for model, indices in table.items():
        for index, (tp, pp, ep) in indices.items():
            fsdp, dp = index == 5, world // (tp * pp)
            batch = 32 if fsdp and world == 64 and model == "gpt3-175b" else 128
            for overlap, recompute in BITMAPS.values():
                yield Row(
                    model,
                    tp,
                    pp,
                    dp,
                    ep,
                    fsdp,
                    tp > 1 and not fsdp,
                    dp > 1 and not fsdp,
                    1,
                    batch,
                    overlap,
                    recompute,
                    0,
                )


def microbatches() -> Iterator[Row]:
    for row in optimizations(H200, 32):
        if row.recompute and not row.overlap:
            for size in (1, 2, 4, 8):
                yield row._replace(microbatch=size)


def lora() -> Iterator[Row]:
    for model, indices in H200.items():
        dense = model in ("gpt3-175b", "llama3-70b")
        split = {index: degrees for index, degrees in indices.items() if index < 5}
        for index, (tp, pp, ep) in {**split, REPLICAS[model]: (1, 1, 1)}.items():
            for size in (1, 2, 4, 8):
                batch = 64 if dense and (size > 1 or index == 5) else 128
                dp = 32 // (tp * pp)
                yield Row(model, tp, pp, dp, ep, False, tp > 1, False, size, batch, False, False, 32)


def row_of(scenario: Scenario) -> Row:
    layout, options = scenario.layout, scenario.options
    return Row(
        scenario.training.model, layout.tp, layout.pp, layout.dp, layout.ep, layout.sharding is Sharding.FSDP,
        layout.sequence_parallel and layout.tp > 1, options.distributed_optimizer, scenario.training.microbatch,
        scenario.global_batch, options.overlap, options.recompute is Recompute.FULL, options.lora,
    )  # fmt: skip


def collected(machine: str, *arguments: str) -> list[str]:
    """What pytest prints when it collects the suites there."""
    command = [
        sys.executable, "-m", "pytest", "suites/", f"--charllm-assume={machine}", "--collect-only", "-q",
        "-p", "no:cacheprovider", *arguments,
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout.splitlines()


@cache
def ids(machine: str) -> dict[str, dict[Row, Scenario]]:
    """What pytest lists of the study's models on an assumed machine: ``file::function`` -> rows."""
    listed: dict[str, dict[Row, Scenario]] = {}
    for line in collected(machine):
        found = re.fullmatch(r"suites/(\w+)\.py::(\w+)\[[a-z0-9]+-sxm-(.+)\]", line)
        if found and found[3].startswith(tuple(f"{model}." for model in H200)):
            scenario = parse_key(found[3])
            listed.setdefault(f"{found[1]}::{found[2]}", {})[row_of(scenario)] = scenario
    return listed


def listed(machine: str, file: str) -> dict[Row, Scenario]:
    """The rows of one suite file in the functions that are the study's tables, one a model."""
    tables = [f"{file}::test_{model.replace('-', '_')}" for model in H200]
    return {row: scenario for table in tables for row, scenario in ids(machine)[table].items()}


def broken(machine: str, scenarios: Iterable[Scenario]) -> Counter[str]:
    """How many of them break which rule first."""
    assumed = parse_assume(machine)
    found = (infeasible(scenario, CATALOGUE[assumed.variant], assumed) for scenario in scenarios)
    return Counter(rule.rule for rule in found if rule is not None)


SWEEPS = [
    ("h200:4x8", "test_parallelism", [row for row in optimizations(H200, 32) if row.recompute and not row.overlap], 15),
    ("h200:4x8", "test_optimizations", list(optimizations(H200, 32)), 60),
    ("h100:8x8", "test_optimizations", list(optimizations(H100, 64)), 68),
    ("h200:4x8", "test_microbatch", list(microbatches()), 60),
    ("h200:4x8", "test_lora", list(lora()), 68),
]


@pytest.mark.parametrize(("machine", "file", "rows", "count"), SWEEPS, ids=[f"{m}-{f}" for m, f, _, _ in SWEEPS])
def test_a_sweep_is_listed_row_by_row(machine: str, file: str, rows: list[Row], count: int) -> None:
    """A row of the study that no id names, and one in its tables that the study does not have."""
    assert len(set(rows)) == len(rows) == count
    here = listed(machine, file)
    assert not set(rows) - set(here), "of the study, and not listed"
    assert not set(here) - set(rows), "listed, and not of the study"


def test_rows_are_counted_once() -> None:
    """272 training files were shipped. 16 are strays: copies of other rows; 15 rows are in two sweeps."""
    files = sum(count for _, file, _, count in SWEEPS if file != "test_parallelism") + 16
    distinct = {(machine, row) for machine, _, rows, _ in SWEEPS for row in rows}
    assert (files, len(distinct)) == (272, 241)


def test_what_cannot_be_built_says_so() -> None:
    """Rows that were shipped and can never run: by rule, and not by running out of memory half an hour later.

    1 of the microbatches and 7 of LoRA do not divide the batch, 4 on H100 do not divide the layers. The eighth of LoRA
    that was shipped is a stray.
    """
    assert broken("h200:4x8", listed("h200:4x8", "test_microbatch").values())["batch"] == 1
    assert broken("h200:4x8", listed("h200:4x8", "test_lora").values())["batch"] == 7
    assert broken("h100:8x8", listed("h100:8x8", "test_optimizations").values())["pp"] == 4


@pytest.mark.parametrize(("machine", "file"), [sweep[:2] for sweep in SWEEPS])
def test_nothing_else_is_in_the_way(machine: str, file: str) -> None:
    """All other rows can be built by the engine; where memory is short, the estimate says how much."""
    rules = broken(machine, listed(machine, file).values())
    assert set(rules) <= {"batch", "pp", "memory"}


@pytest.mark.parametrize("machine", ["h200:1x1", "h200:1x8"])
def test_every_sweep_has_rows_on_a_smaller_machine(machine: str) -> None:
    """A sweep that only a cluster can run, and a row of a smaller machine that cannot run there after all."""
    assumed = parse_assume(machine)
    for _, file, _, _ in SWEEPS:
        tables = [rows for name, rows in ids(machine).items() if name.startswith(f"{file}::")]
        scenarios = [scenario for rows in tables for scenario in rows.values()]
        assert scenarios
        assert all(assumed.world % scenario.layout.world == 0 for scenario in scenarios)
        assert set(broken(machine, scenarios)) <= {"batch", "memory"}


def test_smoke_on_a_cpu_has_rows_of_every_file_that_can_run_there() -> None:
    """A question that the embedded default never asks: its suite file may be broken for weeks before a GPU says so."""
    files = {path.stem for path in (ROOT / "suites").glob("test_*.py")}
    listed = {
        found[1] for line in collected("cpu:1x2", "-m", "smoke") if (found := re.match(r"suites/(\w+)\.py::", line))
    }
    assert files - listed == {"test_frequency", "test_thermal"}, "nothing to lock, and no temperature to rely on"
