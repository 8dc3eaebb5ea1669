/* memory.cpp - memory of the fake devices, and pinned memory of the host. */
#include "driver.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

static const size_t RANGE = (size_t)64 << 30; /* of addresses */
enum { OPENINGS = 1 << 16 };

static uintptr_t range, next_place;
static int file = -1;
static uint64_t file_inode, ids;
static bool reuses; /* CUDA_ON_HOST_REUSE: freed addresses at once */
/* By their beginning; they do not overlap.  Never destroyed: work goes on while exit() runs. */
static std::map<uintptr_t, block> &blocks = *new std::map<uintptr_t, block>();
static size_t used[DEVICES_MAX];
/* What the device's work can touch now, but for blocks made since. */
static extents &opened = *new extents();
static bool has_new_block;

static size_t whole_pages(size_t bytes)
{
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

CUresult memory_start()
{
    struct stat about;
    file = memfd_create("memory of the played devices", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, (off_t)(RANGE + OPENINGS * sizeof(int))) != 0 ||
        fstat(file, &about) != 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    void *at = mmap(nullptr, RANGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    range = next_place = (uintptr_t)at;
    file_inode         = about.st_ino;
    ids                = (uint64_t)getpid() << 32;
    reuses             = getenv("CUDA_ON_HOST_REUSE") != nullptr;
    return CUDA_SUCCESS;
}

/* ---- blocks ------------------------------------------------------------------------------------------ */

uint64_t memory_peek(uintptr_t at)
{
    const auto found = blocks.upper_bound(at);
    uint64_t word    = 0;
    if (found == blocks.begin()) return 0;
    const block &b = std::prev(found)->second;
    if (at + 8 > b.at + b.bytes) return 0;
    if (b.kind == OWN)
        return pread(file, &word, 8, (off_t)(b.offset + (at - b.at))) == 8 ? word : 0;
    return b.kind == IMPORTED ? 0 : *(volatile uint64_t *)at;
}

bool memory_is_of_device(uintptr_t at)
{
    return at >= range && at < range + RANGE;
}

static block *block_of(uintptr_t at)
{
    auto after = blocks.upper_bound(at);
    if (after == blocks.begin()) return nullptr;
    block &b = std::prev(after)->second;
    return at < b.at + b.bytes ? &b : nullptr;
}

const block *memory_find(uintptr_t at, size_t bytes)
{
    const block *b = block_of(at);
    return b != nullptr && bytes <= b->at + b->bytes - at ? b : nullptr;
}

static bool is_on_device(const block &b)
{
    return b.kind == OWN || b.kind == IMPORTED;
}

int memory_device(uintptr_t at)
{
    const block *b = block_of(at);
    return b != nullptr && is_on_device(*b) ? b->device : -1;
}

/* The block that begins there, if it is of that kind; else NULL. */
static block *block_at(uintptr_t at, kind_of_memory kind)
{
    const auto found = blocks.find(at);
    return found != blocks.end() && found->second.kind == kind ? &found->second : nullptr;
}

/* Protects the device memory in each extent, in whole pages. */
static void protect(const extents &touched, int protection)
{
    for (const extent &e : touched)
        for (const auto &[at, b] : blocks) {
            const uintptr_t begin = std::max(e.at, at) / PAGE * PAGE;
            const uintptr_t end   = e.bytes < at + b.bytes - e.at ? e.at + e.bytes : at + b.bytes;
            if (is_on_device(b) && begin < end && e.at < at + b.bytes)
                mprotect((void *)begin, whole_pages(end) - begin, protection);
        }
}

void memory_close()
{
    protect(opened, PROT_NONE);
    opened.clear();
}

void memory_open(const extents &touched)
{
    if (touched == opened && !has_new_block) return;
    memory_close();
    protect(touched, PROT_READ | PROT_WRITE);
    opened        = touched;
    has_new_block = false;
}

/* ---- addresses --------------------------------------------------------------------------------------- */

/* With an inaccessible page behind it. Freed addresses are reused only after all others. */
static uintptr_t find_place(size_t bytes)
{
    if (reuses) next_place = range;
    const size_t wanted = whole_pages(bytes) + PAGE;
    for (int rounds = 0; rounds < 2; next_place = range, rounds++) {
        while (next_place + wanted <= range + RANGE) {
            const auto after = blocks.lower_bound(next_place);
            if (const block *before = block_of(next_place); before != nullptr)
                next_place = before->at + whole_pages(before->bytes) + PAGE;
            else if (after != blocks.end() && after->first < next_place + wanted)
                next_place = after->first + whole_pages(after->second.bytes) + PAGE;
            else
                return std::exchange(next_place, next_place + wanted);
        }
    }
    return 0;
}

static bool put(const block &b, int from)
{
    if (mmap((void *)b.at, whole_pages(b.bytes), PROT_NONE, MAP_SHARED | MAP_FIXED, from,
             (off_t)b.offset) == MAP_FAILED)
        return false;
    blocks[b.at]  = b;
    has_new_block = true;
    return true;
}

static void take_away(const block &b)
{
    mmap((void *)b.at, whole_pages(b.bytes), PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    blocks.erase(b.at);
}

/* All ones: a float of it is NaN. */
static bool fill(uint64_t offset, size_t bytes)
{
    static const auto *ones = (const char *)memset(malloc(1 << 20), 0xff, 1 << 20);
    for (size_t done = 0; done < bytes;) {
        const size_t part = bytes - done < 1 << 20 ? bytes - done : 1 << 20;
        const ssize_t n   = pwrite(file, ones, part, (off_t)(offset + done));
        if (n <= 0) return false;
        done += (size_t)n;
    }
    return true;
}

API cuMemAlloc(CUdeviceptr *to, size_t bytes)
{
    COUNT_SYNC();
    const CUresult result = usable(true);
    if (result != CUDA_SUCCESS) return result;
    if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    guard held(driver.lock);
    const int device = context_now()->device;
    if (bytes > driver.device_bytes - used[device]) return CUDA_ERROR_OUT_OF_MEMORY;
    const uintptr_t at = find_place(bytes);
    const block b      = {at, bytes, OWN, device, ++ids, at - range, file_inode, 0};
    if (at == 0 || !fill(b.offset, bytes) || !put(b, file)) return CUDA_ERROR_OUT_OF_MEMORY;
    used[device] += bytes;
    *to = at;
    return CUDA_SUCCESS;
}

/* How often other processes have opened each allocation, by its id: a table behind the memory, in the same file. They
 * must close it before it is freed. */
static std::atomic<int> *openings(int from)
{
    void *at = mmap(nullptr, OPENINGS * sizeof(int), PROT_READ | PROT_WRITE, MAP_SHARED, from,
                    (off_t)RANGE);
    return at != MAP_FAILED ? (std::atomic<int> *)at : nullptr;
}

static void count_opening(int from, uint64_t id, int more)
{
    std::atomic<int> *table = openings(from);
    if (table == nullptr) return;
    table[id % OPENINGS] += more;
    munmap((void *)table, OPENINGS * sizeof(int));
}

/* The driver waits for the device before it takes memory away. */
API cuMemFree(CUdeviceptr at)
{
    COUNT_SYNC();
    CUresult result = usable(true);
    if (result != CUDA_SUCCESS || at == 0) return result;
    guard held(driver.lock);
    if (block_at(at, OWN) == nullptr) return CUDA_ERROR_INVALID_VALUE;
    result         = drain_all(held, nullptr);
    const block *b = block_at(at, OWN);
    if (b == nullptr) return CUDA_ERROR_INVALID_VALUE; /* another thread was faster */
    used[b->device] -= b->bytes;
    if (std::atomic<int> *table = openings(file)) {
        if (table[b->id % OPENINGS] > 0) count(CALLER, "free.while_mapped");
        munmap((void *)table, OPENINGS * sizeof(int));
    }
    fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)b->offset,
              (off_t)whole_pages(b->bytes));
    take_away(block(*b));
    return result;
}

API cuMemGetInfo(size_t *free, size_t *total)
{
    const CUresult result = usable(true);
    if (result != CUDA_SUCCESS) return result;
    guard held(driver.lock);
    *total = driver.device_bytes;
    *free  = *total - used[context_now()->device];
    return CUDA_SUCCESS;
}

API cuMemGetAddressRange(CUdeviceptr *base, size_t *bytes, CUdeviceptr at)
{
    const CUresult result = usable(true);
    if (result != CUDA_SUCCESS) return result;
    guard held(driver.lock);
    const block *b = block_of(at);
    if (b == nullptr) return CUDA_ERROR_NOT_FOUND;
    if (base != nullptr) *base = b->at;
    if (bytes != nullptr) *bytes = b->bytes;
    return CUDA_SUCCESS;
}

API cuPointerGetAttribute(void *value, CUpointer_attribute name, CUdeviceptr at)
{
    const CUresult result = usable(false);
    if (result != CUDA_SUCCESS) return result;
    guard held(driver.lock);
    const block *b = block_of(at);
    if (b == nullptr) return CUDA_ERROR_INVALID_VALUE;
    switch (name) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned *)value = is_on_device(*b) ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)value = b->device; break;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: *(uint64_t *)value = b->id; break;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: *(bool *)value = b->kind == OWN; break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

/* ---- shared with other processes ------------------------------------------------------------------- */

struct memory_handle {
    int32_t pid, file, physical;
    uint64_t inode, offset, bytes, id;
};
static_assert(sizeof(memory_handle) <= sizeof(CUipcMemHandle), "fits");

API cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr at)
{
    const CUresult planned = failure_of(__func__), result = usable(true);
    if (planned != CUDA_SUCCESS || result != CUDA_SUCCESS) return planned ? planned : result;
    guard held(driver.lock);
    const block *b = block_at(at, OWN);
    if (b == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const memory_handle mine = {
        (int32_t)getpid(), file, driver.physical[b->device], file_inode, b->offset,
        b->bytes,          b->id};
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &mine, sizeof mine);
    return CUDA_SUCCESS;
}

/* Memory of a device that this process cannot see may be opened, as the driver's manual says; it counts as memory of
 * the device that opens it. */
static int importing_device(int physical)
{
    for (int i = 0; i < driver.devices; i++)
        if (driver.physical[i] == physical) return i;
    return context_now()->device;
}

/* The file of another process's memory; -1: the process is gone, or it is another one. */
static int open_file(int pid, int number, uint64_t inode)
{
    char path[64];
    struct stat about;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, number);
    const int from = open(path, O_RDWR | O_CLOEXEC);
    if (from < 0 || (fstat(from, &about) == 0 && about.st_ino == inode)) return from;
    close(from);
    return -1;
}

static CUresult import(const memory_handle &theirs, uintptr_t *to)
{
    const int from = open_file(theirs.pid, theirs.file, theirs.inode);
    *to            = find_place(theirs.bytes);
    const block b  = {*to,       theirs.bytes,  IMPORTED,     importing_device(theirs.physical),
                      ++ids,     theirs.offset, theirs.inode, 1,
                      theirs.id, theirs.pid,    theirs.file};
    const bool ok  = from >= 0 && *to != 0 && put(b, from);
    if (ok) count_opening(from, b.owner, 1);
    if (from >= 0) close(from);
    return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

API cuIpcOpenMemHandle(CUdeviceptr *to, CUipcMemHandle handle, unsigned flags)
{
    COUNT_SYNC();
    memory_handle theirs;
    const CUresult planned = failure_of(__func__), result = usable(true);
    if (planned != CUDA_SUCCESS || result != CUDA_SUCCESS) return planned ? planned : result;
    memcpy(&theirs, &handle, sizeof theirs);
    if (flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) return CUDA_ERROR_INVALID_VALUE;
    if (theirs.pid == getpid()) return CUDA_ERROR_INVALID_CONTEXT; /* not in its own process */
    guard held(driver.lock);
    for (auto &[at, b] : blocks) {
        if (b.kind != IMPORTED || b.file != theirs.inode ||
            b.offset >= theirs.offset + theirs.bytes || theirs.offset >= b.offset + b.bytes)
            continue;
        if (b.owner != theirs.id)
            return CUDA_ERROR_ALREADY_MAPPED; /* freed since, and allocated again */
        b.opened++;
        *to = at;
        return CUDA_SUCCESS;
    }
    uintptr_t at            = 0;
    const CUresult imported = import(theirs, &at);
    *to                     = at;
    return imported;
}

API cuIpcCloseMemHandle(CUdeviceptr at)
{
    COUNT_SYNC();
    const CUresult result = usable(true);
    if (result != CUDA_SUCCESS) return result;
    guard held(driver.lock);
    block *b = block_at(at, IMPORTED);
    if (b == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (--b->opened > 0) return CUDA_SUCCESS;
    const int from = open_file(b->pid, b->from, b->file);
    if (from >= 0) count_opening(from, b->owner, -1);
    if (from >= 0) close(from);
    take_away(block(*b));
    return CUDA_SUCCESS;
}

/* ---- pinned memory of the host ----------------------------------------------------------------------- */

static void pin(uintptr_t at, size_t bytes, kind_of_memory kind)
{
    blocks[at] = {at, bytes, kind, context_now()->device, ++ids, 0, 0, 0};
}

API cuMemHostAlloc(void **to, size_t bytes, unsigned)
{
    COUNT_SYNC();
    const CUresult result = usable(true);
    if (result != CUDA_SUCCESS) return result;
    if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    *to = aligned_alloc(PAGE, whole_pages(bytes));
    if (*to == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
    memset(*to, 0xff, bytes);
    count(CALLER, "locked.bytes", bytes);
    guard held(driver.lock);
    pin((uintptr_t)*to, bytes, ALLOCATED_HOST);
    return CUDA_SUCCESS;
}

API cuMemFreeHost(void *at)
{
    COUNT_SYNC();
    CUresult result = usable(true);
    if (result != CUDA_SUCCESS) return result;
    guard held(driver.lock);
    if (block_at((uintptr_t)at, ALLOCATED_HOST) == nullptr) return CUDA_ERROR_INVALID_VALUE;
    result = drain_all(held, nullptr);
    if (blocks.erase((uintptr_t)at) > 0) free(at);
    return result;
}

/* Whole pages are pinned: a page cannot be pinned twice. */
static bool is_registered(uintptr_t at, size_t bytes)
{
    const uintptr_t begin = at / PAGE * PAGE, end = whole_pages(at + bytes);
    const auto after = blocks.lower_bound(begin);
    if (after != blocks.end() && after->first < end) return true;
    if (after == blocks.begin()) return false;
    const block &before = std::prev(after)->second;
    return whole_pages(before.at + before.bytes) > begin;
}

API cuMemHostRegister(void *at, size_t bytes, unsigned)
{
    COUNT_SYNC();
    const CUresult result = usable(true);
    if (result != CUDA_SUCCESS) return result;
    if (at == nullptr || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    guard held(driver.lock);
    if (memory_is_of_device((uintptr_t)at)) return CUDA_ERROR_INVALID_VALUE;
    if (is_registered((uintptr_t)at, bytes)) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    pin((uintptr_t)at, bytes, REGISTERED_HOST);
    count(CALLER, "locked.bytes", bytes);
    return CUDA_SUCCESS;
}

API cuMemHostUnregister(void *at)
{
    COUNT_SYNC();
    const CUresult result = usable(true);
    if (result != CUDA_SUCCESS) return result;
    guard held(driver.lock);
    if (block_at((uintptr_t)at, REGISTERED_HOST) == nullptr)
        return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    blocks.erase((uintptr_t)at);
    return CUDA_SUCCESS;
}
