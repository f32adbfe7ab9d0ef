from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pytest_charllm.devices.amd_calls import load_amdsmi, mismatch
from pytest_charllm.devices.simulated.amdsmi import LIBRARIES
from pytest_charllm.errors import DeviceError


@pytest.fixture
def rocm(tmp_path, monkeypatch):
    """A ROCm whose copy of amdsmi does what it is told while it is imported."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "amdsmi", raising=False)

    def install(source: str) -> Path:
        folder = tmp_path / "share" / "amd_smi"
        folder.mkdir(parents=True)
        (folder / "amdsmi.py").write_text(source)
        return tmp_path

    yield install
    sys.modules.pop("amdsmi", None)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("raise KeyError('ROCM_PATH')", "KeyError: 'ROCM_PATH'"),
        ("print('unable to find')\nprint('libamd_smi.so')\nraise KeyError('libamd_smi.so')", "libamd_smi.so"),
        ("raise OSError('libamd_smi.so: cannot open shared object file')", "cannot open shared object"),
        ("raise AttributeError('undefined symbol: amdsmi_get_x')", "undefined symbol"),
    ],
)
def test_fault_16_an_import_that_fails_is_one_line_and_no_noise(rocm, capfd, source, said):
    """amdsmi fails in ways no import should, and prints on stdout on the way, where our answers are."""
    with pytest.raises(DeviceError) as error:
        load_amdsmi(rocm(source))
    assert said in str(error.value)
    assert "install the amdsmi of this ROCm" in str(error.value)
    assert "\n" not in str(error.value)
    assert capfd.readouterr().out == ""


def test_fault_16_absent_is_told_from_broken(tmp_path, monkeypatch):
    """Not installed has another remedy than installed wrongly."""
    monkeypatch.setattr(sys, "path", [path for path in sys.path if "site-packages" not in path])
    monkeypatch.delitem(sys.modules, "amdsmi", raising=False)
    with pytest.raises(DeviceError, match=r"not installed: .*pytest-charllm\[amd\]"):
        load_amdsmi(tmp_path)


def test_fault_16_the_probe_answers_on_a_clean_stdout(tmp_path):
    """The whole child: noise of the import on stderr, one line of JSON on stdout."""
    folder = tmp_path / "share" / "amd_smi"
    folder.mkdir(parents=True)
    (folder / "amdsmi.py").write_text("import os\nos.write(1, b'noise')\nprint('more')\nraise KeyError('ROCM_PATH')")
    command = (sys.executable, "-m", "pytest_charllm.devices.probe", "machine", "amd")
    done = subprocess.run(command, env={"ROCM_PATH": str(tmp_path), "PATH": ""}, capture_output=True, timeout=60)
    assert done.stdout.count(b"\n") == 1
    assert done.stdout.startswith(b'{"devices":[]')
    assert b"KeyError: 'ROCM_PATH'" in done.stdout


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("binding", [*(f"{rocm}.2" for rocm in LIBRARIES), "24.7.1", "25.3.0", "26.0.0+abc"])
def test_fault_16_a_binding_of_another_generation_is_refused(binding, library):
    """Structures grew between the generations: the wrong binding reads one field for another, without an error."""
    generation = {"6.1": 24, "6.3": 24, "6.4": 25, "7.0": 26}
    mine = generation.get(binding[:3]) or int(binding[:2])
    refused = mismatch(binding, LIBRARIES[library])
    assert (refused is None) == (mine == generation[library])
    if refused is not None:
        assert "/opt/rocm/share/amd_smi" in refused


def test_versions_that_tell_nothing_are_let_pass():
    """A source build may have no version; refusing it would refuse what works."""
    assert mismatch(None, LIBRARIES["7.0"]) is None
    assert mismatch("unknown", LIBRARIES["7.0"]) is None
    assert mismatch("7.0.2", {}) is None
