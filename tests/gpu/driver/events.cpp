/* events.cpp - events of the fake driver, also shared between processes. */
#include "driver.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <set>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { RING = 64, SLOTS = 4096 };

/* Record n of an event is done when done[n % RING] >= n. A wait is for one record, even if more
 * follow. */
struct event_words {
    std::atomic<uint64_t> recorded, done[RING];
    std::atomic<bool> is_late; /* streams that record it are late from then on (sites.cpp) */
    bool is_done(uint64_t n) const
    {
        return n == 0 || done[n % RING].load() >= n;
    }
};

struct CUevent_st {
    CUcontext context;
    int slot; /* in the table that other processes map; -1: not shared */
    std::shared_ptr<event_words> words;
    CUstream recorded_in; /* the last time, in this process; may be gone */
    std::string recorder = "another process";
};

/* Whether this wait does not take place. The stream that recorded the event is late from now on; if that is one of
 * another process, from its next record. */
static bool leaves_out(site_order order, CUevent event)
{
    if (order == SITE_AS_IT_COMES) return false;
    if (event->recorded_in == nullptr) event->words->is_late = true;
    for (CUstream s : driver.streams)
        if (s == event->recorded_in) s->is_late = true;
    return order == SITE_IS_DROPPED;
}

static std::set<CUevent> &events = *new std::set<CUevent>();
static int table_file            = -1;
static event_words *table;
static std::atomic<bool> is_taken[SLOTS];

static bool open_table()
{
    if (table != nullptr) return true;
    table_file = memfd_create("events of the played driver", MFD_CLOEXEC);
    if (table_file < 0 || ftruncate(table_file, SLOTS * sizeof *table) != 0) return false;
    void *at =
        mmap(nullptr, SLOTS * sizeof *table, PROT_READ | PROT_WRITE, MAP_SHARED, table_file, 0);
    table = at != MAP_FAILED ? (event_words *)at : nullptr;
    return table != nullptr;
}

static CUresult make_shared_words(CUevent event)
{
    int slot = 0;
    if (!open_table()) return CUDA_ERROR_OUT_OF_MEMORY;
    while (slot < SLOTS && is_taken[slot]) slot++;
    if (slot == SLOTS) return CUDA_ERROR_OUT_OF_MEMORY;
    is_taken[slot] = true;
    event_words *w = table + slot;
    w->recorded    = 0;
    w->is_late     = false;
    for (auto &d : w->done) d = 0;
    event->slot  = slot;
    event->words = std::shared_ptr<event_words>(w, [=](event_words *) { is_taken[slot] = false; });
    return CUDA_SUCCESS;
}

API cuEventCreate(CUevent *event, unsigned flags)
{
    CUresult result = usable(true);
    if (result != CUDA_SUCCESS) return result;
    const bool is_shared = (flags & CU_EVENT_INTERPROCESS) != 0;
    if (is_shared && !(flags & CU_EVENT_DISABLE_TIMING)) return CUDA_ERROR_INVALID_VALUE;
    guard held(driver.lock);
    CUevent made = new CUevent_st{context_now(), -1, nullptr, nullptr};
    if (is_shared)
        result = make_shared_words(made);
    else
        made->words = std::shared_ptr<event_words>(new event_words());
    if (result != CUDA_SUCCESS) {
        delete made;
        return result;
    }
    events.insert(made);
    *event = made;
    return CUDA_SUCCESS;
}

/* Enqueued waits for the event keep its state. */
API cuEventDestroy(CUevent event)
{
    const CUresult result = usable(false);
    if (result != CUDA_SUCCESS) return result;
    guard held(driver.lock);
    if (events.erase(event) == 0) return CUDA_ERROR_INVALID_HANDLE;
    delete event;
    return CUDA_SUCCESS;
}

API cuEventRecord(CUevent event, CUstream handle)
{
    CUresult result = usable(false);
    guard held(driver.lock);
    CUstream s;
    if (result == CUDA_SUCCESS) result = stream_of(handle, &s);
    if (result != CUDA_SUCCESS) return result;
    if (events.count(event) == 0 || event->context != s->context) return CUDA_ERROR_INVALID_HANDLE;
    const auto words   = event->words;
    const uint64_t n   = ++words->recorded;
    s->is_late         = s->is_late || words->is_late;
    event->recorded_in = s;
    event->recorder    = name_of(s);
    log_work(name_of(s) + " records");
    enqueue(s, {}, [=] { words->done[n % RING] = n; });
    return CUDA_SUCCESS;
}

/* Waits for the newest record; an event that was never recorded does not block. */
API cuStreamWaitEvent(CUstream handle, CUevent event, unsigned flags)
{
    CUresult result        = usable(false);
    const site_order order = site_orders(__func__);
    guard held(driver.lock);
    CUstream s;
    if (result == CUDA_SUCCESS) result = stream_of(handle, &s);
    if (result != CUDA_SUCCESS) return result;
    if (events.count(event) == 0) return CUDA_ERROR_INVALID_HANDLE;
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    const auto words = event->words;
    const uint64_t n = words->recorded;
    count(CALLER, "stream_wait");
    log_work(name_of(s) + " waits for " + event->recorder);
    if (leaves_out(order, event)) return CUDA_SUCCESS;
    enqueue(s, {}, {}, [=] { return words->is_done(n); });
    return CUDA_SUCCESS;
}

API cuEventQuery(CUevent event)
{
    COUNT_POLL();
    const CUresult result  = usable(false);
    const site_order order = site_orders(__func__);
    if (result != CUDA_SUCCESS) return result;
    guard held(driver.lock);
    if (events.count(event) == 0) return CUDA_ERROR_INVALID_HANDLE;
    if (leaves_out(order, event)) return CUDA_SUCCESS;
    return event->words->is_done(event->words->recorded) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

API cuEventSynchronize(CUevent event)
{
    COUNT_SYNC();
    const CUresult result  = usable(false);
    const site_order order = site_orders(__func__);
    if (result != CUDA_SUCCESS) return result;
    guard held(driver.lock);
    if (events.count(event) == 0) return CUDA_ERROR_INVALID_HANDLE;
    const auto words = event->words;
    if (leaves_out(order, event)) return CUDA_SUCCESS;
    const uint64_t n = words->recorded;
    while (!words->is_done(n) && driver.lost == CUDA_SUCCESS)
        driver.changed.wait_for(held, std::chrono::microseconds(50));
    return driver.lost;
}

/* ---- shared with other processes ------------------------------------------------------------------- */

struct event_handle {
    int32_t pid, file, slot, device;
    uint64_t inode;
};
static_assert(sizeof(event_handle) <= sizeof(CUipcEventHandle), "fits");

API cuIpcGetEventHandle(CUipcEventHandle *handle, CUevent event)
{
    const CUresult planned = failure_of(__func__), result = usable(false);
    if (planned != CUDA_SUCCESS || result != CUDA_SUCCESS) return planned ? planned : result;
    struct stat about;
    guard held(driver.lock);
    if (events.count(event) == 0 || event->slot < 0) return CUDA_ERROR_INVALID_HANDLE;
    if (fstat(table_file, &about) != 0) return CUDA_ERROR_UNKNOWN;
    const event_handle mine = {(int32_t)getpid(), table_file, event->slot,
                               driver.physical[event->context->device], about.st_ino};
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &mine, sizeof mine);
    return CUDA_SUCCESS;
}

static event_words *map_table(const event_handle &theirs)
{
    char path[64];
    struct stat about;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", theirs.pid, theirs.file);
    const int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) return nullptr;
    void *at = MAP_FAILED;
    if (fstat(file, &about) == 0 && about.st_ino == theirs.inode)
        at = mmap(nullptr, SLOTS * sizeof *table, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    return at != MAP_FAILED ? (event_words *)at : nullptr;
}

/* CUDA's manual does not say whether a process may open events of devices that it does not see. */
static bool may_open(const event_handle &theirs)
{
    const char *which = getenv("CUDA_ON_HOST_EVENTS");
    if (which == nullptr || strcmp(which, "visible") != 0) return true;
    for (int i = 0; i < driver.devices; i++)
        if (driver.physical[i] == theirs.device) return true;
    return false;
}

API cuIpcOpenEventHandle(CUevent *event, CUipcEventHandle handle)
{
    event_handle theirs;
    const CUresult planned = failure_of(__func__), result = usable(true);
    if (planned != CUDA_SUCCESS || result != CUDA_SUCCESS) return planned ? planned : result;
    memcpy(&theirs, &handle, sizeof theirs);
    if (theirs.pid == getpid()) return CUDA_ERROR_INVALID_CONTEXT;
    event_words *mapped = may_open(theirs) ? map_table(theirs) : nullptr;
    if (mapped == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    guard held(driver.lock);
    const auto unmap = [=](event_words *) { munmap(mapped, SLOTS * sizeof *mapped); };
    *event           = new CUevent_st{context_now(), -1,
                            std::shared_ptr<event_words>(mapped + theirs.slot, unmap), nullptr};
    events.insert(*event);
    return CUDA_SUCCESS;
}
