/* pinned_pair.c - pairs of memory, and the copies between them. */
#include "worker/tensor/device_copy/pinned_pair.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/why.h"
#include "common/containers/list.h"
#include "common/system/segment.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { POLL_NS = 20000, LAST_WAIT_MS = 10000, PAGE_BYTES = 4096 };

/* ---- all of them ------------------------------------------------------------------------------- */
pen_status pinned_pairs_open(pinned_pair_set *set, const device_ops *ops, int device,
                             stat_set *stats, pen_error *why)
{
    *set = (pinned_pair_set){.ops = ops, .stats = stats, .device = device};
    pthread_mutex_init(&set->lock, NULL);
    pen_status status = ops->stream_new(device, &set->up, why);
    if (status == PEN_OK) status = ops->stream_new(device, &set->down, why);
    return status;
}

void pinned_pairs_close(pinned_pair_set *set)
{
    if (set->ops == NULL) return;
    LIST_EACH(t, set->kept) pinned_pair_free(set, t);
    set->ops->stream_free(set->up);
    set->ops->stream_free(set->down);
    pthread_mutex_destroy(&set->lock);
    set->ops = NULL;
}

/* ---- waiting ------------------------------------------------------------------------------------- */
static pen_status await(const pinned_pair_set *set, device_event *event, int64_t deadline_ms,
                        bool hurries, pen_error *why)
{
    const struct timespec pause = {.tv_nsec = POLL_NS};
    const uint64_t begun        = clock_ms(&clock_real);
    pen_status status;
    while ((status = set->ops->event_done(event, why)) == PEN_AGAIN) {
        if (hurries && atomic_load(&set->is_closing))
            return why_set(why, PEN_ABORTED, "the context ends");
        if (hurries && set->failure != NULL && set->failure(set->failure_user, why) != PEN_OK)
            return why->status;
        if (deadline_ms >= 0 && clock_ms(&clock_real) - begun > (uint64_t)deadline_ms)
            return why_set(why, PEN_TIMED_OUT,
                           "waited %.3g s for %s device %d to finish its queue; look for a kernel "
                           "that does not end, or raise deadline_ms",
                           (double)deadline_ms / 1000, set->ops->name, set->device);
        nanosleep(&pause, NULL);
    }
    return status;
}

pen_status pinned_pair_wait(const pinned_pair_set *set, device_event *event, int64_t deadline_ms,
                            pen_error *why)
{
    return await(set, event, deadline_ms, true, why);
}

void pinned_pairs_hurry(pinned_pair_set *set)
{
    atomic_store(&set->is_closing, true);
}

/* ---- one ----------------------------------------------------------------------------------------- */
/* Other workers of the host can map segments.  Small segments share pages, and only whole pages can be locked. */
static pen_status take_host(pinned_pair *t, pen_error *why)
{
    const size_t whole = (t->bytes / PAGE_BYTES + 1) * PAGE_BYTES;
    if (t->bytes >= SEGMENT_ALONE_BYTES) t->host = segment_alloc(t->bytes, why);
    t->is_segment = t->host != NULL;
    if (t->host != NULL) return PEN_OK;
    t->host = aligned_alloc(PAGE_BYTES, whole);
    if (t->host == NULL)
        return why_set(why, PEN_NO_MEMORY, "no memory for a tensor's %zu bytes on the host", whole);
    memset(t->host, 0, whole);
    return PEN_OK;
}

/* A strategy that works on the device may never copy.  Copies are right without it, but slower: the driver moves them
 * through memory of its own. */
void pinned_pair_lock(const pinned_pair_set *set, pinned_pair *t)
{
    static atomic_bool has_said;
    pen_error why;
    if (t->is_locked || t->bytes == 0 || set->ops->enter(set->device, NULL) != PEN_OK) return;
    t->is_locked = set->ops->pin(t->host, t->bytes, &why) == PEN_OK;
    set->ops->leave();
    if (!t->is_locked && !atomic_exchange(&has_said, true))
        log_notice("copies of tensors are slow: host memory cannot be page-locked (%s)", why.text);
}

pinned_pair *pinned_pair_new(pinned_pair_set *set, void *device, size_t bytes, pen_error *why)
{
    pinned_pair *t    = calloc(1, sizeof *t);
    pen_status status = t != NULL ? PEN_OK : why_set(why, PEN_NO_MEMORY, "no memory for a tensor");
    if (status == PEN_OK) {
        t->bytes = bytes;
        t->used  = set->ops->event_new();
        t->moved = set->ops->event_new();
        if (t->used == NULL || t->moved == NULL)
            status = why_set(why, PEN_NO_MEMORY, "no memory for events of a device");
    }
    if (status == PEN_OK) status = take_host(t, why);
    if (status == PEN_OK) {
        t->owns_device = device == NULL;
        t->device      = device != NULL ? device : set->ops->alloc(t->bytes, set->device, why);
        status         = t->device != NULL ? PEN_OK : why->status;
    }
    if (status == PEN_OK) return t;
    pinned_pair_free(set, t);
    return NULL;
}

static void give_host_back(const pinned_pair_set *set, pinned_pair *t)
{
    if (t->is_locked) {
        if (set->ops->enter(set->device, NULL) != PEN_OK) return;
        set->ops->unpin(t->host);
        set->ops->leave();
    }
    if (t->is_segment)
        segment_free(t->host);
    else
        free(t->host);
}

/* False: the device hangs and may still write, so the memory must stay. */
static bool has_let_go(const pinned_pair_set *set, const pinned_pair *t)
{
    pen_error why;
    return !t->is_moving || await(set, t->moved, LAST_WAIT_MS, false, &why) != PEN_TIMED_OUT;
}

void pinned_pair_free(pinned_pair_set *set, pinned_pair *t)
{
    if (t == NULL || !has_let_go(set, t)) return;
    give_host_back(set, t);
    if (t->owns_device) set->ops->free(t->device); /* after all work enqueued on it */
    set->ops->event_free(t->used);
    set->ops->event_free(t->moved);
    free(t);
}

static bool is_still(const pinned_pair_set *set, pinned_pair *t)
{
    pen_error why;
    if (t->is_moving) t->is_moving = set->ops->event_done(t->moved, &why) == PEN_AGAIN;
    return !t->is_moving;
}

pinned_pair *pinned_pair_take(pinned_pair_set *set, size_t bytes, pen_error *why)
{
    pthread_mutex_lock(&set->lock);
    pinned_pair *t = set->kept;
    while (t != NULL && (t->bytes != bytes || !is_still(set, t))) t = t->next;
    if (t != NULL) LIST_REMOVE(set->kept, t);
    pthread_mutex_unlock(&set->lock);
    if (t == NULL) t = pinned_pair_new(set, NULL, bytes, why);
    if (t == NULL) return NULL;
    t->is_old      = true;
    t->is_host_old = t->is_made = false;
    return t;
}

void pinned_pair_put(pinned_pair_set *set, pinned_pair *t)
{
    if (t == NULL) return;
    pthread_mutex_lock(&set->lock);
    LIST_APPEND(set->kept, t);
    pthread_mutex_unlock(&set->lock);
}

/* ---- order ----------------------------------------------------------------------------------------- */
pen_status pinned_pair_record(const pinned_pair_set *set, device_event *event, device_stream stream,
                              pen_error *why)
{
    pen_status status = set->ops->enter(set->device, why);
    if (status != PEN_OK) return status;
    status = set->ops->event_record(event, stream, why);
    set->ops->leave();
    return status;
}

pen_status pinned_pair_stream_waits(const pinned_pair_set *set, device_stream stream,
                                    device_event *event, pen_error *why)
{
    pen_status status = set->ops->enter(set->device, why);
    if (status != PEN_OK) return status;
    status = set->ops->stream_wait(stream, event, why);
    set->ops->leave();
    return status;
}

/* ---- copies ---------------------------------------------------------------------------------------- */
pen_status pinned_pair_note_use(pinned_pair_set *set, pinned_pair *t, device_stream stream,
                                pen_error *why)
{
    return pinned_pair_record(set, t->used, stream, why);
}

static pen_status move(const pinned_pair_set *set, pinned_pair *t, void *to, const void *from,
                       size_t bytes, stat_traffic what, device_stream stream, pen_error *why)
{
    pen_status status = set->ops->enter(set->device, why);
    if (status != PEN_OK) return status;
    pinned_pair_lock(set, t);
    status = set->ops->stream_wait(stream, t->used, why);
    if (status == PEN_OK)
        status = device_copy(set->ops, what, set->stats, to, from, bytes, stream, why);
    if (status == PEN_OK) status = set->ops->event_record(t->moved, stream, why);
    set->ops->leave();
    t->is_moving = status == PEN_OK;
    return status;
}

pen_status pinned_pair_down(pinned_pair_set *set, pinned_pair *t, const void *from,
                            stat_traffic what, device_stream stream, pen_error *why)
{
    pen_status status = pinned_pair_record(set, t->used, stream, why);
    return status == PEN_OK ? move(set, t, t->host, from, t->bytes, what, set->down, why) : status;
}

pen_status pinned_pair_up(pinned_pair_set *set, pinned_pair *t, pen_error *why)
{
    t->is_old = false;
    return pinned_pair_up_part(set, t, 0, t->bytes, why);
}

pen_status pinned_pair_up_part(pinned_pair_set *set, pinned_pair *t, size_t from, size_t bytes,
                               pen_error *why)
{
    return move(set, t, (char *)t->device + from, (const char *)t->host + from, bytes,
                TRAFFIC_VALUE, set->up, why);
}

pen_status pinned_pair_made(pinned_pair_set *set, pinned_pair *t, device_stream stream,
                            pen_error *why)
{
    t->is_old               = false;
    t->is_host_old          = true;
    t->is_made              = true;
    const pen_status status = pinned_pair_record(set, t->moved, stream, why);
    return status == PEN_OK ? pinned_pair_note_use(set, t, stream, why) : status;
}

pen_status pinned_pair_see(pinned_pair_set *set, pinned_pair *t, device_stream stream,
                           pen_error *why)
{
    if (!t->is_made && is_still(set, t)) return PEN_OK;
    return pinned_pair_stream_waits(set, stream, t->moved, why);
}
