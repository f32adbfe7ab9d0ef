"""A script as a rank runs it: what it sees is what plain Python shows it, and how it ended is known."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

RUN = """
import sys
from pathlib import Path
from pytest_charllm.engines.script.program import expand, run_program
from pytest_charllm.scenario import Script
out = Path("out")
script = Script(sys.argv[1], module=sys.argv[2] == "module", args=sys.argv[3:])
try:
    digest = run_program(script, [expand(argument, out) for argument in script.args], {"CHARLLM_STEPS": "here"})
except BaseException as error:
    import traceback
    where = traceback.extract_tb(error.__traceback__)[-1]
    print(f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})")
else:
    print("returned")
    Path("digest").write_text(str(digest))
"""


def run(folder: Path, body: str, *args: str, module: bool = False) -> list[str]:
    """Lines that the script and its runner printed."""
    (folder / "train.py").write_text(textwrap.dedent(body))
    kind = ["train", "module"] if module else ["train.py", "file"]
    command = [sys.executable, "-c", RUN, *kind, *args]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.splitlines()


def test_script_sees_plain_python(tmp_path: Path) -> None:
    """Scripts look at argv, at their name, at what lies beside them, and pickle their own functions by ``__main__``."""
    (tmp_path / "beside.py").write_text("")
    body = """
        import os, pickle, sys
        import beside
        def f(): pass
        assert pickle.loads(pickle.dumps(f)) is f
        print(__name__, os.path.basename(__file__), os.path.basename(sys.argv[0]), sys.argv[1:-1])
        print(os.path.isdir(sys.argv[-1]), [name for name in os.environ if name.startswith("CHARLLM_")])
    """
    assert run(tmp_path, body, "--log", "x y", "{out}") == [
        "__main__ train.py train.py ['--log', 'x y']",
        "True ['CHARLLM_STEPS']",
        "returned",
    ]


def test_module_runs_as_by_dash_m(tmp_path: Path) -> None:
    """torchtitan and others are started as modules."""
    body = "import sys; print(__name__, __spec__.name, sys.argv[1:])"
    assert run(tmp_path, body, "--steps=3", module=True) == ["__main__ train ['--steps=3']", "returned"]


@pytest.mark.parametrize("name", ["train.py", "train", "package"])
def test_digest_is_of_the_file_that_ran(tmp_path: Path, name: str) -> None:
    """An edited script was "no software changed": of a file, of a module, and of a package its ``__main__``."""
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("print('imported')")
    body = "print('ran')"
    for file in (tmp_path / "train.py", tmp_path / "package" / "__main__.py"):
        file.write_text(body)
    command = [sys.executable, "-c", RUN, name, "file" if name.endswith(".py") else "module"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == [*(["imported"] if name == "package" else []), "ran", "returned"]
    assert (tmp_path / "digest").read_text() == hashlib.sha256(body.encode()).hexdigest()[:12]


def test_what_runs_after_the_last_line_is_waited_for(tmp_path: Path) -> None:
    """Threads that still train, and exit functions that flush: the rank leaves by os._exit, which knows neither."""
    body = """
        import atexit, threading, time
        atexit.register(lambda: print("exit function"))
        threading.Thread(target=lambda: (time.sleep(0.1), print("thread"))).start()
        print("last line")
    """
    assert run(tmp_path, body) == ["last line", "thread", "exit function", "returned"]


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("import sys\nsys.exit()", "returned"),
        ("import sys\nsys.exit(0)", "returned"),
        ("import sys\nsys.exit(3)", "ScriptExited: the script exited with 3 (train.py:2)"),
        ("import sys\nsys.exit('no data')", "ScriptExited: the script exited saying no data (train.py:2)"),
        ("\n\nraise ValueError('bad shape')", "ValueError: bad shape (train.py:3)"),
    ],
)
def test_how_it_ended_is_known(tmp_path: Path, body: str, told: str) -> None:
    """``sys.exit(0)`` is how most scripts end; any other code is a failure at the script's own line, not at ours."""
    assert run(tmp_path, body)[-1] == told


def test_absent_script_is_told_before_anything_runs(tmp_path: Path) -> None:
    """A suite that is run from another directory."""
    (tmp_path / "elsewhere").mkdir()
    command = [sys.executable, "-c", RUN, "absent.py", "file"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith(f"BadInput: script {tmp_path}/absent.py does not exist; a relative path starts where")


def test_absent_module_is_told_like_an_absent_script(tmp_path: Path) -> None:
    """It was a crash of the training with the frames of runpy; what a module itself cannot import still is one."""
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "__init__.py").write_text("import missing_package")
    told = []
    for name in ("no.such.module", "train.loop"):
        command = [sys.executable, "-c", RUN, name, "module"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
        told.append(done.stdout)
    assert told[0].startswith("BadInput: module 'no.such.module' does not exist; it is looked for where pytest was")
    assert told[1].startswith("ModuleNotFoundError: No module named 'missing_package'")
