"""A DeepSpeed training script: ZeRO over the data-parallel ranks, torch's own AdamW. Runs by itself, too:

torchrun --standalone --nproc-per-node 2 examples/deepspeed/train.py --stage 1
"""

from __future__ import annotations

import argparse

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from pytest_charllm.step import mark_step

VOCAB, WIDTH, SEQUENCE = 1024, 128, 128


class Mixer(nn.Module):
    """Next token from the last one and its neighbours: enough of a model to train, small enough for a CPU."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
            for _ in range(layers)
        )
        self.head = nn.Linear(WIDTH, VOCAB)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embed(tokens)
        for layer in self.layers:
            hidden = hidden + layer(hidden + hidden.roll(1, dims=1))
        logits: Tensor = self.head(hidden)
        return logits


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--steps", type=int, default=40)
    arguments.add_argument("--batch", type=int, default=4, help="sequences per rank")
    arguments.add_argument("--layers", type=int, default=4)
    arguments.add_argument("--stage", type=int, default=1, help="of ZeRO")
    options = arguments.parse_args()

    torch.manual_seed(0)
    model = Mixer(options.layers)
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
        config={
            "train_micro_batch_size_per_gpu": options.batch,
            "gradient_accumulation_steps": 1,
            "zero_optimization": {"stage": options.stage},
            "zero_allow_untested_optimizer": True,
            "steps_per_print": 20,
        },
    )
    device = get_accelerator().current_device_name()
    for _ in range(options.steps):
        tokens = torch.randint(VOCAB, (options.batch, SEQUENCE + 1), device=device)
        loss = cross_entropy(engine(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        engine.backward(loss)
        engine.step()
        mark_step(tokens=options.batch * SEQUENCE * engine.world_size)


if __name__ == "__main__":
    main()
