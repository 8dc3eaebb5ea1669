"""fashion_mnist.py - trains a small CNN on Fashion-MNIST in PyTorch, the update on servers if the job has some.

    penstock run --nproc-per-node 2 --servers 2 fashion_mnist.py --epochs 1
"""
import argparse
import gzip
import os

import numpy as np
import penstock
import penstock.torch
import torch
from torch import nn

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument(
    "--data", default="/usr/share/datasets/fashion-mnist", help="folder of the four idx files, gzip-compressed"
)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--batch", type=int, default=128, help="samples of a step, over all workers")
parser.add_argument("--lr", type=float, default=2e-3)
options = parser.parse_args()


def read(name):
    """An idx file: a magic number whose last byte is the number of dimensions, these, and bytes."""
    with gzip.open(os.path.join(options.data, name)) as file:
        raw = file.read()
    shape = np.frombuffer(raw, ">i4", raw[3], 4)
    return torch.from_numpy(np.frombuffer(raw, "u1", offset=4 + 4 * raw[3]).reshape(shape).copy())


def images_and_labels(which):
    images = read(f"{which}-images-idx3-ubyte.gz").float().unsqueeze(1) / 255
    return images, read(f"{which}-labels-idx1-ubyte.gz").long()


job = penstock.torch.init()
rank, ranks = job.rank, job.world_size
torch.manual_seed(1)  # all ranks have rank 0's values anyway
model = nn.Sequential(
    nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(16, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
    nn.Flatten(), nn.Linear(32 * 7 * 7, 10),
)  # fmt: skip
optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
optimizer = penstock.torch.DistributedOptimizer(optimizer, model.named_parameters())
train, test = images_and_labels("train"), images_and_labels("t10k")
sampler = penstock.Sampler(len(train[0]), job, seed=1, drop_last=True)

for epoch in range(options.epochs):
    sampler.seek(epoch)
    for step in range(len(train[0]) // options.batch):
        mine = torch.tensor(sampler.next(options.batch // ranks))
        loss = nn.functional.cross_entropy(model(train[0][mine]), train[1][mine])
        optimizer.scalar("loss", loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 100 == 0:
            print(f"epoch {epoch + 1}   step {step:3}   loss {optimizer.last_step.total('loss', 'avg'):.4f}")
    with torch.no_grad():
        shares = range(rank * 500, len(test[0]), ranks * 500)  # of 500 images
        right = sum(int((model(test[0][i : i + 500]).argmax(1) == test[1][i : i + 500]).sum()) for i in shares)
    total = job.world.all_reduce(np.array([right]))[0]
    if rank == 0:
        print(f"epoch {epoch + 1}   accuracy {total / len(test[0]):.4f}")
job.close()
