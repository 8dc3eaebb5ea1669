/* link.c - live processes here, and the launcher's link to the scheduler. */
#include "cli/run/launcher.h"

enum {
    LEAVE_MS = 3000, /* survivors of a verdict may print their sentence and exit */
    STUCK_MS = 2000  /* workers may take this long to answer */
};

size_t launcher_alive(const launcher *l, int32_t role)
{
    size_t n = 0;
    for (size_t i = 0; i < l->n; i++) {
        const process *p   = &l->all[i];
        const bool is_here = p->pid != 0 && (role == 0 || !p->lost);
        n += (role == 0 || p->role == role) && (is_here || p->due_ms != 0);
    }
    return n;
}

bool launcher_has_survivors(const launcher *l)
{
    size_t n = launcher_alive(l, PEN_SERVER) + launcher_alive(l, PEN_WORKER);
    for (size_t i = 0; i < l->n; i++) {
        const process *p = &l->all[i];
        n -= p->pid != 0 && p->role == l->verdict.role && p->rank == l->verdict.rank &&
             p->role != PEN_SCHEDULER;
    }
    return n > 0;
}

bool launcher_has_unexplained(const launcher *l)
{
    for (size_t i = 0; i < l->n; i++) {
        const process *p  = &l->all[i];
        const bool failed = p->ended && (p->exit_code != 0 || p->exit_signal != 0);
        if (l->options.loss != LOSS_FAIL && p->role == PEN_WORKER && failed && !p->lost)
            return true;
    }
    return false;
}

bool launcher_seeks_link(const launcher *l, uint64_t now)
{
    const bool is_over = launcher_alive(l, PEN_WORKER) + launcher_alive(l, PEN_SERVER) == 0 &&
                         !launcher_has_unexplained(l);
    return !l->had_link && !l->has_verdict && !l->stopping && !is_over && now < l->link_until_ms;
}

void launcher_ask_scheduler(launcher *l, uint64_t now)
{
    if (l->asked) return;
    wire_control question = {.kind = WIRE_STATUS_ASK};
    l->asked              = true;
    l->leave_at_ms        = now + LEAVE_MS;
    if (l->link == NULL || control_send(l->link, &question, NULL) != PEN_OK) l->answered = true;
}

/* ---- SIGUSR1: the last collective calls ------------------------------------------------------------------------ */
void launcher_end_stuck(launcher *l)
{
    if (l->stuck == NULL) return;
    stuck_print(l->stuck, stderr);
    stuck_destroy(l->stuck);
    l->stuck = NULL;
}

void launcher_ask_stuck(launcher *l, uint64_t now)
{
    wire_control status = {.kind = WIRE_STATUS_ASK}, record = {.kind = WIRE_RECORD_ASK};
    if (l->link == NULL || l->stuck != NULL) return;
    if (control_send(l->link, &status, NULL) != PEN_OK) return;
    if (control_send(l->link, &record, NULL) != PEN_OK) return;
    l->stuck          = stuck_create();
    l->stuck_until_ms = now + STUCK_MS;
}

void launcher_take_stuck(launcher *l, const wire_control *m)
{
    if (l->stuck == NULL) return;
    if (m->kind == WIRE_STATUS) stuck_take_status(l->stuck, m);
    if (m->kind == WIRE_RECORD) stuck_take_record(l->stuck, m);
    if (stuck_is_whole(l->stuck)) launcher_end_stuck(l);
}
