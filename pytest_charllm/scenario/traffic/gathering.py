"""When ZeRO 3 gathers which parameters: a model of its look-ahead and of its release, once it knows the order of use.

It walks through the layers of the forward pass and back. Before a layer it gathers what the layer needs and does not
have, in one collective; then, in another, what is needed next, up to a limit. After a layer it gives up what is not
used again soon. Small parameters stay whole.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from math import prod

from pytest_charllm.scenario.models import ModelShape, parameter_list
from pytest_charllm.scenario.spec import Options, Recompute

PERSISTENT = 100_000
"""Elements up to which a parameter stays whole; DeepSpeed's own default."""

Layer = tuple[str, ...]
"""Names of the parameters that are needed together."""


def persistent(size: int) -> bool:
    return size <= PERSISTENT


def gathers(shape: ModelShape, options: Options) -> list[list[str]]:
    """The parameters of every all-gather of one microbatch, in order. The small ones, which stay whole, are not here:
    they are gathered one by one after the update."""
    events = list(_events(shape, options.recompute))
    walk = _Walk(shape, options, [layer for begins, layer in events if begins])
    for begins, layer in events:
        if begins:
            walk.begin(layer)
        else:
            walk.end(layer)
    return walk.found


class _Walk:
    """What is whole while layers begin and end; `uses`: the layers in the order in which they will begin."""

    def __init__(self, shape: ModelShape, options: Options, uses: list[Layer]) -> None:
        self.found: list[list[str]] = []
        self._options, self._uses = options, uses
        self._sizes = {name: prod(size) for name, size in parameter_list(shape)}
        self._ahead = deque((name, step) for step, layer in enumerate(uses) for name in layer)
        self._known_until: dict[str, int] = defaultdict(lambda: -1)
        self._users: dict[str, set[Layer]] = defaultdict(set)
        self._whole = {name for name, size in self._sizes.items() if persistent(size)}
        self._live = self._step = 0

    def begin(self, layer: Layer) -> None:
        self._gather([name for name in layer if name not in self._whole])
        self._pass(layer)
        self._gather(self._early())
        for name in layer:
            self._users[name].add(layer)
        self._step += 1

    def end(self, layer: Layer) -> None:
        free = self._not_used_soon(layer)
        for name in layer:
            self._users[name].discard(layer)
            if name in free and name in self._whole and not self._users[name]:
                self._whole.remove(name)
                self._live -= self._sizes[name]

    def _gather(self, names: list[str]) -> None:
        if names:
            self.found.append(names)
            self._whole.update(names)
            self._live += self._elements(names)

    def _pass(self, layer: Layer) -> None:
        """Take uses from those ahead, for as many parameters as the layer has that were not looked at so far."""
        new = {name for name in layer if self._known_until[name] < self._step}
        passed: set[str] = set()
        while self._ahead and len(passed) < len(new):
            name, at = self._ahead.popleft()
            self._known_until[name] = at
            passed.add(name)

    def _early(self) -> list[str]:
        """What is needed next and not whole, until the limit is reached."""
        room = min(self._options.live_parameters - self._live, self._options.prefetch_bucket)
        early: list[str] = []
        while self._ahead and self._elements(early) < room:
            name, at = self._ahead.popleft()
            self._known_until[name] = max(self._known_until[name], at)
            if name not in self._whole and name not in early:
                early.append(name)
        return early

    def _not_used_soon(self, layer: Layer) -> set[str]:
        free = {name for name in layer if not persistent(self._sizes[name]) and self._known_until[name] <= self._step}
        distance = 0
        for later in self._uses[self._step :]:
            if distance >= self._options.live_parameters:
                break
            free -= set(later)
            distance += self._elements(later)
        return free

    def _elements(self, names: Iterable[str]) -> int:
        return sum(self._sizes[name] for name in names)


def _events(shape: ModelShape, recompute: Recompute) -> Iterator[tuple[bool, Layer]]:
    """(a layer begins or ends, the layer) of one microbatch. The outermost lasts for a whole pass: what the decoder
    uses itself, its head and its positions, is whole all the while."""
    outer, first, blocks, last = _layers(shape)
    middle = [layer for block in blocks for layer in block]
    yield True, outer
    for layer in (first, *middle, last):
        yield True, layer
        yield False, layer
    yield False, outer
    yield True, outer
    yield from _both(last)
    for block in reversed(blocks):
        yield True, block[-1]
        if recompute is not Recompute.NONE:  # within the backward pass of the block's last layer
            for layer in block:
                yield from _both(layer)
        yield False, block[-1]
        for layer in reversed(block[:-1]):
            yield from _both(layer)
    yield from _both(first)
    yield False, outer


def _both(layer: Layer) -> Iterator[tuple[bool, Layer]]:
    yield True, layer
    yield False, layer


def _layers(shape: ModelShape) -> tuple[Layer, Layer, list[list[Layer]], Layer]:
    """(used by the decoder itself, embedding, layers of every block, last norm)"""
    named: dict[str, list[str]] = defaultdict(list)
    for name, _ in parameter_list(shape):
        named[name.rpartition(".")[0]].append(name)
    layers = {layer: tuple(names) for layer, names in named.items()}
    blocks = [
        [names for layer, names in layers.items() if layer.startswith(f"blocks.{index}.")]
        for index in range(shape.layers)
    ]
    outer = (*layers.get("positions", ()), *layers.get("head", layers["embed"]))
    return outer, layers["embed"], blocks, layers["norm"]
