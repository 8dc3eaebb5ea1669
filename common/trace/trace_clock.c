/* trace_clock.c - clock samples, and the offset at a moment. */
#include "common/trace/trace_clock.h"

#include <stdbool.h>
#include <stddef.h>

void trace_clock_init(trace_clock *c)
{
    atomic_store(&c->n, 0);
    c->window_ns       = (uint64_t)TRACE_CLOCK_WINDOW_MS * 1000000;
    c->window_began_ns = 0;
}

/* ---- samples --------------------------------------------------------------------------------- */
static uint64_t apart(uint64_t a, uint64_t b)
{
    return a < b ? b - a : a - b;
}

static void take(trace_clock *c, const trace_clock_sample *s)
{
    uint32_t n          = atomic_load_explicit(&c->n, memory_order_relaxed);
    const bool is_fresh = n == 0 || s->at_ns - c->window_began_ns >= c->window_ns;
    if (!is_fresh) {
        if (s->error_ns < c->sample[n - 1].error_ns) c->sample[n - 1] = *s;
        return;
    }
    if (n == TRACE_CLOCK_SAMPLES) {
        /* Answers rarer than windows make the windows as long as their distance. */
        const uint64_t apart_ns = (c->sample[n - 1].at_ns - c->sample[0].at_ns) / n;
        if (c->window_ns < apart_ns) c->window_ns = apart_ns;
        for (uint32_t i = 0; i < n / 2; i++) {
            const trace_clock_sample *a = &c->sample[2 * (size_t)i], *b = a + 1;
            c->sample[i] = a->error_ns <= b->error_ns ? *a : *b;
        }
        c->window_ns *= 2;
        atomic_store_explicit(&c->n, n / 2, memory_order_release);
        n /= 2;
    }
    c->window_began_ns = s->at_ns;
    c->sample[n]       = *s;
    atomic_store_explicit(&c->n, n + 1, memory_order_release);
}

void trace_clock_note(trace_clock *c, uint64_t sent_ns, uint64_t theirs_ns, uint64_t heard_ns)
{
    if (heard_ns < sent_ns || theirs_ns == 0) return;
    const uint64_t half = (heard_ns - sent_ns) / 2 + 1, middle = sent_ns + half;
    const trace_clock_sample s = {middle, (int64_t)(theirs_ns - middle), half};
    take(c, &s);
}

void trace_clock_is(trace_clock *c, uint64_t at_ns, int64_t offset_ns)
{
    const trace_clock_sample s = {at_ns, offset_ns, 0};
    take(c, &s);
}

/* ---- offset ---------------------------------------------------------------------------------- */
static uint64_t drift(uint64_t ns)
{
    return ns / TRACE_CLOCK_DRIFT;
}

/* Checks each sample from both sides, carrying the error of the best sample so far. */
uint32_t trace_clock_prune(trace_clock_sample *sample, uint32_t n)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < n; i++) {
        const trace_clock_sample s = sample[i];
        const trace_clock_sample *last;
        if (kept > 0 && s.at_ns <= sample[kept - 1].at_ns) continue; /* impossible */
        while (kept > 0 && (last = &sample[kept - 1],
                            last->error_ns > s.error_ns + drift(s.at_ns - last->at_ns)))
            kept--;
        last = &sample[kept > 0 ? kept - 1 : 0];
        if (kept > 0 && s.error_ns > last->error_ns + drift(s.at_ns - last->at_ns)) continue;
        sample[kept++] = s;
    }
    return kept;
}

static uint32_t behind(const trace_clock_sample *sample, uint32_t n, uint64_t at_ns)
{
    uint32_t low = 0, high = n; /* the first that is later than at_ns */
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (sample[middle].at_ns > at_ns)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

int64_t trace_clock_offset(const trace_clock_sample *sample, uint32_t n, uint64_t at_ns)
{
    const uint32_t next = behind(sample, n, at_ns);
    if (next == 0) return sample[0].offset_ns;
    if (next == n) return sample[n - 1].offset_ns;
    const trace_clock_sample *a = &sample[next - 1], *b = &sample[next];
    const double part =
        (double)(at_ns - a->at_ns) / (double)(b->at_ns - a->at_ns); /* a step is below 2^53 ns */
    return a->offset_ns + (int64_t)(part * (double)(b->offset_ns - a->offset_ns));
}

uint64_t trace_clock_error(const trace_clock_sample *sample, uint32_t n, uint64_t begun_ns,
                           uint64_t ended_ns)
{
    uint64_t most = 0;
    if (n == 1 && sample[0].error_ns == 0) return 0; /* the scheduler's own clock */
    for (uint32_t i = 0; i < n; i++) {
        uint64_t wrong = sample[i].error_ns;
        if (i == 0 && begun_ns < sample[0].at_ns) wrong += drift(sample[0].at_ns - begun_ns);
        if (i == n - 1 && ended_ns > sample[i].at_ns) wrong += drift(ended_ns - sample[i].at_ns);
        if (i + 1 < n) {
            const uint64_t next = sample[i + 1].error_ns;
            const uint64_t gap  = drift(apart(sample[i + 1].at_ns, sample[i].at_ns)) / 2;
            wrong               = (wrong > next ? wrong : next) + gap;
        }
        if (wrong > most) most = wrong;
    }
    return most;
}
