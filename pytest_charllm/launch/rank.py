"""The program of every rank: ``python -m pytest_charllm.launch.rank``, started by torchrun.

Reads the request that CHARLLM_REQUEST names, runs the scenario's engine, and answers in the request's folder by one
file: the report, or the error. Stands on its own, so that a repro bundle can start it without pytest.
"""

from __future__ import annotations

import sys

if __name__ == "__main__" and not sys.flags.safe_path:
    del sys.path[0]  # `python -m` puts the working directory first, where a module may well be called queue.py

import faulthandler
import os
import signal
import time
import traceback
from contextlib import suppress
from pathlib import Path

from pytest_charllm.devices.process import die_with_parent
from pytest_charllm.launch.names import (
    AGENT_PID,
    NO_ANSWER,
    REQUEST_PATH,
    STACKS_SIGNAL,
    error_file,
    progress_file,
    report_file,
)

_TRACEBACK_CHARACTERS = 20_000


class ProgressFile:
    """Tells the launcher what this rank is doing: each call replaces the last one's file."""

    def __init__(self, directory: Path, rank: int) -> None:
        self._rank = rank
        self._path = progress_file(directory, rank)

    def __call__(
        self, phase: str, *, step: int | None = None, expected_s: float | None = None, tokens_per_s: float | None = None
    ) -> None:
        from pytest_charllm.errors import HarnessError
        from pytest_charllm.launch.exchange import RankProgress
        from pytest_charllm.records import to_json

        told = RankProgress(
            rank=self._rank,
            pid=os.getpid(),
            phase=phase,
            mono_s=time.monotonic(),
            step=step,
            expected_s=expected_s,
            tokens_per_s=tokens_per_s,
        )
        # Not synced to disk: only processes of this host read it, and only while the launch lives.
        temporary = self._path.with_suffix(".tmp")
        try:
            temporary.write_bytes(to_json(told))
            os.replace(temporary, self._path)
        except OSError as error:  # a full disk, a folder that is gone: no fault of the job
            raise HarnessError(f"{self._path} not writable: {error.strerror}") from None


def main() -> None:
    """Never returns: the process ends by `os._exit`, because tearing down process groups in an interpreter that
    shuts down can deadlock, and the answer is on disk by then."""
    die_with_parent(signal.SIGKILL, os.environ.get(AGENT_PID))
    faulthandler.register(STACKS_SIGNAL, all_threads=True)
    # A mask is inherited: a runner that blocks signals would leave every hang without a stack.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {STACKS_SIGNAL})
    rank = int(os.environ["RANK"])
    path = Path(os.environ[REQUEST_PATH]).absolute()
    code = 0
    try:
        _run(rank, path)
    except BaseException as error:
        code = NO_ANSWER
        if not getattr(error, "last_words", False):  # a traceback of ours would push them out of the log's tail
            with suppress(OSError, ValueError):
                traceback.print_exc()
        _write_error(error, rank, path.parent)
        code = 1
    finally:
        with suppress(OSError, ValueError):  # a full disk, a closed stream: neither may keep this process alive
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _run(rank: int, path: Path) -> None:
    progress = ProgressFile(path.parent, rank)
    progress("start")

    import msgspec

    from pytest_charllm import engines
    from pytest_charllm.records import RankRequest, from_json, to_json
    from pytest_charllm.store.atomic import write_atomically

    request = from_json(path.read_bytes(), RankRequest, path)
    # Relative in the file, so that a bundle works wherever it is unpacked.
    request = msgspec.structs.replace(request, out_dir=str(path.parent / request.out_dir))
    report = engines.load(request.scenario.engine)(request, progress)
    write_atomically(report_file(path.parent, rank), to_json(report))


def _write_error(error: BaseException, rank: int, directory: Path) -> None:
    from pytest_charllm.launch.exchange import RankError
    from pytest_charllm.records import to_json
    from pytest_charllm.store.atomic import write_atomically

    frames = traceback.extract_tb(error.__traceback__)
    innermost = f"{frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name}" if frames else "unknown place"
    record = RankError(
        rank=rank,
        mono_s=time.monotonic(),
        kind=_kind(error),
        type=type(error).__qualname__,
        message=str(error),
        where=innermost,
        traceback="".join(traceback.format_exception(error))[-_TRACEBACK_CHARACTERS:],
    )
    write_atomically(error_file(directory, rank), to_json(record))


def _kind(error: BaseException) -> str:
    """An engine names its own kind by an attribute (`not-finite`); the rest follows from the type."""
    from pytest_charllm.errors import BadInput, BadRecord, HarnessError

    named = getattr(error, "kind", None)
    if isinstance(named, str):
        return named
    if isinstance(error, BadInput) and not isinstance(error, BadRecord):
        return "environment"
    if isinstance(error, HarnessError | BadRecord):
        return "harness"
    return "early-exit" if isinstance(error, SystemExit) else "exception"


if __name__ == "__main__":
    main()
