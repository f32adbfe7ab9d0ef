"""The first cause of a failed launch, from facts as they were found in its folder."""

from __future__ import annotations

import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_charllm.launch.classify import classify
from pytest_charllm.launch.exchange import AgentReport, RankError, RankExit, RankProgress
from pytest_charllm.launch.facts import Facts, Hang, Log
from pytest_charllm.launch.names import NO_ANSWER
from pytest_charllm.records import Failure, Pass, Phases, RankDevice, RankReport, Stack, Status


def report(rank: int, world: int = 2) -> RankReport:
    return RankReport(
        nonce="n",
        rank=rank,
        world_size=world,
        host="h",
        pid=1,
        pass_=Pass.TIMED,
        device=RankDevice(kind="cpu", name="cpu"),
        tokens_per_step=1,
        parameters=1,
        attention_backend="none",
        software=Stack(),
        phases=Phases(),
    )


def error(rank: int, message: str, *, at_s: float = 1.0, type_: str = "RuntimeError", kind: str = "exception"):
    return RankError(
        rank=rank, mono_s=at_s, kind=kind, type=type_, message=message, where="m.py:1 in f", traceback=f"tb {rank}"
    )


def exits(*codes: tuple[int, int]) -> AgentReport:
    return AgentReport(exits=tuple(RankExit(rank=rank, exitcode=code) for rank, code in codes))


def told(rank: int, phase: str = "window") -> RankProgress:
    return RankProgress(rank=rank, pid=10 + rank, phase=phase, mono_s=100.0, step=7)


def cause(**facts: object) -> tuple[Status, Failure]:
    status, failure = classify(Facts(**({"world": 2} | facts)))  # type: ignore[arg-type]
    assert failure is not None
    return status, failure


RESET = "[/gloo/transport/tcp/pair.cc:537] Connection reset by peer [127.0.0.1]:4321"


def test_all_reports_complete_a_launch_whatever_came_after() -> None:
    """A crash while the interpreter shuts down comes after the measurement, and must not throw it away."""
    facts = Facts(world=2, reports={0: report(0), 1: report(1)}, agent=exits((1, -signal.SIGSEGV)), agent_exit=1)

    assert classify(facts) == (Status.COMPLETED, None)


def test_earliest_own_error_wins() -> None:
    """Ranks fail one after the other; the first is the cause even when a later one has the lower number."""
    _, failure = cause(errors={0: error(0, "later", at_s=2.0), 1: error(1, "first", at_s=1.0)})

    assert (failure.rank, failure.summary) == (1, "rank 1: RuntimeError: first (m.py:1 in f)")
    assert failure.detail == "tb 1"


def test_echo_does_not_win_by_being_early() -> None:
    """The clock of an exception starts when it is caught, so an echo on a quick rank can seem to be first."""
    _, failure = cause(errors={0: error(0, RESET, at_s=1.0), 1: error(1, "the cause", at_s=1.1)})

    assert failure.rank == 1


@pytest.mark.parametrize("order", [((0, 1), (1, -9)), ((1, -9), (0, 1))])
def test_killed_rank_explains_its_peers_connection_error(order: tuple[tuple[int, int], ...]) -> None:
    """torchrun lists the ranks it finds dead in one look in any order."""
    status, failure = cause(errors={0: error(0, RESET)}, agent=exits(*order), agent_exit=1)

    assert (status, failure.kind, failure.rank) == (Status.CRASHED, "signal", 1)


def test_rank_that_left_explains_its_peers_connection_error() -> None:
    """Exit code 0 is in no list of failures: that rank is known by its absence."""
    status, failure = cause(
        errors={0: error(0, RESET)}, agent=exits((0, 1)), agent_exit=1, progress={1: told(1, "build")}
    )

    assert (status, failure.kind, failure.rank) == (Status.CRASHED, "early-exit", 1)
    assert "in phase build, step 7" in failure.summary


def test_ranks_that_died_with_their_agent_did_not_leave() -> None:
    """Somebody kills the agent: read as "rank 1 exited with 0", which sent people looking into the training."""
    status, failure = cause(left=(1,), progress={0: told(0), 1: told(1)}, errors={0: error(0, RESET)}, agent_exit=-9)
    assert (status, failure.rank) == (Status.HARNESS, None)
    assert failure.summary == "torchrun's agent was ended by SIGKILL from outside"
    asked = AgentReport(error_type="SignalException", error="Process 12 got signal: 15")
    status, failure = cause(left=(0, 1), agent=asked, agent_exit=1)
    assert (status, failure.rank) == (Status.HARNESS, None)
    assert failure.summary == "torchrun's agent was ended by a signal (Process 12 got signal: 15) from outside"
    _, failure = cause(left=(0,), agent=asked, agent_exit=None)
    assert failure.rank == 0, "the launcher ended the agent because that rank had left"
    status, failure = cause(left=(1,), errors={0: error(0, "no such file")}, agent_exit=-9)
    assert (status, failure.rank) == (Status.CRASHED, 0), "what a rank says of itself comes first"


def test_terminated_peer_is_never_the_cause() -> None:
    """torchrun ends the healthy ranks by SIGTERM, and lists them as failed."""
    _, failure = cause(errors={0: error(0, RESET)}, agent=exits((0, 1), (1, -signal.SIGTERM)), agent_exit=1)

    assert (failure.kind, failure.rank) == ("exception", 0)


@pytest.mark.parametrize(
    ("type_", "message"),
    [
        ("OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB."),
        ("RuntimeError", "[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory"),
        ("RuntimeError", "CUDA error: out of memory"),
        ("MemoryError", ""),
    ],
)
def test_memory_has_a_status_of_its_own(type_: str, message: str) -> None:
    """Out of memory must be told from a crash: it is what a bigger microbatch is expected to end in."""
    status, failure = cause(errors={1: error(1, message, type_=type_)}, agent=exits((1, 1)), agent_exit=1)

    assert (status, failure.kind) == (Status.OUT_OF_MEMORY, "out-of-memory")


def test_kernel_oom_kill_is_out_of_memory() -> None:
    """The OOM killer leaves no message, only SIGKILL and a counter."""
    killed = {"agent": exits((1, -9)), "agent_exit": 1}

    assert cause(**killed, oom_kills=1)[0] is Status.OUT_OF_MEMORY
    assert cause(**killed, oom_kills=0)[0] is Status.CRASHED


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("not-finite", Status.CRASHED),
        ("environment", Status.HARNESS),
        ("harness", Status.HARNESS),
        ("out-of-memory", Status.OUT_OF_MEMORY),
    ],
)
def test_kind_an_engine_names_is_kept(kind: str, status: Status) -> None:
    """A machine without a compiler must not read as a crash of the stack under test."""
    assert cause(errors={0: error(0, "told", kind=kind)})[0] is status
    assert cause(errors={0: error(0, "told", kind=kind)})[1].kind == kind


def test_what_cannot_be_done_here_is_told_as_it_is() -> None:
    """``BadInput: fault hang=99: ...`` read as a failure of our own; the class that was raised helps nobody."""
    told = "fault hang=99: the window has only steps 0 to 29"
    failure = cause(errors={0: error(0, told, type_="BadInput", kind="environment")})[1]
    assert failure.summary == f"rank 0: {told}"


def test_collective_timeout_is_a_hang() -> None:
    """The healthy rank's process group gives up first; the rank it waited for is the one that hangs."""
    message = "[/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 5000ms for recv operation to complete"
    status, failure = cause(errors={0: error(0, message)}, agent=exits((0, 1), (1, -signal.SIGTERM)), agent_exit=1)

    assert (status, failure.kind) == (Status.HUNG, "hang")


def test_a_rank_that_could_not_write_is_no_crash() -> None:
    """A full disk of ours read as "rank 1 exited with 1: nothing on stderr", a red test of the stack."""
    status, failure = cause(agent=exits((1, NO_ANSWER), (0, -15)), agent_exit=1)
    assert (status, failure.rank) == (Status.HARNESS, 1)
    assert failure.summary == "rank 1 could not write its answer: the launch's folder is full or gone"
    status, failure = cause(left=(1,), agent=None, agent_exit=1)
    assert status is Status.HARNESS, "the agent could not write either: nobody knows that rank 1 exited with 0"
    assert failure.summary.startswith("torchrun ended with 1 and left no reason")


def test_exit_code_without_an_error_file_shows_what_the_rank_said() -> None:
    """An interpreter that cannot import our rank program never gets to write its error."""
    log = Log(path="stderr.log", tail="...\nModuleNotFoundError: No module named 'msgspec'")
    _, failure = cause(agent=exits((1, 1), (0, -15)), agent_exit=1, logs={1: log})

    assert failure.summary == "rank 1 exited with 1: ModuleNotFoundError: No module named 'msgspec'"
    assert failure.log_path == "stderr.log"


def test_hang_names_the_rank_outside_torch() -> None:
    """Everybody is silent in a hang; the one the others wait for is not inside a collective."""
    frame = 'Current thread 0x0001 (most recent call first):\n  File "{}", line 9 in {}\n'
    stacks = {
        0: frame.format("/site-packages/torch/distributed/distributed_c10d.py", "all_reduce"),
        1: frame.format("/opt/data/reader.py", "next_shard"),
    }
    status, failure = cause(
        hang=Hang(reason="no progress for 31 s", at_s=131.0, stacks=stacks), progress={0: told(0), 1: told(1)}
    )

    assert (status, failure.kind, failure.rank) == (Status.HUNG, "hang", 1)
    assert failure.summary == (
        "no progress for 31 s; rank 0: window, step 7, silent for 31 s; rank 1: window, step 7, silent for 31 s; "
        "rank 1 is in next_shard (/opt/data/reader.py:9)"
    )
    assert "all_reduce" in failure.detail


def test_hang_of_a_stopped_process() -> None:
    """SIGSTOP, or a driver call that never returns: it alone cannot show its stacks, which named nobody."""
    waiting = (
        'Current thread 0x0001 (most recent call first):\n  File "/torch/distributed_c10d.py", line 9 in all_reduce\n'
    )
    silent = {1: "stopped; SIGRTMIN+8 pending"}
    hang = Hang(reason="no progress for 30 s", at_s=130.0, stacks={0: waiting, 1: ""}, silent=silent)
    _, failure = cause(hang=hang, progress={0: told(0), 1: told(1)})

    assert failure.rank == 1
    assert "no stack: the process did not answer (stopped; SIGRTMIN+8 pending)" in failure.detail
    assert failure.summary.endswith("; rank 1 does not answer: it is stopped, or stuck in the kernel")


def test_hang_of_a_rank_that_never_started() -> None:
    """A rank without a word has no stack to show, and must be named all the same."""
    _, failure = cause(hang=Hang(reason="no progress for 180 s", at_s=280.0, stacks={0: ""}), progress={0: told(0)})

    assert failure.rank == 1
    assert "rank 1: never started" in failure.detail


@pytest.mark.parametrize(
    ("agent", "agent_exit", "kind"),
    [
        (AgentReport(error_type="RendezvousConnectionError", error="store unreachable"), 1, "rendezvous"),
        (AgentReport(error_type="ValueError", error="bad option"), 1, "harness"),
        (None, -signal.SIGKILL, "harness"),
        (None, 2, "harness"),
    ],
)
def test_trouble_of_torchrun_itself(agent: AgentReport | None, agent_exit: int, kind: str) -> None:
    """When no rank ever ran, nothing is known about the stack under test."""
    status, failure = cause(agent=agent, agent_exit=agent_exit, agent_log=Log(path="agent.log", tail="last words"))

    assert (status, failure.kind) == (Status.HARNESS, kind)
    assert failure.log_tail == "last words"


ranks = st.integers(0, 2)
messages = st.sampled_from([RESET, "the cause", "Timed out waiting", "out of memory", ""])


@given(
    errors=st.dictionaries(ranks, st.tuples(messages, st.floats(0, 9))),
    codes=st.lists(st.tuples(ranks, st.sampled_from([1, 3, -9, -11, -15])), max_size=3),
    reported=st.sets(ranks, max_size=2),
    left=st.sets(ranks),
    agent_exit=st.sampled_from([None, 0, 1, -9]),
)
def test_every_end_has_one_cause(errors, codes, reported, left, agent_exit) -> None:  # type: ignore[no-untyped-def]
    """No combination of what ranks and agent left may end the session: a launch always gets a status and a line."""
    facts = Facts(
        world=3,
        reports={rank: report(rank, 3) for rank in reported},
        errors={rank: error(rank, message, at_s=at) for rank, (message, at) in errors.items()},
        agent=exits(*codes) if codes else None,
        left=tuple(left),
        agent_exit=agent_exit,
    )

    status, failure = classify(facts)

    assert status is not Status.COMPLETED
    assert failure is not None
    assert failure.summary
    assert "\n" not in failure.summary
