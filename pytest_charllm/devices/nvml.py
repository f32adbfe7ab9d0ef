"""NVIDIA GPUs through NVML. Reads only; what each quantity is read from stands in `nvml_fields`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable
from typing import Any

from pytest_charllm.devices import nvml_fields as table
from pytest_charllm.devices.nvml_calls import Batch, NvmlError, Raw, call, optional, text
from pytest_charllm.devices.nvml_events import XidEvents
from pytest_charllm.devices.nvml_fields import Call, Field
from pytest_charllm.devices.nvml_health import health
from pytest_charllm.devices.nvml_probe import TO_THRESHOLD, Probed, ask, ask_call, extras, probe
from pytest_charllm.devices.source import DeviceLostError
from pytest_charllm.errors import DeviceError
from pytest_charllm.records.telemetry import DeviceLine, EventLine, Part, RingLine, SampleLine, SnapshotLine

REVIVE_S = 5.0
"""Between two attempts to start the library anew, doubled after each that did not help, up to a minute."""
_REVIVE_AT_MOST_S = 60.0

Answer = float | NvmlError | str


class _Plan:
    """How a set of quantities is read. Worked out once, since nearly all passes want the same."""

    def __init__(self, nvml: Any, found: Probed, wanted: frozenset[str]) -> None:
        reads = {quantity: read for quantity, read in found.reads.items() if quantity in wanted}
        self.fields = tuple((quantity, read) for quantity, read in reads.items() if isinstance(read, Field))
        self.calls = tuple((quantity, read) for quantity, read in reads.items() if isinstance(read, Call))
        self.batch = Batch(nvml, [read for _, read in self.fields])
        self.to_threshold = "margin_c" in wanted and found.line.semantics.get("margin_c") == TO_THRESHOLD
        self.sampled = found.sampled.quantities & wanted
        self.metrics = table.GPM.keys() & wanted


class _Gpu:
    """`handle` changes when the library is started anew."""

    def __init__(self, handle: Any, found: Probed) -> None:
        self.handle, self.found = handle, found
        self._plans: dict[frozenset[str], _Plan] = {}

    def plan(self, nvml: Any, wanted: Collection[str]) -> _Plan:
        wanted = frozenset(wanted)
        plan = self._plans.get(wanted)
        if plan is None:
            plan = self._plans[wanted] = _Plan(nvml, self.found, wanted)
        return plan

    @property
    def line(self) -> DeviceLine:
        return self.found.line


class _Revival:
    """When the library may be started anew, and what came of it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.not_before_ns = 0
        self.wait_s = REVIVE_S
        self.events: list[EventLine] = []


class NvmlSource:
    """`nvml` is the module `pynvml`. Raises `DeviceError` where NVML does not start or lacks a named device.

    A MIG instance is read as the GPU it is part of: power, heat and clocks are those of the whole board.
    """

    def __init__(
        self,
        nvml: Any,
        uuids: tuple[str, ...],
        *,
        name: str = "nvml",
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.name = name
        self._nvml, self._clock = nvml, clock
        self._revival = _Revival()
        try:
            call(nvml, "nvmlInit")
            boards = self._boards(uuids) if uuids else [(handle, ()) for handle in self._all_handles()]
            self._gpus = {gpu.line.uuid: gpu for gpu in self._open(boards)}
        except NvmlError as refused:
            raise DeviceError(refused.explain("NVML does not start")) from None
        driver, library = optional(nvml, "nvmlSystemGetDriverVersion"), optional(nvml, "nvmlSystemGetNVMLVersion")
        self.driver: str | None = text(driver) if driver else None
        self.library: str | None = f"NVML {text(library)}" if library else None
        self._xids = self._xid_events()

    def devices(self) -> tuple[DeviceLine, ...]:
        return tuple(gpu.line for gpu in self._gpus.values())

    def read(self, uuid: str, wanted: Collection[str]) -> SampleLine:
        gpu = self._gpus[uuid]
        plan = gpu.plan(self._nvml, wanted)
        values: dict[str, float | None] = {}
        missing: dict[str, str] = {}
        begin_ns = self._clock()
        answers = self._pass(gpu, plan)
        end_ns = self._clock()
        for quantity, answer in answers.items():
            if not isinstance(answer, NvmlError | str):
                values[quantity] = answer
            elif isinstance(answer, NvmlError) and answer.code in table.LOST:
                raise DeviceLostError(answer.explain(f"{uuid} ({gpu.line.name})"))
            else:
                values[quantity], missing[quantity] = None, str(answer)
        if len(missing) == len(answers):
            self._revive_if_stale(answers.values(), end_ns)
        gpu.found.plausible.filter(values, missing)
        return SampleLine(
            uuid=uuid, mono_ns=(begin_ns + end_ns) // 2, latency_ns=end_ns - begin_ns, values=values, missing=missing
        )

    def snapshot(self, uuid: str, when: str) -> SnapshotLine:
        return health(self._nvml, self._gpus[uuid].handle, uuid, when, self._clock())

    def power_ring(self, uuid: str) -> RingLine | None:
        gpu = self._gpus[uuid]
        try:
            return gpu.found.ring.read() if gpu.found.ring is not None else None
        except NvmlError:
            return None  # The pass beside it tells what is wrong; the ring is an extra.
        except Exception:
            gpu.found = gpu.found._replace(ring=None)
            return None

    def processes(self, uuid: str) -> tuple[int, ...]:
        found = optional(self._nvml, "nvmlDeviceGetComputeRunningProcesses", self._gpus[uuid].handle)
        return tuple(process.pid for process in found or ())

    def wait_events(self, timeout_s: float) -> tuple[EventLine, ...] | None:
        with self._revival.lock:
            told, self._revival.events = tuple(self._revival.events), []
        if told:
            return told
        xids = self._xids
        if xids is not None:
            try:
                return xids.wait(timeout_s)
            except NvmlError as refused:
                if refused.code not in table.STALE:
                    self._xids = None
                    text = f"{refused}; errors that the driver reports are not seen any more"
                    return (EventLine(kind="error", mono_ns=self._clock(), text=text),)
        time.sleep(timeout_s)
        return ()

    def _pass(self, gpu: _Gpu, plan: _Plan) -> dict[str, Answer]:
        """Every wanted quantity with its value, its refusal, or why it cannot be decoded: fields first, in one call."""
        answers = self._fields(gpu, plan)
        for quantity, read in plan.calls:
            answers[quantity] = ask_call(self._nvml, gpu.handle, read)
        if plan.to_threshold:
            answers["margin_c"] = self._to_threshold(gpu, answers.get("core_temp_c"))
        reasons = answers.get("event_reasons")
        if isinstance(reasons, float):
            sampled = gpu.found.sampled.add(int(reasons), self._clock())
            answers |= {q: total_ns for q, total_ns in sampled.items() if q in plan.sampled}
        if plan.metrics:
            answers |= self._metrics(gpu, plan.metrics)
        return answers

    def _to_threshold(self, gpu: _Gpu, core_c: Answer | None) -> Answer:
        if core_c is None:  # not wanted by itself
            core_c = ask(self._nvml, gpu.handle, gpu.found.reads["core_temp_c"])
        assert gpu.line.slowdown_temp_c is not None
        return gpu.line.slowdown_temp_c - core_c if isinstance(core_c, float) else core_c

    def _metrics(self, gpu: _Gpu, wanted: Collection[str]) -> dict[str, Answer]:
        if gpu.found.gpm is None:
            return {}
        try:
            return {quantity: answer for quantity, answer in gpu.found.gpm.read().items() if quantity in wanted}
        except NvmlError as refused:
            return dict.fromkeys(wanted, refused)
        except Exception as error:  # a binding of other structures: an extra must not cost all the rest
            gpu.found = gpu.found._replace(gpm=None)
            return dict.fromkeys(wanted, f"GPM: {type(error).__name__}: {error}; not asked again")

    def _fields(self, gpu: _Gpu, plan: _Plan) -> dict[str, Answer]:
        if not plan.fields:
            return {}
        try:
            raw = plan.batch.read(gpu.handle)
        except NvmlError as refused:
            return {quantity: refused for quantity, _ in plan.fields}
        answers: dict[str, Answer] = {}
        for (quantity, read), answer in zip(plan.fields, raw, strict=True):
            if isinstance(answer, Raw):
                value: float | str = answer.value
                if quantity in gpu.found.wraps and answer.type == table.VALUE_UINT:
                    value = gpu.found.wraps[quantity].total(int(answer.value), self._clock())
                answers[quantity] = value if isinstance(value, str) else value / read.per_unit
            else:
                answers[quantity] = answer
        return answers

    def _boards(self, uuids: Iterable[str]) -> list[tuple[Any, tuple[Part, ...]]]:
        """Each physical GPU behind these UUIDs once, with the MIG instances that were named of it."""
        boards: dict[str, tuple[Any, tuple[Part, ...]]] = {}
        for uuid in uuids:
            handle = self._handle(uuid)
            parts: tuple[Part, ...] = ()
            if uuid.startswith("MIG-"):
                handle = call(self._nvml, "nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle)
                parts = (Part(uuid=uuid),)
            board = text(call(self._nvml, "nvmlDeviceGetUUID", handle))
            boards[board] = (handle, (*boards.get(board, (handle, ()))[1], *parts))
        return list(boards.values())

    def _handle(self, uuid: str) -> Any:
        try:
            return call(self._nvml, "nvmlDeviceGetHandleByUUID", uuid)
        except NvmlError as refused:
            raise DeviceError(refused.explain(f"NVML does not open {uuid}")) from None

    def _all_handles(self) -> list[Any]:
        count = call(self._nvml, "nvmlDeviceGetCount")
        return [call(self._nvml, "nvmlDeviceGetHandleByIndex", index) for index in range(count)]

    def _open(self, boards: Iterable[tuple[Any, tuple[Part, ...]]]) -> Iterable[_Gpu]:
        for handle, parts in boards:
            yield _Gpu(handle, probe(self._nvml, handle, parts, self._clock))

    def _xid_events(self) -> XidEvents | None:
        try:
            return XidEvents(self._nvml, {uuid: gpu.handle for uuid, gpu in self._gpus.items()}, self._clock)
        except Exception:  # refused, or a binding without them: an extra must not cost the rest
            return None

    def _revive_if_stale(self, answers: Iterable[Answer], now_ns: int) -> None:
        """Start the library anew where a whole pass was refused in a way that nothing else can help. Other threads
        read on meanwhile, into refusals at worst."""
        codes = {answer.code if isinstance(answer, NvmlError) else table.SUCCESS for answer in answers}
        if not codes or not codes <= table.STALE or now_ns < self._revival.not_before_ns:
            return
        refused_by = table.code_name(min(codes))
        with self._revival.lock:
            if now_ns < self._revival.not_before_ns:
                return
            self._revival.not_before_ns = now_ns + round(self._revival.wait_s * 1e9)
            self._revival.wait_s = min(2 * self._revival.wait_s, _REVIVE_AT_MOST_S)
            self._xids = None
            optional(self._nvml, "nvmlShutdown")
            try:
                call(self._nvml, "nvmlInit")
                for uuid, gpu in self._gpus.items():
                    gpu.handle = call(self._nvml, "nvmlDeviceGetHandleByUUID", uuid)
                    gpm, ring, _ = extras(self._nvml, gpu.handle, uuid, self._clock)
                    gpu.found = gpu.found._replace(gpm=gpm, ring=ring)
            except NvmlError as refused:
                said = f"NVML answered {refused_by}; starting it anew failed: {refused}"
            else:
                said = f"NVML answered {refused_by} and was started anew"
                self._xids = self._xid_events()
            self._revival.events.append(EventLine(kind="restarted", mono_ns=now_ns, text=said))
