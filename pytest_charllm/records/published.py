"""Figures that somebody else published: something to hold a first number against, never a gate."""

from __future__ import annotations

from pytest_charllm.records.base import SCHEMA, Record


class PublishedRow(Record, frozen=True, kw_only=True):
    """One row of somebody's table, with where it stands.

    `mfu` is a share of `mfu_peak_tflops` and means nothing without `flop_formula`; neither is ever compared with ours.
    """

    model: str
    hardware: str
    """A variant of the catalogue where the source is about one, else the source's own words."""
    precision: str
    gpus: int
    configuration: str
    """Layout and switches in a few words. Virtual stages are vp, as their owners call them."""
    seq: int
    tokens_per_s_per_gpu: float
    source: str
    document: str
    """Where in the source."""
    date: str
    """Year, or year and month."""
    microbatch: int | None = None
    global_batch: int | None = None
    step_s: float | None = None
    mfu: float | None = None
    mfu_peak_tflops: float | None = None
    tflops: float | None = None
    """Of the model, a GPU."""
    flop_formula: str | None = None
    """By which `mfu` and `tflops` are; None: they are not given."""


class Published(Record, frozen=True, kw_only=True):
    """One file of ``baselines/published``."""

    schema: int = SCHEMA
    rows: tuple[PublishedRow, ...]
