/* restore.c - the snapshot that a job resumes from: with --resume the newest one that every server can read. */
#include "scheduler/core/core_state.h"
#include <inttypes.h>
#include <strings.h>

static bool is_yes(const wire_model *model, const char *key)
{
    const char *value = core_model_setting(model, key);
    if (!value) return false;
    static const char *const yes[] = {"yes", "true", "on", "1"};
    for (size_t i = 0; i < sizeof yes / sizeof *yes; i++)
        if (strcasecmp(value, yes[i]) == 0) return true;
    return false;
}

static bool holds(const member_slot *s, int64_t step)
{
    for (uint32_t i = 0; i < s->n_snapshots; i++)
        if (s->snapshot[i] == step) return true;
    return false;
}

static int64_t newest_of(const member_slot *s)
{
    int64_t newest = -1;
    for (uint32_t i = 0; i < s->n_snapshots; i++)
        if (s->snapshot[i] > newest) newest = s->snapshot[i];
    return newest;
}

static int64_t newest_common(const member_slots *servers)
{
    int64_t newest = -1;
    for (uint32_t i = 0; i < servers->at[0]->n_snapshots; i++) {
        const int64_t step = servers->at[0]->snapshot[i];
        uint32_t n         = 1;
        while (n < servers->n && holds(servers->at[n], step)) n++;
        if (n == servers->n && step > newest) newest = step;
    }
    return newest;
}

static const member_slot *with_newest(const member_slots *servers)
{
    const member_slot *best = servers->at[0];
    for (uint32_t i = 1; i < servers->n; i++)
        if (newest_of(servers->at[i]) > newest_of(best)) best = servers->at[i];
    return best;
}

static pen_status refuse_resume(const member_slots *servers, pen_error *why)
{
    char name[SENTENCE_MEMBER_BYTES];
    MEMBER_SLOT_EACH(s, servers) {
        sentence_member(name, s);
        if (!s->store[0])
            return why_set(why, PEN_BAD_SETTING,
                           "--resume needs a store and %s has none; set --store DIR", name);
        if (newest_of(s) < 0)
            return why_set(
                why, PEN_NOT_FOUND,
                "--resume found no snapshot in store %s of %s; use --fresh to start over", s->store,
                name);
    }
    return why_set(why, PEN_NOT_FOUND,
                   "--resume found no snapshot that all %u servers have: the newest in store %s is "
                   "of step %" PRId64 "; use --fresh to start over",
                   servers->n, with_newest(servers)->store, newest_of(with_newest(servers)));
}

pen_status restore_choose(const roster *r, const wire_model *model, int64_t *step, pen_error *why)
{
    const bool resume = is_yes(model, "resume"), fresh = is_yes(model, "fresh");
    if (resume && fresh)
        return why_set(why, PEN_BAD_SETTING, "--resume and --fresh contradict each other");
    if (!r->servers.n) return PEN_OK; /* workers read their stores themselves */
    const member_slot *newest = with_newest(&r->servers);
    if (!resume && !fresh && newest_of(newest) >= 0)
        return why_set(why, PEN_BAD_SETTING,
                       "store %s holds a snapshot of step %" PRId64
                       "; use --resume to continue from it or --fresh to start over",
                       newest->store, newest_of(newest));

    const int64_t found = resume ? newest_common(&r->servers) : -1;
    if (resume && found < 0) return refuse_resume(&r->servers, why);
    *step = found;
    return PEN_OK;
}
