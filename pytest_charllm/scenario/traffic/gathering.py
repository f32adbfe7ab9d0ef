"""When ZeRO 3 gathers which parameters: a model of its look-ahead and of its release, once it knows the order of use.

It walks through the layers of the forward pass and back. Before a layer it gathers what the layer needs and does not
have, in one collective; then, in another, what is needed next, up to a limit. After a layer it gives up what is not
used again soon. Small parameters stay whole.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
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
    sizes = {name: prod(size) for name, size in parameter_list(shape)}
    events = list(_events(shape, options.recompute))
    uses = [layer for begins, layer in events if begins]
    ahead = deque((name, step) for step, layer in enumerate(uses) for name in layer)
    known_until: dict[str, int] = defaultdict(lambda: -1)
    users: dict[str, set[Layer]] = defaultdict(set)
    whole = {name for name, size in sizes.items() if persistent(size)}
    found: list[list[str]] = []
    live = step = 0

    def gather(names: list[str]) -> None:
        nonlocal live
        if names:
            found.append(names)
            whole.update(names)
            live += sum(sizes[name] for name in names)

    for begins, layer in events:
        if begins:
            gather([name for name in layer if name not in whole])
            new = {name for name in layer if known_until[name] < step}
            passed: set[str] = set()
            while ahead and len(passed) < len(new):
                name, at = ahead.popleft()
                known_until[name] = at
                passed.add(name)
            room = min(options.live_parameters - live, options.prefetch_bucket)
            early: list[str] = []
            while ahead and sum(sizes[name] for name in early) < room:
                name, at = ahead.popleft()
                known_until[name] = max(known_until[name], at)
                if name not in whole and name not in early:
                    early.append(name)
            gather(early)
            for name in layer:
                users[name].add(layer)
            step += 1
        else:
            free = {name for name in layer if not persistent(sizes[name]) and known_until[name] <= step}
            distance = 0
            for later in uses[step:]:
                if distance >= options.live_parameters:
                    break
                free -= set(later)
                distance += sum(sizes[name] for name in later)
            for name in layer:
                users[name].discard(layer)
                if name in free and name in whole and not users[name]:
                    whole.remove(name)
                    live -= sizes[name]
    return found


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
