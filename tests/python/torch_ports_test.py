#!/usr/bin/python3
"""torch_ports_test.py - scripts of other systems, ported by the lines that ports/ shows."""
import os
import re
import sys
import tempfile

import tap
from tap import passes, run

PORTS = os.path.join(tap.ROOT, "tests/python/ports")


def read(name):
    with open(os.path.join(PORTS, name)) as file:
        return file.read()


def ported(name):
    """Path of the script with its lines changed, and their number, which the table must have."""
    text, changes = read(name + ".py"), read(name + ".diff").splitlines()
    assert len(changes) % 2 == 0
    for old, new in zip(changes[::2], changes[1::2]):
        assert old[0] == "-" and new[0] == "+" and text.count("\n" + old[1:] + "\n") == 1, old
        text = text.replace("\n" + old[1:] + "\n", "\n" + new[1:] + "\n")
    assert re.search(rf"^\| `{name}\.py`.*\| {len(changes) // 2} \|$", read("README.md"), re.M), len(changes) // 2
    path = os.path.join(tempfile.mkdtemp(), name + ".py")
    with open(path, "w") as file:
        file.write(text)
    return path


def job(path, *flags):
    return passes(run(["penstock", "run", "--nproc-per-node", "2", *flags, sys.executable, path], 200))


def printed(outcome):
    return sorted(line.split("] ")[-1] for line in outcome.lines if "loss" in line)


def test_a_loop_of_horovod_trains_on_servers_and_without():
    path = ported("horovod")
    servers = printed(job(path, "--servers", "2"))
    assert len(servers) == 1 and float(servers[0].split()[1]) < 2.2 and printed(job(path)) == servers, servers


def test_a_loop_of_byteps_trains_on_servers():
    lines = printed(job(ported("byteps"), "--servers", "1"))
    assert [line[:13] for line in lines] == ["rank 0 of 2  ", "rank 1 of 2  "], lines


def test_a_stock_ddp_script_prints_what_it_prints_over_gloo():
    stock = printed(job(os.path.join(PORTS, "ddp.py")))
    assert len(stock) == 1 and printed(job(ported("ddp"))) == stock, stock


def test_a_stock_script_of_zero_redundancy_optimizer_prints_what_it_prints_over_gloo():
    stock = printed(job(os.path.join(PORTS, "zero.py")))
    assert len(stock) == 1 and printed(job(ported("zero"))) == stock, stock


def test_cells_of_a_notebook_train_alone_again_and_again():
    stock = printed(passes(run([sys.executable, os.path.join(PORTS, "interactive.py")])))
    assert len(stock) == 2 and printed(passes(run([sys.executable, ported("interactive")]))) == stock, stock


tap.main()
