"""The package is light to import, and what it exports exists."""

from __future__ import annotations

import subprocess
import sys

import pytest

import pytest_charllm.hardware
import pytest_charllm.scenario


@pytest.mark.parametrize("package", [pytest_charllm.scenario, pytest_charllm.hardware])
def test_every_export_loads(package) -> None:
    """A name in the lazy table that its module does not have fails only at the user's first use."""
    for name in package.__all__:
        assert getattr(package, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        package.nothing  # noqa: B018


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
