/* top.c - rates are differences of counters over the scheduler's clock (uptime_s), so slow answers do not distort them. */
#include "cli/commands/top.h"
#include "cli/job/headline.h"
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
    char headline[HEADLINE_BYTES], waits[1024];
    double uptime_s;
    int64_t snapshot;
    bool has_servers;
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

static void take_member(member *to, const wire_member_status *m)
{
    *to = (member){.role        = m->member.role,
                   .rank        = m->member.rank,
                   .incarnation = m->member.incarnation,
                   .step        = m->step,
                   .push        = headline_stat(m, "push.bytes"),
                   .pull        = headline_stat(m, "pull.bytes"),
                   .coll        = headline_stat(m, "coll.bytes"),
                   .waited_s    = headline_stat(m, "waited_for_s"),
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
                          .snapshot = c->u.status.snapshot,
                          .epoch    = c->u.status.epoch};
    headline_write(c, l->headline);
    for (uint32_t i = 0; i < c->u.status.n_members; i++) {
        const wire_member_status *m = &c->u.status.member[i];
        if (m->member.role == PEN_WORKER || m->member.role == PEN_SERVER)
            take_member(&members[l->n++], m);
        l->has_servers |= m->member.role == PEN_SERVER;
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

/* Growth a second; "-": not known. */
static double rate_of(const top *self, bool is_known, double was, double is)
{
    const double span_s = self->now.uptime_s - self->before.uptime_s;
    return is_known && span_s > 0 && is >= was ? (is - was) / span_s : -1;
}

static const char *amount(char text[HEADLINE_AMOUNT_BYTES], double bytes)
{
    if (bytes >= 0) return headline_amount(text, bytes);
    snprintf(text, HEADLINE_AMOUNT_BYTES, "-");
    return text;
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
    char steps[16] = "-", step[24] = "", line[256], text[3][HEADLINE_AMOUNT_BYTES];
    const member *b  = before(self, m);
    const bool known = b != NULL, has_servers = self->now.has_servers;
    const double rate =
        rate_of(self, known && m->step >= 0, known ? (double)b->step : 0, (double)m->step);
    if (rate >= 0) snprintf(steps, sizeof steps, "%.1f", rate);
    if (m->step >= 0) snprintf(step, sizeof step, "%" PRId64, m->step);
    int n = snprintf(line, sizeof line, "%-6s %5d  %-16.16s %-8s %9s %8s %9s",
                     m->role == PEN_WORKER ? "worker" : "server", m->rank, m->host, m->state, step,
                     steps, amount(text[0], rate_of(self, known, known ? b->coll : 0, m->coll)));
    if (has_servers)
        n += snprintf(line + n, sizeof line - (size_t)n, " %9s %9s",
                      amount(text[1], rate_of(self, known, known ? b->push : 0, m->push)),
                      amount(text[2], rate_of(self, known, known ? b->pull : 0, m->pull)));
    n += snprintf(line + n, sizeof line - (size_t)n, " %8.1f s  %s", m->waited_s, m->call);
    if (m->call[0] != '\0') snprintf(line + n, sizeof line - (size_t)n, " for %.1f s", m->call_s);
    const char *color = in_color ? color_of(m, steps) : "";
    fputs(color, out);
    print_cut(out, line, columns);
    if (color[0] != '\0') fputs("\033[0m", out);
}

void top_print(const top *self, bool in_color, int columns, FILE *out)
{
    const look *l = &self->now;
    char line[HEADLINE_BYTES + 96];
    int n = snprintf(line, sizeof line, "%s   view %" PRIu64 "   up %.0f s", l->headline, l->epoch,
                     l->uptime_s);
    if (l->snapshot >= 0)
        snprintf(line + n, sizeof line - (size_t)n, "   snapshot of step %" PRId64, l->snapshot);
    print_cut(out, line, columns);
    n = snprintf(line, sizeof line, "%-6s %5s  %-16s %-8s %9s %8s %9s", "role", "rank", "host",
                 "state", "step", "steps/s", "sent/s");
    if (l->has_servers)
        n += snprintf(line + n, sizeof line - (size_t)n, " %9s %9s", "pushed/s", "pulled/s");
    snprintf(line + n, sizeof line - (size_t)n, " %10s  %s", "waited for", "in");
    if (in_color) fputs("\033[1m", out);
    print_cut(out, line, columns);
    if (in_color) fputs("\033[0m", out);
    for (uint32_t i = 0; i < l->n; i++) print_member(self, &l->member[i], in_color, columns, out);
    fputs(l->waits, out);
    fflush(out);
}
