"""Between two launches of a run the sampler process is kept: a start is a third of what it takes in a launch."""

from __future__ import annotations

from types import TracebackType

from pytest_charllm.telemetry.child import Child

Devices = tuple[str, tuple[str, ...]]
"""A source, and which of its devices."""


class Keeper:
    """Holds at most one idle process, until someone takes it or the `with` block ends."""

    def __init__(self) -> None:
        self._kept: tuple[Devices, Child] | None = None

    def take(self, devices: Devices) -> Child | None:
        """The one that reads these devices, if it still lives. One of other devices is ended."""
        kept, self._kept = self._kept, None
        if kept is None:
            return None
        if kept[0] == devices and kept[1].exit_code is None:
            return kept[1]
        _end(kept[1])
        return None

    def keep(self, devices: Devices, child: Child) -> None:
        self.close()
        self._kept = (devices, child)

    def close(self) -> None:
        if self._kept is not None:
            _end(self._kept[1])
            self._kept = None

    def __enter__(self) -> Keeper:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _end(child: Child) -> None:
    """What it recorded is complete, so how it ends is nobody's concern."""
    child.end(politely=True)
    child.forget()
