"""What a launch inherits, and what it must not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pytest_charllm.hardware import Device, Machine
from pytest_charllm.launch.environment import child_environment, launch_command, relevant_variables, torchrun_arguments
from pytest_charllm.launch.request import LaunchRequest

MakeRequest = Callable[..., LaunchRequest]
UUIDS = ("GPU-aaaa", "GPU-bbbb")


@pytest.fixture
def gpu_request(make_request: MakeRequest) -> LaunchRequest:
    devices = tuple(Device(uuid=uuid, name="H200") for uuid in UUIDS)
    machine = Machine(variant="h200-sxm", gpus_per_node=2, devices=devices)
    return make_request(machine=machine, device_uuids=UUIDS, source="nvml")


@pytest.mark.parametrize(
    "name", ["PET_NNODES", "RANK", "WORLD_SIZE", "MASTER_ADDR", "TORCHELASTIC_RUN_ID", "PYTEST_ADDOPTS", "PYTHON_EXEC"]
)
def test_outer_job_does_not_steer_ours(make_request: MakeRequest, name: str) -> None:
    """``PET_*`` fills every torchrun option, and a pod or an outer torchrun sets the rest."""
    assert name not in child_environment(make_request(), {name: "1"})


def test_site_settings_pass_through(gpu_request: LaunchRequest) -> None:
    """NCCL settings and PYTHONPATH are part of the stack under test, and a sitecustomize must reach the ranks."""
    site = {
        "NCCL_NVLS_ENABLE": "0",
        "PYTHONPATH": "/site",
        "OMP_NUM_THREADS": "3",
        "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64",
        "HOME": "/home/me",
    }
    environment = child_environment(gpu_request, site)

    assert site.items() <= environment.items()
    assert "PYTORCH_ALLOC_CONF" not in environment
    assert "NCCL_NVLS_ENABLE" not in child_environment(gpu_request, {})


def test_devices_are_chosen_by_uuid(gpu_request: LaunchRequest, make_request: MakeRequest) -> None:
    """By index, a launch would run on another card than the one that is sampled; on a CPU no card may be touched."""
    environment = child_environment(gpu_request, {"CUDA_VISIBLE_DEVICES": "3"})
    assert environment["CUDA_VISIBLE_DEVICES"] == "GPU-aaaa,GPU-bbbb"
    assert environment["PYTORCH_ALLOC_CONF"] == environment["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
    assert int(environment["OMP_NUM_THREADS"]) >= 1

    environment = child_environment(make_request(), {"CUDA_VISIBLE_DEVICES": "3", "OMP_NUM_THREADS": "64"})
    assert environment["CUDA_VISIBLE_DEVICES"] == ""
    assert environment["OMP_NUM_THREADS"] == "1"


def test_simulated_machine_trains_on_the_cpu(gpu_request: LaunchRequest, make_request: MakeRequest) -> None:
    """Its devices exist only in the telemetry."""
    simulated = make_request(
        machine=Machine(variant="h200-sxm", gpus_per_node=2, devices=gpu_request.machine.devices, simulated=True),
        device_uuids=UUIDS,
        source="simulated:h200-sxm",
    )

    assert (gpu_request.device, simulated.device) == ("cuda", "cpu")


def test_launches_of_one_scenario_share_a_compiler_cache(make_request: MakeRequest) -> None:
    """Cold in the first launch and warm in the others, whatever cache the person has at home."""
    request = make_request()
    environment = child_environment(request, {"TORCHINDUCTOR_CACHE_DIR": "/home/me/cache"})

    folder = request.cache_dir / "tiny-llama.dp2.mb2.fp32.eager"
    assert environment["TORCHINDUCTOR_CACHE_DIR"] == str(folder / "inductor")
    assert environment["TRITON_CACHE_DIR"] == str(folder / "triton")


def test_bundle_environment_holds_no_secret() -> None:
    """The bundle goes to a vendor."""
    environment = {
        "NCCL_DEBUG": "INFO",
        "PYTHON_KEYRING_BACKEND": "x",
        "TORCH_AUTH_TOKEN": "s3cret",
        "HF_TOKEN": "s3cret",
        "NVIDIA_API_KEY": "s3cret",
        "HOME": "/home/me",
    }

    assert relevant_variables(environment) == {"NCCL_DEBUG": "INFO"}


def test_torchrun_accepts_every_option(make_request: MakeRequest) -> None:
    """An option that this version of torchrun does not know would fail every launch, and nothing after the module
    may look like an option: torchrun reads abbreviations."""
    from torch.distributed.run import parse_args

    command = launch_command(make_request())
    words = torchrun_arguments(2, "job", "/logs")
    parsed = parse_args(words[2:])

    assert command[1:4] == ["-m", "pytest_charllm.launch.agent", "-m"]
    assert "torch.distributed.run" in command
    assert (parsed.nproc_per_node, parsed.max_restarts, parsed.rdzv_id) == ("2", 0, "job")
    assert (parsed.training_script, parsed.training_script_args) == ("pytest_charllm.launch.rank", [])
