/* stuck.c - merges the records of all workers: per group the last call of each rank. */
#include "proto/stuck.h"

#include "common/containers/arrays.h"

#include "proto/json_text.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

typedef struct { /* the newest call of one rank in one group */
    bool is_there, is_running;
    uint64_t call;
    double age_s;
    char what[128], state[24]; /* "all_reduce 'loss'", "RUNNING" */
} last_call;

typedef struct {
    char id[24];
    int size;
    last_call *last; /* [n_workers] */
} group;

typedef struct {
    bool has_answered;
    char host[64], state[24], in[160], note[200]; /* note: why it has no record */
    double in_s, seen_s;
} worker;

struct stuck {
    bool has_status;
    char job[128];
    uint32_t n_workers, n_groups;
    worker *worker;
    group *group;
};

stuck *stuck_create(void)
{
    return calloc(1, sizeof(stuck));
}

void stuck_destroy(stuck *self)
{
    if (self == NULL) return;
    for (uint32_t g = 0; g < self->n_groups; g++) free(self->group[g].last);
    free(self->group);
    free(self->worker);
    free(self);
}

/* ---- input ------------------------------------------------------------------------------------------- */

static void take_member(stuck *self, const wire_member_status *m)
{
    if (m->member.role != PEN_WORKER || m->member.rank < 0 ||
        (uint32_t)m->member.rank >= self->n_workers)
        return;
    worker *w = &self->worker[m->member.rank];
    snprintf(w->host, sizeof w->host, "%s", m->member.host);
    snprintf(w->state, sizeof w->state, "%s", m->state);
    snprintf(w->in, sizeof w->in, "%s", m->call);
    w->in_s   = m->call_s;
    w->seen_s = m->last_seen_s;
}

void stuck_take_status(stuck *self, const wire_control *c)
{
    uint32_t n = 0;
    if (self->has_status) return;
    for (uint32_t i = 0; i < c->u.status.n_members; i++)
        n += c->u.status.member[i].member.role == PEN_WORKER;
    self->worker = calloc(n + 1, sizeof *self->worker);
    if (self->worker == NULL) return;
    self->n_workers  = n;
    self->has_status = true;
    snprintf(self->job, sizeof self->job, "%s", c->u.status.job);
    for (uint32_t i = 0; i < c->u.status.n_members; i++) take_member(self, &c->u.status.member[i]);
}

static group *group_of(stuck *self, const char *id, int size)
{
    for (uint32_t g = 0; g < self->n_groups; g++)
        if (strcmp(self->group[g].id, id) == 0) return &self->group[g];
    last_call *last = calloc(self->n_workers, sizeof *last);
    if (last == NULL || !VEC_MORE(self->group, self->n_groups)) {
        free(last);
        return NULL;
    }
    group *g = &self->group[self->n_groups++];
    *g       = (group){.size = size, .last = last};
    snprintf(g->id, sizeof g->id, "%s", id);
    return g;
}

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text != NULL ? text : "";
}

static double number_of(const json_t *object, const char *key)
{
    return (double)json_integer_value(json_object_get(object, key));
}

static void take_call(stuck *self, uint32_t rank, const json_t *line)
{
    group *g = group_of(self, text_of(line, "group"), (int)number_of(line, "size"));
    if (g == NULL) return;
    last_call *last   = &g->last[rank];
    const char *label = text_of(line, "label");
    const char *quote = label[0] != '\0' ? "'" : "";
    last->is_there    = true;
    last->call        = (uint64_t)json_integer_value(json_object_get(line, "call"));
    last->age_s       = number_of(line, "age_ms") / 1000;
    snprintf(last->state, sizeof last->state, "%s", text_of(line, "state"));
    snprintf(last->what, sizeof last->what, "%.32s%s%s%.64s%s", text_of(line, "kind"),
             label[0] != '\0' ? " " : "", quote, label, quote);
    last->is_running = strcmp(last->state, "RUNNING") == 0;
}

void stuck_take_record(stuck *self, const wire_control *c)
{
    const int32_t rank = c->u.record.rank;
    if (!self->has_status || rank < 0 || (uint32_t)rank >= self->n_workers) return;
    worker *w       = &self->worker[rank];
    w->has_answered = true;
    if (c->u.record.status != PEN_OK) snprintf(w->note, sizeof w->note, "%s", c->u.record.text);
    const char *from = c->u.record.data, *end = from + c->u.record.data_size;
    while (from != NULL && from < end) {
        const char *newline = memchr(from, '\n', (size_t)(end - from));
        const size_t size   = (size_t)((newline != NULL ? newline : end) - from);
        json_t *line        = json_loadb(from, size, 0, NULL);
        if (json_is_object(line)) take_call(self, (uint32_t)rank, line);
        json_decref(line);
        from += size + 1;
    }
}

bool stuck_is_whole(const stuck *self)
{
    if (!self->has_status) return false;
    for (uint32_t i = 0; i < self->n_workers; i++)
        if (!self->worker[i].has_answered) return false;
    return true;
}

/* ---- analysis --------------------------------------------------------------------------------------- */

/* The furthest call of any rank. */
static const last_call *newest_of(const stuck *self, const group *g)
{
    const last_call *newest = NULL;
    for (uint32_t i = 0; i < self->n_workers; i++) {
        const last_call *l = &g->last[i];
        if (l->is_there && (newest == NULL || l->call > newest->call ||
                            (l->call == newest->call && l->is_running && !newest->is_running)))
            newest = l;
    }
    return newest;
}

/* A rank without a call is known to belong to the group only if all workers do. */
static bool is_member(const stuck *self, const group *g, uint32_t rank)
{
    return g->last[rank].is_there || (uint32_t)g->size == self->n_workers;
}

static bool is_missing(const stuck *self, const group *g, uint32_t rank)
{
    const last_call *newest = newest_of(self, g), *own = &g->last[rank];
    if (newest == NULL || !newest->is_running || !is_member(self, g, rank)) return false;
    return !own->is_there || own->call < newest->call;
}

/* ---- output --------------------------------------------------------------------------------------------- */

static void print_rank(const stuck *self, const group *g, uint32_t rank, FILE *out)
{
    const last_call *l = &g->last[rank];
    const worker *w    = &self->worker[rank];
    char call[24] = "-", age[24] = "-";
    if (l->is_there) snprintf(call, sizeof call, "%" PRIu64, l->call);
    if (l->is_there) snprintf(age, sizeof age, "%.1f s", l->age_s);
    fprintf(out, "%6" PRIu32 "  %-16.16s %8s  %-28.60s %-12s %10s  %s", rank, w->host, call,
            l->is_there ? l->what : "no call yet", l->is_there ? l->state : "-", age, w->in);
    if (w->in[0] != '\0') fprintf(out, " for %.1f s", w->in_s);
    if (is_missing(self, g, rank)) fprintf(out, "   <- has not entered");
    fprintf(out, "\n");
}

static void print_missing(const stuck *self, const group *g, FILE *out)
{
    const last_call *newest = newest_of(self, g);
    uint32_t n              = 0;
    for (uint32_t i = 0; i < self->n_workers; i++) n += is_missing(self, g, i);
    if (n == 0 && (newest == NULL || !newest->is_running)) return;
    fprintf(out, n == 0 ? "  all have entered" : n == 1 ? "  rank" : "  ranks");
    for (uint32_t i = 0; i < self->n_workers; i++)
        if (is_missing(self, g, i)) fprintf(out, " %" PRIu32, i);
    if (n > 0) fprintf(out, n == 1 ? " has not entered" : " have not entered");
    fprintf(out, " %s (call %" PRIu64 ")%s %.1f s ago\n", newest->what, newest->call,
            n > 0 ? "; the other ranks entered it" : ",", newest->age_s);
}

void stuck_print(const stuck *self, FILE *out)
{
    fprintf(out, "job %s: the last collective call of each worker\n", self->job);
    for (uint32_t g = 0; g < self->n_groups; g++) {
        const group *at = &self->group[g];
        fprintf(out, "\ngroup %s   %d ranks\n", at->id, at->size);
        fprintf(out, "%6s  %-16s %8s  %-28s %-12s %10s  %s\n", "rank", "host", "call", "what",
                "state", "begun", "in");
        for (uint32_t i = 0; i < self->n_workers; i++)
            if (is_member(self, at, i)) print_rank(self, at, i, out);
        print_missing(self, at, out);
    }
    if (self->n_groups == 0) fprintf(out, "no collective call yet\n");
    for (uint32_t i = 0; i < self->n_workers; i++) {
        const worker *w = &self->worker[i];
        if (!w->has_answered)
            fprintf(out, "rank %" PRIu32 " (%s) has not answered; it was last seen %.1f s ago\n", i,
                    w->host, w->seen_s);
        else if (w->note[0] != '\0')
            fprintf(out, "%s\n", w->note);
    }
    fflush(out);
}

static json_t *rank_json(const stuck *self, const group *g, uint32_t rank)
{
    const last_call *l = &g->last[rank];
    const worker *w    = &self->worker[rank];
    return json_pack("{s:I, s:o, s:I, s:o, s:s, s:f, s:b, s:o, s:f}", "rank", (json_int_t)rank,
                     "host", json_text(w->host), "call", (json_int_t)l->call, "what",
                     json_text(l->what), "state", l->state, "age_s", l->age_s, "missing",
                     is_missing(self, g, rank), "in", json_text(w->in), "in_s", w->in_s);
}

static json_t *group_json(const stuck *self, const group *g)
{
    const last_call *newest = newest_of(self, g);
    json_t *ranks = json_array(), *missing = json_array();
    for (uint32_t i = 0; i < self->n_workers; i++) {
        if (is_member(self, g, i)) json_array_append_new(ranks, rank_json(self, g, i));
        if (is_missing(self, g, i)) json_array_append_new(missing, json_integer((json_int_t)i));
    }
    return json_pack("{s:o, s:i, s:I, s:o, s:b, s:o, s:o}", "group", json_text(g->id), "size",
                     g->size, "call", (json_int_t)(newest != NULL ? newest->call : 0), "what",
                     json_text(newest != NULL ? newest->what : ""), "running",
                     newest != NULL && newest->is_running, "missing", missing, "ranks", ranks);
}

void stuck_print_json(const stuck *self, FILE *out)
{
    json_t *groups = json_array(), *silent = json_array();
    for (uint32_t g = 0; g < self->n_groups; g++)
        json_array_append_new(groups, group_json(self, &self->group[g]));
    for (uint32_t i = 0; i < self->n_workers; i++) {
        const worker *w = &self->worker[i];
        if (w->has_answered && w->note[0] == '\0') continue;
        json_array_append_new(silent, json_pack("{s:I, s:s, s:o, s:f}", "rank", (json_int_t)i,
                                                "state", w->state, "text", json_text(w->note),
                                                "last_seen_s", w->seen_s));
    }
    json_t *all = json_pack("{s:o, s:o, s:o}", "job", json_text(self->job), "groups", groups,
                            "without_record", silent);
    json_dumpf(all, out, JSON_COMPACT);
    fprintf(out, "\n");
    json_decref(all);
}
