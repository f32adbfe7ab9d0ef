from __future__ import annotations

import os

from pytest_charllm.devices.host import container, cpu_model


def cpuinfo(root, text: str) -> None:
    (root / "proc").mkdir()
    (root / "proc/cpuinfo").write_text(text)


def test_masked_model_names_are_told_apart(tmp_path):
    """Clouds report 'AMD EPYC' for three generations; family and model tell which."""
    cpuinfo(tmp_path, "processor\t: 0\ncpu family\t: 25\nmodel\t\t: 17\nmodel name\t: AMD EPYC\n\nprocessor\t: 1\n")
    assert cpu_model(tmp_path) == "AMD EPYC, family 25 model 17"


def test_hosts_without_a_model_name_have_their_architecture(tmp_path):
    """ARM writes no model name, and a sandbox no cpuinfo; two such hosts must still not compare with x86."""
    assert cpu_model(tmp_path) == os.uname().machine
    cpuinfo(tmp_path, "processor\t: 0\nBogoMIPS\t: 2000.00\n")
    assert cpu_model(tmp_path) == os.uname().machine


def test_containers_by_their_marks(tmp_path):
    """The container is part of the stack; without it a slower image looks like a slower driver."""
    assert container({}, tmp_path) is None
    assert container({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, tmp_path) == "kubernetes"
    assert container({"container": "systemd-nspawn"}, tmp_path) == "systemd-nspawn"
    (tmp_path / ".dockerenv").touch()
    assert container({}, tmp_path) == "docker"
    assert container({"NVIDIA_PYTORCH_VERSION": "25.09"}, tmp_path) == "docker, nvidia pytorch 25.09"
    assert container({"APPTAINER_CONTAINER": "/x.sif"}, tmp_path) == "apptainer"
