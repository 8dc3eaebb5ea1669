"""table_reference.py - what programs/table prints, computed by a dictionary in double precision.

   table_reference.py WORKERS NAME=VALUE ... <OUTPUT      words as programs/table gets them

Reads the program's output and compares: every key's values must be within 2e-5 (bf16: 1e-2) of the dictionary's.
Gradients are a function of (key, element, rank, round), so nothing is shared with the program but that formula and the
draws.  Rules: sgd, adagrad and adam (PyTorch's formulas), rowwise_adagrad (TorchRec's), ftrl (McMahan et al., KDD 2013).
"""
import math
import sys

M64 = (1 << 64) - 1


def mix(x):
    x = ((x ^ x >> 31) * 0x9E3779B97F4A7C15) & M64
    return x ^ x >> 29


def main():
    workers = int(sys.argv[1])
    w = {"rounds": "8", "keys": "200", "batch": "60", "dim": "5", "type": "f32", "consistency": "bsp", "any": "0",
         "rule": "sgd lr=0.5"}
    w.update(a.split("=", 1) for a in sys.argv[2:])
    n, dim = int(w["keys"]), int(w["dim"])
    name, *hyper = w["rule"].split()
    hyper = {k: float(v) for k, v in (h.split("=") for h in hyper)}
    lr, rows, state, times = hyper["lr"], {}, {}, {}

    def key_at(i):
        return M64 if i == n else M64 // 2 if i == n + 1 else i

    def length(key):
        return dim if dim > 0 else 1 + key % 7

    def update(key, grad):
        row = rows.setdefault(key, [0.0] * length(key))
        t = times[key] = times.get(key, 0) + 1
        a, b = state.setdefault(key, ([0.0] * len(row), [0.0] * len(row)))
        if name == "rowwise_adagrad":
            a[0] += sum(g * g for g in grad) / len(grad)
            for e, g in enumerate(grad):
                row[e] -= lr * g / (math.sqrt(a[0]) + 1e-8)
            return
        for e, g in enumerate(grad):
            if name == "sgd":
                row[e] -= lr * g
            elif name == "adagrad":
                a[e] += g * g
                row[e] -= lr * g / (math.sqrt(a[e]) + 1e-10)
            elif name == "adam":
                a[e] = 0.9 * a[e] + 0.1 * g
                b[e] = 0.999 * b[e] + 0.001 * g * g
                row[e] -= lr * (a[e] / (1 - 0.9 ** t)) / (math.sqrt(b[e] / (1 - 0.999 ** t)) + 1e-8)
            elif name == "ftrl":
                old = a[e] + hyper["initial_accumulator"] if t == 1 else a[e]
                new = old + g * g
                b[e] += g - (math.sqrt(new) - math.sqrt(old)) / lr * row[e]
                a[e] = new
                l1 = hyper.get("l1", 0)
                row[e] = 0.0 if abs(b[e]) <= l1 else (math.copysign(l1, b[e]) - b[e]) / (math.sqrt(new) / lr)

    for r in range(int(w["rounds"])):
        parts = []
        for rank in range(workers):
            grads, seen = {}, set()
            for i in range(int(w["batch"])):
                key = key_at(mix(r * 1000003 + rank * 7919 + i) % (n + 2))
                if w["any"] == "0" and key in seen:
                    continue
                seen.add(key)
                g = [((((key % 9 + 3 * e + 5 * rank + 7 * r) & M64) % 9) - 4) / 4 for e in range(length(key))]
                grads[key] = [x + y for x, y in zip(grads.get(key, [0.0] * len(g)), g)]
            parts.append(grads)
        if w["consistency"] == "bsp":
            for key in sorted(set().union(*parts)):
                update(key, [sum(p.get(key, [0.0] * length(key))[e] for p in parts) / workers
                             for e in range(length(key))])
        else:
            for p in parts:
                for key, g in p.items():
                    update(key, g)

    bound, found = (1e-2 if w["type"] != "f32" else 2e-5), 0
    for line in sys.stdin:
        words = line.split()
        if not words or words[0] != "key":
            continue
        key, got = int(words[1]), [float(x) for x in words[2:]]
        want = rows.get(key, [0.0] * dim)
        found += 1
        if len(got) != len(want) or any(abs(x - y) > bound * max(1, abs(y)) for x, y in zip(got, want)):
            sys.exit("key %d is %s and should be %s" % (key, got, want))
    if found != n + 2 or not rows:
        sys.exit("%d keys were printed, not %d" % (found, n + 2))


main()
