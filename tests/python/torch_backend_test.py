#!/usr/bin/python3
"""torch_backend_test.py - torch.distributed's backend beside Gloo: collectives, groups, DDP, ZeRO, join, failures."""
import os
import re
import socket
import sys

import tap
from tap import job, passes, run

BESIDE_GLOO = """
    import torch, torch.distributed as dist, penstock.torch
    dist.init_process_group("penstock")
    gloo = dist.new_group(backend="gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    assert dist.get_backend() == "penstock"
    seed = [0]

    def data(shape, dtype, who=None):
        seed[0] += 1 if who is None else 0
        torch.manual_seed(1000 * seed[0] + (rank if who is None else who))
        if dtype.is_floating_point or dtype.is_complex:
            return torch.randn(shape, dtype=torch.complex64 if dtype.is_complex else torch.float64).to(dtype)
        return torch.randint(0, 2 if dtype == torch.bool else 4, shape).to(dtype)

    def both(call, x, *outs):
        "The call over Gloo and over Penstock, on copies; the results."
        results = []
        for group in (gloo, None):
            copies = [x.clone()] + [[t.clone() for t in o] if isinstance(o, list) else o.clone() for o in outs]
            results.append(call(group, *copies))
        return results

    def equal(a, b, exact=True):
        if isinstance(a, list):
            return all(equal(x, y, exact) for x, y in zip(a, b))
        return a.dtype == b.dtype and a.shape == b.shape and (torch.equal(a, b) if exact or not a.is_floating_point() else
               torch.allclose(a.double(), b.double(), rtol=1e-5 if a.dtype != torch.float16 else 1e-2, atol=1e-5 if a.dtype != torch.float16 else 1e-2))

    def in_place(name, **named):
        def call(group, x):
            getattr(dist, name)(x, group=group, **named)
            return x
        return call
"""


def test_every_collective_dtype_and_reduction_is_gloos_on_one_to_four_ranks():
    program = (
        BESIDE_GLOO
        + """
    shapes = [(1,), (7,), (3, 5), (4097,)]
    numbers = [torch.float32, torch.float64, torch.float16, torch.uint8, torch.int8, torch.int32, torch.int64]
    for dtype in numbers:
        for shape in shapes:
            for op in (dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN, dist.ReduceOp.MAX, dist.ReduceOp.BAND, dist.ReduceOp.BXOR):
                if dtype.is_floating_point and op in (dist.ReduceOp.BAND, dist.ReduceOp.BXOR):
                    continue
                a, b = both(in_place("all_reduce", op=op), data(shape, dtype))
                assert equal(a, b, exact=False), (dtype, shape, op, a, b)
                a, b = both(in_place("reduce", op=op, dst=size - 1), data(shape, dtype))
                assert rank != size - 1 or equal(a, b, exact=False), (dtype, shape, op)
    for dtype in numbers + [torch.bool, torch.bfloat16, torch.int16, torch.complex64]:
        moves = dtype not in (torch.bfloat16, torch.int16, torch.complex64, torch.bool)  # Gloo has none of these
        for shape in shapes:
            x = data(shape, dtype)
            expected = [data(shape, dtype, r) for r in range(size)]
            assert equal(x, expected[rank])
            y = x.clone()
            dist.broadcast(y, size - 1)
            assert equal(y, expected[-1])
            out = [torch.empty_like(x) for _ in range(size)]
            dist.all_gather(out, x)
            assert equal(out, expected), (dtype, shape)
            dist.gather(x, out if rank == 0 else None)
            assert equal(out, expected)
            dist.scatter(y, expected if rank == 0 else None)
            assert equal(y, x)
            dist.all_to_all(out, [x.clone() for _ in range(size)])
            assert equal(out, expected)
            flat = torch.empty((size * shape[0],) + shape[1:], dtype=dtype)
            (dist.all_gather_into_tensor if hasattr(dist, "all_gather_into_tensor") else dist._all_gather_base)(flat, x)
            assert equal(flat, torch.cat(expected))
            dist.all_to_all_single(flat, torch.cat([x] * size))
            assert equal(flat, torch.cat(expected))
            if moves:
                a, b = both(in_place("broadcast", src=0), x)
                assert equal(a, b)
            right, left = (rank + 1) % size, (rank - 1) % size
            sent = dist.isend(x, right, tag=5)
            dist.recv(y, left, tag=5)
            sent.wait()
            assert equal(y, expected[left])
    # sizes that differ, and memory that is not contiguous
    mine = torch.cat([torch.full((rank + to, 3), float(rank)) for to in range(size)])
    out = torch.empty(sum(r + rank for r in range(size)), 3)
    dist.all_to_all_single(out, mine, [r + rank for r in range(size)], [rank + to for to in range(size)])
    assert equal(out, torch.cat([torch.full((r + rank, 3), float(r)) for r in range(size)]))
    wide = data((6, 8), torch.float32)
    base = wide.clone()
    dist.all_reduce(wide.t()[2:5])
    total = sum(data((6, 8), torch.float32, r) for r in range(size))
    assert torch.allclose(wide.t()[2:5], total.t()[2:5], atol=1e-5) and equal(wide[:, 5:], base[:, 5:])
    strided = torch.zeros(8, 6).t()
    dist.broadcast(strided if rank else base.clone(), 0)
    out = [torch.zeros(8, 6).t() for _ in range(size)]
    dist.all_gather(out, wide)
    assert equal(out[rank], wide)
    z = data((5,), torch.complex64)
    dist.all_reduce(z)
    assert torch.allclose(z, sum(data((5,), torch.complex64, r) for r in range(size)), atol=1e-5)
    t = data((9,), torch.bool)
    dist.all_reduce(t, op=dist.ReduceOp.MAX)
    assert equal(t, torch.stack([data((9,), torch.bool, r) for r in range(size)]).any(0))
    x = data((4 * size,), torch.float32)
    part = torch.empty(4)
    parts = [sum(data((4 * size,), torch.float32, r) for r in range(size))[4 * rank : 4 * rank + 4]]
    dist.reduce_scatter(part, list(x.split(4)))
    assert torch.allclose(part, parts[0], atol=1e-5)
    dist._reduce_scatter_base(part, x)
    assert torch.allclose(part, parts[0], atol=1e-5)
    dist.all_reduce(part, op=dist.ReduceOp.AVG)
    if size > 1:
        got = torch.empty(4)
        if rank == 0:
            assert [dist.recv(got) for _ in range(size - 1)] and True
        else:
            dist.send(part, 0)
    for bad, sentence in ((lambda: dist.all_reduce(torch.zeros(3, dtype=torch.int16)), "cannot be reduced by Penstock"),
                          (lambda: dist.all_reduce(torch.zeros(3).to_sparse()), "no dense memory")):
        try:
            bad()
        except penstock.Error as error:
            assert sentence in str(error), error
        else:
            raise AssertionError(sentence)
    dist.barrier()
    print("right")
"""
    )
    for workers in (1, 2, 3, 4):
        outcome = passes(job(program, workers, timeout=300))
        assert sum("right" in line for line in outcome.lines) == workers, outcome


def test_groups_objects_async_work_and_batches_are_torchs():
    passes(
        job(
            BESIDE_GLOO
            + """
    even, odd = dist.new_group([0, 2]), dist.new_group([1])
    x = torch.full((3,), float(rank))
    if rank in (0, 2):
        dist.all_reduce(x, group=even)
        assert x[0] == 2 and dist.get_rank(even) == rank // 2
    works = [dist.all_reduce(torch.full((1000,), float(i)), async_op=True) for i in range(30)]
    for i, work in enumerate(works):
        if i % 3 == 0:
            assert work.get_future().wait()[0][0] == 3 * i
        work.wait()
        assert work.is_completed() and work.is_success() and work.exception() is None and work.result()[0][0] == 3 * i
    for i in range(200):  # asked while the group's thread waits for it
        work = dist.all_reduce(torch.full((2000,), float(i)), async_op=True)
        future = work.get_future()
        while not work.is_completed():
            pass
        assert work.exception() is None and future.wait()[0][0] == 3 * i
    later = dist.all_reduce(torch.ones(2), async_op=True).get_future().then(lambda f: f.value()[0] * 2)
    assert later.wait()[1] == 6
    objects = [None] * 3
    dist.all_gather_object(objects, {"rank": rank, "text": "x" * 1000 * rank})
    assert [o["rank"] for o in objects] == [0, 1, 2]
    one = [("seed", 7)] if rank == 1 else [None]
    dist.broadcast_object_list(one, src=1)
    assert one == [("seed", 7)]
    got = torch.zeros(2, 4)
    ops = [dist.P2POp(dist.isend, torch.full((4,), float(rank)), (rank + 1) % 3), dist.P2POp(dist.irecv, got[0], (rank - 1) % 3)]
    [work.wait() for work in dist.batch_isend_irecv(ops)]
    assert got[0, 0] == (rank - 1) % 3
    dist.destroy_process_group()
""",
            3,
        )
    )


DDP = """
    import torch, torch.distributed as dist
    import penstock.torch; dist.init_process_group(os.environ["OVER"])  # the changed line
    rank, size = dist.get_rank(), dist.get_world_size()
    order = eval(os.environ.get("ORDER", "list(range(size))"))
    torch.manual_seed(3)
    net = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.BatchNorm1d(64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    model = torch.nn.parallel.DistributedDataParallel(net, bucket_cap_mb=0.01)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(100):
        torch.manual_seed(100 * step + order[rank])
        x, y = torch.randn(16, 20), torch.randint(0, 10, (16,))
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        total = loss.detach().double() / size
        dist.all_reduce(total)
        if rank == 0:
            print(f"loss {total.item():.17g}")
"""


def losses(over, workers, launcher=None, **more):
    words = launcher or ["penstock", "run", "--nproc-per-node", str(workers), sys.executable]
    outcome = passes(run(words + [tap.script(DDP)], 300, OVER=over, **more))
    found = [float(line.split("loss ")[1]) for line in outcome.lines if "loss " in line]
    assert len(found) == 100, outcome
    return found


def distance(a, b):
    return max(abs(x - y) / abs(y) for x, y in zip(a, b))


def test_ddp_has_the_losses_of_ddp_over_gloo():
    for workers in (1, 2):
        assert distance(losses("penstock", workers), losses("gloo", workers)) <= 1e-6, workers
    gloo = losses("gloo", 4)
    assert distance(losses("penstock", 4), gloo) <= 2 * distance(losses("gloo", 4, ORDER="[2, 0, 3, 1]"), gloo)


def test_the_backend_works_under_torchrun_and_multiprocessing():
    expected = losses("penstock", 2)
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = str(s.getsockname()[1])
    # torch 1.13 under Python 3.11 needs -r and -t
    torchrun = ["-m", "torch.distributed.run", "-r", "1", "-t", "1", "--nproc_per_node", "2", "--master_port", port]
    assert losses("penstock", 2, [sys.executable] + torchrun) == expected
    passes(
        tap.alone(
            """
    import torch, torch.distributed as dist, torch.multiprocessing as mp
    def work(rank, size, path):
        import penstock.torch
        dist.init_process_group("penstock", init_method="file://" + path, rank=rank, world_size=size)
        x = torch.ones(3) * rank
        dist.all_reduce(x)
        assert x[0] == 1
        dist.destroy_process_group()
    if __name__ == "__main__":
        import tempfile
        mp.spawn(work, (2, tempfile.mkdtemp() + "/store"), nprocs=2)
"""
        )
    )


def test_zero_redundancy_optimizer_and_join_work_unchanged():
    passes(
        job(
            """
    import torch, torch.distributed as dist, penstock.torch
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.distributed.algorithms.join import Join
    dist.init_process_group("penstock")
    rank, size = dist.get_rank(), dist.get_world_size()
    def train(make):
        torch.manual_seed(3)
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(20, 50), torch.nn.Linear(50, 5)))
        optimizer = make(model.parameters())
        with Join([model]):
            for step in range(10 + rank):  # uneven inputs
                torch.manual_seed(100 * step + rank)
                optimizer.zero_grad()
                model(torch.randn(8, 20)).pow(2).mean().backward()
                if step < 10:
                    optimizer.step()
        return torch.cat([p.detach().flatten() for p in model.parameters()])
    plain = train(lambda p: torch.optim.Adam(p, lr=1e-3))
    zero = train(lambda p: ZeroRedundancyOptimizer(p, torch.optim.Adam, lr=1e-3))
    assert torch.equal(plain, zero)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(20, 5))
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
    model.register_comm_hook(None, fp16_compress_hook)
    model(torch.ones(3, 20) * rank).sum().backward()
    assert torch.allclose(model.module.weight.grad, torch.full((5, 20), 1.5))
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(20, 5))
    model.register_comm_hook(None, penstock.torch.mean_hook)
    model(torch.ones(3, 20) * rank).sum().backward()
    assert torch.equal(model.module.weight.grad, torch.full((5, 20), 1.5))
""",
            2,
        )
    )


def test_a_program_that_ends_while_a_callback_of_a_future_runs_ends_well():
    passes(
        job(
            """
    import torch, torch.distributed as dist, penstock.torch
    dist.init_process_group("penstock")
    opts = dist.distributed_c10d.AllreduceOptions()
    work = dist.distributed_c10d._get_default_group().allreduce([torch.ones(3)], opts)
    work.get_future().then(lambda _: [time.sleep(0.0005) for _ in range(1000)])
    work.wait()
    time.sleep(0.2)
""",
            2,
        )
    )


def test_a_program_may_train_at_its_exit():
    outcome = job(
        """
    import atexit, torch, torch.distributed as dist, penstock.torch
    def last():
        model(torch.ones(4, 20)).sum().backward()
        print("trained")
    atexit.register(last)
    dist.init_process_group("penstock")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(20, 5))
    model(torch.ones(4, 20)).sum().backward()
""",
        2,
    )
    assert outcome.code == 0 and outcome.out.count("trained") == 2, outcome


def test_a_dead_rank_is_named_through_ddp_and_the_interpreter_ends():
    outcome = job(
        """
    import torch, torch.distributed as dist, penstock.torch, signal
    dist.init_process_group("penstock")
    rank = dist.get_rank()
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(200, 50))
    for step in range(1000):
        if rank == 1 and step == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            model(torch.ones(4, 200)).sum().backward()
        except Exception as error:
            print("told:", str(error).replace(chr(10), " "))
            sys.exit(3)
""",
        3,
    )
    for rank in (0, 2):
        assert re.search(rf"\[{rank}\] told: .*worker 1 \(.*\) is gone", outcome.out), outcome
    assert outcome.seconds < 20, outcome


def test_monitored_barrier_names_who_does_not_come():
    outcome = job(
        """
    import torch, torch.distributed as dist, penstock.torch
    from datetime import timedelta
    dist.init_process_group("penstock")
    penstock.torch.monitored_barrier()
    if dist.get_rank() == 0:
        try:
            penstock.torch.monitored_barrier(timeout=timedelta(seconds=0.5))
        except penstock.TimedOut as error:
            print("missing", error.missing, error)
    else:
        time.sleep(2)
""",
        3,
    )
    assert re.search(r"\[0\] missing \(1, 2\) .*monitored_barrier", outcome.out), outcome


def test_two_ranks_that_make_different_calls_are_told_by_name():
    outcome = job(
        """
    import torch, torch.distributed as dist, penstock.torch
    dist.init_process_group("penstock")
    try:
        dist.all_reduce(torch.zeros(10 + dist.get_rank()))
    except penstock.Mismatch as error:
        print("told:", error)
""",
        2,
    )
    for rank in (0, 1):
        assert f"[{rank}] told: all_reduce (call" in outcome.out and "rank 1 has 11 f32 SUM" in outcome.out, outcome


tap.main()
