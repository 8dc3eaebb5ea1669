#!/usr/bin/env python3
"""Writes golden_gpt2.h: loss and gradients of a very small GPT-2, by torch in float64.

    /usr/bin/python3 tests/support/make_golden_gpt2.py > tests/support/golden_gpt2.h

Needs torch (Debian: python3-torch).  The network is written here with torch's own layer_norm, gelu, softmax and
cross_entropy, after Hugging Face's modeling_gpt2.py (Conv1D weights are [in, out]).  Values are a formula of
(tensor, place), exact in float32, that the C test has too, so that only results are stored.
"""
import math

import torch
from torch.nn import functional

VOCAB, PADDED, BLOCK, LAYERS, HEADS, CHANNELS, BATCH, LENGTH = 19, 24, 8, 2, 2, 12, 3, 7

LAYER = [("ln_1.weight", 1, 0), ("ln_1.bias", 1, 0), ("attn.c_attn.weight", 1, 3), ("attn.c_attn.bias", 3, 0),
         ("attn.c_proj.weight", 1, 1), ("attn.c_proj.bias", 1, 0), ("ln_2.weight", 1, 0), ("ln_2.bias", 1, 0),
         ("mlp.c_fc.weight", 1, 4), ("mlp.c_fc.bias", 4, 0), ("mlp.c_proj.weight", 4, 1), ("mlp.c_proj.bias", 1, 0)]


def tensors():
    c = CHANNELS
    yield "wte.weight", (PADDED, c)
    yield "wpe.weight", (BLOCK, c)
    for layer in range(LAYERS):
        for name, rows, columns in LAYER:
            yield f"h.{layer}.{name}", (rows * c, columns * c) if columns else (rows * c,)
    yield "ln_f.weight", (c,)
    yield "ln_f.bias", (c,)


def value(index, i, of_norm):
    """Between -0.5 and 0.5 in steps of 2^-12; weights of layer norms around 1."""
    x = ((index * 7919 + i + 1) * 2654435761) % 2**32
    return (x >> 20) / 4096 - 0.5 + (1.0 if of_norm else 0.0)


def token(i):
    return (i * i * 5 + i * 3 + 2) % VOCAB


def parameters(dtype):
    result = {}
    for index, (name, shape) in enumerate(tensors()):
        of_norm = "ln_" in name and name.endswith("weight")
        flat = torch.tensor([value(index, i, of_norm) for i in range(math.prod(shape))], dtype=torch.float64)
        result[name] = flat.reshape(shape).to(dtype).requires_grad_()
    return result


def attention(p, at, x):
    b, t, c = x.shape
    qkv = x @ p[at + "c_attn.weight"] + p[at + "c_attn.bias"]
    q, k, v = (part.reshape(b, t, HEADS, c // HEADS).transpose(1, 2) for part in qkv.split(c, dim=2))
    scores = q @ k.transpose(2, 3) / math.sqrt(c // HEADS)
    hidden = torch.triu(torch.ones(t, t, dtype=torch.bool), 1)
    out = functional.softmax(scores.masked_fill(hidden, -math.inf), dim=-1) @ v
    return out.transpose(1, 2).reshape(b, t, c) @ p[at + "c_proj.weight"] + p[at + "c_proj.bias"]


def gelu(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x ** 3)))


def loss_of(p, tokens, targets):
    def norm(x, name):
        return functional.layer_norm(x, (CHANNELS,), p[name + ".weight"], p[name + ".bias"], 1e-5)

    x = p["wte.weight"][tokens] + p["wpe.weight"][:LENGTH]
    for layer in range(LAYERS):
        at = f"h.{layer}."
        x = x + attention(p, at + "attn.", norm(x, at + "ln_1"))
        h = gelu(norm(x, at + "ln_2") @ p[at + "mlp.c_fc.weight"] + p[at + "mlp.c_fc.bias"])
        x = x + h @ p[at + "mlp.c_proj.weight"] + p[at + "mlp.c_proj.bias"]
    logits = norm(x, "ln_f") @ p["wte.weight"][:VOCAB].T
    return functional.cross_entropy(logits.reshape(-1, VOCAB), targets.reshape(-1), ignore_index=-1)


def gradients(dtype):
    p = parameters(dtype)
    n = BATCH * LENGTH
    tokens = torch.tensor([token(i) for i in range(n)]).reshape(BATCH, LENGTH)
    targets = torch.tensor([token(i + 1) for i in range(n)]).reshape(BATCH, LENGTH)
    targets[1, 3] = -1
    loss = loss_of(p, tokens, targets)
    loss.backward()
    return loss.item(), {name: p[name].grad.double().flatten() for name in p}


def print_floats(numbers):
    line = "   "
    for x in numbers:
        word = f" {x:.9g},"
        if len(line) + len(word) > 118:
            print(line)
            line = "   "
        line += word
    print(line)


def main():
    loss, grads = gradients(torch.float64)
    half_loss, half = gradients(torch.bfloat16)
    print(f"/* golden_gpt2.h - written by make_golden_gpt2.py; do not edit.\n *\n * Reference: torch {torch.__version__}"
          " in float64. */")
    print("#ifndef TESTS_SUPPORT_GOLDEN_GPT2_H\n#define TESTS_SUPPORT_GOLDEN_GPT2_H\n\n/* clang-format off */")
    for name in ("VOCAB", "PADDED", "BLOCK", "LAYERS", "HEADS", "CHANNELS", "BATCH", "LENGTH"):
        print(f"#define GOLDEN_{name} {globals()[name]}")
    print(f"\nstatic const double golden_loss = {loss:.12g};")
    print(f"static const double golden_bf16_loss = {half_loss:.12g}; /* of torch in bfloat16 throughout */")
    print("\n/* 2-norm of the difference that torch in bfloat16 makes, divided by the norm of the gradient. */")
    print("static const double golden_bf16_error[] = {")
    print_floats([((half[n] - grads[n]).norm() / grads[n].norm()).item() for n in grads])
    print("};\n\n/* All gradients, one tensor after the other. */\nstatic const float golden_grads[] = {")
    for name in grads:
        print(f"    /* {name} */")
        print_floats(grads[name].tolist())
    print("};\n/* clang-format on */\n\n#endif")


main()
