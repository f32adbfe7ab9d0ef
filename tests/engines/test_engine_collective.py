"""Collectives alone, on gloo: results, times, and what is said of the transport."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch

from pytest_charllm.engines.collective.operations import Operation
from pytest_charllm.engines.collective.sweep import BATCHES, calls_of
from pytest_charllm.engines.collective.transport import NOT_KNOWN, ask_nccl, gloo_transport, nccl_transport
from pytest_charllm.records import RankReport, from_json
from pytest_charllm.scenario import CollectiveOp
from pytest_charllm.scenario.collective import SIZES

WORLD = 3
"""Odd on purpose: no size divides by it, the next and the previous rank differ, and factors are no powers of two."""

CHANNELS = """\
node:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read
node:1:2 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM/read
node:1:2 [0] NCCL INFO Channel 00/0 : 1[1] -> 2[0] [send] via NET/IB/0/GDRDMA
"""


@pytest.fixture(scope="module")
def reports(
    tmp_path_factory: pytest.TempPathFactory, run_ranks: Callable[[Path, Path, int], None]
) -> Mapping[CollectiveOp, list[RankReport]]:
    folder = tmp_path_factory.mktemp("collectives")
    run_ranks(Path(__file__).with_name("collective_program.py"), folder, WORLD)
    return {
        op: [from_json((path := folder / f"{op}.{rank}.json").read_bytes(), RankReport, path) for rank in range(WORLD)]
        for op in CollectiveOp
    }


@pytest.mark.parametrize("op", CollectiveOp)
def test_every_rank_has_what_it_must_have(op: CollectiveOp, reports: Mapping[CollectiveOp, list[RankReport]]) -> None:
    """An operation that moves other parts than it says is faster or slower than the one that training calls."""
    for report in reports[op]:
        assert [message.size for message in report.messages] == list(SIZES[:4])
        assert all(message.wrong == 0 for message in report.messages)


@pytest.mark.parametrize("op", CollectiveOp)
def test_every_size_has_its_batches(op: CollectiveOp, reports: Mapping[CollectiveOp, list[RankReport]]) -> None:
    """The median of one batch is that batch; a size whose bytes are not those of equal parts has another bandwidth."""
    for report in reports[op]:
        assert report.window is not None
        assert report.phases.window_s is not None
        for message in report.messages:
            assert len(message.wall_s) == BATCHES
            assert min(message.wall_s) > 0
            assert message.bytes % (4 * WORLD) == 0
            assert message.size <= message.bytes < message.size + 4 * WORLD
        spent_s = sum(sum(message.wall_s) * message.calls for message in report.messages)
        assert spent_s <= report.phases.window_s


def test_a_wrong_element_is_counted() -> None:
    """A check that cannot fail would let a broken transport pass for a fast one."""
    result = torch.tensor([1.0, 2.0, float("nan")])
    made = Operation(12, lambda: None, result, lambda: torch.tensor([1.0, 3.0, 4.0]))
    assert made.wrong() == 2


def test_batches_are_as_long_on_every_rank() -> None:
    """Ranks that count calls by their own clocks would wait for each other for ever."""
    assert [calls_of(size) for size in SIZES] == [20, 20, 20, 20, 20, 20, 16, 4, 1, 1, 1]


def test_transport_is_what_nccl_says() -> None:
    """NCCL 2.23 chose another transport on some hosts and took twice as long: the times alone do not say why."""
    assert nccl_transport("2.27.5", CHANNELS) == "NCCL 2.27.5: NET/IB/0/GDRDMA and P2P/CUMEM/read"
    assert nccl_transport("2.27.5", "") == f"NCCL 2.27.5: {NOT_KNOWN}"


@pytest.mark.parametrize("own", [{"NCCL_DEBUG": "WARN"}, {"NCCL_DEBUG_FILE": "/x"}, {"NCCL_DEBUG_SUBSYS": "COLL"}])
def test_a_site_that_debugs_by_itself_is_left_alone(own: dict[str, str], tmp_path: Path) -> None:
    """Logging every call, or into another file, is the site's own measurement."""
    environ = dict(own)
    assert ask_nccl(environ, tmp_path / "log") is None
    assert environ == own


def test_nccl_is_asked_where_nobody_else_asks(tmp_path: Path) -> None:
    """Its default says nothing of transports."""
    environ: dict[str, str] = {}
    assert ask_nccl(environ, tmp_path / "log") == tmp_path / "log"
    assert environ == {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": str(tmp_path / "log")}


def test_gloo_says_its_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loopback and a network card are worlds apart."""
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.setattr(socket, "gethostbyname", lambda name: "10.1.2.3")
    cards = {"lo": [SimpleNamespace(address="127.0.0.1")], "eth7": [SimpleNamespace(address="10.1.2.3")]}
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: cards)
    assert gloo_transport() == "gloo: eth7"
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "ib0")
    assert gloo_transport() == "gloo: ib0"
