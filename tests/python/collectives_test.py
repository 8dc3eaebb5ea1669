#!/usr/bin/python3
"""collectives_test.py - every collective over every type and operation, beside NumPy, on 1 to 4 ranks; requests, batches."""
import tap
from tap import alone, job, passes

EVERYTHING = """
    job = penstock.init()
    world, seed = job.world, int(sys.argv[1]) if len(sys.argv) > 1 else 7
    rank, size = world.rank, world.size
    assert (rank, size) == (job.rank, job.world_size) and world.ranks == list(range(size))

    def data(n, kind, who):
        draw = np.random.default_rng([seed, n, who])
        if np.dtype(kind).kind == "f":
            return draw.standard_normal(n).astype(kind)
        return draw.integers(0, 4, n).astype(kind)

    kinds = ["f4", "f2", "f8", "i1", "u1", "i4", "u4", "i8", "u8"]
    real = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}
    whole = {"band": np.bitwise_and, "bor": np.bitwise_or, "bxor": np.bitwise_xor}
    for kind in kinds:
        for n in (0, 1, 7, 4097):
            all_of = [data(n, kind, r) for r in range(size)]
            mine = all_of[rank]
            for name, function in {**real, **({} if kind[0] == "f" else whole)}.items():
                wide = [x.astype("f4") for x in all_of] if kind == "f2" else all_of
                expected = wide[0]
                for other in wide[1:]:
                    expected = function(expected, other).astype(wide[0].dtype)
                expected = expected.astype(kind)
                out = np.empty_like(mine)
                assert world.all_reduce(mine, out, op=name) is out
                assert np.array_equal(out, expected), (kind, n, name, out, expected)
                place = mine.copy()
                world.all_reduce(place, op=penstock.Op[name.upper()], overwrite=True)
                assert np.array_equal(place, expected)
                place = mine.copy()
                world.reduce(place, op=name, root=size - 1)
                assert np.array_equal(place, expected if rank == size - 1 else mine)
            place = mine.copy()
            assert world.broadcast(place, root=size - 1) is place and np.array_equal(place, all_of[-1])
            out = np.empty((size, n), kind)
            world.all_gather(mine, out)
            assert np.array_equal(out, np.stack(all_of))
            out = np.empty((size, n), kind) if rank == 0 else None
            world.gather(mine, out, root=0)
            assert out is None or np.array_equal(out, np.stack(all_of))
            whole_in, part = np.stack(all_of), np.empty(n, kind)
            world.scatter(whole_in if rank == 0 else None, part)
            assert np.array_equal(part, mine)
            world.all_to_all(np.stack([all_of[rank]] * size), whole_in)
            assert np.array_equal(whole_in, np.stack(all_of))
            world.reduce_scatter(np.stack([data(n, kind, 10 * rank + r) for r in range(size)]), part, op="max")
            assert np.array_equal(part, np.max([data(n, kind, 10 * r + rank) for r in range(size)], axis=0))
    counts = [3 + r for r in range(size)]
    parts = [data(counts[r], "f4", r) for r in range(size)]
    packed, out = np.concatenate(parts), np.empty(sum(counts), "f4")
    assert np.array_equal(world.all_gather(parts[rank], out, counts), packed)
    part = np.empty(counts[rank], "f4")
    assert np.array_equal(world.scatter(packed, part, counts), parts[rank])
    assert np.allclose(world.reduce_scatter(packed, part, counts, op="avg"), parts[rank], 1e-6)
    mine = np.concatenate([np.full(rank + to, rank, "i4") for to in range(size)])
    out = np.empty(sum(r + rank for r in range(size)), "i4")
    world.all_to_all(mine, out, [rank + to for to in range(size)], [r + rank for r in range(size)])
    assert np.array_equal(out, np.concatenate([np.full(r + rank, r, "i4") for r in range(size)]))
    assert world.all_reduce(np.ones(3, "f4"), scale=rank + 1.0)[0] == size * (size + 1) / 2

    group = world.split(rank % 2, key=-rank)
    same = [r for r in range(size) if r % 2 == rank % 2]
    assert group.ranks == same[::-1] and group.all_reduce(np.array([rank]))[0] == sum(same)
    other = world.new([size - 1, 0]) if size > 1 else world.new([0])
    assert (other is None) == (rank not in (0, size - 1)) and (other is None or other.size == min(size, 2))
    group.free()
    assert job.node.size == size and job.across.size == 1

    assert world.broadcast_bytes(b"x" * 1000 if rank == 0 else None) == b"x" * 1000
    assert world.gather_bytes(bytes([rank]) * rank) == [bytes([r]) * r for r in range(size)]
    assert world.gather_bytes(b"y", root=0) == ([b"y"] * size if rank == 0 else None)

    right, left = (rank + 1) % size, (rank - 1) % size
    got = np.zeros(9, "i8")
    sent = world.send(np.full(4, rank), right, tag=3, wait=False)
    result = world.recv(got)
    assert (result.count, result.source, result.tag) == (4, left, 3) and list(got) == [left] * 4 + [0] * 5
    assert sent.wait() is None
    with job.batch():
        world.recv(got, left, 1)
        world.send(np.full(9, rank), right, 1)
        few = world.all_reduce(np.ones(2, "f4"))
        world.all_reduce(got[:0])
    assert list(got) == [left] * 9 and list(few) == [size, size]
    world.barrier()
    job.close()
    print("right")
"""


def test_collectives_of_one_rank_are_numpys():
    assert passes(alone(EVERYTHING)).lines[-1] == "right"


def test_collectives_of_two_to_four_ranks_are_numpys_in_shared_memory_and_over_sockets():
    for workers, flags in ((2, []), (3, ["--shared-memory", "no"]), (4, [])):
        outcome = passes(job(EVERYTHING, workers, flags))
        assert sum("right" in line for line in outcome.lines) == workers, outcome


def test_arguments_that_do_not_fit_are_refused_before_anything_is_sent():
    outcome = passes(
        job(
            """
        with penstock.init() as job:
            world, x = job.world, np.zeros(4, "f4")
            for call in (lambda: world.all_reduce(x, np.zeros(3, "f4")), lambda: world.all_reduce(x, np.zeros(4, "f8")),
                         lambda: world.all_reduce(x, op="mean"), lambda: world.all_gather(x, np.zeros(9, "f4")),
                         lambda: world.all_gather(x, None), lambda: world.all_gather(x, np.zeros(5, "f4"), [1, 4, 0]),
                         lambda: world.all_gather(x, np.zeros(5, "f4"), [2, 3]), lambda: world.scatter(None, x, root=job.rank),
                         lambda: world.reduce_scatter(x, np.zeros(3, "f4")), lambda: world.all_to_all(x, np.zeros(6, "f4")),
                         lambda: world.all_to_all(x, x.copy(), [2, 2]), lambda: world.all_reduce(x, op="band"),
                         lambda: world.send(x, 7), lambda: world.broadcast(x, root=-3), lambda: world.new([0, 0]),
                         lambda: world.all_reduce(b"abcd")):
                try:
                    call()
                except penstock.CallerError as error:
                    print(type(error).__name__, error)
                else:
                    print("not refused")
            assert world.all_reduce(np.ones(1, "f4"))[0] == 2
    """
        )
    )
    refusals = [line for line in outcome.lines if line.startswith("[0]")]
    assert len(refusals) == 16 and not any("not refused" in line for line in refusals), outcome
    assert "[0] InvalidArgument all_reduce: out has 3 elements and needs 4" in refusals, outcome
    assert "[0] InvalidArgument all_reduce: x has elements of f32, and out of f64" in refusals, outcome
    assert "[0] InvalidArgument 'mean' is not an operation: use one of sum, avg, " in outcome.out, outcome


def test_a_request_ends_later_and_keeps_its_arrays_until_then():
    passes(
        job(
            """
        import gc
        with penstock.init() as job:
            world = job.world
            if job.rank == 0:
                requests = [world.all_reduce(np.full(1000, i, "f4"), wait=False) for i in range(20)]
                assert not requests[-1].done()
                try:
                    requests[0].result
                except penstock.InvalidArgument as error:
                    assert "has not ended" in str(error)
                try:
                    requests[0].wait(timeout=0.05)
                except penstock.Again as error:
                    assert "has not ended after 0.05 s" in str(error)
                left = world.all_reduce(np.full(1000, 20, "f4"), wait=False)
                del left  # nobody waits for it
                gc.collect()
                assert len(job._left) == 1
                job.store.set("go", b"1")
                ended = set()
                while len(ended) < 20:
                    i = penstock.wait_any([r for j, r in enumerate(requests) if j not in ended], timeout=30)
                    ended.add([j for j in range(20) if j not in ended][i])
                for i, r in enumerate(requests):
                    assert r.done() and r.wait()[0] == 2 * i and r.result.count == 1000
            else:
                job.store.get("go")
                for i in range(21):
                    x = world.all_reduce(np.full(1000, i, "f4"))
                    assert x[0] == 2 * i
            world.barrier()  # the call that was left has ended
            world.barrier()
            assert job._left == []
    """
        )
    )


def test_two_ranks_that_make_different_calls_both_get_the_sentence_that_names_both():
    outcome = job(
        """
        with penstock.init() as job:
            try:
                job.world.all_reduce(np.zeros(1000 + job.rank, "f4"), label="loss")
            except penstock.Mismatch as error:
                print(error.tensor, "|", error)
            try:
                job.world.barrier()
            except penstock.Mismatch as error:
                print("failed group")
    """
    )
    for rank in (0, 1):
        assert (
            f"[{rank}] loss | all_reduce (call 1) differs: rank 1 has 1,001 f32 SUM 'loss', rank 0 has 1,000 f32 SUM 'loss'"
            in outcome.out
        ), outcome
        assert f"[{rank}] failed group" in outcome.out


def test_threads_that_call_at_once_are_safe():
    passes(
        job(
            """
        import threading
        with penstock.init() as job:
            groups = [job.world.split(0) for _ in range(8)]
            wrong = []
            def work(i):
                for n in range(200):
                    x = groups[i].all_reduce(np.full(50 + i, n, "i8"))
                    if (x != 2 * n).any():
                        wrong.append((i, n))
                    job.metric(f"m{i}", n)
            threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
            [t.start() for t in threads]
            [t.join() for t in threads]
            assert not wrong, wrong
    """
        )
    )


tap.main()
