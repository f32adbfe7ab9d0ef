"""The distributed optimizer."""

from __future__ import annotations

from unittest.mock import patch

from pytest_charllm.engines.native.distributed_optimizer import Bucket, ShardedUpdate

_bucket, _sharded_update = Bucket.__init__, ShardedUpdate.__init__

MUTANTS = {
    "pieces-not-gathered": lambda: patch.object(Bucket, "start_gathering", lambda self: None),
    "reduced-a-pass-early": lambda: patch.object(
        ShardedUpdate,
        "__init__",
        lambda self, models, mesh, accumulation, **others: _sharded_update(
            self, models, mesh, accumulation - 1, **others
        ),
    ),
    "not-averaged": lambda: patch.object(
        Bucket, "__init__", lambda self, kind, parameters, batch, *others: _bucket(self, kind, parameters, 1, *others)
    ),
}
