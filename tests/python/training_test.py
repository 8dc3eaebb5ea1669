#!/usr/bin/python3
"""training_test.py - tensors, steps, snapshots, tables, samplers, events and commands from Python."""
import os
import sys
import tempfile

import tap
from tap import alone, job, passes, run

LINEAR = os.path.join(tap.ROOT, "examples/python/linear.py")


def steps_of(outcome):
    return [line.split("] ")[-1] for line in passes(outcome).lines if "loss" in line]


def test_the_example_prints_the_losses_of_the_c_program_alone_and_in_a_job():
    expected = steps_of(run(["linear"]))
    assert len(expected) == 20
    assert steps_of(run([sys.executable, LINEAR])) == expected
    for flags in (
        ["--nproc-per-node", "2", "--servers", "1"],
        ["--nproc-per-node", "4"],
        ["--nproc-per-node", "2", "--servers", "3", "--replicas", "1"],
        ["--nproc-per-node", "2", "--mode", "zero3"],
    ):
        assert steps_of(run(["penstock", "run"] + flags + [sys.executable, LINEAR])) == expected, flags


def test_a_script_and_a_module_are_started_by_their_names():
    expected = steps_of(run(["linear"]))
    folder = os.path.dirname(LINEAR)
    path = os.path.dirname(sys.executable) + ":" + os.environ["PATH"]
    for words in (["linear.py"], ["./linear.py"], ["-m", "linear"], ["--module", "linear"]):
        done = run(["sh", "-c", 'cd "$0" && exec penstock run --nproc-per-node 2 "$@"', folder] + words, PATH=path)
        assert steps_of(done) == expected, done
        assert "job linear" in done.lines[0], done


def test_output_of_a_script_is_seen_at_once():
    passes(
        run(
            [
                "sh",
                "-c",
                'cd "$0" && penstock run program.py',
                os.path.dirname(
                    tap.script(
                        """
        sys.stdout.write("no end of line")
        assert sys.stdout.write_through
    """
                    )
                ),
            ],
            PATH=os.path.dirname(sys.executable) + ":" + os.environ["PATH"],
        )
    )


MODEL = """
    job = penstock.init(optim="adamw lr=0.1", seed=5)
    head = job.params("head", optim="sgd lr=0.5")
    a = job.register("a", shape=(3, 5), init="normal std=1")
    b = job.register("b", shape=(7,), dtype="f32", params=head, init="const v=2", no_decay=True)
    stack = job.register("h.{}.w", shape=(2, 4), init="uniform a=-1 b=1", stacked=True, unit="h.{}")
    count = bytearray(8)
    job.add_state("count", count)
    job.commit()
    def train(until):
        for step in job.steps():
            with step:
                with job.unit().use():
                    for i in range(2):
                        with job.unit("h", i).use(penstock.BACKWARD):
                            stack.grad(i)[:] = stack.view(i) + job.rank
                    a.grad()[:] = np.sin(a.view()) + job.rank
                    b.grad()[:] = b.view()
                    a.ready()
                    b.ready()
                    count[0] += 1
            assert step.outcome == "applied" and step.bad_rank is None and step.grad_norm > 0
            if step.index + 1 == until:
                return
"""


def test_a_model_in_memory_of_the_sdk_trains_alike_in_every_mode():
    digests = {}
    for flags in (
        [],
        ["--servers", "1"],
        ["--servers", "2"],
        ["--mode", "zero1"],
        ["--mode", "zero3"],
        ["--mode", "zero3", "--servers", "1"],
    ):
        outcome = passes(
            job(
                MODEL
                + """
    train(10)
    print("digest", job.digest(), job.info.mode)
    job.close()
""",
                2,
                flags,
            )
        )
        digests[" ".join(flags)] = {line.split()[2] for line in outcome.lines if "digest" in line}
    assert len(set.union(*digests.values())) == 1, digests


def test_a_loop_that_never_ends_its_step_is_told_so():
    outcome = alone(
        """
    with penstock.init(optim="sgd lr=1", steps=3) as job:
        w, g = np.zeros(3, "f4"), np.ones(3, "f4")
        job.register("w", w, g)
        job.commit()
        for step in job.steps():
            with step:
                pass
            break
        try:
            for step in job.steps():
                g[:] = 1
        except penstock.WrongState as error:
            print(error)
        for step in job.steps():
            step.ready()
            step.end()
            print("ended", step.index)
"""
    )
    assert "ended 2" in outcome.out, outcome
    assert "step 1 was not ended" in outcome.out and "with step:" in outcome.out, outcome


def test_arrays_over_memory_of_the_sdk_outlive_the_use_of_their_unit_and_the_job():
    for flags in ([], ["--servers", "1"], ["--mode", "zero3"]):
        outcome = passes(
            job(
                MODEL
                + """
    train(3)
    with job.unit("h", 0).use():
        row = stack.view(0)
    whole = job.unit().use()
    with whole:
        first = a.view()
    grad = a.grad()
    grad[:] = 7
    copies = [x.copy() for x in (row, first, grad)]
    with job.unit("h", 0).use():
        assert (stack.view(0) == row).all()
    job.close()
    for x, copy in zip((row, first, grad), copies):
        assert (x == copy).all() and x.any()
    print("kept")
""",
                2,
                flags,
            )
        )
        assert outcome.out.count("kept") == 2, outcome


def test_a_snapshot_restores_tensors_states_and_steps():
    with tempfile.TemporaryDirectory() as store:
        first = passes(
            job(
                MODEL
                + """
    train(5)
    asked = job.snapshot() if job.rank == 0 else None
    train(10)
    if asked: print("snapshot", asked.wait(), asked.result.step)
    print("digest", job.digest(), count[0])
    job.close()
""",
                2,
                ["--store", store],
            )
        )
        assert "[0] snapshot" in first.out, first
        at = int(first.out.split("snapshot ")[1].split()[0])
        second = passes(
            job(
                MODEL
                + """
    print("resumed", job.info.step, count[0])
    train(10)
    print("digest", job.digest(), count[0])
    job.close()
""",
                2,
                ["--store", store, "--resume"],
            )
        )
        assert f"[1] resumed {at} {at}" in second.out, (at, second)
        digest = [[line for line in o.lines if "digest" in line and line.startswith("[0]")] for o in (first, second)]
        assert digest[0] == digest[1], digest


def test_parameters_go_through_a_safetensors_file():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "model.safetensors")
        passes(
            job(
                MODEL
                + f"""
    train(3)
    job.save("{path}", "safetensors dtype=f32")
    print("digest", job.digest())
    job.close()
""",
                2,
            )
        )
        passes(
            alone(
                f"""
    with penstock.init(optim="sgd lr=1") as job:
        w = np.zeros((3, 5), "f4")
        job.register("a", w)
        for i in range(2):
            job.register(f"h.{{i}}.w", shape=(4,))
        job.register("b", shape=(7,))
        job.load("{path}")
        job.commit()
        assert w.any()
"""
            )
        )


def test_explicit_pushes_and_pulls_bring_values():
    passes(
        job(
            """
        with penstock.init(mode="ps-async", optim="sgd lr=1") as job:
            w, g = np.zeros((4, 3), "f4"), np.zeros((4, 3), "f4")
            t = job.register("w", w, g)
            job.commit()
            g[:] = 1
            t.push()
            out = np.empty((4, 3), "f4")
            assert t.pull(out) is out
            while t.pull(out)[0, 0] > -2:
                time.sleep(0.01)
            request = t.push_pull(np.ones(12, "f4"), out, wait=False)
            request.wait()
            assert request.result.version >= 3 and out[0, 0] <= -3
            for wrong in (np.ones(11, "f4"), np.ones(12, "f8")):
                try:
                    t.push(wrong)
                except penstock.InvalidArgument as error:
                    assert "tensor w has 12 elements of f32, and the array" in str(error)
                else:
                    raise AssertionError
            job.world.barrier()
            t.pull()
            assert (w == -4).all(), w
    """,
            2,
            ["--servers", "1"],
        )
    )


def test_tables_push_and_pull_rows_by_key():
    passes(
        job(
            """
        from array import array
        with penstock.init(optim="sgd lr=1") as job:
            rule = job.params("rows", optim="sgd lr=1", sync="async")
            rows = job.table("rows", 4, params=rule)
            names = job.table("names", 0, params=rule, by_range=True)
            half = job.table("half", 2, dtype="f16", params=rule, is_sorted=True)
            job.commit()
            if job.rank == 0:
                keys = np.array([7, 3, 7, 2**63], "u8")
                assert not rows.pull(keys).any()
                rows.push(keys, np.ones((4, 4), "f4"))
                assert rows.pull(keys)[:, 0].tolist() == [-2, -1, -2, -1]
                assert rows.pull([3, 99]).tolist() == [[-1] * 4, [0] * 4]
                out = np.empty((1, 4), "f4")
                assert rows.push_pull(array("q", [3]), np.ones(4, "f4"), out) is out and out[0, 0] == -2
                request = rows.pull([7, 3], wait=False)
                assert request.wait().shape == (2, 4) and request.result.count == 8
                names.push([5, 1], np.array([1, 1, 1, 2], "f4"), lens=np.array([3, 1], "u4"))
                values, lens = names.pull([1, 5, 6])
                assert lens == [1, 3, 0] and values.tolist() == [-2, -1, -1, -1]
                half.push([1, 2], np.ones((2, 2), "f2"))
                assert half.pull([1, 2]).dtype == "f2" and half.pull([2])[0, 1] == -1
                for call, sentence in ((lambda: rows.push([1], np.ones(3, "f4")), "1 keys need 4 values, and grads has 3"),
                                       (lambda: rows.pull(np.zeros(2, "i4")), "keys are integers of 64 bits, not i32"),
                                       (lambda: names.push([1], np.ones(1, "f4")), "has rows of any length: give lens"),
                                       (lambda: rows.pull([1], np.zeros(3, "f4")), "need room for 4 values, and out has 3"),
                                       (lambda: rows.push([1], np.ones(4, "f8")), "has values of f32, and grads of f64"),
                                       (lambda: half.pull([2, 1]), "")):
                    try:
                        call()
                    except penstock.InvalidArgument as error:
                        assert sentence in str(error), error
                    else:
                        raise AssertionError(sentence)
            job.world.barrier()
            assert rows.pull([7])[0, 0] == -2
    """,
            2,
            ["--servers", "2"],
        )
    )


def test_samplers_divide_the_samples_and_snapshots_save_their_place():
    passes(
        job(
            """
        with penstock.init(seed=3) as job:
            s = penstock.Sampler(11, job)
            mine = list(s)
            every = b"".join(job.world.gather_bytes(bytes(mine)))
            assert len(mine) == 6 and set(every) == set(range(11)) and s.tell() == (1, 0)
            assert list(s) != mine
            s.seek(0)
            assert s.next(4) == mine[:4] and s.next(4) == mine[4:] and s.next(4) == []
        assert list(penstock.Sampler(5, world=2, rank=1, shuffle=False, drop_last=True)) == [1, 3]
    """
        )
    )


def test_commands_are_answered_by_workers_in_rank_order():
    passes(
        job(
            """
        def answer(head, body):
            if head == 9:
                raise penstock.NotFound("no such head")
            return bytes([head]) + body + bytes([job.rank])
        with penstock.init() as job:
            job.on_command(answer)
            job.world.barrier()
            if job.rank == 0:
                assert job.command(3, b"abc") == [b"\\x03abc" + bytes([r]) for r in range(3)]
                assert job.command(3, rank=2) == [b"\\x03\\x02"]
                assert job.command(4, b"", wait=False).wait() == [b"\\x04" + bytes([r]) for r in range(3)]
                try:
                    job.command(9, b"")
                except penstock.NotFound as error:
                    print("refused:", error)
                job.store.set("done", b"")
            job.store.get("done")
            job.on_command(None)
    """,
            3,
        )
    )


def test_events_come_as_an_iterator_that_ends_with_the_job():
    outcome = job(
        """
        import signal, threading
        job = penstock.init(optim="sgd lr=1", steps=30)
        seen = []
        reader = threading.Thread(target=lambda: seen.extend(job.events()))
        reader.start()
        g = np.ones(4, "f4")
        job.register("w", np.zeros(4, "f4"), g)
        job.commit()
        for step in job.steps():
            with step:
                if job.rank == 1 and step.index == 5:
                    os.kill(os.getpid(), signal.SIGKILL)
        job.close()
        reader.join(10)
        print([(e.kind, e.role, e.rank) for e in seen])
    """,
        3,
        ["--servers", "1", "--on-worker-loss", "continue"],
    )
    for rank in (0, 2):
        assert f"[{rank}] [('lost', 'worker', 1), ('left', 'worker', 1)]" in outcome.out, outcome


def test_log_lines_go_to_a_function():
    outcome = passes(
        alone(
            """
        lines = []
        penstock.log_to(lambda level, line: lines.append((level, line)), "info")
        penstock.init().close()
        penstock.log_to(level="silent")
        penstock.init().close()
        assert any("alone (no RANK" in line and "./program.py" in line for _, line in lines), lines
    """
        )
    )
    assert outcome.out == "", outcome


def test_a_wrong_setting_is_an_exception_that_names_the_nearest():
    import penstock

    error = tap.raises(
        penstock.BadSetting, "unknown setting 'optimm'; did you mean 'optim'?", penstock.init, optimm="sgd"
    )
    assert isinstance(error, ValueError) and isinstance(error, penstock.CallerError) and error.status == -103
    tap.raises(penstock.BadSetting, "lr", penstock.lr, "constant lrr=3", 0)
    assert penstock.lr("constant", 5) == 1


tap.main()
