/* top.c - rates are differences of counters over the scheduler's clock (uptime_s), so slow answers do not distort them. */
#include "cli/commands/top.h"
#include "cli/commands/waits.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    int32_t role, rank;
    uint64_t incarnation;
    int64_t step;
    double push, pull, coll, waited_s, call_s;
    char host[24], state[16], call[64];
} member;

typedef struct {
    char job[64], phase[20], mode[20], waits[1024];
    double uptime_s;
    int64_t step, snapshot;
    uint64_t epoch;
    uint32_t n;
    member *member;
} look;

struct top {
    look before, now;
};

top *top_create(void)
{
    return calloc(1, sizeof(top));
}

void top_destroy(top *self)
{
    if (self == NULL) return;
    free(self->before.member);
    free(self->now.member);
    free(self);
}

static double stat_of(const wire_member_status *m, const char *name)
{
    for (uint32_t i = 0; i < m->n_stats; i++)
        if (strcmp(m->stat[i].name, name) == 0) return m->stat[i].value;
    return 0;
}

static void take_member(member *to, const wire_member_status *m)
{
    *to = (member){.role        = m->member.role,
                   .rank        = m->member.rank,
                   .incarnation = m->member.incarnation,
                   .step        = m->step,
                   .push        = stat_of(m, "push.bytes"),
                   .pull        = stat_of(m, "pull.bytes"),
                   .coll        = stat_of(m, "coll.bytes"),
                   .waited_s    = stat_of(m, "waited_for_s"),
                   .call_s      = m->call_s};
    snprintf(to->host, sizeof to->host, "%s", m->member.host);
    snprintf(to->state, sizeof to->state, "%s", m->state);
    snprintf(to->call, sizeof to->call, "%s", m->call);
}

bool top_take(top *self, const wire_control *c)
{
    member *members = calloc(c->u.status.n_members + 1, sizeof *members);
    if (members == NULL) return false;
    free(self->before.member);
    self->before = self->now;
    look *l      = &self->now;
    *l           = (look){.member   = members,
                          .uptime_s = c->u.status.uptime_s,
                          .step     = c->u.status.step,
                          .snapshot = c->u.status.snapshot,
                          .epoch    = c->u.status.epoch};
    snprintf(l->job, sizeof l->job, "%s", c->u.status.job);
    snprintf(l->phase, sizeof l->phase, "%s", c->u.status.phase);
    snprintf(l->mode, sizeof l->mode, "%s", c->u.status.mode);
    for (uint32_t i = 0; i < c->u.status.n_members; i++) {
        const wire_member_status *m = &c->u.status.member[i];
        if (m->member.role == PEN_WORKER || m->member.role == PEN_SERVER)
            take_member(&members[l->n++], m);
    }
    FILE *text = fmemopen(l->waits, sizeof l->waits, "w");
    if (text != NULL) {
        waits_print(c, text);
        fclose(text);
    }
    l->waits[sizeof l->waits - 1] = '\0';
    return true;
}

/* ---- printing --------------------------------------------------------------------------------------------- */

/* The same process in the previous look; a restarted process counts from 0 again. */
static const member *before(const top *self, const member *m)
{
    for (uint32_t i = 0; i < self->before.n; i++) {
        const member *b = &self->before.member[i];
        if (b->role == m->role && b->rank == m->rank && b->incarnation == m->incarnation) return b;
    }
    return NULL;
}

static void write_rate(char text[16], double was, double is, double span_s, bool is_known,
                       double unit)
{
    snprintf(text, 16, "-");
    if (is_known && span_s > 0 && is >= was) snprintf(text, 16, "%.1f", (is - was) / span_s / unit);
}

static void print_cut(FILE *out, const char *line, int columns)
{
    fprintf(out, columns > 0 ? "%.*s\n" : "%*s\n", columns > 0 ? columns : 0, line);
}

static const char *color_of(const member *m, const char *steps)
{
    if (strcmp(m->state, "active") != 0) return "\033[31m";
    if (m->role == PEN_WORKER && strcmp(steps, "0.0") == 0) return "\033[33m";
    return "";
}

static void print_member(const top *self, const member *m, bool in_color, int columns, FILE *out)
{
    char steps[16], push[16], pull[16], coll[16], line[256];
    const member *b   = before(self, m);
    const double span = self->now.uptime_s - self->before.uptime_s;
    const bool known  = b != NULL;
    write_rate(steps, known ? (double)b->step : 0, (double)m->step, span, known && m->step >= 0, 1);
    write_rate(push, known ? b->push : 0, m->push, span, known, 1e6);
    write_rate(pull, known ? b->pull : 0, m->pull, span, known, 1e6);
    write_rate(coll, known ? b->coll : 0, m->coll, span, known, 1e6);
    int n = snprintf(line, sizeof line,
                     "%-6s %5d  %-16.16s %-8s %9" PRId64 " %8s %9s %9s %9s %8.1f s  %s",
                     m->role == PEN_WORKER ? "worker" : "server", m->rank, m->host, m->state,
                     m->step, steps, push, pull, coll, m->waited_s, m->call);
    if (m->call[0] != '\0' && n > 0 && n < (int)sizeof line)
        snprintf(line + n, sizeof line - (size_t)n, " for %.1f s", m->call_s);
    const char *color = in_color ? color_of(m, steps) : "";
    fputs(color, out);
    print_cut(out, line, columns);
    if (color[0] != '\0') fputs("\033[0m", out);
}

void top_print(const top *self, bool in_color, int columns, FILE *out)
{
    const look *l = &self->now;
    char line[256], steps[16];
    write_rate(steps, (double)self->before.step, (double)l->step,
               l->uptime_s - self->before.uptime_s, self->before.member != NULL, 1);
    int n = snprintf(line, sizeof line,
                     "job %s   %s   mode %s   step %" PRId64 "   %s steps/s   view %" PRIu64
                     "   up %.0f s",
                     l->job, l->phase, l->mode, l->step, steps, l->epoch, l->uptime_s);
    if (l->snapshot >= 0 && n > 0 && n < (int)sizeof line)
        snprintf(line + n, sizeof line - (size_t)n, "   snapshot of step %" PRId64, l->snapshot);
    print_cut(out, line, columns);
    snprintf(line, sizeof line, "%-6s %5s  %-16s %-8s %9s %8s %9s %9s %9s %10s  %s", "role", "rank",
             "host", "state", "step", "steps/s", "push MB/s", "pull MB/s", "coll MB/s",
             "waited for", "in");
    if (in_color) fputs("\033[1m", out);
    print_cut(out, line, columns);
    if (in_color) fputs("\033[0m", out);
    for (uint32_t i = 0; i < l->n; i++) print_member(self, &l->member[i], in_color, columns, out);
    fputs(l->waits, out);
    fflush(out);
}
