"""What can be run, and what follows from it on paper: key, feasibility, FLOPs, memory, traffic. Pure.

Here are the words alone (`Scenario` and its parts): importing them reads no table.
"""

from pytest_charllm.scenario.spec import (
    Collective,
    CollectiveOp,
    Layout,
    Options,
    Precision,
    Recompute,
    Scenario,
    Script,
    Sharding,
    Training,
)

__all__ = [
    "Collective", "CollectiveOp", "Layout", "Options", "Precision", "Recompute", "Scenario", "Script", "Sharding",
    "Training",
]  # fmt: skip
