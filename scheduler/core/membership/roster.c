/* roster.c - finds, adds and removes member slots. */
#include "scheduler/core/membership/roster.h"
#include "common/containers/list.h"
#include "common/containers/arrays.h"
#include <stdlib.h>
#include <string.h>

static void member_slot_free(member_slot *s)
{
    wire_arena_destroy(s->kept);
    free(s->stat);
    free(s->loss);
    free(s->report);
    free(s->opened);
    free(s);
}

static member_slot *member_slot_new(int32_t role, int32_t rank)
{
    member_slot *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    s->role  = role;
    s->rank  = rank;
    s->step  = -1;
    s->store = "";

    s->begin_step = s->begin_applied = -1;
    return s;
}

static void list_free(member_slots *list)
{
    MEMBER_SLOT_EACH(each, list) member_slot_free(each);
    free(list->at);
    *list = (member_slots){0};
}

void roster_fini(roster *self)
{
    list_free(&self->workers);
    list_free(&self->servers);
    list_free(&self->observers);
}

pen_status roster_grow(member_slots *list, int32_t role, uint32_t n)
{
    if (n <= list->n) return PEN_OK;
    if (!VEC_ROOM(list->at, list->capacity, n)) return PEN_NO_MEMORY;
    for (; list->n < n; list->n++)
        if (!(list->at[list->n] = member_slot_new(role, (int32_t)list->n))) return PEN_NO_MEMORY;
    return PEN_OK;
}

void roster_shrink(roster *self, member_slots *list, uint32_t n)
{
    while (list->n > n) {
        member_slot *s = list->at[--list->n];
        roster_unbind(self, s);
        member_slot_free(s);
    }
}

member_slot *roster_find(const roster *self, int32_t role, int32_t rank)
{
    const member_slots *list = role == PEN_WORKER   ? &self->workers
                               : role == PEN_SERVER ? &self->servers
                                                    : NULL;
    if (!list || rank < 0 || (uint32_t)rank >= list->n) return NULL;
    return list->at[rank];
}

member_slot *roster_at_peer(const roster *self, uint32_t peer)
{
    LIST_EACH(s, self->by_peer[peer % ROSTER_BUCKETS])
        if (s->peer == peer) return s;
    return NULL;
}

member_slot *roster_observer(roster *self, int32_t role, uint64_t nonce)
{
    member_slots *list = &self->observers;
    MEMBER_SLOT_EACH(each, list)
        if (each->nonce == nonce && each->role == role) return each;

    if (list->n == ROSTER_GUESTS_MAX) return NULL;
    if (roster_grow(list, role, list->n + 1) != PEN_OK) return NULL;
    member_slot *observer = list->at[list->n - 1];
    observer->rank        = -1;
    observer->nonce       = nonce;
    return observer;
}

void roster_dismiss(roster *self, member_slot *observer)
{
    member_slots *list = &self->observers;
    uint32_t i         = 0;
    while (i < list->n && list->at[i] != observer) i++;
    if (i == list->n) return;
    roster_unbind(self, observer);
    member_slot_free(observer);
    list->at[i] = list->at[--list->n];
}

void roster_unbind(roster *self, member_slot *s)
{
    if (!s->is_bound) return;
    LIST_REMOVE(self->by_peer[s->peer % ROSTER_BUCKETS], s);
    s->is_bound = false;
}

void roster_bind(roster *self, member_slot *s, uint32_t peer)
{
    member_slot *other = roster_at_peer(self, peer);
    if (other == s) return;
    if (other) roster_unbind(self, other);
    roster_unbind(self, s);
    s->peer     = peer;
    s->is_bound = true;
    LIST_PREPEND(self->by_peer[peer % ROSTER_BUCKETS], s);
}

member_slot *roster_next(const roster *self, uint32_t *cursor)
{
    const member_slots *lists[] = {&self->workers, &self->servers, &self->observers};
    uint32_t index              = (*cursor)++;
    for (int i = 0; i < 3; i++) {
        if (index < lists[i]->n) return lists[i]->at[index];
        index -= lists[i]->n;
    }
    return NULL;
}

member_slot *roster_of(const roster *self, uint64_t incarnation)
{
    ROSTER_EACH(s, self)
        if (s->incarnation == incarnation) return s;
    return NULL;
}

uint32_t roster_count(const member_slots *list, member_state state)
{
    uint32_t count = 0;
    MEMBER_SLOT_EACH(each, list) count += each->state == state;
    return count;
}

static void copy_text(char *to, size_t size, const char *from)
{
    const size_t length = strnlen(from ? from : "", size - 1);
    if (length) memcpy(to, from, length);
    to[length] = 0;
}

void member_slot_vacate(member_slot *s)
{
    s->state = MEMBER_ABSENT;
    s->nonce = s->incarnation = 0;
    s->step                   = -1;
    s->call[0]                = 0;
    s->call_ms                = 0;
    s->n_stats                = 0;
    s->is_registered = s->is_ready = s->is_told = s->is_heard = s->has_passed = false;
    s->has_ended = s->has_said_bye = s->has_left_early = s->has_no_restarts = false;
    s->is_draining = s->is_stopped = s->is_sealed = false;
    s->begin_step = s->begin_applied = -1;
    s->has_come_back                 = true;
}

pen_status member_slot_seal(member_slot *s, const wire_control *sealed)
{
    const uint32_t n = sealed->u.sealed.n_reports;
    if (!VEC_ROOM(s->report, s->reports_capacity, n)) return PEN_NO_MEMORY;
    if (n) memcpy(s->report, sealed->u.sealed.report, n * sizeof *s->report);
    s->n_reports = n;
    s->is_sealed = true;
    return PEN_OK;
}

pen_status member_slot_describe(member_slot *s, const wire_control *hello)
{
    wire_control kept;
    if (!wire_control_copy(hello, &s->kept, &kept)) return PEN_NO_MEMORY;
    s->pid             = hello->u.hello.pid;
    s->number          = hello->u.hello.number;
    s->holds_state     = s->role == PEN_SERVER || hello->u.hello.holds_state;
    s->said_local_rank = hello->u.hello.local_rank;
    s->said_local_size = hello->u.hello.local_world_size;
    s->said_node       = hello->u.hello.node;
    s->store           = kept.u.hello.store;
    s->address         = kept.u.hello.address;
    s->snapshot        = kept.u.hello.snapshot;
    s->n_addresses     = kept.u.hello.n_addresses;
    s->n_snapshots     = kept.u.hello.n_snapshots;
    copy_text(s->host, sizeof s->host, hello->u.hello.host);
    copy_text(s->machine, sizeof s->machine, hello->u.hello.machine);
    return PEN_OK;
}

void member_slot_close(member_slot *s)
{
    free(s->opened);
    s->opened = NULL;
}

static void keep_stats(member_slot *s, const wire_stat *stat, uint32_t n)
{
    if (n > MEMBER_STATS_MAX) n = MEMBER_STATS_MAX;
    if (n && !s->stat) s->stat = malloc(MEMBER_STATS_MAX * sizeof *s->stat);
    s->n_stats = s->stat ? n : 0;
    for (uint32_t i = 0; i < s->n_stats; i++) {
        copy_text(s->stat[i].name, sizeof s->stat[i].name, stat[i].name);
        s->stat[i].value = stat[i].value;
    }
}

void member_slot_beat(member_slot *s, const wire_control *beat, uint64_t now_ms)
{
    const uint64_t call_ms_max = (uint64_t)1 << 40; /* 35 years: sums with it do not overflow */
    s->step                    = beat->u.beat.step;
    s->beat_ms                 = now_ms;
    s->call_ms = beat->u.beat.call_ms < call_ms_max ? beat->u.beat.call_ms : call_ms_max;
    copy_text(s->call, sizeof s->call, beat->u.beat.call);
    keep_stats(s, beat->u.beat.stat, beat->u.beat.n_stats);
}

void member_slot_place(member_slot *s, const wire_control *exited)
{
    if (!exited->u.exited.call || !exited->u.exited.call[0]) return;
    if (exited->u.exited.step > s->step) s->step = exited->u.exited.step;
    copy_text(s->call, sizeof s->call, exited->u.exited.call);
}

bool member_slot_is_counted(const member_slot *s)
{
    return s->state == MEMBER_ACTIVE || s->state == MEMBER_AWAY;
}

bool member_slot_is_here(const member_slot *s)
{
    return s->state == MEMBER_JOINING || member_slot_is_counted(s);
}
