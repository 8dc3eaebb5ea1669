#!/usr/bin/env python3
"""Writes golden_optim.h: what every update rule must do to a few parameters over a few steps.

    /usr/bin/python3 tests/support/make_golden_optim.py > tests/support/golden_optim.h

Needs torch (Debian: python3-torch) and numpy.  Rules that torch has are run by torch in float64; ftrl,
lion and lamb are written here from their papers, in float64, independently of the C code.  Rates
change from step to step; some gradients are zero, some tiny, some large.
"""
import numpy
import torch

ELEMENTS, STEPS, SHOWN = 40, 20, (1, 7, 20)

# name for test output, words given to optim_parse(), torch class, its arguments
TORCH_CASES = [
    ("sgd", "sgd lr=0.1", "SGD", dict(lr=0.1)),
    ("sgd, decay", "sgd lr=0.1 weight_decay=0.02", "SGD", dict(lr=0.1, weight_decay=0.02)),
    ("sgd, momentum", "sgd lr=0.1 momentum=0.9", "SGD", dict(lr=0.1, momentum=0.9)),
    ("sgd, dampening", "sgd lr=0.1 momentum=0.9 dampening=0.3 weight_decay=0.02", "SGD",
     dict(lr=0.1, momentum=0.9, dampening=0.3, weight_decay=0.02)),
    ("sgd, nesterov", "sgd lr=0.1 momentum=0.9 nesterov=yes weight_decay=0.02", "SGD",
     dict(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.02)),
    ("adam, defaults", "adam", "Adam", dict()),
    ("adam, decay", "adam lr=0.02 beta1=0.8 beta2=0.95 weight_decay=0.05", "Adam",
     dict(lr=0.02, betas=(0.8, 0.95), weight_decay=0.05)),
    ("adamw, defaults", "adamw", "AdamW", dict()),
    ("adamw, decay", "adamw lr=0.02 beta1=0.8 beta2=0.95 eps=1e-6 weight_decay=0.1", "AdamW",
     dict(lr=0.02, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1)),
    ("adagrad, defaults", "adagrad", "Adagrad", dict()),
    ("adagrad, all", "adagrad lr=0.1 lr_decay=0.05 initial_accumulator=0.2 weight_decay=0.05",
     "Adagrad",
     dict(lr=0.1, lr_decay=0.05, initial_accumulator_value=0.2, weight_decay=0.05)),
    ("rmsprop, defaults", "rmsprop", "RMSprop", dict()),
    ("rmsprop, momentum", "rmsprop alpha=0.9 momentum=0.8 weight_decay=0.05", "RMSprop",
     dict(alpha=0.9, momentum=0.8, weight_decay=0.05)),
    ("rmsprop, centered", "rmsprop alpha=0.9 centered=yes eps=1e-3", "RMSprop",
     dict(alpha=0.9, centered=True, eps=1e-3)),
    ("rmsprop, both", "rmsprop alpha=0.9 centered=yes momentum=0.8 eps=1e-3", "RMSprop",
     dict(alpha=0.9, centered=True, momentum=0.8, eps=1e-3)),
    ("adadelta, defaults", "adadelta", "Adadelta", dict()),
    ("adadelta, decay", "adadelta rho=0.8 eps=1e-4 weight_decay=0.05", "Adadelta",
     dict(rho=0.8, eps=1e-4, weight_decay=0.05)),
    ("adamax, defaults", "adamax", "Adamax", dict()),
    ("adamax, decay", "adamax lr=0.02 beta1=0.8 beta2=0.95 weight_decay=0.05", "Adamax",
     dict(lr=0.02, betas=(0.8, 0.95), weight_decay=0.05)),
]


def ftrl(lr, l1=0.0, l2=0.0, lr_power=-0.5, initial_accumulator=0.1):
    """TensorFlow's ApplyFtrl; with lr_power -0.5 the per-coordinate rule of McMahan et al."""
    state = {}

    def step(w, g, t, factor):
        rate = lr * factor
        n = state.get("n", numpy.full_like(w, initial_accumulator))
        z = state.get("z", numpy.zeros_like(w))
        n_new = n + g ** 2
        sigma = (n_new ** -lr_power - n ** -lr_power) / rate
        z = z + g - sigma * w
        state.update(n=n_new, z=z)
        w_new = (numpy.sign(z) * l1 - z) / (n_new ** -lr_power / rate + 2 * l2)
        return numpy.where(numpy.abs(z) > l1, w_new, 0.0)
    return lr, step


def lion(lr=1e-4, beta1=0.9, beta2=0.99, weight_decay=0.0):
    """Chen et al., arXiv:2302.06675, Algorithm 2."""
    state = {}

    def step(w, g, t, factor):
        m = state.get("m", numpy.zeros_like(w))
        update = numpy.sign(beta1 * m + (1 - beta1) * g)
        state["m"] = beta2 * m + (1 - beta2) * g
        return w - lr * factor * (update + weight_decay * w)
    return lr, step


def lamb(lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-6, weight_decay=0.01):
    """You et al., arXiv:1904.00962, Algorithm 2, phi(x) = x, one layer."""
    state = {}

    def step(w, g, t, factor):
        m = beta1 * state.get("m", 0.0) + (1 - beta1) * g
        v = beta2 * state.get("v", 0.0) + (1 - beta2) * g ** 2
        state.update(m=m, v=v)
        r = m / (1 - beta1 ** t) / (numpy.sqrt(v / (1 - beta2 ** t)) + eps) + weight_decay * w
        w_norm, r_norm = numpy.sqrt(numpy.sum(w * w)), numpy.sqrt(numpy.sum(r * r))
        trust = w_norm / r_norm if w_norm > 0 and r_norm > 0 else 1.0
        return w - lr * factor * trust * r
    return lr, step


PAPER_CASES = [
    ("sum", "sum", (1.0, lambda w, g, t, factor: w + g)),
    ("ftrl", "ftrl lr=0.1", ftrl(0.1)),
    ("ftrl, l1 l2", "ftrl lr=0.1 l1=0.3 l2=0.1", ftrl(0.1, l1=0.3, l2=0.1)),
    ("ftrl, power", "ftrl lr=0.1 lr_power=-0.3 initial_accumulator=0.01 l1=0.05",
     ftrl(0.1, lr_power=-0.3, initial_accumulator=0.01, l1=0.05)),
    ("lion, defaults", "lion", lion()),
    ("lion, decay", "lion lr=0.01 beta1=0.8 beta2=0.9 weight_decay=0.3",
     lion(0.01, 0.8, 0.9, 0.3)),
    ("lamb, defaults", "lamb", lamb()),
    ("lamb, decay", "lamb lr=0.02 beta1=0.8 beta2=0.95 weight_decay=0.2",
     lamb(0.02, 0.8, 0.95, weight_decay=0.2)),
]


def data():
    """Multiples of 2^-12: the same number in float32, float64 and as a short decimal."""
    random = numpy.random.RandomState(20)
    start = numpy.round(random.randn(ELEMENTS) * 4096) / 4096
    grads = random.randn(STEPS, ELEMENTS) * 0.3
    grads[:, 3] = 0                 # never a gradient
    grads[:, 7] *= numpy.arange(STEPS) % 5 == 0
    grads[:, 11] *= 0.01
    grads[:, 15] *= 50
    grads[:, 19] = 0.25             # no variance: centered rmsprop
    factors = [0.25, 0.5, 0.75] + [1.0] * 7 + [0.5] * 5 + [0.125] * 5
    return start, numpy.round(grads * 4096) / 4096, factors


def run_torch(kind, arguments, start, grads, factors):
    w = torch.tensor(start, dtype=torch.float64, requires_grad=True)
    optimizer = getattr(torch.optim, kind)([w], **arguments)
    rate = optimizer.param_groups[0]["lr"]
    for t in range(STEPS):
        optimizer.param_groups[0]["lr"] = rate * factors[t]
        w.grad = torch.tensor(grads[t], dtype=torch.float64)
        optimizer.step()
        if t + 1 in SHOWN:
            yield w.detach().numpy().copy()


def run_paper(rule, start, grads, factors):
    _, step = rule
    w = start.copy()
    for t in range(STEPS):
        w = step(w, grads[t], t + 1, factors[t])
        if t + 1 in SHOWN:
            yield w.copy()


def row(numbers, digits):
    text, line = [], "    "
    for number in numbers:
        word = f"{number:.{digits}g}, "
        if len(line) + len(word) > 100:
            text.append(line.rstrip())
            line = "    "
        line += word
    return "\n".join(text + [line.rstrip().rstrip(",")])


def main():
    start, grads, factors = data()
    cases = [(n, w, list(run_torch(k, a, start, grads, factors))) for n, w, k, a in TORCH_CASES]
    cases += [(n, w, list(run_paper(r, start, grads, factors))) for n, w, r in PAPER_CASES]
    print("/* golden_optim.h - written by make_golden_optim.py; do not edit.")
    print(" *")
    print(f" * Reference: torch {torch.__version__.split('+')[0]} in float64; sum, ftrl, lion and lamb:"
          " the papers in float64. */")
    print("#ifndef TESTS_SUPPORT_GOLDEN_OPTIM_H\n#define TESTS_SUPPORT_GOLDEN_OPTIM_H\n")
    print("/* clang-format off */")
    print(f"enum {{ GOLDEN_ELEMENTS = {ELEMENTS}, GOLDEN_STEPS = {STEPS}, GOLDEN_SHOWN = {len(SHOWN)} }};\n")
    print(f"static const int golden_shown[GOLDEN_SHOWN] = {{{', '.join(map(str, SHOWN))}}};\n")
    print(f"/* times the rule's rate */\nstatic const double golden_factors[GOLDEN_STEPS] = {{\n{row(factors, 6)}}};\n")
    print(f"static const float golden_start[GOLDEN_ELEMENTS] = {{\n{row(start, 12)}}};\n")
    print("static const float golden_grads[GOLDEN_STEPS][GOLDEN_ELEMENTS] = {")
    for g in grads:
        print(f"  {{\n{row(g, 12)}}},")
    print("};\n")
    print("static const struct {\n    const char *name, *words;\n"
          "    double param[GOLDEN_SHOWN][GOLDEN_ELEMENTS];\n} golden_cases[] = {")
    for name, words, shown in cases:
        print(f'  {{"{name}", "{words}", {{')
        for values in shown:
            print(f"  {{\n{row(values, 12)}}},")
        print("  }},")
    print("};\n/* clang-format on */\n\n#endif")


main()
