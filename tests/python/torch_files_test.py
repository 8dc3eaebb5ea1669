#!/usr/bin/python3
"""torch_files_test.py - a module's values from and to safetensors files and snapshots, and files that lie."""
import os
import tempfile

import tap
from tap import alone, job, passes

COMMON = """
    import torch, penstock.torch as pt
    torch.set_num_threads(1)

    def model():
        torch.manual_seed(3)
        return torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.BatchNorm1d(7), torch.nn.Linear(7, 2, bias=False)).eval()

    def equal(a, b):
        return all((x == y).all() for x, y in zip(a.state_dict().values(), b.state_dict().values()))

    def other():
        m = model()
        with torch.no_grad():
            for t in m.state_dict().values():
                t.zero_()
        return m
    folder = os.environ["FOLDER"]
"""


def test_what_a_module_writes_a_module_reads_and_a_job_begins_with():
    with tempfile.TemporaryDirectory() as folder:
        program = (
            COMMON
            + """
    m, taken, half = model(), other(), other()
    with torch.no_grad():
        m[1].num_batches_tracked.fill_(41)
        m[0].bias.copy_(torch.tensor([0.0, -0.0, float("inf"), 1e-40, 1, 2, 3]))
    pt.from_module(m, folder + "/all.safetensors")
    pt.load_into(taken, folder + "/all.safetensors")
    assert equal(m, taken)
    pt.from_module(m, folder + "/half.safetensors", dtype=torch.bfloat16)
    pt.load_into(half, folder + "/half.safetensors")
    assert all((x.bfloat16() == y).all() for x, y in zip(m.parameters(), half.parameters()))
    assert half[1].num_batches_tracked == 41
    assert os.listdir(folder) and not [f for f in os.listdir(folder) if "part" in f]

    context = penstock.init()  # a job begins with the file, and what it saves a module reads
    begun, back = other(), other()
    for name, p in begun.named_parameters():
        context.register(name, p.detach(), grad=torch.zeros_like(p))
    context.load(folder + "/all.safetensors")
    context.commit()
    assert all((p == q).all() for p, q in zip(begun.parameters(), m.parameters()))
    context.save(folder + "/saved.safetensors")
    context.close()
    try:
        pt.load_into(back, folder + "/saved.safetensors")
    except penstock.NotFound as error:  # the job had no buffers
        assert "has no '1.running_mean'" in str(error), error
    half = torch.nn.Linear(5, 7)
    pt.load_into(torch.nn.ModuleDict({"0": half}), folder + "/saved.safetensors")  # a part of it
    assert (half.weight == m[0].weight).all()
"""
        )
        passes(alone(program, FOLDER=folder, PENSTOCK_OPTIM="sgd lr=0.1"))


def test_a_module_reads_a_snapshot_of_a_job_with_servers_by_its_step():
    with tempfile.TemporaryDirectory() as folder:
        train = (
            COMMON
            + """
    m = model().train()
    optimizer = pt.DistributedOptimizer(torch.optim.SGD(m.parameters(), lr=0.1), m.named_parameters(), buffers=m.named_buffers())
    asked, is_taken, step = None, np.zeros(1, "i4"), 0
    while not is_taken[0]:  # which step takes it depends on how fast the question travels
        step += 1
        optimizer.zero_grad()
        m(torch.randn(8, 5)).pow(2).mean().backward()
        optimizer.step()
        if pt.rank() == 0:
            torch.save({k: v.clone() for k, v in m.state_dict().items()}, f"{folder}/{step}.pt")
            asked = asked or pt.context().snapshot()
            is_taken[0] = asked.done()
        pt.context().world.broadcast(is_taken, 0)
    if asked:
        open(folder + "/step", "w").write(str(asked.wait()))
    pt.context().close()
"""
        )
        flags = ["--servers", "2", "--store", folder + "/store"]
        passes(job(train, 2, flags, FOLDER=folder))
        read = (
            COMMON
            + """
    step = int(open(folder + "/step").read())
    wanted = torch.load(f"{folder}/{step}.pt")
    for asked in (step, -1):
        m = other()
        pt.load_into(m, folder + "/store", step=asked)
        assert all((p == wanted[name]).all() for name, p in m.named_parameters())
        assert (m[1].running_mean == 0).all()
    try:
        pt.load_into(m, folder + "/store", step=77)
    except penstock.Store as error:
        assert "77" in str(error), error
    else:
        raise SystemExit("there is no step 77")
"""
        )
        passes(alone(read, FOLDER=folder))


def test_files_that_lie_are_refused_and_change_nothing():
    with tempfile.TemporaryDirectory() as folder:
        program = (
            COMMON
            + """
    import json, random
    good = folder + "/good"
    pt.from_module(model(), good)
    raw = open(good, "rb").read()
    n = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:8 + n])

    def lie(raw, kinds=penstock.Corrupt):
        open(folder + "/lie", "wb").write(raw)
        m = other()
        try:
            pt.load_into(m, folder + "/lie")
        except kinds as error:
            assert equal(m, other()), "it changed"
            return error
        raise SystemExit("not refused")

    def changed(**fields):
        row = dict(header["0.weight"], **fields)
        text = json.dumps(dict(header, **{"0.weight": row})).encode()
        return len(text).to_bytes(8, "little") + text + raw[8 + n:]

    lie(b"")
    lie(raw[:7])
    lie(b"\\xff" * 8 + raw[8:])
    lie((1 << 40).to_bytes(8, "little") + raw[8:])
    lie(raw[:-1])
    lie(raw[:8] + b"[" * n + raw[8 + n:])
    lie(changed(dtype="F33"))
    lie(changed(data_offsets=[0, 1 << 62]))
    lie(changed(data_offsets=[-4, 136]))
    lie(changed(data_offsets="all"))
    lie(changed(data_offsets=[0.0, 140.0]))
    lie(changed(shape=[7.0, 5]))
    lie(changed(shape=None))
    lie(changed(shape=[-5, -7]))
    lie(changed(shape=[1 << 40, 1 << 40]))
    lie(changed(shape=[5, 7]), penstock.Mismatch)
    random.seed(1)
    for _ in range(300):  # any byte of the header: refused, or still a file
        at = random.randrange(8 + n)
        open(folder + "/lie", "wb").write(raw[:at] + bytes([random.randrange(256)]) + raw[at + 1:])
        try:
            pt.load_into(other(), folder + "/lie")
        except (penstock.Corrupt, penstock.NotFound, penstock.Mismatch):
            pass
    try:
        pt.load_into(model(), folder + "/none")
    except penstock.NotFound as error:
        assert "none" in str(error)
    try:
        pt.from_module(model(), folder + "/no/such")
    except penstock.Store as error:
        assert "no/such" in str(error)
"""
        )
        passes(alone(program, FOLDER=folder))


if __name__ == "__main__":
    tap.main()
