"""The command line: what may be asked for, and one clear line when it cannot be."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_charllm.errors import BadInput

if TYPE_CHECKING:
    from pytest_charllm.records import Fault

TIERS = ("smoke", "nightly", "weekly")
MISSING = ("fail", "record", "skip")
LARGEST_SEED = 2**63 - 1


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the command line said, checked as far as that needs no hardware and no heavy import."""

    gpu: tuple[str, ...]
    """Families or variants, any of them; empty: whatever is here."""
    microbatch: tuple[int, ...] | None
    assume: str | None
    simulate: bool
    tier: str | None
    launches: int | None
    missing: str
    faults: tuple[Fault, ...]
    seed: int
    project: Path
    """Folder of the checkout: of ``known.toml``, and of the two below unless they were named."""
    root: Path
    shipped: Path
    shipped_missing: bool
    """The folder was named and is not there. It may be on purpose: `accept` makes it."""
    replay: Path | None
    rules: Path | None
    """Tolerances in the place of those that ship; only with `replay`."""
    known: Path | None
    """Waivers in the place of ``known.toml``."""
    plan: bool
    sm_clock: tuple[int, ...]
    """MHz, of rows that are there for it; empty: none of them."""
    soak: int | None
    """Minutes, likewise."""

    @property
    def given(self) -> dict[str, tuple[int, ...]]:
        """Values of scenario options that only the command line gives. Clocks go with one launch that has none."""
        return {
            "sm_clock": (0, *self.sm_clock) if self.sm_clock else (),
            "soak": () if self.soak is None else (self.soak,),
        }


def add_options(parser: pytest.Parser) -> None:
    group = parser.getgroup("charllm", "distributed LLM training, gated against baselines")
    group.addoption(
        "--gpu", dest="charllm_gpu", action="append", default=[], metavar="NAME[,NAME]",
        help="GPU families or variants to test on, any of them: h200, h100-nvl, cpu; auto (default): what is here.",
    )  # fmt: skip
    group.addoption(
        "--microbatch", dest="charllm_microbatch", action="append", default=[], metavar="N[,N]",
        help="Replace the suites' microbatch sizes (sequences per data-parallel rank).",
    )  # fmt: skip
    group.addoption(
        "--charllm-assume", metavar="HW:NxG",
        help="Collect and plan as if on N nodes of G such GPUs, e.g. h200:4x8; h200 alone: its usual node. Runs "
        "nothing.",
    )  # fmt: skip
    group.addoption(
        "--charllm-simulate", action="store_true",
        help="Simulated GPUs of the model that --gpu or --charllm-assume names: their sensors are invented, training "
        "runs on the CPU. Two GPUs unless --charllm-assume says how many.",
    )  # fmt: skip
    group.addoption(
        "--charllm-plan", action="store_true",
        help="Print what would run (scenario, feasible or which rule forbids it, memory per GPU) and stop.",
    )  # fmt: skip
    group.addoption(
        "--charllm-tier", metavar="TIER",
        help="How much evidence: smoke, nightly or weekly. Default: nightly on GPUs; a CPU always runs smoke.",
    )  # fmt: skip
    group.addoption("--charllm-launches", metavar="N", help="Timed launches of each scenario's first round.")
    group.addoption(
        "--charllm-missing", metavar="WHAT", default="fail",
        help="On GPUs, a scenario without baseline: fail (default), record (launch, keep as proposal, skip) or skip "
        "(do not even launch). On a CPU its strict checks decide, but for a script, which has none.",
    )  # fmt: skip
    group.addoption(
        "--charllm-inject", action="append", default=[], metavar="NAME[=VALUE][,rank=N]",
        help="Put a known fault into the ranks: slowdown=0.10, host-stall=0.10, memory=0.25, leak, lost-overlap, hang, "
        "crash, oom, early-exit, nan. Repeatable.",
    )  # fmt: skip
    group.addoption(
        "--charllm-sm-clock", action="append", default=[], metavar="MHZ[,MHZ]",
        help="Rows of layouts against clocks (suites/test_frequency.py), at these locked SM clocks and at none. Needs "
        "the right to lock them.",
    )  # fmt: skip
    group.addoption(
        "--charllm-soak", metavar="MINUTES",
        help="Rows of steady temperatures (suites/test_thermal.py), with windows of so many minutes.",
    )  # fmt: skip
    group.addoption("--charllm-seed", metavar="N", default="1234", help="Seed of weights and tokens. Default: 1234.")
    group.addoption("--charllm-dir", metavar="DIR", help="Runs and local baselines. Default: .charllm in the root.")
    group.addoption(
        "--charllm-baselines", metavar="DIR",
        help="Baselines under version control, only read. Default: baselines in the root.",
    )  # fmt: skip
    group.addoption(
        "--charllm-replay", metavar="DIR",
        help="Judge the launches of an earlier run (its directory, a folder laid out like its launches/, its id, or "
        "latest).",
    )  # fmt: skip
    group.addoption(
        "--charllm-rules", metavar="FILE",
        help="With --charllm-replay: tolerances in the place of those that ship, and where they would have fired.",
    )  # fmt: skip
    group.addoption(
        "--charllm-known", metavar="FILE",
        help="Known regressions and until when they are. Default: known.toml in the root and in suites/.",
    )  # fmt: skip


def read_options(config: pytest.Config) -> Options:
    """Raises `pytest.UsageError` with one line naming the option."""
    get = config.getoption
    here, project = config.invocation_params.dir, _project(config)
    root = _path("--charllm-dir", get("charllm_dir"), here, "folder") or project / ".charllm"
    baselines = _path("--charllm-baselines", get("charllm_baselines"), here, "folder")
    replay = _path("--charllm-replay", get("charllm_replay"), here, "folder")
    if replay is not None and get("charllm_inject"):
        raise pytest.UsageError("--charllm-inject: nothing can be injected into recorded launches (--charllm-replay)")
    rules = _file("--charllm-rules", get("charllm_rules"), here)
    if rules is not None and replay is None:
        raise pytest.UsageError("--charllm-rules: only recorded launches are judged by other rules (--charllm-replay)")
    return Options(
        gpu=_gpus(get("charllm_gpu")),
        microbatch=_sizes("--microbatch", get("charllm_microbatch"), "1,2,4"),
        assume=get("charllm_assume"),
        simulate=get("charllm_simulate"),
        tier=_one_of("--charllm-tier", get("charllm_tier"), TIERS),
        launches=_at_least("--charllm-launches", get("charllm_launches"), 1),
        missing=_one_of("--charllm-missing", get("charllm_missing"), MISSING) or "fail",
        faults=_faults(get("charllm_inject")),
        seed=_seed(get("charllm_seed")),
        project=project,
        root=root,
        shipped=baselines or project / "baselines",
        shipped_missing=baselines is not None and not _is_there("--charllm-baselines", baselines),
        replay=_launches(replay, root, here) if replay is not None else None,
        rules=rules,
        known=_file("--charllm-known", get("charllm_known"), here),
        plan=get("charllm_plan"),
        sm_clock=_sizes("--charllm-sm-clock", get("charllm_sm_clock"), "1200,1500") or (),
        soak=_at_least("--charllm-soak", get("charllm_soak"), 1),
    )


def remarks(options: Options) -> list[str]:
    """What may be a slip of the keyboard, and may be meant: said above the run, a line each."""
    from pytest_charllm.store.paths import shown

    if not options.shipped_missing:
        return []
    made = "pytest-charllm baseline accept makes it"
    return [f"charllm: --charllm-baselines: there is no {shown(options.shipped)}: nothing is on record there; {made}"]


def command_line(config: pytest.Config) -> str:
    """The arguments of this run as one could type them again."""
    import shlex

    return shlex.join(["pytest", *(os.fspath(argument) for argument in config.invocation_params.args)])


def rerun_line(config: pytest.Config, options: Options, nodeid: str) -> str:
    """The command that runs just this test again, with our own options as they were typed: but a replay is a run of its
    own, so the latest one is another by now."""
    import shlex

    latest = named = "--charllm-replay=latest"
    if options.replay is not None and options.replay.parent.parent == (options.root / "runs").absolute():
        named = f"--charllm-replay={options.replay.parent.name}"
    typed = _typed(config, ("--gpu", "--microbatch", "--charllm-"))
    return shlex.join(["pytest", nodeid, *(named if each == latest else each for each in typed)])


def accept_line(config: pytest.Config) -> str:
    """The command that puts this run on record, in the folders that were typed."""
    import shlex

    from pytest_charllm.report.table import ACCEPT

    return shlex.join([*ACCEPT.split(), *_typed(config, ("--charllm-dir", "--charllm-baselines"))])


def _typed(config: pytest.Config, beginnings: tuple[str, ...]) -> list[str]:
    """The options typed that begin with one of these, each with its value."""
    typed = [os.fspath(argument) for argument in config.invocation_params.args]
    return [
        argument if "=" in argument or _is_switch(config, argument) else f"{argument}={value}"
        for argument, value in zip_longest(typed, typed[1:], fillvalue="")
        if argument.startswith(beginnings)
    ]


def _is_switch(config: pytest.Config, argument: str) -> bool:
    """Whether no value follows this option of ours."""
    return isinstance(config.getoption(argument.removeprefix("--").replace("-", "_"), None), bool)


def fault_texts(options: Options) -> list[str]:
    """The injected faults as one would type them."""
    if not options.faults:
        return []
    from pytest_charllm.records.faults import format_fault

    return [format_fault(fault) for fault in options.faults]


def _project(config: pytest.Config) -> Path:
    """pytest's root where that is certain, else the working directory, as for `pytest-charllm`.

    Without an ini file pytest guesses it from every path on the command line, and takes ``--charllm-dir /data`` for
    one of them as soon as that folder exists: baselines and ``known.toml`` would be looked for at ``/``.
    """
    certain = config.inipath is not None or config.option.rootdir
    return config.rootpath if certain else config.invocation_params.dir


def _split(texts: Iterable[str]) -> list[str]:
    return [part.strip() for text in texts for part in text.split(",") if part.strip()]


def _gpus(texts: list[str]) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(_split(texts)))
    if texts and not names:  # an unset variable of a CI job must not turn its guard off
        raise pytest.UsageError("--gpu: no name given; write --gpu=h200, or --gpu=auto for what is here")
    return () if "auto" in names else names


def _sizes(option: str, texts: list[str], example: str) -> tuple[int, ...] | None:
    if not texts:
        return None
    sizes = [_at_least(option, text, 1) for text in _split(texts)]
    if not sizes:
        raise pytest.UsageError(f"{option}: no size given; write {option}={example}")
    return tuple(dict.fromkeys(size for size in sizes if size is not None))


def _faults(texts: list[str]) -> tuple[Fault, ...]:
    if not texts:
        return ()
    from pytest_charllm.records.faults import parse_fault

    try:
        return tuple(parse_fault(text) for text in texts)
    except BadInput as error:
        raise pytest.UsageError(f"--charllm-inject: {error}") from None


def _path(option: str, text: str | None, here: Path, what: str) -> Path | None:
    if text is not None and not text.strip():
        raise pytest.UsageError(f"{option}: no {what} given; name one, or leave the option out")
    return here / text if text is not None else None


def _is_there(option: str, folder: Path) -> bool:
    from pytest_charllm.store.reading import is_folder

    try:
        return is_folder(folder)
    except BadInput as error:
        raise pytest.UsageError(f"{option}: {error}") from None


def _file(option: str, text: str | None, here: Path) -> Path | None:
    path = _path(option, text, here, "file")
    if path is not None and not stat.S_ISREG(_mode(option, path)):
        raise pytest.UsageError(f"{option}: {path} is no file")
    return path


def _mode(option: str, path: Path) -> int:
    """0 where there is nothing. A path may also lie where nobody may look, or be too long for one."""
    from pytest_charllm.store.reading import mode_of

    try:
        return mode_of(path)
    except OSError as error:
        raise pytest.UsageError(f"{option}: {path} cannot be read: {error.strerror}; check the path") from None


def _at_least(option: str, text: str | None, least: int) -> int | None:
    if text is None:
        return None
    try:
        number = int(text)
    except ValueError:
        raise pytest.UsageError(f"{option}: {text!r} is not a whole number") from None
    if number < least:
        raise pytest.UsageError(f"{option}: {number} is below {least}")
    return number


def _seed(text: str) -> int:
    seed = _at_least("--charllm-seed", text, 0) or 0
    if seed > LARGEST_SEED:
        raise pytest.UsageError(f"--charllm-seed: {seed} is above {LARGEST_SEED}")
    return seed


def _one_of(option: str, text: str | None, choices: tuple[str, ...]) -> str | None:
    if text is not None and text not in choices:
        raise pytest.UsageError(f"{option}: {text!r} is none of {', '.join(choices)}")
    return text


def _launches(path: Path, root: Path, here: Path) -> Path:
    """The folder of recorded launches: the path itself, or that of the run it is. A name that is no path from `here`
    is that of a run under `root`: its id, or ``latest``.

    Asked for before this session starts a run of its own, which would be the latest then.
    """
    option = "--charllm-replay"
    if path.parent == here and not _mode(option, path):
        path = _run(path.name, root)
    if not stat.S_ISDIR(_mode(option, path)):
        raise pytest.UsageError(f"{option}: {path} is not a directory")
    inside = path / "launches"
    launches = inside if stat.S_ISDIR(_mode(option, inside)) else path
    try:
        found = next(launches.glob("*/*/launch.json"), None)
    except OSError as error:
        raise pytest.UsageError(f"{option}: {path} cannot be read: {error.strerror}; check the path") from None
    if found is None:
        raise pytest.UsageError(f"{option}: {path} holds no recorded launch; name a run, or latest")
    return launches


def _run(name: str, root: Path) -> Path:
    from pytest_charllm.store.run import RunDirectory

    try:
        return RunDirectory.open(root, name).path
    except BadInput as error:
        raise pytest.UsageError(f"--charllm-replay: no directory {name}, and {error}") from None
