/* device_place.c - the control segment of a process: a slot for each team, and those of peers; the end of teams. */
#include "worker/collective/device/device_internal.h"

#include "common/base/clock.h"
#include "common/base/why.h"
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const uint64_t control_magic = 0x3243564445564450u; /* changes with the layout */

/* The owner, too, uses the mapping that peers in the same process have: one address for one flag. */
static pen_status make_control(device_place *p, pen_error *why)
{
    void *mapped = NULL;
    p->memory    = segment_alloc_apart(sizeof *p->control, why);
    if (p->memory == NULL) return PEN_NO_MEMORY;
    if (!segment_find(p->memory, sizeof *p->control, &p->ref))
        return why_set(why, PEN_INTERNAL, "the control segment of devices cannot be shared");
    pen_status status = segment_map(&p->ref, sizeof *p->control, &mapped, why);
    p->control        = mapped;
    return status;
}

/* ---- teams that have ended ------------------------------------------------------------------------ */

bool device_has_left(const device_team *team, int who)
{
    const device_control *control = team->peer[who];
    return atomic_load(&control->team[team->slot[who] - control->slot]) != team->id;
}

void device_team_free(device_team *t)
{
    if (t->arrays != NULL) device_close_peers(t);
    free(t->retired);
    free(t->unused);
    free(t->arrays);
    free(t);
}

static bool all_have_left(const device_team *team)
{
    for (int i = 0; i < team->size; i++)
        if (i != team->rank && team->slot[i] != NULL && !device_has_left(team, i)) return false;
    return true;
}

static void free_left(device_place *place)
{
    const uint64_t now = clock_ms(&clock_real);
    device_team **at   = &place->leaving;
    while (*at != NULL) {
        device_team *team = *at;
        if (!all_have_left(team) && now < team->leave_by_ms) {
            at = &team->next_leaving;
            continue;
        }
        *at                    = team->next_leaving;
        const bool has_entered = team->ops->enter(team->device, NULL) == PEN_OK;
        device_free_memory(team);
        if (has_entered) team->ops->leave();
        device_team_free(team);
    }
}

void device_place_take(device_place *place, device_team *team)
{
    pthread_mutex_lock(&place->lock);
    team->leave_by_ms  = clock_ms(&clock_real) + DEVICE_DRAIN_MS;
    team->next_leaving = place->leaving;
    place->leaving     = team;
    free_left(place);
    pthread_mutex_unlock(&place->lock);
}

/* ---- the place ------------------------------------------------------------------------------------- */

pen_status device_place_create(device_place **place, pen_error *why)
{
    device_place *p = calloc(1, sizeof *p);
    if (p == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for the state of devices");
    pthread_mutex_init(&p->lock, NULL);
    pen_status status = make_control(p, why);
    if (status != PEN_OK) {
        device_place_destroy(p);
        return status;
    }
    p->control->magic = control_magic;
    p->control->bytes = sizeof *p->control;
    snprintf(p->address, sizeof p->address, "cuda:%d:%d:%" PRIx64 ":%" PRIu64 ":%" PRIu64,
             p->ref.pid, p->ref.fd, p->ref.id, p->ref.size, p->ref.offset);
    *place = p;
    return PEN_OK;
}

void device_place_destroy(device_place *place)
{
    if (place == NULL) return;
    /* The members of a job end at about the same time. */
    const struct timespec pause = {.tv_nsec = 50000};
    const uint64_t until        = clock_ms(&clock_real) + DEVICE_SETTLE_MS;
    while (place->leaving != NULL && clock_ms(&clock_real) < until) {
        free_left(place);
        if (place->leaving != NULL) nanosleep(&pause, NULL);
    }
    for (device_team *t = place->leaving; t != NULL; t = t->next_leaving) t->leave_by_ms = 0;
    free_left(place);
    pthread_mutex_destroy(&place->lock);
    if (place->control != NULL) segment_unmap(&place->ref);
    segment_free(place->memory);
    free(place);
}

const char *device_place_address(const device_place *place)
{
    return place->address;
}

/* ---- peers ---------------------------------------------------------------------------------------- */

static bool parse(const char *address, segment_ref *ref)
{
    int end = 0;
    return sscanf(address, "cuda:%" SCNd32 ":%" SCNd32 ":%" SCNx64 ":%" SCNu64 ":%" SCNu64 "%n",
                  &ref->pid, &ref->fd, &ref->id, &ref->size, &ref->offset, &end) == 5 &&
           address[end] == '\0' && ref->offset <= ref->size &&
           ref->size - ref->offset >= sizeof(device_control);
}

static pen_status open_peer(device_team *team, int who, const char *address, pen_error *why)
{
    segment_ref ref = {0};
    void *data      = NULL;
    if (!parse(address, &ref))
        return why_set(why, PEN_UNREACHABLE, "rank %d sent no address of its devices",
                       team->ranks[who]);
    pen_status status = segment_map(&ref, sizeof(device_control), &data, why);
    if (status != PEN_OK) return status;
    team->peer_ref[who] = ref;
    team->peer[who]     = data;
    if (team->peer[who]->magic == control_magic && team->peer[who]->bytes == sizeof(device_control))
        return PEN_OK;
    return why_set(why, PEN_UNREACHABLE, "rank %d runs another version of Penstock",
                   team->ranks[who]);
}

pen_status device_open_peers(device_team *team, const char *const *address, pen_error *why)
{
    pen_status status = PEN_OK;
    for (int i = 0; i < team->size && status == PEN_OK; i++) {
        if (i == team->rank)
            team->peer[i] = team->place->control;
        else
            status = open_peer(team, i, address[i], why);
    }
    return status;
}

void device_close_peers(device_team *team)
{
    for (int i = 0; i < team->size; i++)
        if (i != team->rank && team->peer[i] != NULL) segment_unmap(&team->peer_ref[i]);
}

static device_slot *find_slot(device_control *control, uint64_t id)
{
    for (int i = 0; i < DEVICE_TEAMS; i++)
        if (atomic_load_explicit(&control->team[i], memory_order_acquire) == id)
            return &control->slot[i];
    return NULL;
}

bool device_find_peers(device_team *team)
{
    bool all = true;
    for (int i = 0; i < team->size; i++) {
        if (team->slot[i] == NULL) team->slot[i] = find_slot(team->peer[i], team->id);
        all = all && team->slot[i] != NULL;
    }
    return all;
}

/* ---- own slots ------------------------------------------------------------------------------------ */

static pen_status take_slot(device_team *team, pen_error *why)
{
    device_control *control = team->place->control;
    if (team->id == 0) return why_set(why, PEN_INVALID_ARGUMENT, "invalid group id 0");
    if (find_slot(control, team->id) != NULL)
        return why_set(why, PEN_WRONG_STATE, "this process already has a team of that group");
    for (unsigned i = 0; i < DEVICE_TEAMS; i++) {
        const unsigned at = (team->place->next + i) % DEVICE_TEAMS;
        if (atomic_load(&control->team[at]) != 0) continue;
        memset(&control->slot[at], 0, sizeof control->slot[at]);
        control->slot[at].unreached = -1;
        control->slot[at].unopened  = -1;
        team->own_slot              = (int)at;
        team->place->next           = at + 1;
        team->slot[team->rank]      = &control->slot[at];
        atomic_store_explicit(&control->team[at], team->id, memory_order_release);
        return PEN_OK;
    }
    return why_set(why, PEN_UNSUPPORTED, "at most %d groups on devices at a time; free some",
                   DEVICE_TEAMS);
}

pen_status device_take_slot(device_team *team, pen_error *why)
{
    pthread_mutex_lock(&team->place->lock);
    free_left(team->place);
    pen_status status = take_slot(team, why);
    pthread_mutex_unlock(&team->place->lock);
    return status;
}

/* The slot keeps its contents until it is taken again, for peers that have not seen the end yet. */
void device_leave_slot(device_team *team)
{
    if (team->own_slot >= 0)
        atomic_store_explicit(&team->place->control->team[team->own_slot], 0, memory_order_release);
}
