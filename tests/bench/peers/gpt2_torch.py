#!/usr/bin/env python3
"""The network of examples/gpt2, trained by PyTorch with DistributedDataParallel over Gloo, on the CPU.

    /usr/bin/python3 tests/bench/peers/gpt2_torch.py --nproc 2 --preset tiny --data FILE --batch 16 --steps 40

Needs torch (Debian: python3-torch).  Same initial values, same bytes in the same order (as `gpt2 --data FILE --shuffle no`),
same AdamW, same arithmetic; addmm, layer_norm, gelu and cross_entropy are torch's; attention is written out as in nanoGPT
(github.com/karpathy/nanoGPT, model.py), with the operations of torch 1.13.  Prints one line of JSON: tokens per second of
all processes, from the median step, and the mean loss of every step.
"""
import argparse
import json
import math
import os
import statistics
import sys
import time

import numpy
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn import functional

PRESETS = {  # vocab, positions, layers, heads, channels
    "tiny": (256, 128, 4, 4, 128),
    "small": (256, 256, 6, 6, 192),
    "10m": (256, 256, 6, 6, 384),
    "124m": (50257, 1024, 12, 12, 768),
}
LAYER = [("ln_1.weight", 1, 0, 1.0, 0), ("ln_1.bias", 1, 0, 0.0, 0), ("attn.c_attn.weight", 1, 3, 0.0, 1),
         ("attn.c_attn.bias", 3, 0, 0.0, 0), ("attn.c_proj.weight", 1, 1, 0.0, -1), ("attn.c_proj.bias", 1, 0, 0.0, 0),
         ("ln_2.weight", 1, 0, 1.0, 0), ("ln_2.bias", 1, 0, 0.0, 0), ("mlp.c_fc.weight", 1, 4, 0.0, 1),
         ("mlp.c_fc.bias", 4, 0, 0.0, 0), ("mlp.c_proj.weight", 4, 1, 0.0, -1), ("mlp.c_proj.bias", 1, 0, 0.0, 0)]


def mixed(x):
    """splitmix64, like gpt2_start() in model.c."""
    with numpy.errstate(over="ignore"):
        x = x + numpy.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
        return x ^ (x >> numpy.uint64(31))


def first_values(index, seed, shape, mean, std):
    n = math.prod(shape)
    if std == 0.0:
        return torch.full(shape, mean)
    with numpy.errstate(over="ignore"):
        stream = mixed(mixed(numpy.uint64(seed)) + numpy.uint64(index))
        bits = mixed(stream ^ mixed(numpy.arange(n, dtype=numpy.uint64)))
    u = ((bits >> numpy.uint64(32)).astype(numpy.float64) + 0.5) / 4294967296.0
    v = (bits & numpy.uint64(0xFFFFFFFF)).astype(numpy.float64) / 4294967296.0
    normal = (numpy.sqrt(-2.0 * numpy.log(u)) * numpy.cos(6.283185307179586 * v)).astype(numpy.float32)
    return torch.from_numpy(numpy.float32(std) * normal + numpy.float32(mean)).reshape(shape)



class Gpt2(torch.nn.Module):
    def __init__(self, vocab, block, layers, heads, channels, seed):
        super().__init__()
        self.layers, self.heads, self.channels, self.index, self.seed = layers, heads, channels, 0, seed
        self.add("wte.weight", (vocab, channels), 0.0, 0.02)
        self.add("wpe.weight", (block, channels), 0.0, 0.02)
        for layer in range(layers):
            for name, rows, columns, mean, spread in LAYER:
                shape = (rows * channels, columns * channels) if columns else (rows * channels,)
                std = float(numpy.float32(0.02)) * abs(spread)
                if spread < 0:
                    std = float(numpy.float32(0.02) * (numpy.float32(1) / numpy.sqrt(numpy.float32(2 * layers))))
                self.add(f"h.{layer}.{name}", shape, mean, std)
        self.add("ln_f.weight", (channels,), 1.0, 0.0)
        self.add("ln_f.bias", (channels,), 0.0, 0.0)
        self.hidden = torch.triu(torch.ones(block, block, dtype=torch.bool), 1)  # no buffer: DDP would send it

    def add(self, name, shape, mean, std):
        values = first_values(self.index, self.seed, shape, mean, std)
        self.register_parameter(name.replace(".", "_"), torch.nn.Parameter(values))
        self.index += 1

    def of(self, name):
        return self._parameters[name.replace(".", "_")]

    def norm(self, x, name):
        return functional.layer_norm(x, (self.channels,), self.of(name + ".weight"), self.of(name + ".bias"), 1e-5)

    def linear(self, x, name):
        shape = x.shape[:-1]
        weight = self.of(name + ".weight")
        return torch.addmm(self.of(name + ".bias"), x.reshape(-1, x.shape[-1]), weight).view(*shape, weight.shape[1])

    def attention(self, x, at):
        b, t, c = x.shape
        q, k, v = self.linear(x, at + "c_attn").split(c, dim=2)
        q, k, v = (part.view(b, t, self.heads, c // self.heads).transpose(1, 2) for part in (q, k, v))
        scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(c // self.heads))
        scores = scores.masked_fill(self.hidden[:t, :t], -math.inf)
        out = functional.softmax(scores, dim=-1) @ v
        return self.linear(out.transpose(1, 2).reshape(b, t, c), at + "c_proj")

    def forward(self, tokens, targets):
        x = functional.embedding(tokens, self.of("wte.weight")) + self.of("wpe.weight")[:tokens.shape[1]]
        for layer in range(self.layers):
            at = f"h.{layer}."
            x = x + self.attention(self.norm(x, at + "ln_1"), at + "attn.")
            h = functional.gelu(self.linear(self.norm(x, at + "ln_2"), at + "mlp.c_fc"), approximate="tanh")
            x = x + self.linear(h, at + "mlp.c_proj")
        logits = functional.linear(self.norm(x, "ln_f"), self.of("wte.weight"))
        return functional.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


def batch_of(data, first, rows, length):
    sequences = (len(data) - 1) // length
    starts = [(s % sequences) * length for s in range(first, first + rows)]
    both = torch.stack([data[at:at + length + 1] for at in starts]).long()
    return both[:, :-1].contiguous(), both[:, 1:].contiguous()


def run(rank, o, result):
    torch.set_num_threads(o.threads)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(o.port))
    dist.init_process_group("gloo", rank=rank, world_size=o.nproc)
    model = Gpt2(*PRESETS[o.preset], o.seed)
    decay = [p for p in model.parameters() if p.dim() == 2]
    plain = [p for p in model.parameters() if p.dim() != 2]
    length = o.length or PRESETS[o.preset][1]
    rows = o.batch // o.nproc
    groups = [{"params": decay, "weight_decay": o.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    optim = torch.optim.AdamW(groups, lr=o.lr, betas=(0.9, o.beta2), eps=1e-8, foreach=o.foreach)
    ddp = torch.nn.parallel.DistributedDataParallel(model) if o.nproc > 1 else model
    text = open(o.data, "rb").read()
    data = torch.frombuffer(bytearray(text[:len(text) - len(text) // 10]), dtype=torch.uint8)
    losses, seconds = [], []
    dist.barrier()
    for step in range(o.steps):
        begun = time.perf_counter()
        tokens, targets = batch_of(data, (step * o.nproc + rank) * rows, rows, length)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=o.precision == "bf16"):
            loss = ddp(tokens, targets)
        optim.zero_grad(set_to_none=True)
        loss.backward()
        optim.step()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - begun)
    all_losses = torch.tensor(losses, dtype=torch.float64)
    dist.all_reduce(all_losses)
    if rank == 0:
        step_s = statistics.median(seconds[o.warmup:])
        result.put({"program": "torch " + torch.__version__, "preset": o.preset, "workers": o.nproc, "threads": o.threads,
                    "batch": o.batch, "length": length, "precision": o.precision, "steps": o.steps,
                    "parameters": sum(p.numel() for p in model.parameters()), "step_p50_s": step_s,
                    "tokens_per_s": rows * o.nproc * length / step_s, "losses": (all_losses / o.nproc).tolist()})
    dist.destroy_process_group()


def options():
    p = argparse.ArgumentParser()
    p.add_argument("--nproc", type=int, default=2)
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--preset", choices=PRESETS, default="tiny")
    p.add_argument("--data", required=True)
    p.add_argument("--batch", type=int, default=16, help="sequences of a step over all processes")
    p.add_argument("--length", type=int, default=0)
    p.add_argument("--steps", type=int, default=40)
    p.add_argument("--warmup", type=int, default=5, help="steps that are not timed")
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--beta2", type=float, default=0.95)
    p.add_argument("--weight-decay", type=float, default=0.1)
    p.add_argument("--precision", choices=("fp32", "bf16"), default="fp32", help="bf16: autocast")
    p.add_argument("--foreach", action="store_true", help="AdamW over lists of tensors")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--port", type=int, default=29511)
    return p.parse_args()


def main():
    o = options()
    if o.batch % o.nproc or o.steps <= o.warmup:
        sys.exit("gpt2_torch: --batch must be a multiple of --nproc, and --steps more than --warmup")
    result = mp.get_context("spawn").SimpleQueue()
    mp.spawn(run, args=(o, result), nprocs=o.nproc)
    print(json.dumps(result.get()))


if __name__ == "__main__":
    main()
