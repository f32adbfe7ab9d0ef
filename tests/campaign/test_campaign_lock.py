"""One campaign a device."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from pytest_charllm.campaign.lock import lock_devices
from pytest_charllm.errors import BadInput
from pytest_charllm.hardware import Machine
from pytest_charllm.scenario.key import parse_key
from pytest_charllm.store.run import RunDirectory, run_ids

A = "llama3-1b.mb1"

HOLDER = """
import sys, time
import msgspec
from pytest_charllm.campaign.lock import lock_devices
from pytest_charllm.hardware import Machine
locks = lock_devices(msgspec.json.decode(sys.argv[1], type=Machine))
print("held", flush=True)
time.sleep(60)
"""


def is_free(machine: Machine) -> bool:
    try:
        with lock_devices(machine):
            return True
    except BadInput:
        return False


def test_a_second_campaign_is_refused(lab, make):
    """They would measure each other. It says which device and which lock, and does not become the latest run, which
    somebody is about to accept."""
    first = lab.open(A)
    with pytest.raises(BadInput, match=r"GPU-0 is in use by another pytest-charllm run \(lock .*GPU-0.lock\)"):
        lab.open(A)
    assert run_ids(first.settings.root) == [first.run.id]
    first.close()
    lab.open(A).evidence(parse_key(A))
    assert lab.launcher.ids


def test_closing_frees_the_devices_whatever_happens(lab, make, monkeypatch):
    """Also where the end of the run cannot be written any more."""

    def full(self, *, interrupted=False):
        raise OSError("disk full")

    campaign = lab.open(A)
    with monkeypatch.context() as patched:
        patched.setattr(RunDirectory, "finish", full)
        with pytest.raises(OSError, match="disk full"):
            campaign.close()
    assert is_free(make.h200())


def test_an_interrupted_run_says_so(lab):
    """Ctrl-C: what was measured is there, and known not to be all."""
    campaign = lab.open(A)
    campaign.close(interrupted=True)
    assert RunDirectory.open(campaign.settings.root, "latest").status == "interrupted"


def test_all_or_none(make):
    """One busy device of two: the free one must not stay locked by a campaign that never was."""
    both = make.h200(gpus=2)
    second = Machine(variant="h200-sxm", gpus_per_node=1, devices=both.devices[1:])
    with lock_devices(second):
        with pytest.raises(BadInput, match="GPU-1 is in use"):
            lock_devices(both)
        assert is_free(make.h200())
        assert not is_free(both)
    assert is_free(both)


def test_a_dead_holder_holds_nothing(make, scratch):
    """After SIGKILL of pytest the device is free at once; a lock that is a mere file would need a person."""
    machine = make.h200()
    command = (sys.executable, "-c", HOLDER, msgspec.json.encode(machine))
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout.readline() == b"held\n"
            assert not is_free(machine)
        finally:
            holder.send_signal(signal.SIGKILL)
        assert holder.wait(timeout=30) == -signal.SIGKILL
        assert is_free(machine)


def test_a_cpu_is_not_locked(make, scratch):
    """Its busyness is measured in every window instead; two campaigns may share it."""
    with lock_devices(make.CPU), lock_devices(make.CPU):
        assert not [*scratch.rglob("*.lock")]


def test_a_lock_folder_that_cannot_be_used(make, scratch):
    """One line that says what to do, where a traceback would come out of the first line of the run."""
    (scratch / "tmp" / "pytest-charllm-locks").touch()
    with pytest.raises(BadInput, match=r"cannot lock GPU-0: .*; set TMPDIR to a writable folder"):
        lock_devices(make.h200())


def test_the_folder_is_for_every_user(make, scratch):
    """Made under the strictest umask it must still let another user's run lock, or they would not see each other."""
    with ExitStack() as stack:
        stack.callback(os.umask, os.umask(0o077))
        stack.enter_context(lock_devices(make.h200()))
    folder = scratch / "tmp" / "pytest-charllm-locks"
    assert oct(folder.stat().st_mode & 0o7777) == "0o1777"
    assert oct((folder / "GPU-0.lock").stat().st_mode & 0o777) == "0o666"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run as somebody else")
def test_what_another_user_locked_can_be_locked(make, monkeypatch):
    """On a shared node: a lock file of one user in a folder of another was refused for good, to both."""
    with tempfile.TemporaryDirectory() as shared:
        os.chmod(shared, 0o755)
        monkeypatch.setenv("TMPDIR", shared)
        monkeypatch.setattr(tempfile, "tempdir", None)
        with lock_devices(make.h200(gpus=2)):
            pass
        (Path(shared) / "pytest-charllm-locks" / "GPU-0.lock").unlink()
        program = HOLDER.replace("locks =", "import os; os.setuid(65534); locks =").replace("time.sleep(60)", "")
        nobody = (sys.executable, "-c", program, msgspec.json.encode(make.h200()))
        assert subprocess.run(nobody, stdout=subprocess.PIPE, check=True).stdout == b"held\n"
        assert is_free(make.h200())


def test_a_run_directory_that_cannot_be_made_locks_nothing(lab, make, scratch):
    """The refused run is tried again at once, with another folder."""
    (scratch / "file").touch()
    with pytest.raises(BadInput, match="not writable"):
        lab.open(A, root=scratch / "file" / "below")
    assert is_free(make.h200())
