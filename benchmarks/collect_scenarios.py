"""How long collecting 2,000 scenarios takes, and that nothing heavy is imported for it. The bar: 2 s, no torch.

    python benchmarks/collect_scenarios.py

Collects them in a fresh pytest as a laptop would for a machine it does not have, three times; prints the best.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

LIMIT_S = 2.0
SUITE = """
from pytest_charllm import Layout, Rows, scenarios
from pytest_charllm.scenario.layout import format_layout

LAYOUTS = " ".join(
    format_layout(Layout(tp=tp, pp=pp, dp=32 // (tp * pp)))
    for tp in (1, 2, 4, 8) for pp in (1, 2, 4, 8, 16) if 32 % (tp * pp) == 0
)

@scenarios(
    *(Rows(model, {"h200:4x8": LAYOUTS}, microbatch=(1, 2, 4, 8, 16)) for model in ("llama3-70b", "gpt3-175b")),
    recompute=("none", "selective", "full"), precision=("bf16", "fp32"), compile=(True, False),
)
def test_scenarios(measured):
    measured.check()
"""
INNER = """
import sys, time
began = time.perf_counter()
import pytest
class Count:
    def pytest_collection_finish(self, session):
        self.items = len(session.items)
count = Count()
pytest.main(["--co", "-q", "-q", "--charllm-assume=h200:4x8", "-p", "no:cacheprovider"], plugins=[count])
heavy = sorted({"torch", "pynvml", "deepspeed", "numpy", "psutil"} & set(sys.modules))
print(count.items, time.perf_counter() - began, ",".join(heavy) or "none", file=sys.stderr)
"""


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "test_scenarios.py").write_text(SUITE)
        best_s, items, heavy = min(_collect(folder) for _ in range(3))
    print(f"{items} scenarios collected in {best_s:.2f} s (bar {LIMIT_S:.0f} s); heavy imports: {heavy}")
    return 0 if best_s < LIMIT_S and heavy == "none" else 1


def _collect(folder: str) -> tuple[float, int, str]:
    done = subprocess.run(
        [sys.executable, "-c", INNER], cwd=folder, capture_output=True, text=True, timeout=120, check=True
    )
    items, seconds, heavy = done.stderr.splitlines()[-1].split()
    return float(seconds), int(items), heavy


if __name__ == "__main__":
    sys.exit(main())
