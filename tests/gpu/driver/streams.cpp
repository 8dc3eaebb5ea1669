/* streams.cpp - the work of the fake device: streams, copies, host functions, and the thread that
 * runs them. */
#include "driver.h"

#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>
#include <unistd.h>
#include <utility>

static const auto POLL = std::chrono::microseconds(20); /* for work of another process */

static std::mt19937 chance;

int next_stream()
{
    static std::atomic<int> made;
    return made++;
}

std::string name_of(CUstream stream)
{
    return "stream" + std::to_string(stream->number);
}

static std::chrono::milliseconds lateness;
static uint64_t enqueued;
/* As CUDA_DEVICE_MAX_CONNECTIONS=1: the device takes all streams' work in the order it was enqueued. */
static const bool has_one_queue = getenv("CUDA_ON_HOST_ONE_QUEUE") != nullptr;
static int waiting; /* threads that wait for the device: no delays then */

/* ---- the device ------------------------------------------------------------------------------------ */

/* Between the legacy stream and a blocking stream, the work enqueued first runs first. */
static bool may_go_on(CUstream s)
{
    if (s->queue.empty()) return false;
    const work &next = s->queue.front();
    if (s->is_late && timer::now() < next.not_before) return false;
    const CUstream legacy = s->context->legacy;
    if (s->is_blocking && !legacy->queue.empty() && legacy->queue.front().number < next.number)
        return false;
    for (CUstream other : driver.streams)
        if (s == legacy && other->context == s->context && other->is_blocking &&
            !other->queue.empty() && other->queue.front().number < next.number)
            return false;
    return !next.is_ready || next.is_ready();
}

static CUstream choose(bool *is_anything_left)
{
    std::vector<CUstream> able;
    *is_anything_left = false;
    uint64_t first    = UINT64_MAX;
    for (CUstream s : driver.streams)
        if (!s->queue.empty() && s->queue.front().number < first) first = s->queue.front().number;
    *is_anything_left = first != UINT64_MAX;
    for (CUstream s : driver.streams)
        if (may_go_on(s) && (!has_one_queue || s->queue.front().number == first)) able.push_back(s);
    return able.empty() ? nullptr : able[chance() % able.size()];
}

static void dawdle(guard &held)
{
    if (chance() % 16 != 0) return;
    const auto time = std::chrono::microseconds(chance() % 200);
    memory_close();
    driver.changed.wait_for(held, time, [] { return waiting > 0; });
}

void call_from_device(const std::function<void()> &run); /* contexts.cpp */

static void work_off(guard &held, CUstream s)
{
    const work &next = s->queue.front(); /* stays valid when more is enqueued */
    memory_open(next.touched);
    held.unlock();
    if (next.run) call_from_device(next.run);
    held.lock();
    s->queue.pop_front();
    if (s->is_destroyed && s->queue.empty()) {
        driver.streams.remove(s);
        delete s;
    }
    driver.changed.notify_all();
}

static void play()
{
    guard held(driver.lock);
    for (;;) {
        bool is_anything_left = false;
        if (choose(&is_anything_left) == nullptr) {
            memory_close();
            if (is_anything_left)
                driver.changed.wait_for(held, POLL);
            else
                driver.changed.wait(held);
            continue;
        }
        dawdle(held);
        CUstream s = choose(&is_anything_left); /* there may be more by now */
        if (s != nullptr) work_off(held, s);
    }
}

/* Of the ranks of a job (else of processes), every other one is later than the rest: which, the seed decides. */
void streams_start(unsigned seed, long late_ms)
{
    const char *rank    = getenv("RANK");
    const bool is_later = (seed + (rank != nullptr ? atoi(rank) : getpid())) % 2 == 0;
    lateness            = std::chrono::milliseconds(is_later ? 3 * late_ms : late_ms);
    chance.seed(seed);
    std::thread(play).detach();
}

void enqueue(CUstream stream, extents touched, std::function<void()> run,
             std::function<bool()> is_ready)
{
    stream->queue.push_back({++enqueued, timer::now() + lateness, std::move(is_ready),
                             std::move(run), std::move(touched)});
    driver.changed.notify_all();
}

/* For the played NCCL, whose kernels wait for other processes while other streams of this one go on. */
extern "C" __attribute__((visibility("default"))) CUresult
played_enqueue(CUstream handle, const extents &touched, std::function<void()> run,
               std::function<bool()> is_ready)
{
    CUresult result = usable(false);
    guard held(driver.lock);
    CUstream s;
    if (result == CUDA_SUCCESS) result = stream_of(handle, &s);
    if (result == CUDA_SUCCESS) enqueue(s, touched, std::move(run), std::move(is_ready));
    return result;
}

/* ---- waiting for it ---------------------------------------------------------------------------------- */

static CUresult drain_until(guard &held, const std::function<bool(CUstream)> &counts)
{
    const uint64_t last = enqueued;
    waiting++;
    driver.changed.notify_all();
    driver.changed.wait(held, [&] {
        for (CUstream s : driver.streams)
            if (counts(s) && !s->queue.empty() && s->queue.front().number <= last) return false;
        return true;
    });
    waiting--;
    return driver.lost;
}

CUresult drain_all(guard &held, CUcontext context)
{
    return drain_until(held,
                       [&](CUstream s) { return context == nullptr || s->context == context; });
}

/* Enqueues empty work, so that the legacy stream also waits for earlier work in the blocking
 * streams. */
CUresult drain(guard &held, CUstream stream)
{
    enqueue(stream, {}, {});
    return drain_until(held, [&](CUstream s) { return s == stream; });
}

static bool is_any_captured()
{
    for (CUstream s : driver.streams)
        if (s->is_captured) return true;
    return false;
}

static CUresult find_stream(CUstream handle, CUstream *stream)
{
    *stream = handle;
    if (handle == CU_STREAM_PER_THREAD) return CUDA_ERROR_NOT_SUPPORTED;
    if (handle == nullptr || handle == CU_STREAM_LEGACY) {
        if (context_now() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
        *stream = context_now()->legacy;
        return CUDA_SUCCESS;
    }
    for (CUstream s : driver.streams)
        if (s == handle && !s->is_destroyed) return CUDA_SUCCESS;
    return CUDA_ERROR_INVALID_HANDLE;
}

static thread_local CUstreamCaptureMode mode_now = CU_STREAM_CAPTURE_MODE_GLOBAL;

API cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    std::swap(*mode, mode_now);
    return CUDA_SUCCESS;
}

bool breaks_capture()
{
    guard held(driver.lock);
    bool breaks = false;
    for (CUstream s : driver.streams) {
        const bool is_own = s->capturer == &mode_now;
        const bool holds  = mode_now == CU_STREAM_CAPTURE_MODE_GLOBAL
                                ? is_own || s->mode == CU_STREAM_CAPTURE_MODE_GLOBAL
                                : mode_now == CU_STREAM_CAPTURE_MODE_THREAD_LOCAL && is_own;
        if (!s->is_captured || s->mode == CU_STREAM_CAPTURE_MODE_RELAXED || !holds) continue;
        s->is_spoiled = breaks = true;
    }
    return breaks;
}

/* Strict: captured streams take no work at all. */
CUresult stream_of(CUstream handle, CUstream *stream)
{
    const CUresult result = find_stream(handle, stream);
    if (result != CUDA_SUCCESS) return result;
    if ((*stream)->is_captured) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    return *stream == (*stream)->context->legacy && is_any_captured()
               ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
               : CUDA_SUCCESS;
}

/* ---- streams --------------------------------------------------------------------------------------- */

API cuStreamCreate(CUstream *stream, unsigned flags)
{
    const CUresult result = usable(true);
    if (result != CUDA_SUCCESS) return result;
    if (flags != CU_STREAM_DEFAULT && flags != CU_STREAM_NON_BLOCKING)
        return CUDA_ERROR_INVALID_VALUE;
    guard held(driver.lock);
    *stream = new CUstream_st{context_now(), flags == CU_STREAM_DEFAULT, false, false, {}};
    driver.streams.push_back(*stream);
    return CUDA_SUCCESS;
}

/* Calls work(stream) with the lock held; `find` turns the handle into the stream. */
template <typename F>
static CUresult with_stream(bool with, CUresult (*find)(CUstream, CUstream *), CUstream handle,
                            F work)
{
    CUresult result = usable(with);
    guard held(driver.lock);
    CUstream s;
    if (result == CUDA_SUCCESS) result = find(handle, &s);
    return result == CUDA_SUCCESS ? work(s) : result;
}

API cuStreamBeginCapture(CUstream handle, CUstreamCaptureMode mode)
{
    return with_stream(true, stream_of, handle, [=](CUstream s) {
        if (s == s->context->legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        s->is_captured = true;
        s->mode        = mode;
        s->capturer    = &mode_now;
        return CUDA_SUCCESS;
    });
}

API cuStreamEndCapture(CUstream handle, CUgraph *graph)
{
    return with_stream(true, find_stream, handle, [=](CUstream s) {
        if (!s->is_captured) return CUDA_ERROR_ILLEGAL_STATE;
        s->is_captured = false;
        *graph         = nullptr;
        return std::exchange(s->is_spoiled, false) ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
                                                   : CUDA_SUCCESS;
    });
}

API cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus *status)
{
    return with_stream(false, find_stream, handle, [=](CUstream s) {
        if (s == s->context->legacy && is_any_captured()) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
        *status = s->is_captured ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
        return CUDA_SUCCESS;
    });
}

/* Enqueued work still runs. */
API cuStreamDestroy(CUstream handle)
{
    return with_stream(false, stream_of, handle, [](CUstream s) {
        if (s == s->context->legacy) return CUDA_ERROR_INVALID_HANDLE;
        s->is_destroyed = true;
        enqueue(s, {}, {});
        return CUDA_SUCCESS;
    });
}

API cuStreamGetCtx(CUstream handle, CUcontext *context)
{
    return with_stream(false, stream_of, handle, [=](CUstream s) {
        *context = s->context;
        return CUDA_SUCCESS;
    });
}

API cuStreamSynchronize(CUstream handle)
{
    COUNT_SYNC();
    CUresult result        = usable(false);
    const site_order order = site_orders(__func__);
    guard held(driver.lock);
    CUstream s;
    if (result == CUDA_SUCCESS) result = stream_of(handle, &s);
    if (result != CUDA_SUCCESS) return result;
    s->is_late = s->is_late || order != SITE_AS_IT_COMES;
    return order != SITE_IS_DROPPED ? drain(held, s) : CUDA_SUCCESS;
}

API cuStreamQuery(CUstream handle)
{
    COUNT_POLL();
    CUresult result = usable(false);
    guard held(driver.lock);
    CUstream s;
    if (result == CUDA_SUCCESS) result = stream_of(handle, &s);
    return result == CUDA_SUCCESS && !s->queue.empty() ? CUDA_ERROR_NOT_READY : result;
}

/* ---- work ------------------------------------------------------------------------------------------ */

API cuLaunchHostFunc(CUstream handle, CUhostFn function, void *user)
{
    count(CALLER, "host_function");
    return played_enqueue(handle, {}, [=] { function(user); }, {});
}

/* The kernels of tests (cuda_on_host_driver.cpp) are host functions: they may touch all device memory. */
API played_kernel(CUstream handle, CUhostFn function, void *user)
{
    return played_enqueue(handle, everything, [=] { function(user); }, {});
}

/* CUDA_ERROR_INVALID_VALUE: a device address without that many bytes allocated. */
static CUresult look_at(uintptr_t at, size_t bytes, bool *is_pageable)
{
    const bool is_known = memory_find(at, bytes) != nullptr;
    *is_pageable        = *is_pageable || !is_known;
    return is_known || !memory_is_of_device(at) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static const char *direction(CUdeviceptr to, CUdeviceptr from)
{
    const int to_device = memory_device(to), from_device = memory_device(from);
    if (to_device < 0 || from_device < 0)
        return to_device >= 0 ? "up" : from_device >= 0 ? "down" : "host";
    return to_device == from_device ? "within" : "between";
}

/* Pageable host memory has been read or written when the call returns; no other memory is
 * guaranteed to be. */
static CUresult copy(const void *caller, const char *function, CUdeviceptr to, CUdeviceptr from,
                     size_t bytes, CUstream handle, bool waits)
{
    CUresult result = usable(true);
    guard held(driver.lock);
    CUstream s;
    if (result == CUDA_SUCCESS) result = stream_of(handle, &s);
    if (result != CUDA_SUCCESS || bytes == 0) return result;
    if (look_at(to, bytes, &waits) != CUDA_SUCCESS || look_at(from, bytes, &waits) != CUDA_SUCCESS)
        return CUDA_ERROR_INVALID_VALUE;
    count_copy(caller, direction(to, from), bytes);
    if (waits) count(caller, "sync." + api_name(function));
    enqueue(s, {{to, bytes}, {from, bytes}},
            [=] { memcpy((void *)to, (const void *)from, bytes); });
    return waits ? drain(held, s) : CUDA_SUCCESS;
}

API cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    return copy(CALLER, __func__, to, from, bytes, stream, false);
}

API cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    return copy(CALLER, __func__, to, from, bytes, stream, false);
}

API cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    return copy(CALLER, __func__, to, from, bytes, nullptr, true);
}

API cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t bytes, CUstream handle)
{
    CUresult result = usable(true);
    guard held(driver.lock);
    CUstream s;
    if (result == CUDA_SUCCESS) result = stream_of(handle, &s);
    if (result != CUDA_SUCCESS || bytes == 0) return result;
    if (memory_find(to, bytes) == nullptr) return CUDA_ERROR_INVALID_VALUE;
    count(CALLER, "memset");
    enqueue(s, {{to, bytes}}, [=] { memset((void *)to, value, bytes); });
    return CUDA_SUCCESS;
}

API cuMemsetD8(CUdeviceptr to, unsigned char value, size_t bytes)
{
    return cuMemsetD8Async(to, value, bytes, nullptr);
}
