"""The console command: its arguments, and what it exits with."""

from __future__ import annotations

import argparse
import errno
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from pytest_charllm import __version__
from pytest_charllm.commands import BAD_INPUT
from pytest_charllm.errors import BadInput, CharllmError
from pytest_charllm.judge.tolerances import CHECK_ALPHA
from pytest_charllm.store.paths import shown
from pytest_charllm.store.reading import is_folder

PLACES = {"root": ("--charllm-dir", Path(".charllm")), "baselines": ("--charllm-baselines", Path("baselines"))}
"""Folders that a command reads: their option, and where they are unless it is given."""

OUTPUT = frozenset({errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""How a write to what is open already fails. A fork that finds no memory names no file either."""


def main(arguments: Sequence[str] | None = None) -> int:
    if sys.stdout is None:  # closed (">&-"): nobody listens, and no file that is opened next may take its descriptor
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    options = _parser().parse_args(arguments)
    try:
        _find_places(options)
        code = options.command(options)
        sys.stdout.flush()
        return code
    except CharllmError as error:
        print(f"pytest-charllm: {error}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print("pytest-charllm: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    except OSError as error:
        if error.filename is not None or error.errno not in OUTPUT:
            raise
        # Without this the interpreter would complain at its end as well.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):  # "| head" has seen enough
            return 128 + signal.SIGPIPE
        print(f"pytest-charllm: the output cannot be written: {error.strerror}", file=sys.stderr)
        return BAD_INPUT


def _find_places(options: argparse.Namespace) -> None:
    """Raises `BadInput` for a folder that was named and is not there, unless the command makes it, and for a file."""
    for place in PLACES.keys() & vars(options).keys():
        option, usual = PLACES[place]
        named = getattr(options, place)
        path = usual if named is None else named
        if not is_folder(path) and named is not None and place not in options.makes:
            raise BadInput(f"{option}: there is no {shown(path)}")
        setattr(options, place, path)


def _pattern(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("an empty pattern would take all scenarios: leave it out, or name some")
    return text


def _parser() -> argparse.ArgumentParser:
    from pytest_charllm.commands import baseline, calibrate, doctor, inject, runs, traffic

    parser = argparse.ArgumentParser(
        prog="pytest-charllm", description="Baselines and runs of pytest-charllm, and what this machine can measure."
    )
    parser.add_argument("--version", action="version", version=f"pytest-charllm {__version__}")
    topics = parser.add_subparsers(metavar="baseline | runs | calibrate | inject | traffic | doctor", required=True)

    places = argparse.ArgumentParser(add_help=False)
    places.add_argument(
        "--charllm-dir", "--dir", dest="root", type=Path, metavar="DIR",
        help="runs and local baselines (default: .charllm)",
    )  # fmt: skip
    places.add_argument(
        "--charllm-baselines", "--baselines", dest="baselines", type=Path, metavar="DIR",
        help="baselines under version control (default: baselines)",
    )  # fmt: skip
    places.set_defaults(makes=())
    only = argparse.ArgumentParser(add_help=False)
    only.add_argument(
        "--only", type=_pattern, metavar="PATTERN", help="scenarios whose key matches (gpt3*) or contains this"
    )

    topic = topics.add_parser("baseline", help="what is on record").add_subparsers(required=True, metavar="COMMAND")
    command = topic.add_parser("accept", parents=[places, only], help="put a run's launches on record")
    command.add_argument("run", metavar="RUN", help="a run's id, or latest")
    command.add_argument("--because", default="", metavar="TEXT", help="why; required to accept a regression")
    command.add_argument("--label", default="", metavar="TEXT", help="default: bootstrap for the first of its kind")
    command.add_argument("--commit", metavar="SHA", help="of a run that was made outside of a git checkout")
    command.set_defaults(command=baseline.run_accept, makes=("baselines",))
    command = topic.add_parser("diff", parents=[places, only], help="old against new, metric by metric, for a review")
    command.add_argument("run", nargs="?", metavar="RUN", help="a run's id, or latest; default: what was accepted last")
    command.set_defaults(command=baseline.run_diff)
    command = topic.add_parser(
        "bridge", parents=[places, only], help="measure an accepted run again, by a new measuring version"
    )
    command.add_argument("run", metavar="RUN", help="a run's id, or latest")
    command.add_argument("--because", default="", metavar="TEXT", help="what the new version does differently")
    command.set_defaults(command=baseline.run_bridge)
    command = topic.add_parser(
        "list", parents=[places, only], help="every baseline, one a line; orphans and duplicates"
    )
    command.add_argument("--variant", metavar="NAME", help="of this hardware only, e.g. h200-sxm")
    command.set_defaults(command=baseline.run_list)
    command = topic.add_parser("show", parents=[places], help="values and provenance of one scenario")
    command.add_argument("key", metavar="KEY", help="a scenario's key, or a pattern on keys")
    command.add_argument("--variant", metavar="NAME", help="of this hardware only, e.g. h200-sxm")
    command.set_defaults(command=baseline.run_show)

    topic = topics.add_parser("runs", help="what was measured").add_subparsers(required=True, metavar="COMMAND")
    command = topic.add_parser("list", parents=[places], help="every run, with the disk it uses")
    command.set_defaults(command=runs.run_list)
    command = topic.add_parser("show", parents=[places], help="one run and its table")
    command.add_argument("run", metavar="RUN", help="a run's id, or latest")
    command.set_defaults(command=runs.run_show)
    command = topic.add_parser("prune", parents=[places], help="delete old runs; what is on record stays")
    command.add_argument("--keep", type=int, required=True, metavar="N", help="how many of the newest to keep")
    command.add_argument("--accepted-too", action="store_true", help="delete even old runs that a baseline names")
    command.set_defaults(command=runs.run_prune)

    command = topics.add_parser("calibrate", parents=[places], help="what launches of unchanged code say of tolerances")
    command.add_argument("runs", nargs="+", metavar="RUN", help="runs of unchanged code, or latest")
    command.add_argument(
        "--alpha", type=calibrate.chance, default=CHECK_ALPHA, metavar="P",
        help=f"chance that a round of unchanged code breaches (default: {CHECK_ALPHA})",
    )  # fmt: skip
    command.add_argument("--output", type=Path, metavar="FILE", help="default: proposal.toml in the last run")
    command.set_defaults(command=calibrate.run_calibrate)

    command = topics.add_parser("inject", parents=[places], help="known faults in real launches: seen or missed")
    command.add_argument("scenario", nargs="?", default=inject.TINY, metavar="SCENARIO", help=f"default: {inject.TINY}")
    command.add_argument(
        "--fault", action="append", default=[], metavar="NAME[=VALUE][,rank=N]",
        help="this one, in the place of the set; may be given several times",
    )  # fmt: skip
    command.add_argument("--simulated", action="store_true", help="only what the simulated source shows; no launch")
    command.set_defaults(command=inject.run_inject, makes=("root", "baselines"))

    command = topics.add_parser(
        "traffic", parents=[places], help="what a step calls on each axis, against measured collectives"
    )
    command.add_argument("keys", nargs="+", metavar="KEY", help="scenarios' keys")
    command.add_argument(
        "--run", default="latest", metavar="RUN", help="what was measured: a run's id (default: latest)"
    )
    command.add_argument(
        "--curves", metavar="RUN", help="another run for the curves of collectives (default: the same)"
    )
    command.add_argument("--rank", type=int, default=0, metavar="N", help="ranks of a pipeline differ (default: 0)")
    command.set_defaults(command=traffic.run_traffic)

    command = topics.add_parser("doctor", help="what is here and what of it can be measured: a page for a bug report")
    command.add_argument("--source", metavar="NAME", help="another telemetry source, e.g. simulated:h200")
    command.set_defaults(command=doctor.run_doctor)
    return parser


if __name__ == "__main__":
    sys.exit(main())
