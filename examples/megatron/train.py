"""Megatron-Core's GPT, tensor-parallel, with its local layers: needs no Transformer Engine, and on gloo no GPU.

torchrun --standalone --nproc-per-node 2 examples/megatron/train.py --tp 2
"""

from __future__ import annotations

import argparse
import os
from contextlib import nullcontext

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.tensor_parallel import random
from megatron.core.transformer.transformer_config import TransformerConfig

from pytest_charllm.step import mark_step

VOCAB, WIDTH, SEQUENCE, SEED = 1024, 128, 128, 1234


def without_cuda() -> None:
    """Megatron-Core asks for a CUDA device in two places that a CPU can do without (seen in 0.16.1)."""
    torch.cuda.current_device = lambda: "cpu"  # where attention allocates its buffer
    random.CudaRNGStatesTracker.fork = lambda tracker, name="": nullcontext()  # of dropout, which is off here


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--steps", type=int, default=40)
    arguments.add_argument("--batch", type=int, default=2, help="sequences per data-parallel rank")
    arguments.add_argument("--layers", type=int, default=2)
    arguments.add_argument("--tp", type=int, default=2)
    options = arguments.parse_args()

    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    else:
        without_cuda()
    dist.init_process_group("nccl" if cuda else "gloo")
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=options.tp)
    torch.manual_seed(SEED)
    if cuda:
        random.model_parallel_cuda_manual_seed(SEED)

    config = TransformerConfig(
        num_layers=options.layers,
        hidden_size=WIDTH,
        num_attention_heads=4,
        tensor_model_parallel_size=options.tp,
        use_cpu_initialization=True,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        # Fused kernels of Apex and Transformer Engine.
        gradient_accumulation_fusion=False,
        masked_softmax_fusion=False,
        bias_activation_fusion=False,
    )
    spec = get_gpt_layer_local_spec()
    model = GPTModel(config, spec, vocab_size=VOCAB, max_sequence_length=SEQUENCE).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    positions = torch.arange(SEQUENCE, device=device).expand(options.batch, -1)
    future = torch.ones(1, 1, SEQUENCE, SEQUENCE, dtype=torch.bool, device=device).triu(1)
    replicas = parallel_state.get_data_parallel_world_size()

    for step in range(options.steps):
        # The ranks of a tensor-parallel group train on the same tokens.
        seed = torch.Generator().manual_seed(step * replicas + parallel_state.get_data_parallel_rank())
        tokens = torch.randint(VOCAB, (options.batch, SEQUENCE + 1), generator=seed).to(device)
        loss = model(tokens[:, :-1], positions, future, labels=tokens[:, 1:]).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        mark_step(tokens=options.batch * SEQUENCE * replicas)
        if step % 20 == 0 and dist.get_rank() == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
