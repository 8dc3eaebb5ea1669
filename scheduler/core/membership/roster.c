#include "scheduler/core/membership/roster.h"
#include "common/containers/list.h"
#include "common/containers/vec.h"
#include <stdlib.h>
#include <string.h>

static void seat_free(seat *s)
{
    keep_clear(&s->kept);
    free(s->stat);
    free(s->loss);
    free(s->report);
    free(s->opened);
    free(s);
}

static seat *seat_new(int32_t role, int32_t rank)
{
    seat *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    s->role  = role;
    s->rank  = rank;
    s->step  = -1;
    s->store = "";

    s->begin_step = s->begin_applied = -1;
    return s;
}

static void list_free(seat_list *list)
{
    SEAT_EACH(each, list) seat_free(each);
    free(list->at);
    *list = (seat_list){0};
}

void roster_fini(roster *self)
{
    list_free(&self->workers);
    list_free(&self->servers);
    list_free(&self->guests);
}

pen_status roster_grow(seat_list *list, int32_t role, uint32_t n)
{
    if (n <= list->n) return PEN_OK;
    if (!VEC_ROOM(list->at, list->capacity, n)) return PEN_NO_MEMORY;
    for (; list->n < n; list->n++)
        if (!(list->at[list->n] = seat_new(role, (int32_t)list->n))) return PEN_NO_MEMORY;
    return PEN_OK;
}

void roster_shrink(roster *self, seat_list *list, uint32_t n)
{
    while (list->n > n) {
        seat *s = list->at[--list->n];
        roster_unbind(self, s);
        seat_free(s);
    }
}

seat *roster_find(const roster *self, int32_t role, int32_t rank)
{
    const seat_list *list = role == PEN_WORKER   ? &self->workers
                            : role == PEN_SERVER ? &self->servers
                                                 : NULL;
    if (!list || rank < 0 || (uint32_t)rank >= list->n) return NULL;
    return list->at[rank];
}

seat *roster_at_peer(const roster *self, uint32_t peer)
{
    LIST_EACH(s, self->by_peer[peer % ROSTER_BUCKETS])
        if (s->peer == peer) return s;
    return NULL;
}

seat *roster_guest(roster *self, int32_t role, uint64_t nonce)
{
    seat_list *list = &self->guests;
    SEAT_EACH(each, list)
        if (each->nonce == nonce && each->role == role) return each;

    if (list->n == ROSTER_GUESTS_MAX) return NULL;
    if (roster_grow(list, role, list->n + 1) != PEN_OK) return NULL;
    seat *guest  = list->at[list->n - 1];
    guest->rank  = -1;
    guest->nonce = nonce;
    return guest;
}

void roster_dismiss(roster *self, seat *guest)
{
    seat_list *list = &self->guests;
    uint32_t i      = 0;
    while (i < list->n && list->at[i] != guest) i++;
    if (i == list->n) return;
    roster_unbind(self, guest);
    seat_free(guest);
    list->at[i] = list->at[--list->n];
}

void roster_unbind(roster *self, seat *s)
{
    if (!s->is_bound) return;
    LIST_REMOVE(self->by_peer[s->peer % ROSTER_BUCKETS], s);
    s->is_bound = false;
}

void roster_bind(roster *self, seat *s, uint32_t peer)
{
    seat *other = roster_at_peer(self, peer);
    if (other == s) return;
    if (other) roster_unbind(self, other);
    roster_unbind(self, s);
    s->peer     = peer;
    s->is_bound = true;
    LIST_PREPEND(self->by_peer[peer % ROSTER_BUCKETS], s);
}

seat *roster_next(const roster *self, uint32_t *cursor)
{
    const seat_list *lists[] = {&self->workers, &self->servers, &self->guests};
    uint32_t index           = (*cursor)++;
    for (int i = 0; i < 3; i++) {
        if (index < lists[i]->n) return lists[i]->at[index];
        index -= lists[i]->n;
    }
    return NULL;
}

seat *roster_of(const roster *self, uint64_t incarnation)
{
    ROSTER_EACH(s, self)
        if (s->incarnation == incarnation) return s;
    return NULL;
}

uint32_t roster_count(const seat_list *list, member_state state)
{
    uint32_t count = 0;
    SEAT_EACH(each, list) count += each->state == state;
    return count;
}

static void copy_text(char *to, size_t size, const char *from)
{
    const size_t length = strnlen(from ? from : "", size - 1);
    if (length) memcpy(to, from, length);
    to[length] = 0;
}

void seat_vacate(seat *s)
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

pen_status seat_seal(seat *s, const wire_control *sealed)
{
    const uint32_t n = sealed->u.sealed.n_reports;
    if (!VEC_ROOM(s->report, s->reports_capacity, n)) return PEN_NO_MEMORY;
    if (n) memcpy(s->report, sealed->u.sealed.report, n * sizeof *s->report);
    s->n_reports = n;
    s->is_sealed = true;
    return PEN_OK;
}

pen_status seat_describe(seat *s, const wire_control *hello)
{
    keep_clear(&s->kept);
    s->store       = "";
    s->n_addresses = s->n_snapshots = 0;
    s->pid                          = hello->u.hello.pid;
    s->number                       = hello->u.hello.number;
    s->holds_state                  = s->role == PEN_SERVER || hello->u.hello.holds_state;
    s->said_local_rank              = hello->u.hello.local_rank;
    s->said_local_size              = hello->u.hello.local_world_size;
    s->said_node                    = hello->u.hello.node;
    copy_text(s->host, sizeof s->host, hello->u.hello.host);
    copy_text(s->machine, sizeof s->machine, hello->u.hello.machine);

    const uint32_t n_snapshots = hello->u.hello.n_snapshots,
                   n_addresses = hello->u.hello.n_addresses;
    const char *store          = keep_text(&s->kept, hello->u.hello.store);
    const char *const *address = keep_texts(&s->kept, hello->u.hello.address, n_addresses);
    const int64_t *snapshot =
        keep_bytes(&s->kept, hello->u.hello.snapshot, n_snapshots * sizeof *snapshot);
    if (!store || !address || !snapshot) return PEN_NO_MEMORY;

    s->store       = store;
    s->address     = address;
    s->snapshot    = snapshot;
    s->n_addresses = n_addresses;
    s->n_snapshots = n_snapshots;
    return PEN_OK;
}

void seat_close(seat *s)
{
    free(s->opened);
    s->opened = NULL;
}

static void keep_stats(seat *s, const wire_stat *stat, uint32_t n)
{
    if (n > SEAT_STATS_MAX) n = SEAT_STATS_MAX;
    if (n && !s->stat) s->stat = malloc(SEAT_STATS_MAX * sizeof *s->stat);
    s->n_stats = s->stat ? n : 0;
    for (uint32_t i = 0; i < s->n_stats; i++) {
        copy_text(s->stat[i].name, sizeof s->stat[i].name, stat[i].name);
        s->stat[i].value = stat[i].value;
    }
}

void seat_beat(seat *s, const wire_control *beat, uint64_t now_ms)
{
    const uint64_t call_ms_max = (uint64_t)1 << 40; /* 35 years: sums with it do not overflow */
    s->step                    = beat->u.beat.step;
    s->beat_ms                 = now_ms;
    s->call_ms = beat->u.beat.call_ms < call_ms_max ? beat->u.beat.call_ms : call_ms_max;
    copy_text(s->call, sizeof s->call, beat->u.beat.call);
    keep_stats(s, beat->u.beat.stat, beat->u.beat.n_stats);
}

bool seat_is_counted(const seat *s)
{
    return s->state == MEMBER_ACTIVE || s->state == MEMBER_AWAY;
}

bool seat_is_here(const seat *s)
{
    return s->state == MEMBER_JOINING || seat_is_counted(s);
}
