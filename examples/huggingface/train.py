"""A Hugging Face Trainer script: a Llama made from its configuration, random tokens, nothing to download.

torchrun --standalone --nproc-per-node 2 examples/huggingface/train.py --steps 40
"""

from __future__ import annotations

import argparse
import tempfile

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from pytest_charllm.step import mark_step

VOCAB, SEQUENCE = 1024, 128


class RandomTokens(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 1 << 16

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(VOCAB, (SEQUENCE,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


class MarkSteps(TrainerCallback):  # type: ignore[misc]
    """The Trainer calls this after every optimizer step, on every rank."""

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        mark_step(tokens=args.train_batch_size * args.gradient_accumulation_steps * args.world_size * SEQUENCE)


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--steps", type=int, default=40)
    arguments.add_argument("--batch", type=int, default=2, help="sequences per rank")
    arguments.add_argument("--layers", type=int, default=2)
    options = arguments.parse_args()

    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=options.layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=SEQUENCE,
    )
    with tempfile.TemporaryDirectory() as folder:
        Trainer(
            model=LlamaForCausalLM(config),
            train_dataset=RandomTokens(),
            callbacks=[MarkSteps()],
            args=TrainingArguments(
                output_dir=folder,
                max_steps=options.steps,
                per_device_train_batch_size=options.batch,
                logging_steps=10,
                save_strategy="no",
                report_to=[],
                ddp_find_unused_parameters=False,
                use_cpu=not torch.cuda.is_available(),
            ),
        ).train()


if __name__ == "__main__":
    main()
