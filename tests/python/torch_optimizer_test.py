#!/usr/bin/python3
"""torch_optimizer_test.py - DistributedOptimizer beside torch.optim on one process, and beside DDP over Gloo."""
import re
import sys
import tempfile

import tap
from tap import job, passes, run

COMMON = """
    import torch, penstock.torch as pt
    torch.set_num_threads(1)

    def model(width=32):
        torch.manual_seed(1)
        return torch.nn.Sequential(torch.nn.Linear(8, width), torch.nn.Tanh(), torch.nn.Linear(width, 3))

    def batch(step, rank=0, ranks=1):
        torch.manual_seed(1000 + step)
        x = torch.randn(64, 8)
        return x[rank::ranks], (x[:, :3] * x[:, 1:4])[rank::ranks]

    def loss_of(m, x, y):
        return (m(x) - y).pow(2).mean()

    def flat(m):
        return torch.cat([p.detach().flatten() for p in m.parameters()])
"""


RULES = """
    rules = {
        "SGD": dict(lr=0.1), "SGD momentum": dict(lr=0.05, momentum=0.9, dampening=0.1, weight_decay=0.01),
        "SGD nesterov": dict(lr=0.05, momentum=0.8, nesterov=True), "Adam": dict(lr=0.01, betas=(0.8, 0.99), weight_decay=0.1),
        "AdamW": dict(lr=0.01, weight_decay=0.05), "Adamax": dict(lr=0.01), "RMSprop": dict(lr=0.01, alpha=0.9, momentum=0.5),
        "RMSprop centered": dict(lr=0.005, centered=True, eps=1e-4), "Adadelta": dict(lr=1.0, rho=0.8),
        "Adagrad": dict(lr=0.05, lr_decay=0.01, initial_accumulator_value=0.1),
    }
    name = os.environ["RULE"]
    kind, numbers = getattr(torch.optim, name.split()[0]), rules[name]

    def train(net, optimizer, steps):
        for step in steps:
            torch.manual_seed(step)
            grads = [torch.randn_like(p) for p in net.parameters()]  # the same on all ranks, whatever the values: no chaos
            optimizer.zero_grad()
            sum((p * g).sum() for p, g in zip(net.parameters(), grads)).backward()
            optimizer.step()

    def near(a, b):
        moved = (flat(a) - flat(model())).abs().max().item()
        worst = ((flat(a) - flat(b)).abs() / (flat(b).abs() + moved)).max().item()
        print(name, f"worst {worst:.2g} moved {moved:.2g}")
        assert worst < 1e-6 and moved > 1e-3, worst
"""
NAMES = re.findall(r'"([A-Z]\w+(?: \w+)?)": dict', RULES)
assert len(NAMES) == 10


def test_each_rule_is_torchs_over_20_steps_on_servers_and_sharded():
    program = (
        COMMON
        + RULES
        + """
    m, reference = model(), model()
    ours = pt.DistributedOptimizer(kind(m.parameters(), **numbers), m.named_parameters())
    torchs = kind(reference.parameters(), **numbers)
    train(m, ours, range(20))
    train(reference, torchs, range(20))
    near(m, reference)
    pt.context().close()
"""
    )
    for name in NAMES:
        for workers, flags in ((1, ["--servers", "1"]), (2, ["--servers", "2"]), (2, ["--mode", "zero1"])):
            passes(job(program, workers, flags, RULE=name))


def test_a_state_dict_goes_to_torch_and_comes_back_for_each_rule():
    program = (
        COMMON
        + RULES
        + """
    rank = pt.init().rank
    m, reference, taken = model(), model(), model()
    ours = pt.DistributedOptimizer(kind(m.parameters(), **numbers), m.named_parameters())
    torchs = kind(reference.parameters(), **numbers)
    ours.load_state_dict(kind(m.parameters(), **numbers).state_dict())  # of one that has made no step: a fresh start
    train(m, ours, range(7))
    train(reference, torchs, range(7))

    state = ours.state_dict()  # to torch, in its own format
    wanted = torchs.state_dict()
    assert {i: set(s) for i, s in state["state"].items()} == {i: set(s) for i, s in wanted["state"].items()}
    assert [set(g) for g in state["param_groups"]] == [set(g) for g in wanted["param_groups"]]
    for i, s in wanted["state"].items():
        for key, value in s.items():
            assert type(state["state"][i][key]) is type(value), (key, value)
    taken.load_state_dict(m.state_dict())
    torchs2 = kind(taken.parameters(), **numbers)
    torchs2.load_state_dict(state)
    train(m, ours, range(7, 14))
    train(taken, torchs2, range(7, 14))
    near(m, taken)

    with torch.no_grad():  # from torch: rank 0's parameters and state
        for p, q in zip(m.parameters(), reference.parameters()):
            p.copy_(q if rank == 0 else torch.zeros_like(q))
    ours.load_state_dict(wanted if rank == 0 else torchs2.state_dict())
    assert (flat(m) == flat(reference)).all()
    train(m, ours, range(7, 14))
    train(reference, torchs, range(7, 14))
    near(m, reference)

    again = ours.state_dict()  # through a file, and back where it came from: not one bit changes
    path = os.path.join(os.path.dirname(__file__), f"state.{rank}")
    torch.save(again, path)
    before = [p.detach().clone() for p in m.parameters()]
    train(m, ours, range(14, 17))
    then = flat(m).clone()
    with torch.no_grad():
        for p, q in zip(m.parameters(), before):
            p.copy_(q)
    ours.load_state_dict(torch.load(path))
    train(m, ours, range(14, 17))
    assert (flat(m) == then).all()
    pt.context().close()
"""
    )
    for name in NAMES:
        passes(job(program, 2, ["--servers", "2"], RULE=name))
    for flags in (["--mode", "zero1"], ["--mode", "zero3"], ["--mode", "ddp"], ["--servers", "2", "--replicas", "1"]):
        passes(job(program, 2, flags, RULE="AdamW"))
    passes(job(program, 1, RULE="Adam"))


def test_a_state_dict_that_does_not_fit_is_refused_with_a_sentence():
    program = (
        COMMON
        + """
    m = model()
    ours = pt.DistributedOptimizer(torch.optim.Adam(m.parameters(), lr=0.01), m.named_parameters())
    def refused(state, said, kind=penstock.Unsupported):
        try:
            ours.load_state_dict(state)
        except kind as error:
            assert said in str(error), error
        else:
            raise SystemExit("not refused: " + said)
    fresh = ours.state_dict()
    assert fresh["state"] == {}
    betas = ours.state_dict()
    betas["param_groups"][0]["betas"] = (0.5, 0.5)
    refused(betas, "param group 0 has other numbers")
    x, y = batch(0)
    loss_of(m, x, y).backward()
    try:
        ours.state_dict()
    except penstock.WrongState as error:
        assert "step 0 is in progress" in str(error), error
    ours.step()
    uneven = ours.state_dict()
    uneven["state"][1]["step"] = torch.tensor(7.0)
    refused(uneven, "different numbers of updates: [1, 7]")
    short = ours.state_dict()
    short["param_groups"][0]["params"] = [0]
    refused(short, "size", ValueError)
    ours.load_state_dict({**ours.state_dict(), "state": {}})  # no state at all: the rule begins anew
    assert float(ours.state_dict()["param_groups"][0]["lr"]) == 0.01
    pt.context().close()
"""
    )
    passes(job(program, 2, ["--servers", "1"]))


def test_groups_have_rates_of_their_own_and_follow_torchs_schedulers():
    passes(
        job(
            COMMON
            + """
    def groups(m):
        return [{"params": m[0].parameters(), "lr": 0.02, "weight_decay": 0.1}, {"params": m[2].parameters()}]
    def schedule(optimizer):
        return torch.optim.lr_scheduler.LambdaLR(optimizer, [lambda e: 0.9**e, lambda e: 1 / (1 + e)])
    m, reference = model(), model()
    ours = pt.DistributedOptimizer(torch.optim.AdamW(groups(m), lr=0.005))
    torchs = torch.optim.AdamW(groups(reference), lr=0.005)
    assert isinstance(ours, torch.optim.Optimizer)
    plans = [schedule(ours), schedule(torchs)]
    for step in range(15):
        for net, optimizer, plan in ((m, ours, plans[0]), (reference, torchs, plans[1])):
            optimizer.zero_grad()
            loss_of(net, *batch(step)).backward()
            optimizer.step()
            plan.step()
    assert torch.allclose(flat(m), flat(reference), rtol=1e-5, atol=1e-6), (flat(m) - flat(reference)).abs().max()
    assert ours.param_groups[1]["lr"] == torchs.param_groups[1]["lr"]
    ours.param_groups[0]["weight_decay"] = 0.3
    loss_of(m, *batch(0))
    try:
        loss_of(m, *batch(0)).backward()
    except penstock.Unsupported as error:
        assert "only lr may change" in str(error)
    else:
        raise AssertionError
""",
            1,
            ["--servers", "1"],
        )
    )


def test_parameters_are_equal_in_every_bit_in_every_mode():
    program = (
        COMMON
        + """
    m = model()
    for p in m.parameters():
        p.data += pt.init().rank  # rank 0's count
    optimizer = pt.DistributedOptimizer(torch.optim.Adam(m.parameters(), lr=0.01), m.named_parameters())
    rank, ranks = pt.context().rank, pt.context().world_size
    for step in range(10):
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        loss_of(m, *batch(step, rank, ranks)).backward()
        optimizer.step()
    assert optimizer.last_step.index == 9 and optimizer.last_step.outcome == "applied"
    print("digest", pt.context().digest())
    pt.context().close()
"""
    )
    digests = {}
    for flags in ([], ["--servers", "1"], ["--servers", "3"], ["--mode", "zero1"], ["--mode", "zero2"]):
        outcome = passes(job(program, 2, flags))
        digests[" ".join(flags)] = {line.split()[-1] for line in outcome.lines if "digest" in line}
    assert len(set.union(*digests.values())) == 1, digests


def test_gradients_of_several_passes_unused_parameters_clipping_and_buffers():
    passes(
        job(
            COMMON
            + """
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(2)
            self.norm, self.head, self.unused = torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3), torch.nn.Linear(2, 2)
        def forward(self, x):
            return self.head(self.norm(x))
    pt.init(clip=0.5)
    rank = pt.context().rank
    m, reference = Net(), Net()
    ours = pt.DistributedOptimizer(torch.optim.SGD(m.parameters(), lr=0.1), m.named_parameters(), backward_passes_per_step=2,
                                   buffers=m.named_buffers())
    torchs = torch.optim.SGD(reference.parameters(), lr=0.1)
    for step in range(6):
        ours.zero_grad()
        for half in range(2):
            (loss_of(m, *batch(2 * step + half, rank, 2)) / 2).backward()
        ours.step()
        norm = ours.clip_grad_norm_(0.5)
        assert norm > 0
    # DDP's rule for buffers: rank 0's
    both = pt.context().world.gather_bytes(m.norm.running_mean.numpy().tobytes())
    assert both[0] == both[1] and int(m.norm.num_batches_tracked) == 12
    try:
        ours.clip_grad_norm_(2.0)
    except penstock.WrongState as error:
        assert "this job clips at 0.5" in str(error)
    else:
        raise AssertionError
    loss_of(m, *batch(0)).backward()
    loss_of(m, *batch(0)).backward()
    try:
        loss_of(m, *batch(0)).backward()
    except penstock.WrongState as error:
        assert "has left already: call step() after 2 backward passes" in str(error), error
    else:
        raise AssertionError
    ours.step()
    pt.context().close()
""",
            2,
            ["--servers", "1"],
        )
    )


def test_a_snapshot_resumes_a_program_and_a_loss_scale_changes_no_bit():
    program = (
        COMMON
        + """
    pt.init(**eval(os.environ["SETTINGS"]))
    m = model()
    optimizer = pt.DistributedOptimizer(torch.optim.Adam(m.parameters(), lr=0.01), m.named_parameters())
    rank, ranks = pt.context().rank, pt.context().world_size
    for step in range(pt.context().info.step, int(os.environ["UNTIL"])):
        optimizer.zero_grad()
        (loss_of(m, *batch(step, rank, ranks)) * optimizer.loss_scale).backward()
        optimizer.step()
    print("scale", optimizer.last_step.loss_scale)
    print("digest", pt.context().digest())
    pt.context().close()
"""
    )

    def digest(until, flags=(), settings="{}"):
        outcome = passes(job(program, 2, ["--servers", "1", *flags], UNTIL=str(until), SETTINGS=settings))
        return {line.split()[-1] for line in outcome.lines if "digest" in line}, outcome

    expected, _ = digest(8)
    scaled, outcome = digest(8, settings='{"precision": "fp16", "applies_loss_scale": True}')
    assert scaled == expected and "scale 65536.0" in outcome.out, outcome
    with tempfile.TemporaryDirectory() as store:
        digest(4, ["--store", store, "--snapshot-every", "4"])
        assert digest(8, ["--store", store, "--resume"])[0] == expected


def test_what_cannot_be_trained_is_refused_with_a_sentence():
    outcome = passes(
        job(
            COMMON
            + """
    m = model()
    def refused(kind, sentence, function):
        try:
            function()
        except kind as error:
            assert sentence in str(error), error
        else:
            raise AssertionError(sentence)
    refused(penstock.Unsupported, "ASGD has no rule in Penstock: use one of SGD, Adam,", lambda: pt.DistributedOptimizer(torch.optim.ASGD(m.parameters())))
    refused(penstock.Unsupported, "Adam with amsgrad=True", lambda: pt.DistributedOptimizer(torch.optim.Adam(m.parameters(), amsgrad=True)))
    refused(penstock.InvalidArgument, "a parameter of group 0, of shape [32, 8], is not among named_parameters",
            lambda: pt.DistributedOptimizer(torch.optim.SGD(m.parameters(), lr=1), m[2].named_parameters()))
    pt.context().close()
    table = torch.nn.Embedding(10, 4, sparse=True)
    optimizer = pt.DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=1), table.named_parameters())
    refused(penstock.Unsupported, "the gradient of weight is sparse: use sparse=False", lambda: table(torch.tensor([1, 1])).sum().backward())
""",
            1,
        )
    )


TRAIN = """
    import torch, torch.distributed as dist
    {start}
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    {wrap}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    {distributed}
    for step in range(100):
        torch.manual_seed(100 * step + rank)
        x, y = torch.randn(16, 20), torch.randint(0, 10, (16,))
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        print(f"loss {{step}} {{rank}} {{loss.item():.17g}}")
    {end}
"""


def losses(text, workers, flags):
    outcome = passes(job(text, workers, flags))
    found = {tuple(line.split()[-3:-1]): float(line.split()[-1]) for line in outcome.lines if "loss " in line}
    assert len(found) == 100 * workers, outcome
    return found


def test_a_stock_ddp_script_has_the_same_losses_after_five_changed_lines():
    stock = TRAIN.format(
        start='dist.init_process_group("gloo")\n    rank = dist.get_rank()',
        wrap="model = torch.nn.parallel.DistributedDataParallel(model)",
        distributed="",
        end="dist.destroy_process_group()",
    )
    changed = TRAIN.format(
        start="import penstock.torch\n    rank = penstock.torch.init().rank",
        wrap="",
        distributed="optimizer = penstock.torch.DistributedOptimizer(optimizer, model.named_parameters())",
        end="penstock.torch.context().close()",
    )

    def distance(found, expected):
        return max(abs(found[k] - expected[k]) / abs(expected[k]) for k in expected)

    for workers in (1, 2):
        expected = losses(stock, workers, [])
        for flags in (["--servers", "1"], ["--mode", "zero1"] if workers > 1 else []):
            worst = distance(losses(changed, workers, flags), expected)
            assert worst <= 1e-6, (workers, flags, worst)
    expected = losses(stock, 4, [])  # the order of a sum of four is not Gloo's: nor is Gloo's with other ranks
    permuted = losses(stock.replace("dist.get_rank()", "[2, 0, 3, 1][dist.get_rank()]"), 4, [])
    for flags in (["--servers", "1"], ["--mode", "zero1"]):
        assert distance(losses(changed, 4, flags), expected) <= 2 * distance(permuted, expected), flags


tap.main()
