"""One software combination. Stacks are compared and gated, never a reason to skip."""

from __future__ import annotations

from pytest_charllm.records.base import Record


class Stack(Record, frozen=True, kw_only=True):
    """Versions as strings, None where the part is absent (no GPU driver on a CPU machine)."""

    torch: str | None = None
    cuda: str | None = None
    rocm: str | None = None
    nccl: str | None = None
    cudnn: str | None = None
    triton: str | None = None
    deepspeed: str | None = None
    python: str | None = None
    driver: str | None = None
    vbios: str | None = None
    kernel: str | None = None
    container: str | None = None

    def diff(self, other: Stack) -> tuple[tuple[str, str | None, str | None], ...]:
        """(part, here, there) for every part that differs."""
        pairs = ((name, getattr(self, name), getattr(other, name)) for name in self.__struct_fields__)
        return tuple((name, here, there) for name, here, there in pairs if here != there)
