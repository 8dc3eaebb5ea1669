/* driver.h - what the files of the played CUDA driver share.
 *
 * DESIGN
 * The library libcuda.so.1 of this folder has the driver's functions that Penstock looks up, played on the host, so
 * that what calls them runs on machines without a GPU.  Found by LD_LIBRARY_PATH only.
 * Memory     of the devices lies in one range of addresses, behind it a file in memory that other processes can open.
 *            The host may not touch it except where the device works right now: a host that does dies of SIGSEGV, as
 *            with a GPU.  New memory is full of ones (NaN), addresses are used again late, freed ones are nobody's.
 * Work       is asynchronous: streams are queues, and one thread plays all devices of the process.  It takes the first
 *            of some stream that may go on, drawn at random, and dawdles now and then: what nobody waits for comes late.
 * Strict     where CUDA leaves it open: calls without a context fail, and so do handles that are gone; a kernel of ours
 *            that would touch other memory than the device's or pinned memory fails as on the device; two that pin the
 *            same page do not both get it.
 * Settings   CUDA_ON_HOST_SEED (1), CUDA_ON_HOST_DEVICES (1), CUDA_ON_HOST_MIB of each device (2048);
 *            CUDA_VISIBLE_DEVICES as the real driver reads it, numbers only.
 * What it cannot show: machine code and PTX, the device's memory model, two kernels at the same time in one process,
 * links between devices, speed.
 */
#ifndef TESTS_GPU_DRIVER_DRIVER_H
#define TESTS_GPU_DRIVER_DRIVER_H

#include <atomic>
#include <condition_variable>
#include <cuda.h>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <sys/types.h>
#include <vector>

#define API extern "C" __attribute__((visibility("default"))) CUresult CUDAAPI

enum { DEVICES_MAX = 16, PAGE = 4096 };

typedef std::unique_lock<std::mutex> guard;

/* ---- contexts.cpp -------------------------------------------------------------------------------- */

/* Every device has its primary context and no other. */
struct CUctx_st {
    int device;
    uint32_t peers; /* a bit for each device whose memory its kernels may touch */
    bool is_retained;
    CUstream legacy;
};

/* What is of the whole process; all of it under `lock`. */
struct driver_state {
    std::mutex lock;
    std::condition_variable changed; /* something was enqueued, done, or is waited for */
    CUctx_st context[DEVICES_MAX];
    int devices, physical[DEVICES_MAX];
    size_t device_bytes;
    CUresult lost; /* what ended all work; nothing goes on after it */
    std::list<CUstream> streams;
};
extern driver_state &driver;

CUcontext context_now();

/* What each call asks first; `with`: that the calling thread has a context. */
CUresult usable(bool with);

/* ---- memory.cpp ------------------------------------------------------------------------------------ */
enum kind_of_memory { OWN, IMPORTED, ALLOCATED_HOST, REGISTERED_HOST };

struct block {
    uintptr_t at;
    size_t bytes;
    kind_of_memory kind;
    int device;
    uint64_t id, offset, file; /* offset in that file */
    int opened;
};

CUresult memory_start();

/* Where all of [at, at + bytes) lies; NULL: not in one block of a device, nor of pinned host memory. */
const block *memory_find(uintptr_t at, size_t bytes);
bool memory_is_of_device(uintptr_t at); /* whether anything was allocated there or not */

struct extent {
    uintptr_t at;
    size_t bytes;
};
typedef std::vector<extent> extents;

/* For as long as the device works on it; all that there is, for work that does not say what it touches. */
const extents everything = {{0, SIZE_MAX}};
void memory_open(const extents &touched);
void memory_close(const extents &touched);

/* ---- streams.cpp ----------------------------------------------------------------------------------- */
struct work {
    uint64_t number; /* of all that was enqueued, in that order */
    std::function<bool()> is_ready;
    std::function<void()> run;
    extents touched;
};

struct CUstream_st {
    CUcontext context;
    bool is_blocking; /* waits for the legacy stream, and that for it */
    bool is_destroyed;
    std::deque<work> queue;
};

void streams_start(unsigned seed);

/* What a handle means here: 0 and 1 are the legacy stream of the current context. */
CUresult stream_of(CUstream handle, CUstream *stream);

/* With the lock held. */
void enqueue(CUstream stream, extents touched, std::function<void()> run,
             std::function<bool()> is_ready = {});
CUresult drain(guard &held, CUstream stream); /* what is in it now */
CUresult drain_all(guard &held,
                   CUcontext context); /* what is in any stream of it now; NULL: of all */

#endif
