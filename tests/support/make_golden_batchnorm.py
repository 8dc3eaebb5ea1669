#!/usr/bin/env python3
"""Trains a model with a BatchNorm layer under PyTorch's DDP (broadcast_buffers, Gloo, 2 processes), and prints the lines
of tests/cluster/programs/batchnorm.c:  python3 tests/support/make_golden_batchnorm.py >tests/support/golden_batchnorm.txt"""
import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

WORLD, BATCH, WIDTH, STEPS = 2, 6, 5, 20


def batch(rank, step):
    i = torch.arange(BATCH, dtype=torch.float64).reshape(-1, 1)
    d = torch.arange(WIDTH, dtype=torch.float64)
    x = torch.sin(0.1 * (d + 1) * (i + 7 * rank + 13 * step)) * (d + 1) + 0.05 * rank
    y = torch.cos(i + rank + step)
    return x.float(), y.float()


def values(x):
    return " ".join("%.9g" % v for v in x.detach().reshape(-1).tolist())


def train(rank, lines, store):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=WORLD)
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(WIDTH), torch.nn.Linear(WIDTH, 1))
    with torch.no_grad():
        model[1].weight.copy_((torch.arange(WIDTH) + 1).float() / 10)
        model[1].bias.zero_()
    ddp = DistributedDataParallel(model, broadcast_buffers=True)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    with open(lines + ".%d" % rank, "w") as out:
        for step in range(STEPS):
            x, y = batch(rank, step)
            optimizer.zero_grad()
            loss = ((ddp(x) - y) ** 2).mean()
            loss.backward()
            optimizer.step()
            print("rank %d step %d loss %.9g" % (rank, step, loss.item()), file=out)
        ddp(batch(rank, STEPS)[0])  # a forward pass, so that its buffers are those of rank 0 before it
        for name in "weight", "bias":
            print("rank %d %s %s" % (rank, name, values(getattr(model[0], name))), file=out)
        for name in "running_mean", "running_var":
            print("rank %d %s %s" % (rank, name, values(getattr(model[0], name))), file=out)
        print("rank %d batches %d" % (rank, model[0].num_batches_tracked.item()), file=out)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(train, args=(os.path.join(folder, "lines"), os.path.join(folder, "store")), nprocs=WORLD)
        for rank in range(WORLD):
            sys.stdout.write(open(os.path.join(folder, "lines.%d" % rank)).read())
