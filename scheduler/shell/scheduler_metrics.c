/* scheduler_metrics.c - STATUS as metrics.
 *
 * Labels are bounded: role and rank of members, states and phases, shards, and at most NAMES_MAX names of pen_metric().
 */
#include "proto/status_json.h"
#include "scheduler/core/core_state.h"
#include "scheduler/shell/scheduler_http.h"

#include <stdlib.h>
#include <string.h>

enum { NAMES_MAX = 64 };

/* clang-format off */
#define ROWS(X)                                                                                        \
    X(PHASE,    "job.phase",          "",        GAUGE,   "1 for the phase the job is in, 0 for the others.")      \
    X(STEP,     "job.step",           "steps",   GAUGE,   "Step the job is at.")                                   \
    X(VIEW,     "job.view",           "views",   GAUGE,   "How often the members changed, from 1 on.")             \
    X(UPTIME,   "job.uptime.seconds", "seconds", GAUGE,   "Since the scheduler began.")                            \
    X(SNAPSHOT, "job.snapshot.step",  "steps",   GAUGE,   "Step of the newest whole snapshot; -1: none.")          \
    X(REFUSED,  "job.refused.frames", "frames",  COUNTER, "Frames the scheduler refused.")                         \
    X(WAITING,  "job.waiting",        "sentences", GAUGE, "Things that wait for somebody now; penstock status says who for whom.") \
    X(MEMBERS,  "job.members",        "members", GAUGE,   "Workers and servers by state.")                         \
    X(SHARD,    "shard.bytes",        "bytes",   GAUGE,   "Parameters of each shard.")                             \
    X(MSTEP,    "member.step",        "steps",   GAUGE,   "Step each worker and server is at.")                    \
    X(SEEN,     "member.last_seen.seconds", "seconds", GAUGE, "Since each worker and server was heard last.")      \
    X(WAITED,   "member.waited_for.seconds", "seconds", COUNTER, "How long the others have waited for this worker.") \
    X(METRIC,   "member.metric",      "",        GAUGE,   "What workers gave to pen_metric(), by name.")           \
    X(DROPPED,  "member.metric_names.refused", "names", GAUGE, "Names beyond the first 64, which are not shown.")
/* clang-format on */

enum {
#define X(id, name, unit, kind, doc) ROW_##id,
    ROWS(X)
#undef X
};

const stat_row scheduler_metric_rows[] = {
#define X(id, name, unit, kind, doc) {name, unit, doc, STAT_##kind},
    ROWS(X)
#undef X
        {0},
};

typedef struct {
    metrics_page page;
    const wire_control *status;
    const char *name[NAMES_MAX]; /* of pen_metric() */
    uint32_t n_names, n_refused;
} writer;

static void one(writer *w, int row, double value)
{
    metrics_family(&w->page, &scheduler_metric_rows[row]);
    metrics_sample(&w->page, NULL, value);
}

/* ---- of the job ------------------------------------------------------------------------------ */
static void write_phase(writer *w)
{
    metrics_family(&w->page, &scheduler_metric_rows[ROW_PHASE]);
    for (core_phase p = 0; p <= PHASE_ENDED; p++) {
        char labels[METRICS_LABELS_BYTES] = "";
        metrics_label(labels, "phase", core_phase_name(p));
        metrics_sample(&w->page, labels,
                       strcmp(core_phase_name(p), w->status->u.status.phase) == 0);
    }
}

static bool is_counted(const wire_member_status *m)
{
    return (m->member.role == PEN_WORKER || m->member.role == PEN_SERVER) && m->member.rank >= 0;
}

static uint32_t count(const writer *w, int32_t role, const char *state)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < w->status->u.status.n_members; i++) {
        const wire_member_status *m = &w->status->u.status.member[i];
        n += is_counted(m) && m->member.role == role && strcmp(m->state, state) == 0;
    }
    return n;
}

static void write_counts(writer *w)
{
    static const int32_t roles[] = {PEN_WORKER, PEN_SERVER};
    metrics_family(&w->page, &scheduler_metric_rows[ROW_MEMBERS]);
    for (int r = 0; r < 2; r++)
        for (member_state s = 0; s < MEMBER_STATE_COUNT; s++) {
            char labels[METRICS_LABELS_BYTES] = "";
            metrics_label(labels, "role", status_role_name(roles[r]));
            metrics_label(labels, "state", member_state_name(s));
            metrics_sample(&w->page, labels, count(w, roles[r], member_state_name(s)));
        }
}

static void write_shards(writer *w)
{
    metrics_family(&w->page, &scheduler_metric_rows[ROW_SHARD]);
    for (uint32_t i = 0; i < w->status->u.status.n_shards; i++) {
        char labels[METRICS_LABELS_BYTES] = "", number[16];
        snprintf(number, sizeof number, "%u", i);
        metrics_label(labels, "shard", number);
        metrics_sample(&w->page, labels, (double)w->status->u.status.shard_bytes[i]);
    }
}

/* ---- of members ------------------------------------------------------------------------------ */
static const wire_stat *stat_named(const wire_member_status *m, const char *name)
{
    for (uint32_t i = 0; i < m->n_stats; i++)
        if (strcmp(m->stat[i].name, name) == 0) return &m->stat[i];
    return NULL;
}

static void label_member(char labels[METRICS_LABELS_BYTES], const wire_member_status *m)
{
    char rank[16];
    labels[0] = '\0';
    snprintf(rank, sizeof rank, "%d", m->member.rank);
    metrics_label(labels, "role", status_role_name(m->member.role));
    metrics_label(labels, "rank", rank);
}

static void write_members(writer *w, int row)
{
    metrics_family(&w->page, &scheduler_metric_rows[row]);
    for (uint32_t i = 0; i < w->status->u.status.n_members; i++) {
        const wire_member_status *m = &w->status->u.status.member[i];
        const wire_stat *waited     = stat_named(m, "waited_for_s");
        char labels[METRICS_LABELS_BYTES];
        if (!is_counted(m)) continue;
        label_member(labels, m);
        if (row == ROW_MSTEP)
            metrics_sample(&w->page, labels, (double)m->step);
        else if (row == ROW_SEEN)
            metrics_sample(&w->page, labels, m->last_seen_s);
        else if (waited != NULL)
            metrics_sample(&w->page, labels, waited->value);
    }
}

/* ---- of programs ----------------------------------------------------------------------------- */
static bool admit(writer *w, const char *name)
{
    for (uint32_t i = 0; i < w->n_names; i++)
        if (strcmp(w->name[i], name) == 0) return true;
    if (w->n_names == NAMES_MAX) {
        w->n_refused++;
        return false;
    }
    w->name[w->n_names++] = name;
    return true;
}

static void write_metrics(writer *w)
{
    metrics_family(&w->page, &scheduler_metric_rows[ROW_METRIC]);
    for (uint32_t i = 0; i < w->status->u.status.n_members; i++) {
        const wire_member_status *m = &w->status->u.status.member[i];
        for (uint32_t j = 0; is_counted(m) && j < m->n_stats; j++) {
            char labels[METRICS_LABELS_BYTES];
            if (!status_is_metric(m->stat[j].name) || !admit(w, m->stat[j].name)) continue;
            label_member(labels, m);
            metrics_label(labels, "name", m->stat[j].name);
            metrics_sample(&w->page, labels, m->stat[j].value);
        }
    }
    one(w, ROW_DROPPED, w->n_refused);
}

void scheduler_metrics_write(FILE *out, bool is_open, const wire_control *status)
{
    writer w = {.status = status};
    metrics_begin(&w.page, out, is_open, "scheduler", -1);
    metrics_process(&w.page);
    write_phase(&w);
    one(&w, ROW_STEP, (double)status->u.status.step);
    one(&w, ROW_VIEW, (double)status->u.status.epoch);
    one(&w, ROW_UPTIME, status->u.status.uptime_s);
    one(&w, ROW_SNAPSHOT, (double)status->u.status.snapshot);
    one(&w, ROW_REFUSED, (double)status->u.status.refused);
    one(&w, ROW_WAITING, status->u.status.n_waiting);
    write_counts(&w);
    write_shards(&w);
    write_members(&w, ROW_MSTEP);
    write_members(&w, ROW_SEEN);
    write_members(&w, ROW_WAITED);
    write_metrics(&w);
    metrics_end(&w.page);
}
