/* device_sync.c - three ways for streams of several members to wait for each other.
 *
 * hostflag  The host of each member polls an event of its own stream, then sets a flag in shared memory.  Nothing on a
 *           device ever waits for another member, so this works for any placement of members.
 * stream    Streams wait for events of the others, shared between processes.  Waiting for an event that is not recorded
 *           yet would end too early or never, so each host first publishes in shared memory that it has recorded.
 * spin      Kernels set and read flags in device memory.  A waiting kernel occupies its device, so no two members may
 *           share one.  The wait ends at a deadline, or when the host aborts it.  It is enqueued when all members have
 *           enqueued their signals: so it waits for work that is on its way, in whatever order a host enqueues the
 *           calls of several groups, and also where one queue of the device holds several streams.
 */
#include "worker/collective/device/device_internal.h"

#include "common/base/why.h"
#include <string.h>

static void publish(device_team *team, uint64_t step)
{
    atomic_store_explicit(&team->slot[team->rank]->step, step, memory_order_release);
    device_ring(team);
}

static bool all_published(const device_team *team, uint64_t step)
{
    for (int i = 0; i < team->size; i++)
        if (atomic_load_explicit(&team->slot[i]->step, memory_order_acquire) < step) return false;
    return true;
}

/* ---- hostflag -------------------------------------------------------------------------------------- */

static pen_status hostflag_signal(device_team *team, uint64_t step, device_stream stream,
                                  pen_error *why)
{
    team->is_pending = true;
    return team->ops->event_record(team->own_event[step % 2], stream, why);
}

static pen_status hostflag_passed(device_team *team, uint64_t step, device_stream stream,
                                  pen_error *why)
{
    (void)stream;
    if (team->is_pending) {
        pen_status status = team->ops->event_done(team->own_event[step % 2], why);
        if (status != PEN_OK) return status;
        team->is_pending = false;
        publish(team, step);
    }
    return all_published(team, step) ? PEN_OK : PEN_AGAIN;
}

static const device_sync device_sync_hostflag = {
    .name   = "hostflag",
    .doc    = "The host polls events and tells the others; no kernel waits.",
    .signal = hostflag_signal,
    .passed = hostflag_passed,
};

/* ---- stream ---------------------------------------------------------------------------------------- */

static pen_status stream_signal(device_team *team, uint64_t step, device_stream stream,
                                pen_error *why)
{
    pen_status status = team->ops->event_record(team->own_event[step % 2], stream, why);
    if (status == PEN_OK) publish(team, step);
    return status;
}

static pen_status stream_passed(device_team *team, uint64_t step, device_stream stream,
                                pen_error *why)
{
    pen_status status = PEN_OK;
    if (!all_published(team, step)) return PEN_AGAIN;
    for (int i = 0; i < team->size && status == PEN_OK; i++)
        if (i != team->rank)
            status = team->ops->stream_wait(stream, team->events[2 * i + (int)(step % 2)], why);
    return status;
}

static const device_sync device_sync_stream = {
    .name         = "stream",
    .doc          = "Streams wait for events of the other processes.",
    .needs_events = true,
    .signal       = stream_signal,
    .passed       = stream_passed,
};

/* ---- spin ------------------------------------------------------------------------------------------ */

static pen_status spin_signal(device_team *team, uint64_t step, device_stream stream,
                              pen_error *why)
{
    void *flags[DEVICE_ARRAYS_MAX];
    for (int i = 0; i < team->size; i++)
        flags[i] = team->pools[i] + (size_t)team->rank * DEVICE_FLAG_BYTES;
    pen_status status = team->ops->flag_set(flags, team->size, step, stream, why);
    if (status == PEN_OK) publish(team, step);
    return status;
}

static pen_status spin_passed(device_team *team, uint64_t step, device_stream stream,
                              pen_error *why)
{
    if (!all_published(team, step)) return PEN_AGAIN;
    const device_flag_wait wait = {.flags      = team->pool,
                                   .abort      = &team->stop->abort,
                                   .result     = &team->stop->result,
                                   .value      = step,
                                   .timeout_ns = team->options.spin_ns,
                                   .n          = team->size};
    return team->ops->flag_wait(&wait, stream, why);
}

static const device_sync device_sync_spin = {
    .name             = "spin",
    .doc              = "Kernels wait for flags in device memory; needs a device for each member.",
    .needs_own_device = true,
    .has_waits        = true,
    .signal           = spin_signal,
    .passed           = spin_passed,
};

/* ---- choice ---------------------------------------------------------------------------------------- */

const device_sync *const device_sync_all[] = {&device_sync_hostflag, &device_sync_stream,
                                              &device_sync_spin, NULL};

static bool find_shared(const uint8_t (*uuid)[16], int size, int *first, int *second)
{
    for (*first = 0; *first < size; ++*first)
        for (*second = *first + 1; *second < size; ++*second)
            if (memcmp(uuid[*first], uuid[*second], sizeof *uuid) == 0) return true;
    return false;
}

pen_status device_sync_choose(device_sync_choice choice, const uint8_t (*uuid)[16],
                              const int *ranks, int size, const device_sync **sync, pen_error *why)
{
    int first = 0, second = 0;
    const bool is_shared = find_shared(uuid, size, &first, &second);
    if (choice == DEVICE_SYNC_AUTO || choice == DEVICE_SYNC_NCCL)
        choice =
            is_shared ? DEVICE_SYNC_HOSTFLAG : DEVICE_SYNC_SPIN; /* needs no events of others */
    const device_sync *chosen = device_sync_all[choice - DEVICE_SYNC_HOSTFLAG];
    if (is_shared && chosen->needs_own_device)
        return why_set(
            why, PEN_UNSUPPORTED,
            "device_backend=%s needs a device for each member, but ranks %d and %d share "
            "one; use device_backend=auto",
            chosen->name, ranks[first], ranks[second]);
    *sync = chosen;
    return PEN_OK;
}

/* One-shot saves the second barrier and costs traffic.  On links, two-shot moves 2(n-1)/n S instead of (n-1) S.  In the
 * memory of one device it moves 2nS instead of n(n+1)S, and the copies to the pools add 2nS. */
uint64_t device_one_shot_bytes(double barrier_ns, double bandwidth, int size, bool is_one_device)
{
    const double n    = size;
    const double more = is_one_device ? n * (n + 1) : (n - 1) * (n - 2) / n;
    if (!(barrier_ns > 0) || !(bandwidth > 0)) return 4096;
    if (more <= 0) return DEVICE_POOL_BYTES;
    const double bytes = barrier_ns * bandwidth / more;
    return bytes < 4096 ? 4096 : bytes < DEVICE_POOL_BYTES ? (uint64_t)bytes : DEVICE_POOL_BYTES;
}
