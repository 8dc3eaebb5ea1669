/* device_cpu.c - host memory as a device; enqueued work is done at once.
 *
 * It is the reference for the CUDA device and stands in for it where there is none: tests run all code above device.h
 * on it.  So events can be made slow (device_cpu_set_event_polls()), and each device number has its own uuid.
 */
#include "common/compute/device/device_cpu.h"
#include "common/compute/device/device_test.h"

#include "common/base/why.h"
#include "common/compute/simd/simd.h"
#include "common/system/segment.h"
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ALIGNMENT = 256 };

typedef struct { /* lies in device_ref.handle */
    segment_ref segment;
} cpu_handle;

_Static_assert(sizeof(cpu_handle) <= DEVICE_HANDLE_BYTES, "a segment_ref fits a handle");

struct device_event {
    atomic_int polls; /* polls left before the event completes */
};

static atomic_int event_polls;

void device_cpu_set_event_polls(int polls)
{
    atomic_store(&event_polls, polls);
}

static bool cpu_available(char *note, size_t note_size)
{
    snprintf(note, note_size, "%ld cores", sysconf(_SC_NPROCESSORS_ONLN));
    return true;
}

static bool cpu_owns(const void *pointer)
{
    (void)pointer;
    return true;
}

static pen_status cpu_enter(int device, pen_error *why)
{
    (void)device, (void)why;
    return PEN_OK;
}

static void cpu_leave(void) {}

/* ---- memory -------------------------------------------------------------------------------------- */

/* Segments are aligned to 64 bytes: the segment's start lies before the data, and is recorded just before it. */
static void *cpu_alloc(size_t bytes, int device, pen_error *why)
{
    (void)device;
    if (bytes > SIZE_MAX - 2 * ALIGNMENT) {
        why_set(why, PEN_NO_MEMORY, "cannot allocate %zu bytes: there is no such amount", bytes);
        return NULL;
    }
    char *segment = segment_alloc(bytes + 2 * ALIGNMENT, why);
    if (segment == NULL) return NULL;
    char *data = segment + ALIGNMENT + (ALIGNMENT - (uintptr_t)segment % ALIGNMENT) % ALIGNMENT;
    memcpy(data - sizeof segment, &segment, sizeof segment);
    return data;
}

static void cpu_free(void *data)
{
    char *segment = NULL;
    if (data == NULL) return;
    memcpy(&segment, (char *)data - sizeof segment, sizeof segment);
    segment_free(segment);
}

static pen_status cpu_share(const void *data, size_t bytes, device_ref *ref, pen_error *why)
{
    cpu_handle handle = {0};
    if (!segment_find(data, bytes, &handle.segment))
        return why_set(why, PEN_UNSUPPORTED,
                       "this memory cannot be shared with other processes; use pen_alloc()");
    *ref = (device_ref){.id      = handle.segment.id,
                        .offset  = handle.segment.offset,
                        .process = device_process(),
                        .base    = (uintptr_t)data - handle.segment.offset,
                        .bytes   = handle.segment.size,
                        .pid     = getpid(),
                        .device  = -1};
    memcpy(ref->handle, &handle, sizeof handle);
    return PEN_OK;
}

static pen_status cpu_map(const device_ref *ref, void **data, pen_error *why)
{
    cpu_handle handle;
    if (ref->process == device_process()) {
        *data = (void *)(uintptr_t)(ref->base + ref->offset);
        return PEN_OK;
    }
    memcpy(&handle, ref->handle, sizeof handle);
    if (handle.segment.pid != ref->pid)
        return why_set(why, PEN_CORRUPT, "process %d shares memory of another process", ref->pid);
    if (ref->offset >= handle.segment.size)
        return why_set(why, PEN_CORRUPT, "process %d shares memory beyond the end of its segment",
                       ref->pid);
    handle.segment.offset = ref->offset;
    return segment_map(&handle.segment, handle.segment.size - ref->offset, data, why);
}

static void cpu_unmap(const device_ref *ref)
{
    cpu_handle handle;
    memcpy(&handle, ref->handle, sizeof handle);
    if (ref->process != device_process()) segment_unmap(&handle.segment);
}

static size_t cpu_room(const device_ref *ref)
{
    cpu_handle handle;
    memcpy(&handle, ref->handle, sizeof handle);
    return ref->process == device_process() ? SIZE_MAX : handle.segment.size;
}

static void *cpu_host_alloc(size_t bytes, pen_error *why)
{
    const size_t size = (bytes + ALIGNMENT) / ALIGNMENT * ALIGNMENT;
    void *data        = aligned_alloc(ALIGNMENT, size);
    if (data == NULL) {
        why_set(why, PEN_NO_MEMORY, "cannot allocate %zu bytes of host memory", bytes);
        return NULL;
    }
    return memset(data, 0, size);
}

static pen_status cpu_pin(void *data, size_t bytes, pen_error *why)
{
    (void)data, (void)bytes, (void)why;
    return PEN_OK;
}

static void cpu_unpin(void *data)
{
    (void)data;
}

/* ---- work ---------------------------------------------------------------------------------------- */

static pen_status cpu_stream_new(int device, device_stream *stream, pen_error *why)
{
    (void)device, (void)why;
    *stream = NULL;
    return PEN_OK;
}

static void cpu_stream_free(device_stream stream)
{
    (void)stream;
}

static pen_status cpu_copy(void *to, const void *from, size_t bytes, device_stream stream,
                           pen_error *why)
{
    (void)stream, (void)why;
    if (to != from) copy_stream(to, from, bytes);
    return PEN_OK;
}

static pen_status cpu_reduce(const reduce_args *args, size_t begin, size_t count,
                             device_stream stream, pen_error *why)
{
    (void)stream;
    if (!reduce_is_legal(args->op, args->dtype))
        return why_set(why, PEN_INVALID_ARGUMENT, "there is no reduction %d of type %d", args->op,
                       args->dtype);
    reduce(args, begin, count);
    return PEN_OK;
}

static pen_status cpu_accumulate(float *sum, const void *in, pen_dtype dtype, size_t n,
                                 bool is_first, device_stream stream, pen_error *why)
{
    (void)stream, (void)why;
    if (is_first)
        simd()->decode(sum, in, dtype, n);
    else
        simd()->fold_add(sum, sum, in, dtype, 1, n);
    return PEN_OK;
}

static pen_status cpu_narrow(void *to, const float *sum, pen_dtype dtype, size_t n,
                             device_stream stream, pen_error *why)
{
    (void)stream, (void)why;
    simd()->encode(to, sum, dtype, n);
    return PEN_OK;
}

static pen_status cpu_zero(void *to, size_t bytes, device_stream stream, pen_error *why)
{
    (void)stream, (void)why;
    memset(to, 0, bytes);
    return PEN_OK;
}

static device_event *cpu_event_new(void)
{
    return calloc(1, sizeof(device_event));
}

static void cpu_event_free(device_event *event)
{
    free(event);
}

static pen_status cpu_event_record(device_event *event, device_stream stream, pen_error *why)
{
    (void)stream, (void)why;
    atomic_store(&event->polls, atomic_load(&event_polls));
    return PEN_OK;
}

static pen_status cpu_event_done(device_event *event, pen_error *why)
{
    (void)why;
    if (atomic_load(&event->polls) == 0) return PEN_OK;
    atomic_fetch_sub(&event->polls, 1);
    return PEN_AGAIN;
}

/* Recorded work is already done: nothing to wait for. */
static pen_status cpu_stream_wait(device_stream stream, device_event *event, pen_error *why)
{
    (void)stream, (void)event, (void)why;
    return PEN_OK;
}

static pen_status cpu_event_share(device_event *event, device_event_ref *ref, pen_error *why)
{
    (void)why;
    *ref = (device_event_ref){.process = device_process(), .event = (uintptr_t)event};
    return PEN_OK;
}

static device_event *cpu_event_map(const device_event_ref *ref, pen_error *why)
{
    (void)ref;
    device_event *event = cpu_event_new();
    if (event == NULL) why_set(why, PEN_NO_MEMORY, "no memory for an event");
    return event;
}

static pen_status cpu_flag_set(void *const *flags, int n, uint64_t value, device_stream stream,
                               pen_error *why)
{
    (void)stream, (void)why;
    for (int i = 0; i < n; i++)
        atomic_store_explicit((_Atomic uint64_t *)flags[i], value, memory_order_release);
    return PEN_OK;
}

static pen_status cpu_flag_wait(const device_flag_wait *wait, device_stream stream, pen_error *why)
{
    (void)stream, (void)why;
    if (*(volatile const uint64_t *)wait->abort != 0) *wait->result = DEVICE_FLAG_ABORTED;
    if (*wait->result != DEVICE_FLAG_CAME) return PEN_OK;
    for (int i = 0; i < wait->n; i++) {
        const _Atomic uint64_t *flag =
            (const _Atomic uint64_t *)((const char *)wait->flags + (size_t)i * DEVICE_FLAG_BYTES);
        if (atomic_load_explicit(flag, memory_order_acquire) < wait->value) return PEN_AGAIN;
    }
    return PEN_OK;
}

/* ---- identity --------------------------------------------------------------------------------------- */

/* One host is one device; a device number, which only tests give, makes another. */
static void cpu_uuid(int device, uint8_t out[16])
{
    char text[64] = "";
    int fd        = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t size  = fd < 0 ? 0 : read(fd, text, sizeof text - 1);
    if (fd >= 0) close(fd);
    memset(out, 0, 16);
    for (ssize_t i = 0; i < size; i++)
        out[i % 16] ^= (uint8_t)((unsigned char)text[i] * (i / 16 + 1));
    if (device >= 0) out[15] = (uint8_t)(out[15] + device + 1);
}

static int cpu_count(void)
{
    return 0;
}

static int cpu_current(void)
{
    return -1;
}

static int cpu_device(const void *pointer)
{
    (void)pointer;
    return -1;
}

const device_ops device_cpu = {
    .name         = "cpu",
    .doc          = "Host memory.",
    .available    = cpu_available,
    .owns         = cpu_owns,
    .enter        = cpu_enter,
    .leave        = cpu_leave,
    .alloc        = cpu_alloc,
    .free         = cpu_free,
    .share        = cpu_share,
    .map          = cpu_map,
    .unmap        = cpu_unmap,
    .room         = cpu_room,
    .host_alloc   = cpu_host_alloc,
    .host_free    = free,
    .pin          = cpu_pin,
    .unpin        = cpu_unpin,
    .stream_new   = cpu_stream_new,
    .stream_free  = cpu_stream_free,
    .copy         = cpu_copy,
    .reduce       = cpu_reduce,
    .accumulate   = cpu_accumulate,
    .narrow       = cpu_narrow,
    .zero         = cpu_zero,
    .weigh        = cpu_weigh,
    .norm         = cpu_norm,
    .decide       = cpu_decide,
    .update       = cpu_update,
    .roots        = cpu_roots,
    .widen        = cpu_widen,
    .event_new    = cpu_event_new,
    .event_free   = cpu_event_free,
    .event_record = cpu_event_record,
    .event_done   = cpu_event_done,
    .stream_wait  = cpu_stream_wait,
    .event_share  = cpu_event_share,
    .event_map    = cpu_event_map,
    .flag_set     = cpu_flag_set,
    .flag_wait    = cpu_flag_wait,
    .uuid         = cpu_uuid,
    .count        = cpu_count,
    .current      = cpu_current,
    .device       = cpu_device,
};
