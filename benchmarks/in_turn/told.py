"""What a row's ranks are asked to do, and what the first of them tells while it runs: a JSON line each."""

from __future__ import annotations

from pathlib import Path

import msgspec

from pytest_charllm.records import RankDevice, Stack


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    """One row. `until_ns`: CLOCK_MONOTONIC by which its last block should have ended; `out`: where the lines go.

    `source` and `uuids` are the sampler's, which the first rank starts and writes to `trace`.
    """

    variants: tuple[str, ...]
    wheel: str
    rounds: int
    block_s: float
    least_block_s: float
    settle_s: float
    matmul_s: float
    until_ns: int
    limit_s: float
    apart: bool
    source: str
    uuids: tuple[str, ...]
    trace: str
    out: str


class Plan(msgspec.Struct, frozen=True, kw_only=True, tag="plan"):
    """How the time that was left is spent. `apart`: why variants are not in memory together, None where they are."""

    rounds: int
    block_s: float
    apart: str | None
    devices: tuple[RankDevice, ...]
    software: Stack


class Built(msgspec.Struct, frozen=True, kw_only=True, tag="built"):
    """A variant that is warm. `first_step_s` holds its compilation; `held_bytes` is what it keeps between steps."""

    variant: str
    parameters: int | None
    attention: str | None
    experts: str | None
    first_loss: float
    first_step_s: float
    step_s: float
    held_bytes: int | None


class Block(msgspec.Struct, frozen=True, kw_only=True, tag="block"):
    """Steps of one variant without a wait inside. The first `dropped` count for nothing; `step_s`, `elapsed_s` (of the
    slowest rank) and the edges, CLOCK_MONOTONIC of the first rank, are of the others. `compiled`: graphs compiled in
    it, none if all is well. `peak_bytes`: without what other variants hold meanwhile, the first rank's."""

    variant: str
    round: int
    dropped: int
    step_s: tuple[float, ...]
    elapsed_s: float
    begin_ns: int
    end_ns: int
    peak_bytes: int | None
    last_loss: float
    compiled: int


class Matmul(msgspec.Struct, frozen=True, kw_only=True, tag="matmul"):
    """The yardstick of one round: products of random square matrices for as long as it takes to be sustained."""

    round: int
    width: int
    dtype: str
    products: int
    flop_per_s: float
    """Of one GPU, the mean over ranks."""


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    variant: str
    message: str


Told = Plan | Built | Block | Matmul | Failed

_decoder = msgspec.json.Decoder(Told)


def read(path: Path) -> list[Told]:
    """All whole lines; none where the file is not there. A writer that was killed leaves its last line torn."""
    try:
        *lines, _ = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    return [_decoder.decode(line) for line in lines]
