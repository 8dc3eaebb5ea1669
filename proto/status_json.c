/* status_json.c - STATUS as JSON. */
#include "proto/status_json.h"

#include "common/base/log.h"
#include "common/base/stat.h"
#include "proto/json_text.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *status_role_name(int32_t role)
{
    switch (role) {
    case PEN_WORKER: return "worker";
    case PEN_SERVER: return "server";
    case PEN_SCHEDULER: return "scheduler";
    case WIRE_LAUNCHER: return "launcher";
    default: return "observer";
    }
}

static json_t *copies_json(const wire_control *answer)
{
    static const char *const roles[] = {"", "primary", "backup", "learner"};
    json_t *copies                   = json_array();
    for (uint32_t i = 0; i < answer->u.status.n_replicas; i++) {
        const wire_replica *copy = &answer->u.status.replica[i];
        json_array_append_new(copies, json_pack("{s:i, s:i, s:i, s:s}", "shard", (int)copy->shard,
                                                "server", (int)copy->server, "place",
                                                (int)copy->place, "role", roles[copy->role]));
    }
    return copies;
}

bool status_is_metric(const char *name)
{
    return stat_find(name) < 0 && strcmp(name, "waited_for_s") != 0;
}

/* JSON has no word for NaN and infinities, which a loss may be. */
static json_t *value_json(double value)
{
    if (isfinite(value)) return json_real(value);
    return json_string(isnan(value) ? "NaN" : value > 0 ? "Infinity" : "-Infinity");
}

static json_t *metrics_json(const wire_member_status *m)
{
    json_t *metrics = json_object();
    for (uint32_t i = 0; i < m->n_stats; i++)
        if (status_is_metric(m->stat[i].name))
            json_text_set(metrics, m->stat[i].name, value_json(m->stat[i].value));
    return metrics;
}

/* Ranks of the other workers that it shares memory with. */
static json_t *sharing_json(const wire_control *answer, const wire_member *self)
{
    json_t *ranks = json_array();
    for (uint32_t i = 0; i < answer->u.status.n_members; i++) {
        const wire_member *m = &answer->u.status.member[i].member;
        if (m->role == PEN_WORKER && m->rank != self->rank && m->sharing == self->sharing)
            json_array_append_new(ranks, json_integer(m->rank));
    }
    return ranks;
}

static json_t *member_json(const wire_control *answer, const wire_member_status *m)
{
    json_t *stats = json_object(), *addresses = json_array();
    for (uint32_t i = 0; i < m->n_stats; i++)
        json_text_set(stats, m->stat[i].name, json_real(m->stat[i].value));
    for (uint32_t i = 0; i < m->member.n_addresses; i++)
        json_array_append_new(addresses, json_text(m->member.address[i]));
    json_t *member = json_pack("{s:s, s:i, s:o, s:i, s:s, s:I, s:f, s:o, s:f, s:o, s:o, s:o}",
                               "role", status_role_name(m->member.role), "rank", m->member.rank,
                               "host", json_text(m->member.host), "pid", m->member.pid, "state",
                               m->state, "step", (json_int_t)m->step, "last_seen_s", m->last_seen_s,
                               "call", json_text(m->call), "call_s", m->call_s, "addresses",
                               addresses, "stats", stats, "metrics", metrics_json(m));
    if (m->member.role != PEN_WORKER) return member;
    json_object_set_new(member, "node", json_integer(m->member.node));
    json_object_set_new(member, "local_rank", json_integer(m->member.local_rank));
    json_object_set_new(member, "shares_memory_with", sharing_json(answer, &m->member));
    return member;
}

static json_t *events_json(const wire_control *answer)
{
    static const char *const levels[] = {"error", "warning", "notice", "info"};
    json_t *events                    = json_array();
    for (uint32_t i = 0; i < answer->u.status.n_events; i++) {
        const wire_event *e = &answer->u.status.event[i];
        const int level     = e->level < 0 ? 0 : e->level > LOG_INFO ? LOG_INFO : e->level;
        json_array_append_new(events, json_pack("{s:I, s:f, s:s, s:o}", "number",
                                                (json_int_t)e->number, "at_s", e->at_s, "level",
                                                levels[level], "text", json_text(e->text)));
    }
    return events;
}

static json_t *scheduler_json(const wire_control *answer)
{
    const wire_member *m = &answer->u.status.scheduler;
    return json_pack("{s:o, s:o}", "host", json_text(m->host), "address",
                     json_text(m->n_addresses ? m->address[0] : ""));
}

char *status_json(const wire_control *answer)
{
    json_t *members = json_array(), *waiting = json_array();
    for (uint32_t i = 0; i < answer->u.status.n_members; i++)
        json_array_append_new(members, member_json(answer, &answer->u.status.member[i]));
    for (uint32_t i = 0; i < answer->u.status.n_waiting; i++)
        json_array_append_new(waiting, json_text(answer->u.status.waiting[i]));
    json_t *shard_bytes = json_array();
    for (uint32_t i = 0; i < answer->u.status.n_shards; i++)
        json_array_append_new(shard_bytes,
                              json_integer((json_int_t)answer->u.status.shard_bytes[i]));
    json_t *all = json_pack(
        "{s:o, s:s, s:o, s:I, s:I, s:f, s:I, s:I, s:f, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o}",
        "job", json_text(answer->u.status.job), "phase", answer->u.status.phase, "mode",
        json_text(answer->u.status.mode), "step", (json_int_t)answer->u.status.step, "steps",
        (json_int_t)answer->u.status.steps, "steps_per_s", answer->u.status.steps_per_s, "term",
        (json_int_t)answer->u.status.term, "view", (json_int_t)answer->u.status.epoch, "uptime_s",
        answer->u.status.uptime_s, "snapshot", (json_int_t)answer->u.status.snapshot, "refused",
        (json_int_t)answer->u.status.refused, "members", members, "waiting", waiting, "copies",
        copies_json(answer), "scheduler", scheduler_json(answer), "shard_bytes", shard_bytes,
        "events", events_json(answer));
    char *text = json_dumps(all, JSON_COMPACT);
    json_decref(all);
    return text;
}
