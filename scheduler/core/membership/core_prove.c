/* core_prove.c - PROVE, PROVEN: which workers can map each other's memory, found by trying.
 *
 * DESIGN.  Each worker has written a random number into its memory and sent it to the scheduler only (HELLO).  Once all
 * are here, each receives the memory locations of those that may share memory with it (PROVE) and answers with the
 * numbers it could read (PROVEN).  Workers that have all read each other's numbers share memory.  Such sets are named by
 * their lowest member.  Boot ids, names and addresses prove nothing; a different boot id excludes.  A worker that does
 * not answer in time shares nothing, and the job begins.
 *
 * At most CORE_SHARING_MAX workers share memory: each maps all others of its set, so a host with N workers would need
 * N^2 mappings.  Workers of one host form sets in rank order.
 */
#include "common/base/mutation.h"
#include "scheduler/core/core_state.h"

#include <stdlib.h>
#include <string.h>

/* ---- who tries ------------------------------------------------------------------------------- */
static bool is_asked(const member_slot *s)
{
    return s->number != 0 && s->state == MEMBER_JOINING;
}

/* "boot:BOOTID", without the host name, or all of it: two of which share memory only if they are equal. */
static size_t kernel_length(const char *machine)
{
    const char *end = strncmp(machine, "boot:", 5) == 0 ? strchr(machine + 5, ':') : NULL;
    return end != NULL ? (size_t)(end - machine) : strlen(machine);
}

static int by_kernel(const void *a, const void *b)
{
    const member_slot *x = *(member_slot *const *)a, *y = *(member_slot *const *)b;
    const size_t n = kernel_length(x->machine), m = kernel_length(y->machine);
    const int order = memcmp(x->machine, y->machine, n < m ? n : m);
    if (order != 0 || n != m) return order != 0 ? order : n < m ? -1 : 1;
    return x->rank < y->rank ? -1 : x->rank > y->rank;
}

static bool are_on_one_kernel(const member_slot *a, const member_slot *b)
{
    const size_t n = kernel_length(a->machine);
    return n == kernel_length(b->machine) && memcmp(a->machine, b->machine, n) == 0;
}

/* How many of at[n] form a set with the first. */
static uint32_t count_set(member_slot *const *at, uint32_t n)
{
    uint32_t k = 1;
    while (k < n && k < CORE_SHARING_MAX && are_on_one_kernel(at[0], at[k])) k++;
    return k;
}

/* ---- asking ---------------------------------------------------------------------------------- */
/* One member of a set, or all (NULL). */
static void ask(scheduler_core *core, const member_slot *s, member_slot *const *set, uint32_t n)
{
    wire_member member[CORE_SHARING_MAX];
    wire_control c = {
        .kind    = WIRE_PROVE,
        .u.prove = {.round = core->members.proof.round, .worker = member, .n_workers = n}};
    for (uint32_t i = 0; i < n; i++) member[i] = core_epoch_member(set[i]);
    for (uint32_t i = 0; i < n; i++)
        if (s == NULL || s == set[i]) core_send(&core->out, set[i], &c);
}

static void ask_all(scheduler_core *core)
{
    const member_slots *list = &core->members.roster.workers;
    member_slot **at         = calloc(list->n + 1, sizeof(member_slot *));
    uint32_t n               = 0;
    MEMBER_SLOT_EACH(each, list) {
        each->trying = -1;
        if (at && is_asked(each)) at[n++] = each;
    }
    if (!at) return;
    qsort(at, n, sizeof(member_slot *), by_kernel);
    for (uint32_t i = 0, set; i < n; i += set) {
        set = count_set(at + i, n - i);
        if (set < 2) continue;
        for (uint32_t k = 0; k < set; k++) at[i + k]->trying = at[i]->rank;
        ask(core, NULL, at + i, set);
        core->members.proof.n_missing += set;
    }
    free(at);
}

void core_prove_notify(scheduler_core *core, const member_slot *s)
{
    member_slot *set[CORE_SHARING_MAX];
    uint32_t n = 0;
    if (!core->members.proof.is_open || s->role != PEN_WORKER || s->opened || s->trying < 0) return;
    MEMBER_SLOT_EACH(each, &core->members.roster.workers)
        if (each->trying == s->trying && n < CORE_SHARING_MAX) set[n++] = each;
    ask(core, s, set, n);
}

void core_prove_anew(scheduler_core *core)
{
    core->members.proof.is_open = false;
    MEMBER_SLOT_EACH(each, &core->members.roster.workers) member_slot_close(each);
}

/* ---- answers --------------------------------------------------------------------------------- */
void core_proven(scheduler_core *core, member_slot *s, const wire_control *c)
{
    const uint32_t n = core->members.roster.workers.n;
    if (!core->members.proof.is_open || c->u.proven.round != core->members.proof.round ||
        s->trying < 0)
        return; /* of an earlier round, or not asked */
    uint8_t *opened = calloc(n / 8 + 1, 1);
    if (!opened || c->u.proven.n_ranks != c->u.proven.n_numbers) {
        core->job.refused += opened != NULL;
        free(opened);
        return;
    }
    for (uint32_t i = 0; i < c->u.proven.n_ranks; i++) {
        const member_slot *other =
            roster_find(&core->members.roster, PEN_WORKER, c->u.proven.rank[i]);
        if (!other || !other->number || other->trying != s->trying) continue;
        if (other->number != c->u.proven.number[i] && !mutation(MUTATION_NUMBER_NOT_COMPARED))
            continue;
        opened[other->rank / 8] |= (uint8_t)(1u << other->rank % 8);
    }
    core->members.proof.n_missing -= s->opened == NULL;
    member_slot_close(s);
    s->opened = opened;
    core->due |= DUE_JOIN;
}

/* ---- sets -------------------------------------------------------------------- */
static bool opens(const member_slot *s, const member_slot *other)
{
    return s->opened && s->opened[other->rank / 8] >> other->rank % 8 & 1;
}

static bool belongs(const member_slots *list, const member_slot *first, const member_slot *s)
{
    for (int32_t i = first->rank; i < s->rank; i++) {
        const member_slot *other = list->at[i];
        if (other->sharing == first->rank && !(opens(other, s) && opens(s, other))) return false;
    }
    return true;
}

static void gather(const scheduler_core *core)
{
    const member_slots *list = &core->members.roster.workers;
    MEMBER_SLOT_EACH(each, list) each->sharing = each->rank;
    for (uint32_t i = 0; i < list->n; i++) {
        const member_slot *first = list->at[i];
        for (uint32_t k = i + 1; first->sharing == first->rank && k < list->n; k++) {
            member_slot *s = list->at[k];
            if (s->sharing == s->rank && s->trying == first->trying && belongs(list, first, s))
                s->sharing = first->rank;
        }
    }
}

bool core_prove_done(scheduler_core *core)
{
    core_proof *proof = &core->members.proof;
    if (!proof->is_open) {
        *proof = (core_proof){
            .is_open = true, .round = proof->round + 1, .due_ms = core->out.now_ms + CORE_PROVE_MS};
        ask_all(core);
    }
    if (proof->n_missing > 0 && core->out.now_ms < proof->due_ms) return false;
    gather(core);
    core_prove_anew(core);
    return true;
}
