"""linear.py - the smallest whole program: learns the line y = 3 x + 1, as examples/linear.c does.

Alone:        python3 linear.py
Two workers:  penstock run --nproc-per-node 2 --servers 1 linear.py
"""
import numpy as np
import penstock

with penstock.init(optim="sgd lr=0.2", steps=20) as job:
    w, g = np.zeros(2, "f4"), np.zeros(2, "f4")
    job.register("line", w, g)
    job.commit()  # all ranks agree; w holds rank 0's values

    for step in job.steps():
        rank, ranks = job.world.rank, job.world.size  # now
        with step:  # at its end gradients are sent, and w gets the new values
            i = np.arange(rank, 64, ranks)  # this rank's share of the batch
            x = ((step.index * 64 + i) * 37 % 97 / 97).astype("f4")
            error = w[0] * x + w[1] - 3 * x - 1
            g[:] = (2 * error * x).sum() * ranks / 64, (2 * error).sum() * ranks / 64  # Penstock takes the mean
            step.scalar("loss", (error**2).sum() / 64)  # summed over the ranks, with the gradients
        if rank == 0:
            print(f"step {step.index:2}   loss {step.total('loss'):.4f}")
