/* driver.h - shared by the files of the fake CUDA driver.
 *
 * DESIGN
 * The library libcuda.so.1 of this folder implements on the host the driver functions that Penstock
 * looks up, so that its callers run on machines without a GPU. Found by LD_LIBRARY_PATH only.
 * Memory     of all devices is one range of addresses, backed by a file that other processes can
 *            open. The host may touch it only where the device is working at that moment; else it
 *            dies of SIGSEGV, as with a GPU. New memory is all ones (NaN); freed addresses are
 *            reused late.
 * Work       is asynchronous: streams are queues, and one thread runs all devices of the process.
 *            It takes the first item of a random stream that can proceed, and sometimes delays:
 *            work that nothing waits for is late.
 * Strict     where CUDA leaves it open: calls without a context or on stale handles fail; a kernel
 *            that would touch anything but device or pinned memory fails as on the device; a page
 *            cannot be pinned twice.
 *            A capture in mode GLOBAL forbids waits, queries and allocations to threads in that
 *            mode; memory of another process cannot be mapped over an older mapping (208).
 * Settings   ../README.md
 * It cannot show machine code and PTX, the device's memory model, two concurrent kernels in one
 * process, links between devices, speed.
 */
#ifndef TESTS_GPU_DRIVER_DRIVER_H
#define TESTS_GPU_DRIVER_DRIVER_H

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cuda.h>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <sys/types.h>
#include <vector>

#define API extern "C" __attribute__((visibility("default"))) CUresult CUDAAPI

enum { DEVICES_MAX = 16, PAGE = 4096 };

typedef std::unique_lock<std::mutex> guard;

/* ---- contexts.cpp -------------------------------------------------------------------------------- */

/* Of a device: its primary context, or one that cuCtxCreate_v2 made. */
struct CUctx_st {
    int device;
    uint32_t peers; /* a bit for each device whose memory its kernels may touch */
    bool is_retained;
    CUstream legacy;
};

/* State of the whole process, under `lock`. */
struct driver_state {
    std::mutex lock;
    std::condition_variable changed; /* work was enqueued or done, or is awaited */
    CUctx_st context[DEVICES_MAX];
    std::list<CUctx_st> made; /* by cuCtxCreate_v2 */
    int devices, physical[DEVICES_MAX];
    size_t device_bytes;
    CUresult lost; /* the error that ended all work */
    std::list<CUstream> streams;
};
extern driver_state &driver;

CUcontext context_now();

/* Each call checks this first; `with`: the calling thread must have a context. */
CUresult usable(bool with);

/* ---- counts.cpp -------------------------------------------------------------------------------------- */

/* Of an API function: the address in the code that called it. */
#define CALLER __builtin_return_address(0)

/* Counts under `name`, for the SDK or for the program. */
void count(const void *caller, const std::string &name, size_t n = 1);
void count_copy(const void *caller, const char *direction, size_t bytes);
/* A call that does not return before the device has done its work. */
#define COUNT_SYNC() COUNT_CALL("sync.")
/* A call that asks whether it has. */
#define COUNT_POLL() COUNT_CALL("poll.")
/* Neither is allowed during a capture that holds for the calling thread. */
#define COUNT_CALL(kind)                                                                           \
    do {                                                                                           \
        count(CALLER, kind + api_name(__func__));                                                  \
        if (breaks_capture()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;                        \
    } while (0)
std::string api_name(const char *function); /* without the version that cuda.h adds */

/* The file that an environment variable names, with the numbers of the process and of its namespace for %p; NULL: none. */
FILE *open_report(const char *variable);
void counts_report();

/* A line in the file CUDA_ON_HOST_LOG: what was enqueued, in the order of the calls. */
void log_work(const std::string &line);
std::string name_of(CUstream stream);

/* ---- failures.cpp ----------------------------------------------------------------------------------- */
CUresult failure_of(const char *call); /* what a test wants this call to return */

/* ---- sites.cpp --------------------------------------------------------------------------------------- */
enum site_order {
    SITE_AS_IT_COMES,
    SITE_IS_LATE,   /* what it waits for shall come late */
    SITE_IS_DROPPED /* the same, and it does not wait */
};

/* Of the place that called the API function `call`, which waits, or asks whether work is done. */
site_order site_orders(const char *call);
bool site_drops_flags(); /* a kernel's wait for flags is left out: who sets them is late */
void sites_report();

/* ---- memory.cpp ------------------------------------------------------------------------------------ */
enum kind_of_memory { OWN, IMPORTED, ALLOCATED_HOST, REGISTERED_HOST };

struct block {
    uintptr_t at;
    size_t bytes;
    kind_of_memory kind;
    int device;
    uint64_t id, offset, file; /* offset in that file */
    int opened;
    uint64_t owner = 0;     /* IMPORTED: id in its process */
    int pid = 0, from = -1; /* IMPORTED: that process, and its file */
};

CUresult memory_start();

/* The block that contains all of [at, at + bytes); NULL: not in one block of a device or of pinned
 * host memory. */
const block *memory_find(uintptr_t at, size_t bytes);
/* A word of this process's devices, or of pinned memory, as a kernel sees it. */
uint64_t memory_peek(uintptr_t at);
bool memory_is_of_device(uintptr_t at); /* allocated or not */
int memory_device(uintptr_t at);        /* whose memory this is; -1: the host's */

struct extent {
    uintptr_t at;
    size_t bytes;
    bool operator==(const extent &e) const
    {
        return at == e.at && bytes == e.bytes;
    }
};
typedef std::vector<extent> extents;

/* All memory, for work that does not declare what it touches. */
const extents everything = {{0, SIZE_MAX}};
/* The host cannot touch what is not open. Closes what is, unless it is the same. */
void memory_open(const extents &touched);
void memory_close();

/* ---- streams.cpp ----------------------------------------------------------------------------------- */
typedef std::chrono::steady_clock timer;

struct work {
    uint64_t number; /* position among all enqueued work */
    timer::time_point not_before;
    std::function<bool()> is_ready;
    std::function<void()> run;
    extents touched;
};

int next_stream(); /* they are numbered as they are made */

struct CUstream_st {
    CUcontext context;
    bool is_blocking; /* synchronised with the legacy stream */
    bool is_destroyed;
    bool is_late; /* its work begins a while after it was enqueued */
    std::deque<work> queue;
    bool is_captured         = false; /* work is refused: the SDK must have asked before */
    bool is_spoiled          = false; /* a forbidden call has ended the capture */
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    const void *capturer     = nullptr; /* of the thread that began it */
    int number               = next_stream();
};

/* Whether a capture forbids a call to this thread; the capture is lost then. */
bool breaks_capture();

void streams_start(unsigned seed, long late_ms);

/* Handles 0 and 1 are the legacy stream of the current context. */
CUresult stream_of(CUstream handle, CUstream *stream);

/* With the lock held. */
void enqueue(CUstream stream, extents touched, std::function<void()> run,
             std::function<bool()> is_ready = {});
CUresult drain(guard &held, CUstream stream); /* the work now in it */
CUresult drain_all(guard &held,
                   CUcontext context); /* the work now in its streams; NULL: of all contexts */

#endif
