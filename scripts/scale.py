#!/usr/bin/env python3
"""scale.py - what a job of N workers and S servers sends, connects and keeps in memory: docs/design/scale.md.

scripts/scale.py --workers 1000 --servers 100 --tensors 200
sim_many_test ... | scripts/scale.py --compare     fails if the simulator counted others (more than 1 % apart)

All members start together, nobody dies, and workers do not share memory, except where a line says so."""
import argparse
import math
import sys

BEAT_S = 1  # a tenth of lease_ms
SCHEDULER_MIB, SCHEDULER_KIB = 11, 14  # alone, and for each member: resident, with 128 and 512 workers
PEER_KIB = 3  # in each worker, for each other worker: its record, its place in the mesh
MAPPED_MAX = 64  # workers that share memory in one set


def record_bytes(host, addresses):
    """Of a member in EPOCH."""
    return 24 + host + sum(2 + a for a in addresses)


def start(n, s, tensors, worker_record, server_record):
    """From HELLO to the first step, and the end: (message, number, bytes of each)."""
    m = n + s
    rows = [
        ("HELLO", m, 95),
        ("WELCOME", m, 68),
        ("EPOCH", m, 60 + n * worker_record + s * server_record),
        ("REGISTER", n, 11 + 15 * tensors),
        ("PLAN", m, 44 + (2.5 * tensors + 8 * s if s > 0 else 0)),
        ("READY", m, 42),
        ("COMMITTED", n, 23),
        ("BYE", m, 32),
        ("BYED", m, 23),
        ("STOP", s, 23),
    ]
    if s > 0:  # rank 0 sends the first values, all pull them
        rows += [("INIT", s, 0), ("RECEIPT", s, 60), ("PULL", n * s, 0), ("VALUES", n * s, 0)]
    return rows


def step(n, s, elements):
    """One step of all.  A push is receipted unless it is the last one: the decision answers it."""
    if s == 0:
        small, large = 2 * (n - 1), 2 * (n - 1)
        return [
            ("agreement (small all_reduce)", small, 160),
            ("gradients (large all_reduce)", large, 4 * elements),
        ]
    part = 4 * elements / s
    return [
        ("PUSH", n * s, part),
        ("RECEIPT", (n - 1) * s, 80),
        ("PREPARED", n * s, part / 2048),
        ("PULL", n * s, 280),
        ("VALUES", n * s, part),
    ]


def minute(n, s):
    """The will is sent again only if the step has changed."""
    beats = 60 / BEAT_S
    return [("BEAT", (n + s) * beats, 52), ("BEAT_ACK", (n + s) * beats, 29), ("WILL", (n + s) * beats, 175)]


def life(n, s, seconds):
    """Beats of a job from its start to its end: also with WELCOME and BYE, and of workers when they begin to train."""
    beats = seconds // BEAT_S
    sent = n * (beats + 3) + s * (beats + 2)
    return {"BEAT": sent, "BEAT_ACK": sent, "WILL": (n + s) * (beats + 1)}


def death(n, s, worker_record, server_record):
    """A worker dies, on_worker_loss=continue: those that hold state are sealed, then all get the new view."""
    holders, left = (s if s > 0 else n - 1), n - 1 + s
    return [
        ("LOST", n - 1, 175),
        ("SEAL", holders, 32),
        ("SEALED", holders, 80),
        ("EPOCH", left, (n - 1) * worker_record + s * server_record),
    ]


def show(title, rows):
    print(title)
    for what, messages, size in rows:
        print(f"  {what:32}{messages:14,.0f} messages {messages * size / 1e6:14,.3f} MB")
    print(f"  {'all':32}{sum(r[1] for r in rows):14,.0f} messages {sum(r[1] * r[2] for r in rows) / 1e6:14,.3f} MB")


def show_all(a):
    n, s, m = a.workers, a.servers, a.workers + a.servers
    worker, server = record_bytes(a.host, [a.address, 60]), record_bytes(a.host, [a.address])
    print(f"{n} workers, {s} servers, {a.tensors} tensors, {a.elements:,} elements\n")
    show("at the start and the end", start(n, s, a.tensors, worker, server))
    show("\neach step", step(n, s, a.elements))
    show("\neach minute", minute(n, s))
    show("\neach death of a worker", death(n, s, worker, server))
    near = 2 * math.ceil(math.log2(n)) if n > 1 else 0
    print(f"\nconnections of the scheduler {m:,}, of a server {1 + n:,}, of a worker {1 + s} with servers")
    print(f"connections of a worker without servers 1 + {near} (to distances of powers of two, both ways)")
    print(f"mappings of a worker {min(n, MAPPED_MAX) - 1} at most, if all are on one host")
    scheduler = SCHEDULER_MIB + m * SCHEDULER_KIB / 1024
    print(f"memory of the scheduler {scheduler:.0f} MiB, of a worker for others {n * PEER_KIB / 1024:.1f} MiB")


# ---- the simulator's counts ----------------------------------------------------------------------
def expected(n, s, steps, tensors):
    """Messages by kind, without those of time."""
    counts = {}
    for what, messages, _ in start(n, s, tensors, 0, 0) + (step(n, s, 0) if s > 0 else []) * steps:
        counts[what] = counts.get(what, 0) + messages
    return {kind: messages for kind, messages in counts.items() if messages > 0}


def compare_job(job, counted, tensors):
    n, s, steps, ms = job
    wrong = []
    told = {**expected(n, s, steps, tensors), **life(n, s, ms // 1000)}
    for kind in sorted(set(told) | set(counted)):
        model, found = told.get(kind, 0), counted.get(kind, 0)
        is_fewer = kind == "WILL" and found < model  # seconds in which no step ended
        is_wrong = not is_fewer and abs(model - found) > 0.01 * model
        print(f"{n:6} {s:4}  {kind:12}{model:14,.0f} {found:14,d}{'   differs' if is_wrong else ''}")
        if is_wrong:
            wrong.append(kind)
    return wrong


def compare(lines):
    jobs, wrong = {}, []
    for line in lines:
        words = line.split()
        if words[:1] == ["counts"]:
            jobs.setdefault(tuple(map(int, words[1:5])), {})[words[5]] = int(words[6])
    print("workers, servers, message, by the model, in the simulator")
    for job, counted in jobs.items():
        wrong += compare_job(job, counted, 200)
    return "no counts were given" if not jobs else f"the model is wrong about {', '.join(wrong)}" if wrong else None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=1000)
    parser.add_argument("--servers", type=int, default=0)
    parser.add_argument("--tensors", type=int, default=200)
    parser.add_argument("--elements", type=int, default=124_000_000, help="trained numbers of the model")
    parser.add_argument("--host", type=int, default=16, help="bytes of a host's name")
    parser.add_argument("--address", type=int, default=24, help="bytes of an address")
    parser.add_argument("--compare", action="store_true", help="with the simulator's counts, from stdin")
    a = parser.parse_args()
    if a.workers < 1 or a.servers < 0:
        sys.exit("scale.py: a job has at least 1 worker and 0 servers")
    if a.compare:
        sys.exit(compare(sys.stdin))
    show_all(a)


if __name__ == "__main__":
    main()
