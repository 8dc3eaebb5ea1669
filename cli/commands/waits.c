/* waits.c - which member waits for which.
 *
 * DESIGN.  A worker in a call waits for the workers behind it: those in an earlier step, or in the same step and still
 * in their own code.  The scheduler counts waited_for_s by the same rule (scheduler/core/report/core_history.c).  A server
 * has not committed a step until all workers have sent their part.
 */
#include "cli/commands/waits.h"

#include <inttypes.h>
#include <string.h>

static const double long_s = 1; /* shorter waits are normal */
enum { LINES_MAX = 16 };

static bool is_in_own_code(const wire_member_status *m)
{
    return m->call[0] == '\0' || strncmp(m->call, "after ", 6) == 0;
}

static bool is_active(const wire_member_status *m, int32_t role)
{
    return m->member.role == role && strcmp(m->state, "active") == 0;
}

static bool waits(const wire_member_status *m)
{
    return is_active(m, PEN_WORKER) && !is_in_own_code(m) && m->call_s >= long_s;
}

static bool is_behind(const wire_member_status *m, const wire_member_status *waiting)
{
    if (m == waiting || !is_active(m, PEN_WORKER) || m->step < 0) return false;
    return m->step < waiting->step || (m->step == waiting->step && is_in_own_code(m));
}

/* "worker 1 (in step 417, in its own code), worker 2 (...)"; returns their number. */
static int print_held_by(const wire_control *c, const wire_member_status *waiting, FILE *out)
{
    int n = 0;
    for (uint32_t i = 0; i < c->u.status.n_members; i++) {
        const wire_member_status *m = &c->u.status.member[i];
        if (!is_behind(m, waiting)) continue;
        if (n++ == LINES_MAX) fprintf(out, " and others");
        if (n > LINES_MAX) continue;
        fprintf(out, "%sworker %d (in step %" PRId64 ", ", n > 1 ? ", " : "", m->member.rank,
                m->step);
        if (is_in_own_code(m))
            fprintf(out, "in its own code)");
        else
            fprintf(out, "in %s for %.1f s)", m->call, m->call_s);
    }
    return n;
}

static bool has_anyone_behind(const wire_control *c, const wire_member_status *waiting)
{
    for (uint32_t i = 0; i < c->u.status.n_members; i++)
        if (is_behind(&c->u.status.member[i], waiting)) return true;
    return false;
}

/* Returns the worker that has waited longest; servers are printed for its step. */
static const wire_member_status *print_workers(const wire_control *c, FILE *out)
{
    const wire_member_status *longest = NULL;
    int n                             = 0;
    for (uint32_t i = 0; i < c->u.status.n_members; i++) {
        const wire_member_status *m = &c->u.status.member[i];
        if (!waits(m) || !has_anyone_behind(c, m)) continue;
        if (longest == NULL || m->call_s > longest->call_s) longest = m;
        if (++n > LINES_MAX) continue;
        fprintf(out, "%sworker %d has been in %s of step %" PRId64 " for %.1f s, waiting for ",
                n == 1 ? "\n" : "", m->member.rank, m->call, m->step, m->call_s);
        print_held_by(c, m, out);
        fprintf(out, "\n");
    }
    if (n > LINES_MAX) fprintf(out, "%d more workers wait\n", n - LINES_MAX);
    return longest;
}

static void print_shards(const wire_control *c, int32_t server, FILE *out)
{
    int n = 0;
    for (uint32_t i = 0; i < c->u.status.n_replicas; i++) {
        const wire_replica *copy = &c->u.status.replica[i];
        if (copy->server != server || copy->role != WIRE_PRIMARY) continue;
        if (n++ < LINES_MAX)
            fprintf(out, "%s%" PRIu32, n == 1 ? " with shard " : ", ", copy->shard);
    }
}

static void print_servers(const wire_control *c, const wire_member_status *waiting, FILE *out)
{
    for (uint32_t i = 0; i < c->u.status.n_members; i++) {
        const wire_member_status *m = &c->u.status.member[i];
        if (!is_active(m, PEN_SERVER) || m->step > waiting->step) continue;
        fprintf(out, "server %d", m->member.rank);
        print_shards(c, m->member.rank, out);
        fprintf(out, " has not committed step %" PRId64 ", waiting for ", waiting->step);
        print_held_by(c, waiting, out);
        fprintf(out, "\n");
    }
}

void waits_print(const wire_control *c, FILE *out)
{
    const wire_member_status *longest = print_workers(c, out);
    if (longest != NULL) print_servers(c, longest, out);
    for (uint32_t i = 0; i < c->u.status.n_waiting; i++)
        fprintf(out, "\nwaiting  %s\n", c->u.status.waiting[i]);
}
