"""calls.py - what push_pull and all_reduce cost from Python; calls.c does the same."""
import sys
from time import perf_counter

import numpy as np
import penstock

n, calls = int(sys.argv[1]) // 4, int(sys.argv[2]) if len(sys.argv) > 2 else 1000
w, g, out = (np.zeros(n, "f4") for _ in range(3))
with penstock.init(optim="sgd lr=0.1") as job:
    t = job.register("w", w, g)
    job.commit()
    world, has_servers, took = job.world, job.info.servers > 0, []
    for i in range(-(calls // 10), calls):
        begun = perf_counter()
        if has_servers:
            t.push_pull(g, out)
        else:
            world.all_reduce(g, out)
        if i >= 0:
            took.append(perf_counter() - begun)
    if job.rank == 0:
        print(f"{np.median(took) * 1e6:.1f}")
