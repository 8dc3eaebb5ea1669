/* headline.c - a job in one line: its step, its rate, its scalars, and who is missing. */
#include "cli/job/headline.h"

#include "proto/status_json.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { SCALARS_MAX = 4 };

__attribute__((format(printf, 2, 3))) static void add(char text[HEADLINE_BYTES], const char *format,
                                                      ...)
{
    const size_t used = strlen(text);
    va_list args;
    va_start(args, format);
    vsnprintf(text + used, HEADLINE_BYTES - used, format, args);
    va_end(args);
}

double headline_stat(const wire_member_status *m, const char *name)
{
    for (uint32_t i = 0; i < m->n_stats; i++)
        if (strcmp(m->stat[i].name, name) == 0) return m->stat[i].value;
    return 0;
}

const char *headline_amount(char text[HEADLINE_AMOUNT_BYTES], double bytes)
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB"};
    int unit                         = 0;
    for (; bytes >= 999.5 && unit < 5; unit++) bytes /= 1000;
    const int digits = unit == 0 || bytes >= 99.95 ? 0 : bytes >= 9.995 ? 1 : 2;
    if (bytes > 0)
        snprintf(text, HEADLINE_AMOUNT_BYTES, "%.*f %s", digits, bytes, units[unit]);
    else
        snprintf(text, HEADLINE_AMOUNT_BYTES, "0");
    return text;
}

static void add_left(char text[HEADLINE_BYTES], double seconds)
{
    if (seconds < 120)
        add(text, "   %.0f s left", ceil(seconds));
    else if (seconds < 7200)
        add(text, "   %.0f min left", seconds / 60);
    else
        add(text, "   %.1f h left", seconds / 3600);
}

static void add_scalars(char text[HEADLINE_BYTES], const wire_control *c)
{
    uint32_t n = 0;
    for (uint32_t w = 0; w < c->u.status.n_members && n == 0; w++) {
        const wire_member_status *m = &c->u.status.member[w];
        if (m->member.role != PEN_WORKER) continue;
        for (uint32_t i = 0; i < m->n_stats && n < SCALARS_MAX; i++) {
            if (!status_is_metric(m->stat[i].name)) continue;
            add(text, "   %.32s %.4g", m->stat[i].name, m->stat[i].value);
            n++;
        }
    }
}

void headline_progress(const wire_control *c, char text[HEADLINE_BYTES])
{
    const int64_t step = c->u.status.step, steps = c->u.status.steps;
    const double rate = c->u.status.steps_per_s;
    text[0]           = '\0';
    add(text, "step %" PRId64, step);
    if (steps > 0) add(text, " of %" PRId64, steps);
    if (rate > 0) add(text, rate < 100 ? "   %.3g steps/s" : "   %.0f steps/s", rate);
    if (rate > 0 && steps > step) add_left(text, (double)(steps - step) / rate);
    add_scalars(text, c);
}

void headline_write(const wire_control *c, char text[HEADLINE_BYTES])
{
    char progress[HEADLINE_BYTES];
    headline_progress(c, progress);
    text[0] = '\0';
    add(text, "job %.100s   %s", c->u.status.job, c->u.status.phase);
    if (c->u.status.mode[0] != '\0') add(text, "   mode %s", c->u.status.mode);
    add(text, "   %s", progress);
}
