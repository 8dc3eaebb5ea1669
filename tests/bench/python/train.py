"""train.py - the time of a training step in PyTorch:  penstock run --nproc-per-node 2 train.py MODEL HOW STEPS

MODEL      gpt: 10.7 M parameters, 4 sequences of 64 characters for each worker; cnn: that of Fashion-MNIST, 64 images.
HOW        gloo, penstock: DistributedDataParallel over that backend.  none: DistributedDataParallel whose hook sends nothing.
           hook: as penstock, with mean_hook.  optimizer: DistributedOptimizer, in the job's mode.
Rank 0 prints the median of the steps after the first five, in ms.
"""
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../examples/python"))
sys.argv, arguments = sys.argv[:1], sys.argv[1:]
from gpt import GPT  # noqa: E402

model_name, how, steps = arguments[0], arguments[1], int(arguments[2])
torch.set_num_threads(1)
torch.manual_seed(1)
if model_name == "gpt":
    model, make = GPT(90, 6, 6, 384, 64), lambda: (torch.randint(90, (4, 64)), torch.randint(90, (4, 64)))
else:
    model, make = nn.Sequential(
        nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 5, padding=2), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32 * 7 * 7, 10),
    ), lambda: (torch.randn(64, 1, 28, 28), torch.randint(10, (64,)))  # fmt: skip


def sends_nothing(_, bucket):
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
if how == "optimizer":
    import penstock.torch

    rank = penstock.torch.init().rank
    optimizer = penstock.torch.DistributedOptimizer(optimizer, model.named_parameters())
else:
    if how in ("penstock", "hook"):
        import penstock.torch
    dist.init_process_group("gloo" if how in ("gloo", "none") else "penstock")
    rank = dist.get_rank()
    model = nn.parallel.DistributedDataParallel(model)
    if how == "none":
        model.register_comm_hook(None, sends_nothing)
    if how == "hook":
        model.register_comm_hook(None, penstock.torch.mean_hook)
took = []
for step in range(steps + 5):
    x, y = make()
    began = time.perf_counter()
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x).flatten(0, 1) if model_name == "gpt" else model(x), y.flatten())
    loss.backward()
    optimizer.step()
    took.append(time.perf_counter() - began)
if rank == 0:
    print(f"{1000 * sorted(took[5:])[steps // 2]:.2f}")
