/* progress.c - phases of steps, and the progress line. */
#include "worker/io/progress.h"

#include <stdio.h>
#include <string.h>

void progress_enter(progress *p, progress_phase phase, uint64_t now_ns)
{
    if (p->since_ns != 0 && now_ns > p->since_ns) p->spent_ns[p->phase] += now_ns - p->since_ns;
    p->phase    = phase;
    p->since_ns = now_ns;
}

void progress_gradient(progress *p, uint64_t now_ns)
{
    if (p->phase == PROGRESS_FORWARD) progress_enter(p, PROGRESS_BACKWARD, now_ns);
}

bool progress_is_due(const pen_step *step, uint64_t every)
{
    return every > 0 && (uint64_t)(step->index + 1) % every == 0;
}

bool progress_step(progress *p, const pen_step *step, uint64_t every, bool times, char *text,
                   size_t size)
{
    static const char *const names[] = {"other", "forward", "backward", "exchange"};
    uint64_t all                     = 0;
    p->steps++;
    p->skipped += step->outcome != PEN_APPLIED && step->outcome != PEN_PENDING;
    if (!progress_is_due(step, every)) return false;

    for (int i = 0; i < PROGRESS_PHASES; i++) all += p->spent_ns[i];
    const double steps = (double)p->steps, seconds = (double)all / 1e9;
    int used = snprintf(text, size, "step %lld: rate %.6g, norm %.6g, %.4g steps/s, %llu skipped",
                        (long long)step->index + 1, step->lr, step->grad_norm,
                        seconds > 0 ? steps / seconds : 0, (unsigned long long)p->skipped);
    for (int i = 1; times && i <= PROGRESS_PHASES && used > 0 && (size_t)used < size; i++) {
        const int phase = i % PROGRESS_PHASES; /* other comes last */
        used +=
            snprintf(text + used, size - (size_t)used, "%s %s %.4g", i == 1 ? "; ms a step:" : ",",
                     names[phase], (double)p->spent_ns[phase] / steps / 1e6);
    }
    memset(p->spent_ns, 0, sizeof p->spent_ns);
    p->steps = p->skipped = 0;
    return true;
}
