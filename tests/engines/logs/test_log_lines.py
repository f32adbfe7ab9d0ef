"""The layer that every reader stands on: bytes to lines, text to numbers, a bar to its fields, when warm-up ends."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_charllm.engines.logs.bars import bar_in
from pytest_charllm.engines.logs.lines import LONGEST_LINE, Line, clean_lines
from pytest_charllm.engines.logs.numbers import clock_s, number
from pytest_charllm.engines.logs.warmup import warmup_of
from pytest_charllm.records import WindowRule
from pytest_charllm.records.warmup import warmup_ended


@settings(deadline=None)
@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=5))
def test_lines_do_not_depend_on_how_the_file_is_cut_into_chunks(data: bytes, cuts: list[int]) -> None:
    """A line, an escape sequence or a character that lies across two chunks."""
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    chunks = [data[begin:end] for begin, end in pairwise(edges)]
    assert list(clean_lines(chunks)) == list(clean_lines([data]))


def test_a_line_without_end_is_bounded() -> None:
    """A binary file in the place of a log: one line of a gigabyte."""
    (first, second) = clean_lines([b"x" * LONGEST_LINE, b"y" * LONGEST_LINE, b"\nnext\n"])
    assert (len(first.text), first.whole) == (LONGEST_LINE, False)
    assert second == Line("next", None, True)


@pytest.mark.parametrize(
    ("raw", "line"),
    [
        (b"\x1b[31mstep:  1  \x1b[38;2;180;60;0mloss\x1b[39m\n", Line("step:  1  loss", None, True)),
        (b"[31mstep[0m\n", Line("step", None, True)),
        (b"\x1b]0;title\x07text\n", Line("text", None, True)),
        (b"\x1b[A 10%|#\n", Line(" 10%|#", None, True)),
        (b"[rank12]:[titan] x\n", Line("[titan] x", 12, True)),
        (b"\x1b[32m[rank3]:\x1b[0mx\r\n", Line("x", 3, True)),
        (b"llama/0 [default7]:x\n", Line("x", 7, True)),
        (b" 3: x\n", Line("x", 3, True)),
        (b"[1,5]<stderr>:x\n", Line("x", 5, True)),
        (b"[Rank 0] step=1\n", Line("[Rank 0] step=1", None, True)),
        (b"a\x00b\x08c\n", Line("abc", None, True)),
        (b"torn", Line("torn", None, False)),
    ],
)
def test_clean(raw: bytes, line: Line) -> None:
    """Colours with and without their escape character, labels of launchers, controls, a torn end."""
    assert list(clean_lines([raw])) == [line]


def test_a_carriage_return_ends_a_bar() -> None:
    """Otherwise all of a training's bars are one line."""
    assert [line.text for line in clean_lines([b"\r 1%|\r 2%|\r\n"])] == [" 1%|", " 2%|"]


@pytest.mark.parametrize(
    ("text", "value", "half_unit"),
    [
        ("12", 12, 0.5), ("12.50", 12.5, 0.005), ("12,50", 12.5, 0.005), ("1.5E-03", 1.5e-3, 5e-5),
        ("1,234.5", 1234.5, 0.05), ("1.234,5", 1234.5, 0.05), ("1,234,567", 1234567, 0.5), ("0,125", 0.125, 5e-4),
        ("12.5,", 12.5, 0.05), ("-0.5", -0.5, 0.05), ("5.", 5, 0.5),
    ],
)  # fmt: skip
def test_numbers(text: str, value: float, half_unit: float) -> None:
    """Separators of either kind; what was rounded away."""
    read = number(text)
    assert read is not None
    assert read == pytest.approx((value, half_unit))


def test_a_single_comma_is_the_trainers_to_explain() -> None:
    """1,234 is a thousand to a trainer that groups digits and one to all others."""
    grouped, decimal = number("1,234", grouped=True), number("1,234")
    assert grouped is not None
    assert decimal is not None
    assert (grouped.value, decimal.value) == (1234, 1.234)


@pytest.mark.parametrize("text", ["", ".", "1.2.3", "1,23,456", "e5", "12a", "1e999999", "1.5,000,000"])
def test_no_numbers(text: str) -> None:
    """None, never a wrong one and never an exception."""
    assert number(text) is None


@given(st.text(alphabet="0123456789.,eE+-naif", max_size=20))
def test_numbers_never_raise(text: str) -> None:
    """Readers pass on whatever stood there."""
    read = number(text)
    assert read is None or isinstance(read.value, float)


@given(st.floats(1e-3, 1e12), st.sampled_from([",.", ".,"]))
def test_grouped_decimals_of_both_kinds(value: float, separators: str) -> None:
    """The last of two kinds of separators is the decimal one."""
    thousands, decimal = separators
    text = f"{value:,.2f}".translate({ord(","): thousands, ord("."): decimal})
    read = number(text)
    assert read is not None
    assert math.isclose(read.value, value, abs_tol=0.0051)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("01:02", 62), ("1:00:00", 3600), ("2 days, 01:00:00", 176400), ("1:2:3:4", None), ("?", None)],
)
def test_clock(text: str, seconds: int | None) -> None:
    """tqdm counts on in hours, a timedelta in days."""
    assert clock_s(text) == seconds


@pytest.mark.parametrize(
    ("text", "label", "done", "rate_s"),
    [
        ("  5%|5         | 5/100 [00:05<02:41,  1.67s/it]", "", 5, 1.67),
        ("Epoch 0:  12%|█▏        | 12/100 [00:05<00:35,  2.50it/s, v_num=0]", "Epoch 0", 12, 0.4),
        ("Epoch 0:  12%|#1        | 12/100 [00:05<00:35,  2,50it/s, v_num=0]", "Epoch 0", 12, 0.4),
        ("Steps:   0%|          | 0/100 [00:00<?, ?it/s]", "Steps", 0, None),
        ("Epoch 0: :   9%|9         | 9/100 [00:30<04:30, global_step=8.000]", "Epoch 0:", 9, None),
        ("Map: 100%|####| 9/9 [00:01<00:00, 813.23 examples/s]", "Map", 9, None),
    ],
)
def test_bars(text: str, label: str, done: int, rate_s: float | None) -> None:
    """Units that change with the speed; bars of other things count no iterations."""
    bar = bar_in(text)
    assert bar is not None
    assert (bar.label, bar.done) == (label, done)
    assert (bar.rate.value if bar.rate else None) == (None if rate_s is None else pytest.approx(rate_s))


@pytest.mark.parametrize("text", ["100%| done", "5%|#| 5/3 [00:01<00:02, 1.0s/it]", "0%|| 0/0 [00:00<?, ?it/s]", "50%"])
def test_no_bars(text: str) -> None:
    assert bar_in(text) is None


RULES = st.builds(
    WindowRule, tier=st.just("t"), min_steps=st.just(1), min_seconds=st.just(0.0), warmup_steps=st.integers(0, 12),
    warmup_seconds=st.floats(0, 9), warmup_max_steps=st.integers(12, 20), steady_steps=st.integers(1, 4),
    steady_ratio=st.floats(0.01, 0.2),
)  # fmt: skip


@settings(deadline=None)
@given(RULES, st.lists(st.floats(0.9, 1.1), max_size=30))
def test_warm_up_of_a_line_a_step_ends_as_the_native_engines(rule: WindowRule, step_s: list[float]) -> None:
    """Two rules for one word would make the steps of a script and of our own engine two different things."""
    native = next((count for count in range(len(step_s) + 1) if warmup_ended(rule, step_s[:count])), None)
    ended = warmup_of(rule, [1] * len(step_s), step_s)
    assert (None if ended is None else ended[0]) == native
