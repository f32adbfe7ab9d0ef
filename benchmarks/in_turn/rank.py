"""The program of each rank of a row: ``python -m in_turn.rank SPEC.json``, the request where CHARLLM_REQUEST names it.

Builds the variants, warms them up, and lets them step in turn, in blocks without a wait inside. The first rank tells
what it finds line by line, so that a row which is cut off leaves what it has measured.
"""

from __future__ import annotations

import faulthandler
import gc
import math
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch._dynamo.utils import counters

from in_turn.settings import CompilerSettings, OwnCode
from in_turn.told import Block, Built, Failed, Matmul, Plan, Spec, Told
from in_turn.variants import Variant, parse
from pytest_charllm.devices.process import die_with_parent
from pytest_charllm.engines.native.attention import preferred_backends
from pytest_charllm.engines.native.clock import mark_type, no_garbage_collection
from pytest_charllm.engines.native.setup import MakeStep, Setup, build_step
from pytest_charllm.engines.native.world import World, join
from pytest_charllm.engines.surroundings import cuda_device, rank_device, software
from pytest_charllm.launch.names import REQUEST_PATH
from pytest_charllm.measure.energy import SHORTEST_S
from pytest_charllm.records import RankRequest, from_json
from pytest_charllm.scenario.memory import need
from pytest_charllm.scenario.models import sequence, shape_of
from pytest_charllm.telemetry.client import Sampler
from pytest_charllm.telemetry.dense import Span

_WARM_S, _WARM_STEPS = 1.5, 3
"""After the first step: time to get warm in, and steps of one look at the clock."""
_REPORT_S = 4.0
"""Kept back at the end: the sampler's last words, and the way out."""
_SWITCH_S = 0.4
"""Between two blocks: garbage is collected, ranks meet."""
_FULL = 0.95
"""Share of a GPU's memory that estimates may fill."""
_EDGE_S, _LATE_SHARE = 0.5, 0.05
"""How long before and after an edge the sampler looks closely, and how late, of its length, a block may end."""
_ENERGY_S = 1.1 * SHORTEST_S
"""What counts of a block is this long at least: of less there is no energy."""
_AFTER_S = 0.3
"""After the last block: the counter of energy must move once more."""
_MATMUL_WIDTH, _CPU_MATMUL_WIDTH = 8192, 512


class Contestant:
    """One variant: its settings for as long as the row lasts, and its model in training while there is one."""

    def __init__(self, variant: Variant, request: RankRequest, world: World, wheel: Path) -> None:
        self.name = variant.name
        self._variant, self._world = variant, world
        self._request = msgspec.structs.replace(request, scenario=variant.scenario(request.scenario))
        self._wheel = wheel
        self._compilers, self._code = CompilerSettings(), OwnCode()
        self._step: Any = None
        self._steps = 0
        self._held: int | None = None
        self.step_s = 0.0

    @property
    def ready(self) -> bool:
        return self._step is not None

    @contextmanager
    def in_force(self) -> Iterator[None]:
        with ExitStack() as stack:
            if self._variant.engine == "native":
                stack.enter_context(preferred_backends(self._world.device))
            stack.enter_context(self._compilers.in_force())
            stack.enter_context(self._code.in_force())
            stack.enter_context(self._variant.in_force())
            yield

    def build(self) -> Built:
        """Until it is warm: then `step_s` is the time of a step, equal on all ranks."""
        before = allocated(self._world)
        with self.in_force():
            scenario = self._request.scenario
            setup = Setup(
                self._request, self._world, shape_of(scenario), sequence(scenario), 0.0, self._make(self._wheel)
            )
            step, report = setup.build(generator_device=self._world.device)
            self._step = step
            began_s = time.perf_counter()
            first_loss = self._run(1)[1]
            first_step_s = time.perf_counter() - began_s
            began_s = time.perf_counter()
            while True:
                marks, _ = self._run(_WARM_STEPS)
                [self.step_s] = self._world.largest([marks[0].until(marks[-1]).wall_s / _WARM_STEPS])
                [spent_s] = self._world.largest([time.perf_counter() - began_s])
                if spent_s >= _WARM_S:
                    break
        after = allocated(self._world)
        self._held = None if before is None or after is None else after - before
        return Built(
            variant=self.name,
            parameters=report.parameters,
            attention=getattr(step, "attention_backend", report.attention_backend),
            experts=report.expert_backend,
            first_loss=first_loss,
            first_step_s=first_step_s,
            step_s=self.step_s,
            held_bytes=self._held,
        )

    def block(self, number: int, seconds: float, settle_s: float, announce: Callable[[float, float], None]) -> Block:
        """`seconds` of steps, of which those that begin within the first `settle_s` are dropped."""
        device = self._world.device
        dropped = math.ceil(settle_s / self.step_s)
        enough = math.ceil(_ENERGY_S / self.step_s)
        counted = max(2, enough, round(seconds / self.step_s) - dropped)
        others = 0
        if self._held is not None:
            others = torch.cuda.memory_allocated(device) - self._held
            torch.cuda.reset_peak_memory_stats(device)
        graphs = counters["stats"]["unique_graphs"]
        with self.in_force(), no_garbage_collection():
            self._world.barrier()
            announce(dropped * self.step_s, (dropped + counted) * self.step_s)
            marks, last_loss = self._run(dropped + counted)
            end_ns = self._ended_ns
        own_s = marks[dropped].until(marks[-1]).wall_s
        [elapsed_s] = self._world.largest([own_s])
        return Block(
            variant=self.name,
            round=number,
            dropped=dropped,
            step_s=tuple(a.until(b).wall_s for a, b in pairwise(marks[dropped:])),
            elapsed_s=elapsed_s,
            # The last mark was passed as the device came to rest; the others lie where they lie before it.
            begin_ns=end_ns - round(own_s * 1e9),
            end_ns=end_ns,
            peak_bytes=None if self._held is None else torch.cuda.max_memory_allocated(device) - others,
            last_loss=last_loss,
            compiled=counters["stats"]["unique_graphs"] - graphs,
        )

    def free(self) -> None:
        self._step = None

    def _run(self, steps: int) -> tuple[list[Any], float]:
        """Marks around each step, and the last loss. The host waits at the end alone."""
        mark = mark_type(self._world.device)
        marks = [mark()]
        for _ in range(steps):
            loss, _ = self._step(self._steps)
            self._steps += 1
            marks.append(mark())
        self._world.synchronize()
        self._ended_ns = time.monotonic_ns()
        self._world.barrier()
        last = float(loss)
        if not math.isfinite(last):
            raise ArithmeticError(f"the loss is {last} after {self._steps} steps")
        return marks, last

    def _make(self, wheel: Path) -> MakeStep:
        if self._variant.engine == "native":
            return build_step
        from in_turn.titan_step import TitanStep

        return partial(TitanStep, wheel)


class Yardstick:
    """What this card gives in products alone, under the same power cap and as warm as the training beside it."""

    def __init__(self, world: World, seconds: float, settle_s: float) -> None:
        self._world = world
        gpu = world.device.type == "cuda"
        self._width = _MATMUL_WIDTH if gpu else _CPU_MATMUL_WIDTH
        self._dtype = torch.bfloat16 if gpu else torch.float32
        size = (self._width, self._width)
        self._left, self._right = (torch.randn(size, device=world.device, dtype=self._dtype) for _ in range(2))
        self._out = torch.empty_like(self._left)
        self._run(3)
        one_s = self._run(20) / 20
        self._dropped, self._counted = round(settle_s / one_s), max(20, round((seconds - settle_s) / one_s))

    def block(self, number: int) -> Matmul:
        with no_garbage_collection():
            self._world.barrier()
            self._run(self._dropped, wait=False)
            elapsed_s = self._run(self._counted)
        flop_per_s = self._counted * 2.0 * self._width**3 / elapsed_s
        [mean] = self._world.mean(torch.tensor([flop_per_s]))
        return Matmul(
            round=number,
            width=self._width,
            dtype=str(self._dtype).removeprefix("torch."),
            products=self._counted,
            flop_per_s=mean,
        )

    def _run(self, products: int, wait: bool = True) -> float:
        mark = mark_type(self._world.device)
        begin = mark()
        for _ in range(products):
            torch.mm(self._left, self._right, out=self._out)
        end = mark()
        if not wait:
            return 0.0
        self._world.synchronize()
        return begin.until(end).wall_s


class Row:
    """The turns of all variants. `tell` takes what is found, on every rank."""

    def __init__(self, spec: Spec, request: RankRequest, world: World, tell: Callable[[Told], None]) -> None:
        self._spec, self._world, self._tell = spec, world, tell
        self._sampler: Sampler | None = None
        self._names = spec.variants
        made = [Contestant(parse(name), request, world, Path(spec.wheel)) for name in spec.variants]
        self._contestants = {each.name: each for each in made}
        self._apart = self._why_apart(request)

    def run(self, sampler: Sampler | None) -> None:
        self._sampler = sampler
        yardstick = Yardstick(self._world, self._spec.matmul_s, self._spec.settle_s)
        if self._apart is None:
            for name in self._names:
                self._present(name)
        rounds, block_s = self._plan()
        # Apart, a variant stays for half of its blocks at a time: building costs more than a block.
        sweeps, each = (rounds, 1) if self._apart is None else (2, rounds // 2)
        self._tell(
            Plan(
                rounds=rounds,
                block_s=block_s,
                apart=self._apart,
                devices=self._devices(),
                software=software(cuda_device()),
            )
        )
        for sweep in range(sweeps):
            self._tell(yardstick.block(sweep * each))
            for name in self._names if sweep % 2 == 0 else self._names[::-1]:
                self._turn(name, range(sweep * each, (sweep + 1) * each), block_s)
        time.sleep(_AFTER_S)

    def _turn(self, name: str, numbers: range, block_s: float) -> None:
        for number in numbers:
            contestant = self._present(name)
            if contestant is None:
                return
            with self._failing(name):
                self._tell(contestant.block(number, block_s, self._spec.settle_s, self._announce))

    def _present(self, name: str) -> Contestant | None:
        """The variant, built and warm; None where it has failed, now or before."""
        contestant = self._contestants.get(name)
        if contestant is None or contestant.ready:
            return contestant
        if self._apart is not None:
            for other in self._contestants.values():
                other.free()
            _let_go()
        with self._failing(name):
            self._tell(contestant.build())
            gc.collect()
            gc.freeze()  # What was built need not be looked through again before every block.
        return self._contestants.get(name)

    @contextmanager
    def _failing(self, name: str) -> Iterator[None]:
        """A variant that fails on every rank alike is told of and left out; the others go on."""
        try:
            yield
        except Exception as error:
            traceback.print_exc()
            message = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
            if isinstance(error, torch.OutOfMemoryError) and self._apart is None:
                message += " (beside the others: measure this row with --apart)"
            self._tell(Failed(variant=name, message=message))
            self._contestants.pop(name).free()
            error.__traceback__ = None  # It holds the frames that hold the model.
            _let_go()

    def _why_apart(self, request: RankRequest) -> str | None:
        if self._spec.apart:
            return "asked for"
        if self._world.device.type != "cuda" or len(self._names) == 1:
            return None
        need_ = need(request.scenario)
        idle = (len(self._names) - 1) * (need_.parameters + need_.optimizer)
        room = torch.cuda.get_device_properties(self._world.device).total_memory
        if need_.total + idle <= _FULL * room:
            return None
        return f"{(need_.total + idle) / 1e9:.0f} GB together by the estimate, of {room / 1e9:.0f}"

    def _plan(self) -> tuple[int, float]:
        if self._apart is not None:
            return self._spec.rounds, self._spec.block_s
        [spent_s] = self._world.largest([time.monotonic() + _REPORT_S])
        return fitting(self._spec.until_ns / 1e9 - spent_s, max(1, len(self._contestants)), self._spec)

    def _announce(self, begin_s: float, end_s: float) -> None:
        """Tell the sampler of the edges of what counts, from now."""
        if self._sampler is None:
            return
        now_ns = time.monotonic_ns()
        for edge_s in (begin_s, end_s):
            early_s, late_s = max(0.0, edge_s - _EDGE_S), edge_s * (1 + _LATE_SHARE) + _EDGE_S
            self._sampler.announce(Span(now_ns + round(early_s * 1e9), now_ns + round(late_s * 1e9)))

    def _devices(self) -> tuple[Any, ...]:
        own = rank_device(cuda_device())
        if self._world.size == 1:
            return (own,)
        every: list[Any] = [None] * self._world.size
        dist.all_gather_object(every, own)
        return tuple(every)


def fitting(left_s: float, variants: int, spec: Spec) -> tuple[int, float]:
    """(rounds, seconds of a block): as many rounds, an even number, as fit with blocks that are long enough; two at
    least."""
    for rounds in range(spec.rounds, 1, -2):
        fits_s = (left_s / rounds - spec.matmul_s - _SWITCH_S) / variants - _SWITCH_S
        if fits_s >= spec.least_block_s:
            return rounds, min(fits_s, spec.block_s)
    return 2, spec.least_block_s


def allocated(world: World) -> int | None:
    return torch.cuda.memory_allocated(world.device) if world.device.type == "cuda" else None


def _let_go() -> None:
    gc.unfreeze()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def run(spec: Spec) -> None:
    path = Path(os.environ[REQUEST_PATH])
    request = from_json(path.read_bytes(), RankRequest, path)
    first = os.environ.get("RANK", "0") == "0"
    sampler = Sampler(Path(spec.trace), spec.source, spec.uuids) if first else None
    if sampler is not None:
        sampler.start()
    try:
        world = join(request)
        with ExitStack() as stack:
            out = stack.enter_context(open(spec.out, "ab")) if first else None

            def tell(found: Told) -> None:
                if out is not None:
                    out.write(msgspec.json.encode(found) + b"\n")
                    out.flush()

            Row(spec, request, world, tell).run(sampler)
    finally:
        if sampler is not None:
            for note in sampler.stop():
                print(note, file=sys.stderr)


def main() -> None:
    """Never returns, as `launch.rank`: process groups that are torn down may deadlock."""
    die_with_parent(signal.SIGKILL)
    code = 1
    try:
        spec = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Spec)
        faulthandler.dump_traceback_later(spec.limit_s, exit=True)
        run(spec)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
