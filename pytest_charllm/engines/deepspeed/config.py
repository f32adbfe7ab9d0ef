"""DeepSpeed's own configuration of a scenario. Nothing is left to "auto"."""

from __future__ import annotations

from typing import Any

from pytest_charllm.scenario import Precision, Scenario
from pytest_charllm.scenario.traffic.gathering import PERSISTENT
from pytest_charllm.scenario.traffic.zero import STAGE

_NEVER = 10**9


def zero_stage(scenario: Scenario) -> int:
    """Of ZeRO: 0, where nothing is sharded, to 3."""
    return STAGE[scenario.layout.sharding]


def config(scenario: Scenario, max_grad_norm: float, *, timers: bool = False) -> dict[str, Any]:
    """What `deepspeed.initialize` is given. `timers` has it measure the parts of every step."""
    options = scenario.options
    zero: dict[str, Any] = {
        "stage": zero_stage(scenario),
        "overlap_comm": options.overlap,
        "reduce_bucket_size": options.reduce_bucket,
    }
    if zero_stage(scenario) == 3:
        zero |= {
            "stage3_prefetch_bucket_size": options.prefetch_bucket,
            "stage3_max_live_parameters": options.live_parameters,
            "stage3_max_reuse_distance": options.live_parameters,
            "stage3_param_persistence_threshold": PERSISTENT,
        }
    return {
        "train_batch_size": scenario.global_batch,
        "train_micro_batch_size_per_gpu": scenario.training.microbatch,
        "gradient_accumulation_steps": scenario.accumulation,
        "gradient_clipping": max_grad_norm,
        "bf16": {"enabled": options.precision is Precision.BF16},
        "zero_optimization": zero,
        # torch's own AdamW, so that no operator has to be compiled.
        "zero_allow_untested_optimizer": True,
        "steps_per_print": _NEVER,
        "wall_clock_breakdown": timers,
        # On by default, and waits for the device in every step.
        "timers": {"throughput": {"enabled": False}},
    }
