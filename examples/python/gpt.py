"""gpt.py - a character-level GPT in PyTorch that learns a text, on any number of workers, with servers or without.

    penstock run --nproc-per-node 2 --servers 2 gpt.py --steps 200
    penstock run --nproc-per-node 2 --mode zero2 gpt.py --data FILE
"""
import argparse
import math
import os
import time

import penstock.torch
import torch
from torch import nn
from torch.nn import functional

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--data", default="/usr/share/common-licenses", help="a text, or a folder of texts")
parser.add_argument("--layers", type=int, default=4)
parser.add_argument("--heads", type=int, default=4)
parser.add_argument("--width", type=int, default=128)
parser.add_argument("--context", type=int, default=64, help="characters that the model looks back")
parser.add_argument("--batch", type=int, default=32, help="sequences of a step, over all workers")
parser.add_argument("--steps", type=int, default=500)
parser.add_argument("--lr", type=float, default=1e-3)
parser.add_argument("--sample", type=int, default=200, help="characters to write at the end")


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        batch, time, width = x.shape
        q, k, v = (t.view(batch, time, self.heads, -1).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, 2))
        scores = q @ k.transpose(2, 3) / math.sqrt(width / self.heads)
        later = torch.ones(time, time, dtype=torch.bool).triu(1)
        mixed = scores.masked_fill(later, -math.inf).softmax(3) @ v
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, time, width))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, letters, layers, heads, width, context):
        super().__init__()
        self.letter, self.place = nn.Embedding(letters, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, letters, bias=False)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, text):
        x = self.letter(text) + self.place(torch.arange(text.shape[1]))
        return self.head(self.norm(self.blocks(x)))


def read(path):
    """The text as numbers of its letters, and the letters."""
    paths = sorted(os.path.join(path, name) for name in os.listdir(path)) if os.path.isdir(path) else [path]
    text = "".join(open(p, encoding="utf-8", errors="replace").read() for p in paths)
    letters = sorted(set(text))
    number = {letter: i for i, letter in enumerate(letters)}
    return torch.tensor([number[c] for c in text]), letters


def batch_of(text, step, o, rank, ranks):
    """This rank's sequences of a step: a pure function of the step, so that a resumed job goes on with its data."""
    torch.manual_seed(1000 + step)
    at = torch.randint(len(text) - o.context - 1, (o.batch,))[rank::ranks]
    return torch.stack([text[i : i + o.context + 1] for i in at])


def write(model, letters, o):
    text = torch.zeros(1, 1, dtype=torch.long)
    with torch.no_grad():
        for _ in range(o.sample):
            chances = model(text[:, -o.context :])[:, -1].softmax(1)
            text = torch.cat([text, torch.multinomial(chances, 1)], 1)
    return "".join(letters[i] for i in text[0, 1:])


def main():
    o = parser.parse_args()
    job = penstock.torch.init()
    rank, ranks = job.rank, job.world_size
    text, letters = read(o.data)
    torch.manual_seed(1)
    model = GPT(len(letters), o.layers, o.heads, o.width, o.context)
    optimizer = torch.optim.AdamW(model.parameters(), lr=o.lr, betas=(0.9, 0.95), weight_decay=0.1)
    optimizer = penstock.torch.DistributedOptimizer(optimizer, model.named_parameters())
    began = time.monotonic()
    for step in range(job.info.step, o.steps):
        sequences = batch_of(text, step, o, rank, ranks)
        loss = functional.cross_entropy(model(sequences[:, :-1]).flatten(0, 1), sequences[:, 1:].flatten())
        optimizer.scalar("loss", loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and (step % 50 == 0 or step == o.steps - 1):
            mean, seconds = optimizer.last_step.total("loss", "avg"), time.monotonic() - began
            print(f"step {step:4}   loss {mean:.4f}   {seconds:.1f} s")
    if rank == 0 and o.sample > 0:
        print(write(model, letters, o))
    job.close()


if __name__ == "__main__":
    main()
