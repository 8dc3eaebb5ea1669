/* streams.cpp - the work of the fake device: streams, copies, host functions, and the thread that
 * runs them. */
#include "driver.h"

#include <chrono>
#include <cstring>
#include <random>
#include <thread>

static const auto POLL = std::chrono::microseconds(20); /* for work of another process */

static std::mt19937 chance;
static uint64_t enqueued;
static int waiting; /* threads that wait for the device: no delays then */

/* ---- the device ------------------------------------------------------------------------------------ */

/* Between the legacy stream and a blocking stream, the work enqueued first runs first. */
static bool may_go_on(CUstream s)
{
    if (s->queue.empty()) return false;
    const work &next      = s->queue.front();
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
    for (CUstream s : driver.streams) {
        *is_anything_left = *is_anything_left || !s->queue.empty();
        if (may_go_on(s)) able.push_back(s);
    }
    return able.empty() ? nullptr : able[chance() % able.size()];
}

static void dawdle(guard &held)
{
    if (chance() % 16 != 0) return;
    const auto time = std::chrono::microseconds(chance() % 200);
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
    memory_close(next.touched);
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

void streams_start(unsigned seed)
{
    chance.seed(seed);
    std::thread(play).detach();
}

void enqueue(CUstream stream, extents touched, std::function<void()> run,
             std::function<bool()> is_ready)
{
    stream->queue.push_back({++enqueued, std::move(is_ready), std::move(run), std::move(touched)});
    driver.changed.notify_all();
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

CUresult stream_of(CUstream handle, CUstream *stream)
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

/* ---- streams --------------------------------------------------------------------------------------- */

API cuStreamCreate(CUstream *stream, unsigned flags)
{
    const CUresult result = usable(true);
    if (result != CUDA_SUCCESS) return result;
    if (flags != CU_STREAM_DEFAULT && flags != CU_STREAM_NON_BLOCKING)
        return CUDA_ERROR_INVALID_VALUE;
    guard held(driver.lock);
    *stream = new CUstream_st{context_now(), flags == CU_STREAM_DEFAULT, false, {}};
    driver.streams.push_back(*stream);
    return CUDA_SUCCESS;
}

/* Enqueued work still runs. */
API cuStreamDestroy(CUstream handle)
{
    CUresult result = usable(false);
    guard held(driver.lock);
    CUstream s;
    if (result == CUDA_SUCCESS) result = stream_of(handle, &s);
    if (result != CUDA_SUCCESS) return result;
    if (s == s->context->legacy) return CUDA_ERROR_INVALID_HANDLE;
    s->is_destroyed = true;
    enqueue(s, {}, {});
    return CUDA_SUCCESS;
}

API cuStreamGetCtx(CUstream handle, CUcontext *context)
{
    CUresult result = usable(false);
    guard held(driver.lock);
    CUstream s;
    if (result == CUDA_SUCCESS) result = stream_of(handle, &s);
    if (result == CUDA_SUCCESS) *context = s->context;
    return result;
}

API cuStreamSynchronize(CUstream handle)
{
    CUresult result = usable(false);
    guard held(driver.lock);
    CUstream s;
    if (result == CUDA_SUCCESS) result = stream_of(handle, &s);
    return result == CUDA_SUCCESS ? drain(held, s) : result;
}

API cuStreamQuery(CUstream handle)
{
    CUresult result = usable(false);
    guard held(driver.lock);
    CUstream s;
    if (result == CUDA_SUCCESS) result = stream_of(handle, &s);
    return result == CUDA_SUCCESS && !s->queue.empty() ? CUDA_ERROR_NOT_READY : result;
}

/* ---- work ------------------------------------------------------------------------------------------ */

/* Unlike on a GPU, it may touch device memory: the kernels of tests are host functions. */
API cuLaunchHostFunc(CUstream handle, CUhostFn function, void *user)
{
    CUresult result = usable(false);
    guard held(driver.lock);
    CUstream s;
    if (result == CUDA_SUCCESS) result = stream_of(handle, &s);
    if (result == CUDA_SUCCESS) enqueue(s, everything, [=] { function(user); });
    return result;
}

/* CUDA_ERROR_INVALID_VALUE: a device address without that many bytes allocated. */
static CUresult look_at(uintptr_t at, size_t bytes, bool *is_pageable)
{
    const bool is_known = memory_find(at, bytes) != nullptr;
    *is_pageable        = *is_pageable || !is_known;
    return is_known || !memory_is_of_device(at) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Pageable host memory has been read or written when the call returns; no other memory is
 * guaranteed to be. */
static CUresult copy(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream handle, bool waits)
{
    CUresult result = usable(true);
    guard held(driver.lock);
    CUstream s;
    if (result == CUDA_SUCCESS) result = stream_of(handle, &s);
    if (result != CUDA_SUCCESS || bytes == 0) return result;
    if (look_at(to, bytes, &waits) != CUDA_SUCCESS || look_at(from, bytes, &waits) != CUDA_SUCCESS)
        return CUDA_ERROR_INVALID_VALUE;
    enqueue(s, {{to, bytes}, {from, bytes}},
            [=] { memcpy((void *)to, (const void *)from, bytes); });
    return waits ? drain(held, s) : CUDA_SUCCESS;
}

API cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    return copy(to, from, bytes, stream, false);
}

API cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    return copy(to, from, bytes, stream, false);
}

API cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    return copy(to, from, bytes, nullptr, true);
}

API cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t bytes, CUstream handle)
{
    CUresult result = usable(true);
    guard held(driver.lock);
    CUstream s;
    if (result == CUDA_SUCCESS) result = stream_of(handle, &s);
    if (result != CUDA_SUCCESS || bytes == 0) return result;
    if (memory_find(to, bytes) == nullptr) return CUDA_ERROR_INVALID_VALUE;
    enqueue(s, {{to, bytes}}, [=] { memset((void *)to, value, bytes); });
    return CUDA_SUCCESS;
}

API cuMemsetD8(CUdeviceptr to, unsigned char value, size_t bytes)
{
    return cuMemsetD8Async(to, value, bytes, nullptr);
}
