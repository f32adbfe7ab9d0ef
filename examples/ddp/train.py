"""A plain DDP training script: a small decoder on random tokens. Runs by itself, too:

torchrun --standalone --nproc-per-node 2 examples/ddp/train.py --steps 40
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from pytest_charllm.step import mark_step

VOCAB, WIDTH, SEQUENCE = 1024, 128, 128


class Decoder(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, nhead=4, dim_feedforward=4 * WIDTH, dropout=0.0, batch_first=True)
        self.blocks = nn.TransformerEncoder(layer, layers)
        self.head = nn.Linear(WIDTH, VOCAB)

    def forward(self, tokens: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device)
        hidden: Tensor = self.blocks(self.embed(tokens), mask=mask, is_causal=True)
        logits: Tensor = self.head(hidden)
        return logits


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--steps", type=int, default=40)
    arguments.add_argument("--batch", type=int, default=2, help="sequences per rank")
    arguments.add_argument("--layers", type=int, default=2)
    options = arguments.parse_args()

    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    torch.manual_seed(dist.get_rank())
    model = DistributedDataParallel(Decoder(options.layers).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    for step in range(options.steps):
        tokens = torch.randint(VOCAB, (options.batch, SEQUENCE + 1), device=device)
        loss = cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        mark_step(tokens=options.batch * SEQUENCE * dist.get_world_size())
        if step % 20 == 0 and dist.get_rank() == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
