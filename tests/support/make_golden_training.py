#!/usr/bin/env python3
"""Writes golden_training.h: orders of samples, rates of schedules and updates, as others compute them.

    /usr/bin/python3 tests/support/make_golden_training.py > tests/support/golden_training.h

Needs torch (Debian: python3-torch).  Orders are those of torch's DistributedSampler and randperm; the
update is torch's AdamW in float64.  The shuffle of very large lists is one that this version of torch may
not have yet: it is written here, on torch's own 64-bit random numbers.  Schedules are written here from
DeepSpeed's runtime/lr_schedules.py and llm.c's llmc/schedulers.h, as loops that step, independently of
the C code, which has closed formulas of the count of updates.
"""
import math
import random

import torch
from torch.utils.data.distributed import DistributedSampler

MASK = (1 << 64) - 1


def fold(value, state):
    """FNV-1a over the eight bytes of a number, least significant first."""
    for byte in int(value).to_bytes(8, "little"):
        state = ((state ^ byte) * 0x100000001b3) & MASK
    return state


def digest(numbers):
    state = 0xcbf29ce484222325
    for number in numbers:
        state = fold(number, state)
    return state


# ---- samplers ---------------------------------------------------------------------------------------
def sampled(n, world, seed, epoch, shuffle, drop_last):
    """What all ranks take, one rank after the other, each with its count in front."""
    numbers = []
    for rank in range(world):
        sampler = DistributedSampler(range(n), num_replicas=world, rank=rank, shuffle=shuffle,
                                     seed=seed, drop_last=drop_last)
        sampler.set_epoch(epoch)
        own = list(sampler)
        numbers += [len(own)] + own
    return digest(numbers)


def sampler_cases():
    draw = random.Random(20)
    cases = [(1, 1, 0, 0, True, False), (1, 7, 3, 2, True, False), (2, 9, 0, 1, True, False),
             (5, 8, 1, 0, True, True), (64, 8, (1 << 40) + 17, 3, True, False)]
    while len(cases) < 200:
        n = int(2 ** draw.uniform(0, 13))
        cases.append((n, draw.randint(1, 16), draw.choice([0, 1, draw.randrange(1 << 40)]),
                      draw.randint(0, 50), draw.random() < 0.85, draw.random() < 0.5))
    return cases


def print_samplers():
    print("typedef struct {\n    int64_t n;\n    int world;\n    uint64_t seed;\n    int64_t epoch;\n"
          "    int shuffles, drops_last;\n    uint64_t digest; /* of each rank's count and indices, in rank order */\n"
          "} golden_sampler;\n")
    print("static const golden_sampler golden_samplers[] = {")
    for case in sampler_cases():
        n, world, seed, epoch, shuffle, drop_last = case
        print(f"    {{{n}, {world}, {seed}u, {epoch}, {int(shuffle)}, {int(drop_last)}, "
              f"0x{sampled(*case):016x}u}},")
    print("};\n")


# ---- permutations -----------------------------------------------------------------------------------
def seeded(seed):
    generator = torch.Generator()
    generator.manual_seed(seed)
    return generator


def permuted(n, seed):
    return torch.randperm(n, generator=seeded(seed)).tolist()


def permuted_large(n, seed):
    """The inside-out shuffle on random64(), which random_() over the whole range hands out."""
    drawn = torch.empty(n, dtype=torch.int64).random_(-(1 << 63), None, generator=seeded(seed))
    order = []
    for i, number in enumerate(drawn.tolist()):
        other = (number & MASK) % (i + 1)
        order.append(i)
        order[i] = order[other]
        order[other] = i
    return order


def print_permutations():
    print("typedef struct {\n    uint64_t n, seed, digest;\n} golden_permutation;\n")
    for name, function in (("golden_permutations", permuted), ("golden_large_permutations", permuted_large)):
        print(f"static const golden_permutation {name}[] = {{")
        for n, seed in ((1, 0), (2, 5), (10, 0), (10, 1), (625, 7), (1000, 1 << 33), (20011, 123456789)):
            print(f"    {{{n}, {seed}u, 0x{digest(function(n, seed)):016x}u}},")
        print("};\n")
    halves = []
    for number in torch.empty(700, dtype=torch.int64).random_(-(1 << 63), None, generator=seeded(5489)).tolist():
        halves += [(number & MASK) >> 32, number & 0xffffffff]
    print("/* Mersenne Twister, seed 5489: the first five numbers, and a digest of the first 1,400. */")
    print("static const uint32_t golden_twister[5] = {" + ", ".join(f"{x}u" for x in halves[:5]) + "};")
    print(f"static const uint64_t golden_twister_digest = 0x{digest(halves):016x}u;\n")


# ---- schedules: objects that step, as upstream has them ------------------------------------------------
class Warmup:
    def __init__(self, base, low=0.0, high=None, steps=1000, kind="log", total=None):
        self.low, self.high = low, base if high is None else high
        self.steps, self.kind, self.total, self.it = max(2, steps), kind, total, -1

    def gamma(self):
        if self.it < self.steps:
            if self.kind == "log":
                return 1.0 / math.log(self.steps) * math.log(self.it + 1)
            return self.it / self.steps
        if self.total is None:
            return 1.0
        return max(0.0, float(self.total - self.it) / float(max(1.0, self.total - self.steps)))

    def rate(self):
        return self.low if self.it < 0 else self.low + (self.high - self.low) * self.gamma()


class WarmupCosine:
    def __init__(self, base, total, first=0.0, steps=1000, last=0.0001, kind="log"):
        self.base, self.total, self.first, self.last = base, total, first, last
        self.steps, self.kind, self.it = max(2, steps), kind, -1

    def rate(self):
        if self.it < 0:
            return 0.0
        if self.it < self.steps:
            part = math.log(self.it + 1) / math.log(self.steps) if self.kind == "log" else self.it / self.steps
            return self.base * (self.first + part * (1 - self.first))
        done = min(1.0, (self.it - self.steps + 1) / max(1, self.total - self.steps))
        return self.base * (self.last + (1 - self.last) * (1 + math.cos(math.pi * done)) / 2)


class OneCycle:
    def __init__(self, base, low, high, first=2000, second=None, up=0, down=None, decay=0.0, every=0):
        self.low, self.high, self.first = low, high, first
        self.second = first if second is None else second
        self.up, self.down = up, up if down is None else down
        self.decay, self.every, self.it = decay, every, -1

    def rate(self):
        total, at = self.first + self.second, self.it + 1
        if self.it >= total:
            if self.decay == 0 or self.every == 0:
                return self.low
            return self.low / (1 + self.decay * (self.it - total + 1) / self.every)
        at %= total
        if at <= self.first:
            part, stairs = at / self.first, self.up
        else:
            part, stairs = (total - at) / self.second, self.down
        if stairs > 0:
            part = math.floor(round(part * stairs, 9)) / stairs
        return self.low + (self.high - self.low) * part


class RangeTest:
    def __init__(self, base, low=1e-3, size=2000, step=1.0, stairs=False):
        self.low, self.size, self.step, self.stairs, self.it = low, size, step, stairs, -1

    def rate(self):
        part = float(self.it + 1) / self.size
        return self.low * (1 + self.step * (math.floor(part) if self.stairs else part))


class LlmC:
    def __init__(self, base, kind, rise=0, total=0, last=0.0):
        self.base, self.kind, self.rise, self.total, self.last, self.it = base, kind, rise, total, last, -1

    def rate(self):
        step, low = self.it + 1, self.base * self.last
        if step < self.rise:
            return self.base * (step + 1) / self.rise
        if self.kind == "constant":
            return self.base
        done = min(1.0, (step - self.rise) / max(1, self.total - self.rise))
        if self.kind == "linear":
            return self.base - done * (self.base - low)
        return low + 0.5 * (1.0 + math.cos(math.pi * done)) * (self.base - low)


SHOWN = (0, 1, 2, 3, 4, 7, 9, 10, 11, 12, 13, 25, 50, 57, 99, 100, 101, 102, 250)

SCHEDULES = [
    ("", 0.5, lambda b: LlmC(b, "constant")),
    ("constant warmup_num_steps=10", 0.5, lambda b: LlmC(b, "constant", rise=10)),
    ("constant lr=0.2", 0.5, lambda b: LlmC(0.2, "constant")),
    ("cosine total_num_steps=100 warmup_num_steps=10 final_lr_frac=0.1", 6e-4,
     lambda b: LlmC(b, "cosine", 10, 100, 0.1)),
    ("cosine total_num_steps=60", 1.0, lambda b: LlmC(b, "cosine", 0, 60)),
    ("linear total_num_steps=100 warmup_num_steps=3", 0.3, lambda b: LlmC(b, "linear", 3, 100)),
    ("linear total_num_steps=101 final_lr_frac=0.5 lr=2", 0.3, lambda b: LlmC(2.0, "linear", 0, 101, 0.5)),
    ("WarmupLR warmup_num_steps=10", 0.25, lambda b: Warmup(b, steps=10)),
    ("WarmupLR warmup_num_steps=1 warmup_min_lr=0.01 warmup_max_lr=0.1", 0.25,
     lambda b: Warmup(b, 0.01, 0.1, 1)),
    ("WarmupLR warmup_type=linear warmup_num_steps=12 warmup_max_lr=0.1", 0.25,
     lambda b: Warmup(b, 0.0, 0.1, 12, "linear")),
    ("WarmupDecayLR warmup_num_steps=10 total_num_steps=100", 0.7, lambda b: Warmup(b, 0.0, 1e-3, 10, "log", 100)),
    ("WarmupDecayLR warmup_num_steps=10 total_num_steps=100 warmup_type=linear", 0.7,
     lambda b: Warmup(b, 0.0, 1e-3, 10, "linear", 100)),
    ("WarmupDecayLR warmup_num_steps=50 total_num_steps=20 warmup_min_lr=0.001 warmup_max_lr=0.01", 0.7,
     lambda b: Warmup(b, 0.001, 0.01, 50, "log", 20)),
    ("WarmupCosineLR total_num_steps=100 warmup_num_steps=10", 0.7, lambda b: WarmupCosine(b, 100, steps=10)),
    ("WarmupCosineLR total_num_steps=100 warmup_num_steps=20 warmup_min_ratio=0.1 cos_min_ratio=0.2 "
     "warmup_type=linear", 0.7, lambda b: WarmupCosine(b, 100, 0.1, 20, 0.2, "linear")),
    ("OneCycle cycle_min_lr=0.01 cycle_max_lr=0.1 cycle_first_step_size=25", 0.7,
     lambda b: OneCycle(b, 0.01, 0.1, 25)),
    ("OneCycle cycle_min_lr=0.01 cycle_max_lr=0.1 cycle_first_step_size=10 cycle_second_step_size=40 "
     "decay_lr_rate=0.5 decay_step_size=20", 0.7, lambda b: OneCycle(b, 0.01, 0.1, 10, 40, decay=0.5, every=20)),
    ("OneCycle cycle_min_lr=0.01 cycle_max_lr=0.1 cycle_first_step_size=12 cycle_first_stair_count=4 "
     "cycle_second_step_size=50 cycle_second_stair_count=5", 0.7, lambda b: OneCycle(b, 0.01, 0.1, 12, 50, 4, 5)),
    ("LRRangeTest lr_range_test_min_lr=0.0001 lr_range_test_step_size=10 lr_range_test_step_rate=5", 0.7,
     lambda b: RangeTest(b, 1e-4, 10, 5.0)),
    ("LRRangeTest lr_range_test_step_size=10 lr_range_test_staircase=yes", 0.7,
     lambda b: RangeTest(b, size=10, stairs=True)),
]


def print_schedules():
    print(f"enum {{ GOLDEN_RATES = {len(SHOWN)} }};")
    print("static const int64_t golden_applied[GOLDEN_RATES] = {" + ", ".join(map(str, SHOWN)) + "};\n")
    print("typedef struct {\n    const char *words;\n    double base;\n    double rate[GOLDEN_RATES];\n} golden_schedule;\n")
    print("static const golden_schedule golden_schedules[] = {")
    for words, base, make in SCHEDULES:
        schedule, rates = make(base), []
        for applied in range(SHOWN[-1] + 1):
            if applied in SHOWN:
                rates.append(schedule.rate())
            schedule.it += 1
        print(f'    {{"{words}", {base},\n     {{' + ", ".join(f"{r:.17g}" for r in rates) + "}},")
    print("};\n")


# ---- one weight, three steps -----------------------------------------------------------------------
def print_adamw():
    weight = torch.nn.Parameter(torch.tensor([1.0], dtype=torch.float64))
    rule = torch.optim.AdamW([weight], lr=1e-3, weight_decay=0.01)
    values = []
    for gradient in (0.1, 0.2, -0.3):
        weight.grad = torch.tensor([gradient], dtype=torch.float64)
        rule.step()
        values.append(weight.item())
    print("/* One weight of 1, gradients 0.1, 0.2, -0.3: adamw lr=1e-3 weight_decay=0.01. */")
    print("static const double golden_adamw[3] = {" + ", ".join(f"{v:.17g}" for v in values) + "};\n")
    parts = [torch.nn.Parameter(torch.zeros(1, dtype=torch.float64)) for _ in range(2)]
    for part, gradient in zip(parts, (3.0, 4.0)):
        part.grad = torch.tensor([gradient], dtype=torch.float64)
    norm = torch.nn.utils.clip_grad_norm_(parts, 1.0)
    print("/* Gradients 3 and 4, clipped to a norm of 1: the norm before, and what is left of them. */")
    print("static const double golden_clip[3] = {" +
          ", ".join(f"{v:.17g}" for v in [norm.item()] + [p.grad.item() for p in parts]) + "};\n")


def main():
    print("/* golden_training.h - written by make_golden_training.py; do not edit.\n *\n"
          " * Reference: torch's DistributedSampler, randperm, AdamW and clip_grad_norm_; for schedules the script. */")
    print("#ifndef TESTS_SUPPORT_GOLDEN_TRAINING_H\n#define TESTS_SUPPORT_GOLDEN_TRAINING_H\n\n#include <stdint.h>\n")
    print("/* clang-format off */")
    print_samplers()
    print_permutations()
    print_schedules()
    print_adamw()
    print("/* clang-format on */\n#endif")


main()
