"""The words are light to import."""

from __future__ import annotations

import subprocess
import sys


def test_importing_the_words_loads_no_tables() -> None:
    """The plugin imports these in every pytest session of its environment: no TOML, no torch, nothing else of ours."""
    code = (
        "import sys; import pytest_charllm.scenario, pytest_charllm.hardware\n"
        "print(sorted(set(sys.modules) & {'tomllib', 'torch', 'numpy', 'pynvml', 'psutil'}),"
        " sorted(name for name in sys.modules if name.startswith('pytest_charllm.')))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    assert out.split(" ", 1)[0] == "[]"
    assert "models" not in out
    assert "catalogue" not in out
