from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from pytest_charllm.devices import probe
from pytest_charllm.devices.find import cpu_machine, find_machine, foreign_processes, simulated_machine
from pytest_charllm.devices.probe import ComputeProcess, Found
from pytest_charllm.devices.process import descends
from pytest_charllm.errors import DeviceError
from pytest_charllm.hardware import Device, Machine

H200 = tuple(Device(uuid=f"GPU-{i}", name="NVIDIA H200", pci=f"0000:{i}7:00.0", power_limit_w=700.0) for i in range(2))
ABSENT = Found(error="NVML does not start: LibraryNotFound (12): install the NVIDIA driver", absent=True)
MISMATCH = Found(error="NVML does not start: LibRmVersionMismatch (18): kernel module and library differ")


@pytest.fixture
def find(tmp_path):
    """`find_machine` on a made-up bus, with a child that answers `found` in the way the real one does."""

    def with_answer(found: Found | bytes, *, gpus: int = 0, vendor: str = "0x10de", **environ: str) -> Machine:
        for i in range(gpus):
            device = tmp_path / f"0000:{i}7:00.0"
            device.mkdir()
            (device / "vendor").write_text(vendor)
            (device / "class").write_text("0x030200")
        answer = found if isinstance(found, bytes) else msgspec.json.encode(found)
        command = (sys.executable, "-c", f"import os; os.write(1, {answer!r})")
        return find_machine(environ=environ, pci_root=tmp_path, probe=command)

    return with_answer


def test_a_gpu_machine(find):
    """What identifies machine and stack comes from NVML, the variant from the catalogue."""
    machine = find(Found(devices=H200, driver="580.159.04", driver_cuda="13.0"), gpus=2)
    assert (machine.variant, machine.shape, machine.devices) == ("h200-sxm", "1x2", H200)
    assert (machine.driver, machine.driver_cuda) == ("580.159.04", "13.0")
    assert machine.host
    assert machine.kernel == os.uname().release


def test_gpus_without_a_pci_bus_are_found(find):
    """WSL and sandboxes show no PCI device although NVML answers."""
    assert find(Found(devices=H200)).gpus_per_node == 2


def test_visible_devices_are_respected(find):
    """The machine is what the ranks will get, in their order."""
    machine = find(Found(devices=H200), CUDA_VISIBLE_DEVICES="GPU-1")
    assert machine.devices == (H200[1],)
    assert machine.shape == "1x1"


def test_fault_01_no_gpu_is_the_cpu_machine(find):
    """The embedded default: two gloo ranks on a machine that has no GPU and no driver."""
    machine = find(ABSENT)
    assert (machine.variant, machine.gpus_per_node, machine.devices) == ("cpu", 2, ())
    assert machine.cpu_model
    assert machine == cpu_machine({})


def test_a_driver_without_gpus_is_the_cpu_machine(find):
    """A node whose GPUs were taken out still has its driver installed."""
    assert find(Found(driver="580.159.04")).is_cpu


@pytest.mark.parametrize("found", [ABSENT, MISMATCH, Found(), Found(unopened=("GPU 0: NoPermission (4)",))])
def test_a_gpu_that_does_not_answer_is_never_the_cpu_machine(find, found):
    """A green run on the CPU of a GPU node with a dead driver hides exactly the failure that matters most."""
    with pytest.raises(DeviceError) as error:
        find(found, gpus=8)
    assert str(error.value).startswith("8 NVIDIA GPU(s) on the PCI bus (0000:07:00.0), but ")
    assert (found.error or "".join(found.unopened) or "NVML lists no GPU") in str(error.value)
    assert "\n" not in str(error.value)


def test_fault_02_a_mismatched_driver_is_an_error_even_without_a_bus(find):
    """A library that refuses its kernel module proves that there is a GPU, though a sandbox may hide the bus."""
    with pytest.raises(DeviceError, match="LibRmVersionMismatch"):
        find(MISMATCH)


def test_amd_gpus_are_not_passed_off_as_a_cpu(find):
    """A node of AMD GPUs without amdsmi is a node to be mended, not one to be tested as a CPU."""
    with pytest.raises(DeviceError, match=r"2 AMD GPU\(s\) on the PCI bus .*, but amdsmi is not installed"):
        find(Found(error="amdsmi is not installed: install ROCm's amd-smi-lib", absent=True), gpus=2, vendor="0x1002")


def test_hidden_gpus_are_the_cpu_machine_without_asking(find):
    """An empty CUDA_VISIBLE_DEVICES is the user's wish, whatever state the driver is in."""
    assert find(b"must not be asked", gpus=1, CUDA_VISIBLE_DEVICES="").is_cpu


def test_an_unknown_gpu_names_the_catalogue(find):
    """A card without an entry has no variant, so no baseline could ever be found."""
    with pytest.raises(DeviceError, match=r"'NVIDIA H900'.*catalogue"):
        find(Found(devices=(Device(uuid="GPU-0", name="NVIDIA H900"),)))


def test_mixed_models_are_listed(find):
    """Two models on one node cannot share a baseline; the user must choose."""
    with pytest.raises(DeviceError, match="1 x h100-sxm, 2 x h200-sxm; choose"):
        find(Found(devices=(*H200, Device(uuid="GPU-9", name="NVIDIA H100 80GB HBM3"))))


def test_a_child_that_hangs_is_an_error_in_time(tmp_path):
    """nvidia-smi stuck in D state after an Xid is a known failure; the answer must come, and must not be cpu."""
    command = (sys.executable, "-c", "import time; time.sleep(600)")
    with pytest.raises(DeviceError, match=r"does not answer \(no answer in 0.5 s\)"):
        find_machine(environ={}, pci_root=tmp_path, probe=command, timeout_s=0.5)


def test_a_child_that_dies_is_an_error_with_its_cause(tmp_path):
    """A driver library that crashes takes the child, not pytest, and is not mistaken for an absent one."""
    command = (sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    with pytest.raises(DeviceError, match="exit -11"):
        find_machine(environ={}, pci_root=tmp_path, probe=command)


def test_a_child_that_babbles_is_an_error(find):
    """Half an answer must not be read as a machine without GPUs."""
    with pytest.raises(DeviceError, match="nonsense"):
        find(b'{"devices": [')


def test_the_real_child_answers_on_this_machine():
    """The one test with the real probe: whatever is here, it is a machine or one clear line."""
    try:
        machine = find_machine()
    except DeviceError as error:
        said = str(error)
        assert "\n" not in said
    else:
        assert machine.is_cpu == (machine.devices == ())


def test_finding_loads_no_vendor_library_here():
    """The plugin finds the machine inside pytest: NVML must stay in the child."""
    script = (
        "import sys; from pytest_charllm.devices.find import find_machine\n"
        "try: find_machine()\n"
        "except Exception as error: print(error)\n"
        "assert not {'pynvml', 'torch'} & set(sys.modules)"
    )
    subprocess.run((sys.executable, "-c", script), check=True, timeout=60)


def test_the_probe_tells_each_device(nvml):
    """Identity, limits and versions in the words of `Device`."""
    found = probe.find(nvml)
    assert found == Found(
        devices=(
            Device(
                uuid=nvml.UUID, name="NVIDIA H200", pci="0000:17:00.0", memory_bytes=150_754_820_096,
                power_limit_w=700.0, vbios="96.00.A5.00.01",
            ),
        ),
        driver="580.159.04",
        driver_cuda="13.0",
    )  # fmt: skip


def test_the_probe_tells_partitions_and_what_is_absent(nvml):
    """A MIG partition is never comparable with a whole GPU; what a board does not know is None, not 0."""
    nvml.answers["nvmlDeviceGetMigMode"] = [1, 1]
    del nvml.answers["nvmlDeviceGetMemoryInfo"], nvml.answers["nvmlDeviceGetEnforcedPowerLimit"]
    device = probe.find(nvml).devices[0]
    assert (device.partition, device.memory_bytes, device.power_limit_w) == ("mig", None, None)


@pytest.mark.parametrize(
    ("joined", "islands"),
    [
        ({(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)}, [0, 0, 0, 0]),
        ({(0, 2), (1, 3)}, [0, 1, 0, 1]),
        ({(0, 1), (1, 2), (2, 3), (0, 3)}, [0, 0, 1, 1]),
        (set(), [0, 1, 2, 3]),
    ],
)
def test_the_probe_tells_islands(nvml, joined, islands):
    """A switch joins all, a bridge two that need not be neighbours, a ring no three; without links each is alone."""
    nvml.answers |= {
        "nvmlDeviceGetCount": 4,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetUUID": lambda handle: f"GPU-{handle}",
        "nvmlDeviceGetP2PStatus": lambda one, other, capability: (
            0 if capability == nvml.P2P_NVLINK and (one, other) in joined else 1
        ),
    }
    assert [device.island for device in probe.find(nvml).devices] == islands
    nvml.refusals["nvmlDeviceGetP2PStatus"] = 3
    assert [device.island for device in probe.find(nvml).devices] == [None] * 4


def test_the_probe_leaves_out_what_it_may_not_open(nvml):
    """In a Slurm job NVML counts all GPUs of the node, but only those of the job open."""
    nvml.answers["nvmlDeviceGetCount"] = 2
    nvml.answers["nvmlDeviceGetHandleByIndex"] = lambda index: "handle" if index else _refuse(nvml, 17)
    found = probe.find(nvml)
    assert len(found.devices) == 1
    assert "GPU 0: OperatingSystem (17)" in found.unopened[0]


def _refuse(nvml, code: int):
    raise nvml.NVMLError(code)


@pytest.mark.parametrize(("code", "absent"), [(12, True), (9, True), (18, False), (999, False)])
def test_the_probe_tells_absent_from_broken(nvml, code, absent):
    """Only a driver that is not there may lead to the cpu machine."""
    nvml.refusals["nvmlInit"] = code
    found = probe.find(nvml)
    assert found.absent == absent
    assert f"({code})" in found.error


def test_the_probe_lists_processes(nvml):
    """The driver may withhold the name; the pid alone must still be reported."""
    nvml.answers["nvmlDeviceGetComputeRunningProcesses"] = [SimpleNamespace(pid=7, usedGpuMemory=None)]
    assert probe.processes(nvml, (nvml.UUID,)) == [ComputeProcess(uuid=nvml.UUID, pid=7)]
    nvml.answers["nvmlSystemGetProcessName"] = b"python"
    assert probe.processes(nvml, (nvml.UUID,))[0].name == "python"


def test_own_processes_are_not_foreign():
    """A leftover of our own launch is ours to clean up; anyone else's makes the measurement worthless."""
    child = subprocess.Popen((sys.executable, "-c", "input()"), stdin=subprocess.PIPE)
    try:
        processes = [ComputeProcess(uuid="GPU-0", pid=pid) for pid in (os.getpid(), child.pid, os.getppid(), 2**22 + 1)]
        answer = msgspec.json.encode(processes)
        command = (sys.executable, "-c", f"import os; os.write(1, {answer!r})")
        assert foreign_processes(("GPU-0",), probe=command, again_s=0.0) == processes[2:]
    finally:
        child.communicate(timeout=30)


def test_who_is_about_to_end_is_not_foreign(tmp_path):
    """Seen once, and it made a scenario INVALID for the whole run: a monitor's short query, or a job that is ending."""
    answer = msgspec.json.encode([ComputeProcess(uuid="GPU-0", pid=2**22 + 1)])
    once = f"""import os, sys
try:
    os.mkdir({str(tmp_path / "looked")!r}), os.write(1, {answer!r})
except FileExistsError:
    os.write(1, b"[]")"""
    assert foreign_processes(("GPU-0",), probe=(sys.executable, "-c", once), again_s=0.0) == []
    assert (tmp_path / "looked").exists()


def test_everybody_descends_from_the_first_process():
    """Where a container runs pytest and nothing else that is process 1, and its ranks were strangers on their GPUs."""
    first = os.getpid()
    while (parent := int(Path(f"/proc/{first}/stat").read_text().rpartition(")")[2].split()[1])) > 0:
        first = parent
    assert descends(os.getpid(), first)
    assert descends(first, os.getpid()) is (first == os.getpid())
    assert descends(2**22 + 1, first) is None


def test_no_gpu_has_no_foreign_processes():
    """On the cpu machine there is no driver to ask."""
    assert foreign_processes((), probe=("/does/not/exist",)) == []
    assert foreign_processes(("cpu-host",), probe=("/does/not/exist",)) == []


def test_modules_beside_the_tests_are_no_standard_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A random.py in the working directory: "asking the driver failed", on a machine without a driver."""
    for name in ("random", "queue", "types", "enum"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('not meant for anybody')")
    monkeypatch.chdir(tmp_path)
    assert simulated_machine("h200-sxm", 1).gpus_per_node == 1
