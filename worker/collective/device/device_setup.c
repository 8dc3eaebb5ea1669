/* device_setup.c - what the first call on a team does before it begins: memory, links, measurements.
 *
 * DESIGN
 * Stages.    Each returns OK, AGAIN or an error, and never waits.  Members follow each other's progress in shared
 *            memory: SETUP_SHARED (its pool can be mapped), SETUP_MAPPED (it has mapped those of the others, and its
 *            events can be), SETUP_OPENED (it has mapped those of the others), SETUP_TESTED (its links work),
 *            SETUP_MEASURED.
 * Links.     Drivers may report a working link that silently loses data.  So each member writes a pattern into the
 *            pool of every peer on another device and reads it back before any data of the program goes there.
 * Alike.     All decide alike, because decisions use only what all members published: the worst barrier and the worst
 *            bandwidth give the threshold of one-shot calls, and a bad link anywhere fails all with the same sentence.
 * Refusal.   A driver that shares or maps nothing, as between containers, fails no call: all take another path.
 *            Events are shared only for the method that needs them: CUDA does not promise that a process can map those
 *            of devices that it does not see.
 */
#include "worker/collective/device/device_internal.h"

#include "common/base/clock.h"
#include "common/base/why.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 8, PATTERN_BYTES = 128 };

static void publish(device_team *team, device_setup_state state)
{
    atomic_store_explicit(&device_own_slot(team)->setup, state, memory_order_release);
    device_ring(team);
}

static bool all_are(const device_team *team, device_setup_state state)
{
    for (int i = 0; i < team->size; i++)
        if (atomic_load_explicit(&team->slot[i]->setup, memory_order_acquire) < (uint32_t)state)
            return false;
    return true;
}

static bool is_same_device(const device_team *team, int who)
{
    return memcmp(team->slot[who]->uuid, team->slot[team->rank]->uuid, 16) == 0;
}

/* ---- stages ---------------------------------------------------------------------------------------- */

static pen_status no_event(pen_error *why)
{
    return why_set(why, PEN_NO_MEMORY, "no memory for events of a device");
}

static pen_status make_memory(device_team *team, pen_error *why)
{
    const device_ops *ops = team->ops;
    team->pool = ops->alloc(DEVICE_FLAGS_BYTES + 2 * (size_t)DEVICE_POOL_BYTES, team->device, why);
    if (team->pool == NULL) return PEN_NO_MEMORY;
    team->words = ops->host_alloc(sizeof *team->words, why);
    if (team->words == NULL) return PEN_NO_MEMORY;
    team->stop = team->options.stop != NULL ? team->options.stop : &team->words->stop;
    for (int i = 0; i < 2; i++) {
        team->own_event[i] = ops->event_new();
        if (team->own_event[i] == NULL) return no_event(why);
    }
    team->end = ops->event_new();
    return team->end == NULL ? no_event(why) : PEN_OK;
}

static pen_status share_stage(device_team *team, device_stream stream, pen_error *why)
{
    (void)stream;
    pen_status status = make_memory(team, why);
    if (status != PEN_OK) return status;
    status = team->ops->share(team->pool, DEVICE_FLAGS_BYTES + 2 * (size_t)DEVICE_POOL_BYTES,
                              &device_own_slot(team)->pool, why);
    if (status != PEN_OK) return status;
    team->ops->uuid(team->device, device_own_slot(team)->uuid);
    device_own_slot(team)->has_nccl = team->options.nccl != NULL;
    publish(team, SETUP_SHARED);
    return PEN_OK;
}

static pen_status map_peer(device_team *team, int who, pen_error *why)
{
    void *pool = NULL;
    if (who == team->rank) {
        team->pools[who] = team->pool;
        return PEN_OK;
    }
    const device_ref ref = team->slot[who]->pool;
    pen_status status    = device_check_process(team, who, &ref, ref.process, why);
    if (status == PEN_OK) status = team->ops->map(&ref, &pool, why);
    if (status != PEN_OK) return status;
    team->pool_ref[who] = ref;
    team->pools[who]    = pool;
    return device_check_room(team, who, &ref, ref.offset,
                             DEVICE_FLAGS_BYTES + 2 * (size_t)DEVICE_POOL_BYTES, why);
}

/* Events that cannot be shared or mapped are noted for all members, and are no error here. */
static void share_events(device_team *team)
{
    device_slot *own = device_own_slot(team);
    for (int i = 0; i < 2; i++)
        if (team->ops->event_share(team->own_event[i], &own->event[i], NULL) != PEN_OK)
            own->unopened = team->ranks[team->rank];
}

static pen_status map_events(device_team *team, int who, pen_error *why)
{
    const device_ref pool = team->slot[who]->pool;
    for (int i = 0; i < 2; i++) {
        const device_event_ref event = team->slot[who]->event[i];
        pen_status status            = device_check_process(team, who, &pool, event.process, why);
        if (status != PEN_OK) return status;
        team->events[2 * who + i] = team->ops->event_map(&event, NULL);
        if (team->events[2 * who + i] == NULL) device_own_slot(team)->unopened = team->ranks[who];
    }
    return PEN_OK;
}

static pen_status choose_sync(device_team *team, pen_error *why)
{
    uint8_t uuid[DEVICE_ARRAYS_MAX][16];
    team->is_one_device = true;
    for (int i = 0; i < team->size; i++) {
        memcpy(uuid[i], team->slot[i]->uuid, sizeof uuid[i]);
        team->is_one_device = team->is_one_device && is_same_device(team, i);
    }
    return device_sync_choose(team->options.sync, (const uint8_t(*)[16])uuid, team->ranks,
                              team->size, &team->sync, why);
}

static pen_status map_stage(device_team *team, device_stream stream, pen_error *why)
{
    (void)stream;
    if (!all_are(team, SETUP_SHARED)) return PEN_AGAIN;
    pen_status status = choose_sync(team, why);
    for (int i = 0; i < team->size && status == PEN_OK; i++) status = map_peer(team, i, why);
    if (status != PEN_OK) return status;
    if (team->sync->needs_events) share_events(team);
    publish(team, SETUP_MAPPED);
    return PEN_OK;
}

static pen_status events_stage(device_team *team, device_stream stream, pen_error *why)
{
    (void)stream;
    pen_status status = PEN_OK;
    if (!all_are(team, SETUP_MAPPED)) return PEN_AGAIN;
    for (int i = 0; i < team->size && status == PEN_OK && team->sync->needs_events; i++)
        if (i != team->rank && team->slot[i]->unopened != team->ranks[i])
            status = map_events(team, i, why);
    if (status == PEN_OK) publish(team, SETUP_OPENED);
    return status;
}

static pen_status opened_stage(device_team *team, device_stream stream, pen_error *why)
{
    (void)stream;
    if (!all_are(team, SETUP_OPENED)) return PEN_AGAIN;
    for (int i = 0; i < team->size; i++) {
        const int rank = team->ranks[i], whose = team->slot[i]->unopened;
        if (whose >= 0)
            return why_set(
                why, PEN_UNSUPPORTED,
                "device_backend=%s, but rank %d cannot %s the events of rank %d's device; "
                "use --visible-devices all or device_backend=auto",
                team->sync->name, rank, whose == rank ? "share" : "open", whose);
    }
    return PEN_OK;
}

/* Where this member writes in the pool of each peer: no other member writes there, and no call has begun. */
static char *test_place(device_team *team, int who)
{
    return team->pools[who] + DEVICE_FLAGS_BYTES + (size_t)team->rank * PATTERN_BYTES;
}

static pen_status test_stage(device_team *team, device_stream stream, pen_error *why)
{
    pen_status status = PEN_OK;
    if (team->rounds > 0) { /* the test of peer rounds - 1 is under way */
        status = team->ops->event_done(team->end, why);
        if (status != PEN_OK) return status;
        if (memcmp(team->words->pattern, team->words->answer, PATTERN_BYTES) != 0 &&
            device_own_slot(team)->unreached < 0)
            device_own_slot(team)->unreached = team->ranks[team->rounds - 1];
    }
    int who = team->rounds;
    while (who < team->size && is_same_device(team, who)) who++;
    team->rounds = who + 1;
    if (who < team->size) {
        /* One peer after the other: `rounds` counts them. */
        for (int i = 0; i < PATTERN_BYTES / 4; i++) {
            team->words->pattern[i] = 0x9e3779b9u * (uint32_t)(team->rank * 97 + who * 31 + i + 1);
            team->words->answer[i]  = 0;
        }
        status = device_team_copy(team, TRAFFIC_OTHER, test_place(team, who), team->words->pattern,
                                  PATTERN_BYTES, stream, why);
        if (status == PEN_OK)
            status = device_team_copy(team, TRAFFIC_OTHER, team->words->answer,
                                      test_place(team, who), PATTERN_BYTES, stream, why);
        if (status == PEN_OK) status = team->ops->event_record(team->end, stream, why);
        return status == PEN_OK ? PEN_AGAIN : status;
    }
    team->rounds = 0;
    publish(team, SETUP_TESTED);
    return PEN_OK;
}

static pen_status verdict_stage(device_team *team, device_stream stream, pen_error *why)
{
    (void)stream;
    if (!all_are(team, SETUP_TESTED)) return PEN_AGAIN;
    for (int i = 0; i < team->size; i++)
        if (team->slot[i]->unreached >= 0)
            return why_set(why, PEN_UNSUPPORTED,
                           "the device of rank %d cannot reach the memory of rank %d's device: "
                           "test data came back different; device calls use host memory",
                           team->ranks[i], team->slot[i]->unreached);
    return PEN_OK;
}

/* The first barrier waits for late members, so it is not counted. */
static pen_status barrier_stage(device_team *team, device_stream stream, pen_error *why)
{
    pen_status status = PEN_OK;
    if (team->rounds > 0) {
        status = team->sync->passed(team, team->step, stream, why);
        if (status != PEN_OK) return status;
        if (team->rounds == 1) team->measured_ns = clock_ns(&clock_real);
    }
    if (team->rounds > ROUNDS) {
        device_own_slot(team)->barrier_ns =
            (double)(clock_ns(&clock_real) - team->measured_ns) / ROUNDS;
        team->rounds = 0;
        return PEN_OK;
    }
    status = team->sync->signal(team, ++team->step, stream, why);
    if (status != PEN_OK) return status;
    team->rounds++;
    return PEN_AGAIN;
}

/* Reads the next member's pool, over the link that calls use.  The first round is the warm-up. */
static pen_status bandwidth_stage(device_team *team, device_stream stream, pen_error *why)
{
    char *from        = team->pools[(team->rank + 1) % team->size] + DEVICE_FLAGS_BYTES;
    pen_status status = PEN_OK;
    if (team->rounds > 0) {
        status = team->ops->event_done(team->end, why);
        if (status != PEN_OK) return status;
    }
    if (team->sync->has_waits &&
        __atomic_load_n(&team->stop->result, __ATOMIC_ACQUIRE) != DEVICE_FLAG_CAME)
        return why_set(why, PEN_UNSUPPORTED,
                       "the device of rank %d does not see what others write into its memory",
                       team->ranks[team->rank]);
    const uint64_t now = clock_ns(&clock_real);
    if (team->rounds == 2) {
        device_own_slot(team)->bandwidth =
            DEVICE_POOL_BYTES / (double)(now - team->measured_ns + 1);
        publish(team, SETUP_MEASURED);
        return PEN_OK;
    }
    team->measured_ns = now;
    team->rounds++;
    status =
        device_team_copy(team, TRAFFIC_OTHER, team->pool + DEVICE_FLAGS_BYTES + DEVICE_POOL_BYTES,
                         from, DEVICE_POOL_BYTES, stream, why);
    if (status == PEN_OK) status = team->ops->event_record(team->end, stream, why);
    return status == PEN_OK ? PEN_AGAIN : status;
}

static void tell(device_team *team, int devices, double barrier_ns, double bandwidth)
{
    snprintf(
        team->text, sizeof team->text,
        "%s %s, %d members on %d device%s, barrier %.1f us, link %.1f GB/s, one-shot to %llu bytes",
        team->ops->name, team->sync->name, team->size, devices, devices == 1 ? "" : "s",
        barrier_ns / 1e3, bandwidth, (unsigned long long)team->one_shot_bytes);
}

static pen_status settle_stage(device_team *team, device_stream stream, pen_error *why)
{
    (void)stream, (void)why;
    double barrier_ns = 0, bandwidth = 1e12;
    int devices = 0;
    if (!all_are(team, SETUP_MEASURED)) return PEN_AGAIN;
    for (int i = 0; i < team->size; i++) {
        const device_slot *s = team->slot[i];
        if (s->barrier_ns > barrier_ns) barrier_ns = s->barrier_ns;
        if (s->bandwidth < bandwidth) bandwidth = s->bandwidth;
        int first = 0; /* not beyond i: a member may change what it says meanwhile */
        while (first < i && memcmp(team->slot[first]->uuid, s->uuid, sizeof s->uuid) != 0) first++;
        devices += first == i;
    }
    team->one_shot_bytes =
        team->options.one_shot_bytes > 0
            ? team->options.one_shot_bytes
            : device_one_shot_bytes(barrier_ns, bandwidth, team->size, team->is_one_device);
    if (team->one_shot_bytes > DEVICE_POOL_BYTES) team->one_shot_bytes = DEVICE_POOL_BYTES;
    tell(team, devices, barrier_ns, bandwidth);
    return PEN_OK;
}

static pen_status nccl_stage(device_team *team, device_stream stream, pen_error *why)
{
    pen_status status = device_nccl_setup(team, stream, why);
    if (status != PEN_OK) return status;
    const size_t length = strlen(team->text);
    if (team->nccl != NULL)
        snprintf(team->text + length, sizeof team->text - length, ", then NCCL");
    team->is_ready = true;
    return PEN_OK;
}

/* ---- all stages ------------------------------------------------------------------------------------- */

typedef pen_status (*stage_fn)(device_team *team, device_stream stream, pen_error *why);
static const stage_fn stages[] = {share_stage,  map_stage,     events_stage,  opened_stage,
                                  test_stage,   verdict_stage, barrier_stage, bandwidth_stage,
                                  settle_stage, nccl_stage};

pen_status device_setup(device_team *team, device_stream stream, pen_error *why)
{
    while (!team->is_ready) {
        pen_status status = stages[team->setup](team, stream, why);
        if (status != PEN_OK) return status;
        team->setup++;
    }
    return PEN_OK;
}

void device_unmap_peers(device_team *team)
{
    const device_ops *ops = team->ops;
    if (team->nccl != NULL) team->options.nccl->close(team->nccl);
    for (size_t i = 0; i < team->n_unused; i++) ops->unmap(&team->unused[i]);
    for (int i = 0; i < team->size; i++) {
        for (int j = 0; j < DEVICE_CACHED; j++)
            if (team->mapped[i * DEVICE_CACHED + j].base != NULL)
                ops->unmap(&team->mapped[i * DEVICE_CACHED + j].ref);
        if (i != team->rank && team->pools[i] != NULL) ops->unmap(&team->pool_ref[i]);
        for (int j = 0; j < 2; j++)
            if (team->events[2 * i + j] != NULL) ops->event_free(team->events[2 * i + j]);
    }
}

void device_free_memory(device_team *team)
{
    const device_ops *ops = team->ops;
    for (int i = 0; i < 2; i++)
        if (team->own_event[i] != NULL) ops->event_free(team->own_event[i]);
    if (team->end != NULL) ops->event_free(team->end);
    if (team->words != NULL) ops->host_free(team->words);
    if (team->pool != NULL) ops->free(team->pool);
    if (team->in.data != NULL) ops->free(team->in.data);
    if (team->out.data != NULL) ops->free(team->out.data);
    for (size_t i = 0; i < team->n_retired; i++) ops->free(team->retired[i]);
}
