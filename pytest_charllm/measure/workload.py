"""The fingerprint of what was trained, so that other work is never taken for slower work."""

from __future__ import annotations

from pathlib import PurePath

from pytest_charllm.records import Launch
from pytest_charllm.scenario import Collective, Script
from pytest_charllm.scenario.flops import flops_per_token


def workload(launch: Launch) -> dict[str, str]:
    """Part -> what it was, as text: sizes, the kernels that answered, and collectives where they were counted.

    Of a script, whose work only the script knows, its own file alone; of a collective alone what carried its messages.
    A part that no rank reports is absent.
    """
    if not launch.ranks:
        return {}
    report, work = launch.ranks[0], launch.scenario.work
    if isinstance(work, Script):
        name = work.path if work.module else PurePath(work.path).name
        return {"script": f"{name} {report.script_digest}"} if report.script_digest else {}
    if isinstance(work, Collective):
        return {"transport": report.transport} if report.transport else {}
    parts = {
        "parameters": None if report.parameters is None else f"{report.parameters:,}",
        "FLOPs/token": f"{flops_per_token(launch.scenario):,.0f}",
        "tokens/step": None if report.tokens_per_step is None else f"{report.tokens_per_step:,}",
        "attention": report.attention_backend,
        "experts": report.expert_backend,
        "collectives": _collectives(launch),
    }
    return {part: text for part, text in parts.items() if text}


def _collectives(launch: Launch) -> str:
    """Of rank 0 in one step, as ``all-reduce on dp: 3 of 4,198,656 bytes``."""
    rows = sorted(launch.ranks[0].collectives, key=lambda row: (row.op, row.axis))
    return "; ".join(f"{row.op} on {row.axis}: {row.count} of {row.bytes:,} bytes" for row in rows)
