"""Why a launch ended as it did: one status and the first cause, not its echoes on other ranks. Pure.

The order is the argument: what a rank says itself comes before what was seen from outside; and an error that a rank
gets *because a peer is gone* counts only when nothing else explains that peer.
"""

from __future__ import annotations

import signal
from collections.abc import Callable

from pytest_charllm.launch.exchange import RankError
from pytest_charllm.launch.facts import Facts
from pytest_charllm.launch.hang import describe, main_thread_frame, suspect
from pytest_charllm.launch.names import NO_ANSWER
from pytest_charllm.records import Failure, Status

Ending = tuple[Status, Failure | None]

_PEER_GONE = (
    "connection reset", "connection closed", "connection refused", "broken pipe", "socket closed", "remote process",
    "ncclremoteerror", "nccl communicator was aborted", "connectfullmesh", "recvvalue failed", "sendbytes failed",
)  # fmt: skip
_PEER_SILENT = ("timed out waiting", "collective operation timeout", "wait timeout", "store timeout", "timed out after")
_OUT_OF_MEMORY_TYPES = ("OutOfMemoryError", "MemoryError")
_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "cannot allocate memory")
_STATUS = {
    "out-of-memory": Status.OUT_OF_MEMORY,
    "hang": Status.HUNG,
    "harness": Status.HARNESS,
    "environment": Status.HARNESS,
    "rendezvous": Status.HARNESS,
    "no-report": Status.HARNESS,
}
"""By kind of failure; every other kind is a crash. What says nothing about the stack under test is the harness's."""


def classify(facts: Facts) -> Ending:
    """The end of a launch whose processes are gone."""
    if len(facts.reports) == facts.world:
        return Status.COMPLETED, None
    for find in _CAUSES:
        failure = find(facts)
        if failure is not None:
            return _STATUS.get(failure.kind, Status.CRASHED), failure
    raise AssertionError("the last cause always answers")


def _own_error(facts: Facts) -> Failure | None:
    own = [error for error in facts.errors.values() if not _mentions(error, _PEER_GONE + _PEER_SILENT)]
    return _from_error(facts, min(own, key=_when)) if own else None


def _killed(facts: Facts) -> Failure | None:
    """A signal nobody here sent: torchrun ends the peers of a failed rank by SIGTERM, and by SIGKILL after that."""
    for exit_ in facts.agent.exits if facts.agent else ():
        if exit_.exitcode < 0 and exit_.exitcode != -signal.SIGTERM and exit_.rank not in facts.errors:
            return _from_signal(facts, exit_.rank, -exit_.exitcode)
    return None


def _silent_exit(facts: Facts) -> Failure | None:
    for exit_ in facts.agent.exits if facts.agent else ():
        if exit_.exitcode == NO_ANSWER and exit_.rank not in facts.errors:
            summary = f"rank {exit_.rank} could not write its answer: the launch's folder is full or gone"
            return _failure(facts, "no-report", summary, exit_.rank)
        if exit_.exitcode > 0 and exit_.rank not in facts.errors:
            tail = facts.logs[exit_.rank].tail.strip() if exit_.rank in facts.logs else ""
            last = tail.splitlines()[-1] if tail else "nothing on stderr"
            return _failure(facts, "exception", f"rank {exit_.rank} exited with {exit_.exitcode}: {last}", exit_.rank)
    return None


def _agent_killed(facts: Facts) -> Failure | None:
    """Its ranks go with it, which from outside looks as if they had left."""
    if facts.agent_exit is None:  # the launcher ended it
        return None
    if facts.agent_exit < 0:
        by = _signal_name(-facts.agent_exit)
    elif facts.agent is not None and facts.agent.error_type == "SignalException":
        by = f"a signal ({facts.agent.error})"
    else:
        return None
    return _of_agent(facts, "harness", f"torchrun's agent was ended by {by} from outside")


def _left_early(facts: Facts) -> Failure | None:
    """Exit 0 without an answer. Seen by the launcher, or what remains when torchrun has listed all other ranks."""
    if facts.agent is None and facts.agent_exit:
        return None  # torchrun saw a failure and could not write which: how a rank left is not known
    failed = {exit_.rank for exit_ in facts.agent.exits} if facts.agent else set()
    answered = {*facts.reports, *facts.refused, *facts.errors}
    listed = facts.agent_exit == 0 or bool(failed)
    for rank in (*facts.left, *(range(facts.world) if listed else ())):
        if rank not in answered and rank not in failed:
            told = facts.progress.get(rank)
            where = "before it said anything" if told is None else f"in phase {told.phase}{_step(told.step)}"
            return _failure(facts, "early-exit", f"rank {rank} exited with 0 {where}, without a report", rank)
    return None


def _hang(facts: Facts) -> Failure | None:
    if facts.hang is None:
        return None
    hang, ranks = facts.hang, [rank for rank in range(facts.world) if rank not in facts.reports]
    states = {rank: f"rank {rank}: {describe(facts.progress.get(rank), hang.at_s)}" for rank in ranks}
    silent = {rank: f" ({why})" for rank, why in hang.silent.items()}
    detail = "\n\n".join(
        f"{states[rank]}\n" + (hang.stacks.get(rank) or f"no stack: the process did not answer{silent.get(rank, '')}")
        for rank in ranks
    )
    rank = suspect(hang.stacks, facts.progress, ranks)
    summary = f"{hang.reason}; " + "; ".join(states.values())
    if rank is not None and (frame := main_thread_frame(hang.stacks.get(rank, ""))) is not None:
        summary += f"; rank {rank} is in {frame[1]} ({frame[0]})"
    elif rank is not None and rank in facts.progress and not hang.stacks.get(rank):
        summary += f"; rank {rank} does not answer: it is stopped, or stuck in the kernel"
    return _failure(facts, "hang", summary, rank, detail)


def _peer_error(facts: Facts) -> Failure | None:
    """Only echoes are left, so the first of them is all there is to tell."""
    return _from_error(facts, min(facts.errors.values(), key=_when)) if facts.errors else None


def _refused(facts: Facts) -> Failure | None:
    for rank, reason in facts.refused.items():
        return _failure(facts, "no-report", f"the answer of rank {rank} is refused: {reason}", rank)
    return None


def _terminated(facts: Facts) -> Failure | None:
    for exit_ in facts.agent.exits if facts.agent else ():
        return _from_signal(facts, exit_.rank, -exit_.exitcode)
    return None


def _agent(facts: Facts) -> Failure | None:
    agent = facts.agent
    if agent is not None and agent.error_type is not None:
        told = f"{agent.error_type}: {agent.error}".splitlines()[0]
        network = agent.error_type.startswith(("Rendezvous", "Dist", "StoreTimeout"))
        kind = "rendezvous" if network else "harness"
        return _of_agent(facts, kind, f"torchrun failed before its ranks ran: {told}")
    path = facts.agent_log.path if facts.agent_log else None
    return _of_agent(facts, "harness", f"torchrun ended with {facts.agent_exit} and left no reason; its log: {path}")


_CAUSES: tuple[Callable[[Facts], Failure | None], ...] = (
    _own_error, _killed, _silent_exit, _agent_killed, _left_early, _hang, _peer_error, _refused, _terminated, _agent,
)  # fmt: skip


def _of_agent(facts: Facts, kind: str, summary: str) -> Failure:
    log = facts.agent_log
    return Failure(kind=kind, summary=summary, log_tail=log.tail if log else "", log_path=log.path if log else None)


def _from_error(facts: Facts, error: RankError) -> Failure:
    kind = error.kind
    if kind == "exception" and (error.type in _OUT_OF_MEMORY_TYPES or _mentions(error, _OUT_OF_MEMORY)):
        kind = "out-of-memory"
    elif kind == "exception" and _mentions(error, _PEER_SILENT):
        kind = "hang"
    message = error.message.strip().splitlines()[0] if error.message.strip() else ""
    said = f"{error.type}: {message}" if message else error.type
    if kind == "environment" and message:  # what cannot be done, and why: no class of ours makes that clearer
        said = message
    # A named kind (bad input, no compiler) was raised to be read as it stands, without its place in our code.
    where = f" ({error.where})" if kind in ("exception", "out-of-memory", "hang") else ""
    return _failure(facts, kind, f"rank {error.rank}: {said}{where}", error.rank, error.traceback)


def _from_signal(facts: Facts, rank: int, number: int) -> Failure:
    kind, summary = "signal", f"rank {rank} was ended by {_signal_name(number)}"
    if number == signal.SIGKILL and facts.oom_kills:
        kind = "out-of-memory"
        summary += f"; the kernel ended {facts.oom_kills} process(es) for lack of host memory meanwhile"
    elif number == signal.SIGKILL:
        summary += "; by a memory limit, a person, or torchrun after it ignored SIGTERM"
    return _failure(facts, kind, summary, rank)


def _failure(facts: Facts, kind: str, summary: str, rank: int | None, detail: str = "") -> Failure:
    log = facts.logs.get(rank) if rank is not None else None
    return Failure(
        kind=kind,
        summary=summary,
        rank=rank,
        detail=detail,
        log_tail=log.tail if log else "",
        log_path=log.path if log else None,
    )


def _mentions(error: RankError, phrases: tuple[str, ...]) -> bool:
    text = f"{error.type}: {error.message}".lower()
    return any(phrase in text for phrase in phrases)


def _when(error: RankError) -> float:
    return error.mono_s


def _step(step: int | None) -> str:
    return "" if step is None else f", step {step}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
