"""The page for a bug report: on any machine, with any driver or none, and never a traceback."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from pytest_charllm.commands import doctor
from pytest_charllm.commands.main import main
from pytest_charllm.devices import inspection
from pytest_charllm.devices.inspection import Inspection, inspect
from pytest_charllm.errors import DeviceError
from pytest_charllm.hardware import Device, Machine
from pytest_charllm.records import DeviceLine, SampleLine
from pytest_charllm.records.telemetry import RingLine, SnapshotLine

CPU = Machine(variant="cpu", gpus_per_node=2, cpu_model="some CPU")
H200 = Machine(
    variant="h200-sxm", gpus_per_node=1, driver="580.159.04", driver_cuda="13.0",
    devices=(Device(uuid="GPU-1", name="NVIDIA H200", pci="0000:17:00.0", memory_bytes=150_754_820_096),),
)  # fmt: skip

RING = RingLine(uuid="GPU-1", mono_ns=(1, 2), power_w=(700.0, 690.0))


def seen(capabilities: dict[str, str], health: dict[str, Any] | None = None) -> Inspection:
    line = DeviceLine(uuid="GPU-1", name="NVIDIA H200", power_limit_w=700.0, capabilities=capabilities)
    able = {quantity: 1.0 for quantity, answer in capabilities.items() if answer == "ok"}
    return Inspection(
        source="nvml",
        library="NVML 13.580",
        driver="580.159.04",
        devices=(line,),
        samples={"GPU-1": SampleLine(uuid="GPU-1", mono_ns=1, latency_ns=1, values=able)},
        snapshots={"GPU-1": SnapshotLine(uuid="GPU-1", when="start", mono_ns=1, values=health or {})},
    )


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Exit code and page of a machine and a source that are made up."""

    def of(machine: Machine | DeviceError, looked: Inspection | DeviceError) -> tuple[int, str]:
        def find() -> Machine:
            if isinstance(machine, DeviceError):
                raise machine
            return machine

        def look(source: str, uuids: tuple[str, ...] = ()) -> Inspection:
            if isinstance(looked, DeviceError):
                raise looked
            return looked

        monkeypatch.setattr(doctor, "find_machine", find)
        monkeypatch.setattr(inspection, "inspect", look)
        return main(["doctor"]), capsys.readouterr().out

    return of


def test_the_real_machine(capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever is here: a page with its sections, and within its width."""
    assert main(["doctor"]) in (0, 1)
    out = capsys.readouterr().out
    for title in ("host\n", "software\n", "machine\n", "telemetry\n", "what the suites will judge\n"):
        assert title in out
    assert max(map(len, out.splitlines())) <= 140


def test_a_source_that_an_unset_variable_named(capsys: pytest.CaptureFixture[str]) -> None:
    """It was taken for none, and the page of another source was read as its own."""
    assert main(["doctor", "--source", ""]) == 2
    assert capsys.readouterr().err.endswith("--source: no source given; name one, or leave the option out\n")


def test_a_simulated_source_through_the_real_child(capsys: pytest.CaptureFixture[str]) -> None:
    """Identity, limits, the map of capabilities with codes, and what it leaves to be judged."""
    code = main(["doctor", "--source", "simulated:h200"])
    out = capsys.readouterr().out
    assert code == 0
    for line in (
        "GPU-simulated-0 (NVIDIA H200)",
        "slowdown T.Limit  -2 degC",
        "field 138: NotSupported (3)",
        "energy per token     yes       yes",
        "all devices are fit",
    ):
        assert line in out


def test_fault_33_what_a_sandbox_does_not_answer_is_told_by_call_and_code(page: Any) -> None:
    """Without the sensor a required metric has no evidence, and every test is INCONCLUSIVE: known before the night."""
    capabilities = {
        "power_instant_w": "ok",
        "energy_j": "field 191: NotSupported (3)",
        "hbm_temp_c": "field 82: NoData (21)",
    }
    code, out = page(H200, seen(capabilities))
    assert code == 0
    assert "field 191: NotSupported (3)" in out
    rows = [line.strip() for line in out.splitlines()]
    row = next(row for row in rows if row.startswith("hbm temp end"))
    assert row.split()[3:5] == ["yes", "no"]
    assert "field 82: NoData (21)" in row
    assert next(line for line in out.splitlines() if line.strip().startswith("mean power")).split()[2:4] == [
        "yes",
        "yes",
    ]


def test_what_a_mask_hides_is_not_asked(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Of two with CUDA_VISIBLE_DEVICES=0 the other one is not ours: nothing that it has is a reason to refuse."""
    asked: list[tuple[str, tuple[str, ...]]] = []

    def look(source: str, uuids: tuple[str, ...] = ()) -> Inspection:
        asked.append((source, uuids))
        return msgspec.structs.replace(seen({"power_ring": "ok", "sm_active_share": "ok"}), rings={"GPU-1": RING})

    monkeypatch.setattr(doctor, "find_machine", lambda: H200)
    monkeypatch.setattr(inspection, "inspect", look)
    assert main(["doctor"]) == 0
    assert main(["doctor", "--source", "replay:telemetry.jsonl"]) == 0
    assert asked == [("nvml", ("GPU-1",)), ("replay:telemetry.jsonl", ())]
    (row,) = {line for line in capsys.readouterr().out.splitlines() if line.strip().startswith("power_ring")}
    assert " ".join(row.split()) == "power_ring ok 690 the driver's own record, 2 readings just now"


def test_a_refused_device_is_told_with_its_command(page: Any) -> None:
    """The exit code lets a provisioning script stop there."""
    code, out = page(H200, seen({"power_instant_w": "ok"}, {"remap_failed": 1.0, "persistence": 0.0}))
    assert code == 1
    assert "refused: a memory row could not be remapped" in out
    assert "(see nvidia-smi -q -d ECC,ROW_REMAPPER -i GPU-1)" in out.replace("\n" + " " * 9, " ")
    assert "admitted: persistence mode is off" in out


def test_a_driver_that_does_not_answer_is_the_page(page: Any) -> None:
    """The machine it is needed for most: a dead driver, a hung GPU."""
    dead = DeviceError("8 NVIDIA GPU(s) on the PCI bus, but NVML does not start: LibRmVersionMismatch (18): reboot")
    code, out = page(dead, DeviceError("nvml does not answer (no answer in 20 s)"))
    assert code == 1
    assert "LibRmVersionMismatch (18)" in out
    assert "nvml does not answer" in out
    assert "nothing: no telemetry" in out


def test_without_a_gpu_the_library_has_its_say(page: Any) -> None:
    """The person who expected a GPU here learns why there is none."""
    missing = Inspection(source="nvml", error="NVML does not start: LibraryNotFound (12): install the driver")
    code, out = page(CPU, missing)
    assert "LibraryNotFound (12)" in out
    assert code == 1


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("nmvl", "telemetry source 'nmvl' is unknown: use nvml, "),
        ("simulated:h201", "simulated profile 'h201' is unknown: use "),
        ("replay:nowhere.jsonl", "nowhere.jsonl: cannot be read: "),
    ],
)
def test_an_unknown_source_is_bad_input(source: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A slip of the keyboard looked like a GPU that does not answer: a whole page, and exit code 1."""
    assert main(["doctor", "--source", source]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"pytest-charllm: --source: {told}")
    assert captured.err.count("\n") == 1


def test_a_child_without_an_answer_is_an_error_in_time() -> None:
    """nvidia-smi in D state is a known failure: this page must not join it."""
    import sys

    with pytest.raises(DeviceError, match="nvml does not answer"):
        inspect("nvml", child=(sys.executable, "-c", "import time; time.sleep(60)"), timeout_s=0.5)
    with pytest.raises(DeviceError, match="nonsense"):
        inspect("nvml", child=(sys.executable, "-c", "print('{')"))
    with pytest.raises(DeviceError, match=r"failed \(exit 3\)"):
        inspect("nvml", child=(sys.executable, "-c", "import sys; sys.exit(3)"))
