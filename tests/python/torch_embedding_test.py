#!/usr/bin/python3
"""torch_embedding_test.py - rows on servers beside torch.nn.Embedding(sparse=True) on one process."""
import tap
from tap import job, passes


def test_an_embedding_on_servers_is_torchs_sparse_one():
    program = """
    import torch, penstock.torch as pt
    torch.set_num_threads(1)
    rule, kind, numbers = eval(os.environ["RULE"])
    pt.init(seed=4)
    rank, ranks = pt.context().rank, pt.context().world_size
    ours = pt.Embedding("words", 6, optim=rule, init="uniform a=-1 b=1", sync="bsp")
    torch.manual_seed(1)
    head = torch.nn.Linear(6, 1)
    optimizer = pt.DistributedOptimizer(torch.optim.SGD(head.parameters(), lr=0.1), head.named_parameters())
    reference = torch.nn.Embedding(50, 6, sparse=True)
    with torch.no_grad():
        reference.weight.copy_(ours(torch.arange(50)))  # the rows' first values
    assert reference.weight.std() > 0.3
    torch.manual_seed(1)
    other = torch.nn.Linear(6, 1)
    torchs = [kind(reference.parameters(), **numbers), torch.optim.SGD(other.parameters(), lr=0.1)]
    for step in range(20):
        torch.manual_seed(step)
        words = (torch.rand(32, 3) ** 3 * 50).long()  # some often, some never
        optimizer.zero_grad()
        loss = (head(ours(words[rank::ranks]).mean(1)) - 1).pow(2).mean()
        loss.backward()
        optimizer.step()
        [o.zero_grad() for o in torchs]
        (other(reference(words).mean(1)) - 1).pow(2).mean().backward()
        [o.step() for o in torchs]
    with torch.no_grad():
        rows = ours(torch.arange(50))
    assert torch.allclose(rows, reference.weight, rtol=1e-5, atol=1e-6), (rows - reference.weight).abs().max()
    assert torch.allclose(head.weight, other.weight, atol=1e-6) and not rows.requires_grad
    far = torch.tensor([2**62, -5])
    assert ours(far).shape == (2, 6)
    print(ours)
    pt.context().close()
"""
    for rule in (
        '("sgd lr=0.5", torch.optim.SGD, dict(lr=0.5))',
        '("adagrad lr=0.1", torch.optim.Adagrad, dict(lr=0.1))',
    ):
        for workers, servers in ((1, 1), (2, 1), (2, 3)):
            outcome = passes(job(program, workers, ["--servers", str(servers)], RULE=rule))
            assert "[0] Embedding('words', 6)" in outcome.out, outcome


def test_an_embedding_in_a_job_without_servers_is_refused():
    passes(
        job(
            """
    import penstock.torch as pt
    try:
        pt.Embedding("words", 6, optim="sgd lr=1")
    except penstock.Unsupported as error:
        assert "server" in str(error)
    else:
        raise AssertionError
""",
            1,
        )
    )


tap.main()
