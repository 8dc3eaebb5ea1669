/* segment.c - memfd segments: own allocations, and mappings of peers' segments.
 *
 * A segment sorts its allocations by offset and fills the first gap that fits.  Large allocations get whole pages,
 * which return to the kernel when freed; very large ones get their own segment.
 */
#include "common/base/why.h"
#include "common/containers/list.h"
#include "common/containers/arrays.h"
#include "common/system/file_limit.h"
#include "common/system/own_pid.h"
#include "common/system/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    LINE_BYTES        = 64,
    PAGE_BYTES        = 4096,
    HUGE_PAGE_BYTES   = 2 << 20,
    HUGE_FROM_BYTES   = 4 << 20,
    SHARED_BYTES      = 64 << 20, /* a shared segment; untouched pages cost nothing */
    OWN_BYTES         = 32 << 20, /* from this size on: own segment */
    IDLE_MAPPINGS_MAX = 256,
    NAME_BYTES        = 64
};

typedef struct {
    size_t offset, bytes;
    unsigned owners;           /* beside the first */
    bool is_detached, is_dead; /* dead: freed after it was detached; never reused */
} span;

typedef struct segment {
    struct segment *next, *prev;
    uint64_t id;
    size_t size, touched; /* nothing was ever allocated beyond `touched` */
    bool is_apart;
    pid_t pid; /* creator: a forked child leaves its parent's segments alone */
    int fd;
    unsigned char *base;
    span *spans; /* [n] by offset */
    size_t n, cap;
} segment;

typedef struct mapping {
    struct mapping *next, *prev;
    segment_ref ref;
    unsigned char *base;
    unsigned users;
    uint64_t used; /* last use, in calls */
} mapping;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static segment *segments;
static mapping *mappings;
static uint64_t closed, calls;
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

/* ---- fork ------------------------------------------------------------------------------------ */
/* A child has only the forking thread: locks of other threads would stay locked. */
static void before_fork(void)
{
    pthread_mutex_lock(&lock);
}

static void after_fork(void)
{
    pthread_mutex_unlock(&lock);
}

static void know_forks(void)
{
    pthread_atfork(before_fork, after_fork, after_fork);
}

/* ---- segments of this process ---------------------------------------------------------------- */
static size_t round_up(size_t bytes, size_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

static void name_of(uint64_t id, char name[NAME_BYTES])
{
    snprintf(name, NAME_BYTES, "penstock-%016llx", (unsigned long long)id);
}

/* Maps at an address where huge pages fit. */
static unsigned char *map_aligned(int fd, size_t size)
{
    const size_t whole   = size + HUGE_PAGE_BYTES;
    unsigned char *space = mmap(NULL, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (space == MAP_FAILED) return NULL;
    unsigned char *base = (unsigned char *)round_up((uintptr_t)space, HUGE_PAGE_BYTES);
    const size_t before = (size_t)(base - space), mapped = round_up(size, PAGE_BYTES);
    if (before > 0) munmap(space, before);
    munmap(base + mapped, whole - before - mapped);
    if (mmap(base, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
        munmap(base, mapped);
        return NULL;
    }
    return base;
}

static int open_memory(uint64_t id, size_t size)
{
    FILE_LIMIT_IS_AN_ERROR(); /* this memory is a file too */
    char name[NAME_BYTES];
    name_of(id, name);
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) return -1;
    if (ftruncate(fd, (off_t)size) == 0 &&
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0)
        return fd;
    close(fd);
    return -1;
}

static segment *segment_open(size_t size, bool is_apart)
{
    segment *s = calloc(1, sizeof *s);
    if (s == NULL) return NULL;
    *s = (segment){.size = size, .is_apart = is_apart, .pid = own_pid(), .fd = -1};
    if (getrandom(&s->id, sizeof s->id, 0) == (ssize_t)sizeof s->id)
        s->fd = open_memory(s->id, size);
    if (s->fd >= 0) s->base = map_aligned(s->fd, size);
    if (s->base == NULL) {
        if (s->fd >= 0) close(s->fd);
        free(s);
        return NULL;
    }
    LIST_PREPEND(segments, s);
    return s;
}

static void segment_close(segment *s)
{
    LIST_REMOVE(segments, s);
    closed++;
    munmap(s->base, round_up(s->size, PAGE_BYTES));
    close(s->fd);
    free(s->spans);
    free(s);
}

static bool insert(segment *s, size_t at, span new)
{
    if (!VEC_ROOM(s->spans, s->cap, s->n + 1)) return false;
    memmove(s->spans + at + 1, s->spans + at, (s->n - at) * sizeof *s->spans);
    s->spans[at] = new;
    s->n++;
    return true;
}

/* Whole pages go back to the system, which gives zeroed ones at their next use. */
static bool return_pages(const segment *s, size_t offset, size_t bytes)
{
    return fallocate(s->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset,
                     (off_t)bytes) == 0;
}

/* Takes the first gap of `bytes` that begins at a multiple of `unit`, zeroed. */
static void *take(segment *s, size_t bytes, size_t unit)
{
    size_t offset = 0, at = 0;
    while (at < s->n && (s->spans[at].offset < offset || s->spans[at].offset - offset < bytes)) {
        offset = round_up(s->spans[at].offset + s->spans[at].bytes, unit);
        at++;
    }
    if (offset > s->size || bytes > s->size - offset) return NULL;
    if (!insert(s, at, (span){.offset = offset, .bytes = bytes})) return NULL;
    if (offset < s->touched && (unit < PAGE_BYTES || !return_pages(s, offset, bytes)))
        memset(s->base + offset, 0, bytes < s->touched - offset ? bytes : s->touched - offset);
    if (offset + bytes > s->touched) s->touched = offset + bytes;
    return s->base + offset;
}

static void *take_anywhere(size_t bytes, bool apart)
{
    const size_t pages = bytes >= SEGMENT_ALONE_BYTES ? PAGE_BYTES : LINE_BYTES;
    const size_t unit  = bytes >= HUGE_FROM_BYTES ? HUGE_PAGE_BYTES : pages;
    bytes              = round_up(bytes > 0 ? bytes : 1, pages);
    const pid_t pid    = own_pid();
    if (!apart && bytes < OWN_BYTES) {
        for (segment *s = segments; s != NULL; s = s->next) {
            void *data = s->is_apart || s->pid != pid ? NULL : take(s, bytes, unit);
            if (data != NULL) return data;
        }
        segment *s = segment_open(SHARED_BYTES, false);
        return s != NULL ? take(s, bytes, unit) : NULL;
    }
    segment *s = segment_open(round_up(bytes, PAGE_BYTES), true);
    if (s == NULL) return NULL;
    void *data = take(s, bytes, unit);
    if (data == NULL) segment_close(s);
    return data;
}

static void *alloc_in(size_t bytes, bool apart, pen_error *why)
{
    void *data = NULL;
    errno      = ENOMEM;
    pthread_once(&fork_once, know_forks);
    if (bytes <= PTRDIFF_MAX / 2) {
        pthread_mutex_lock(&lock);
        data = take_anywhere(bytes, apart);
        pthread_mutex_unlock(&lock);
    }
    if (data == NULL)
        why_set(why, PEN_NO_MEMORY, "no memory for %zu bytes%s", bytes,
                errno == EMFILE ? ": too many open files; raise the limit (ulimit -n)"
                : errno == EFBIG
                    ? ": shared memory is a file, and the file size limit is lower; raise "
                      "it (ulimit -f)"
                    : "");
    return data;
}

void *segment_alloc(size_t bytes, pen_error *why)
{
    return alloc_in(bytes, false, why);
}

void *segment_alloc_apart(size_t bytes, pen_error *why)
{
    return alloc_in(bytes, true, why);
}

static segment *holder(const void *data)
{
    const unsigned char *p = data;
    segment *s             = segments;
    while (s != NULL && (p < s->base || p >= s->base + s->size)) s = s->next;
    return s;
}

/* The live allocation with `data` in it, or NULL. */
static span *find_span(const segment *s, const void *data)
{
    const size_t offset = (size_t)((const unsigned char *)data - s->base);
    size_t low = 0, high = s->n;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (s->spans[middle].offset <= offset)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == 0 || s->spans[low - 1].is_dead) return NULL;
    span *found = &s->spans[low - 1];
    return offset - found->offset < found->bytes ? found : NULL;
}

static void give_back(segment *s, span *gone)
{
    const size_t at = (size_t)(gone - s->spans);
    if (gone->is_detached) {
        madvise(s->base + gone->offset, gone->bytes, MADV_DONTNEED);
        gone->is_dead = true;
    } else {
        if (!s->is_apart && gone->bytes >= SEGMENT_ALONE_BYTES && s->pid == own_pid())
            (void)return_pages(s, gone->offset, gone->bytes);
        memmove(gone, gone + 1, (s->n - at - 1) * sizeof *gone);
        s->n--;
    }
    bool is_used = false;
    for (size_t i = 0; i < s->n; i++) is_used |= !s->spans[i].is_dead;
    if (!is_used) segment_close(s);
}

bool segment_free(void *data)
{
    pthread_mutex_lock(&lock);
    segment *s = data != NULL ? holder(data) : NULL;
    span *gone = s != NULL ? find_span(s, data) : NULL;
    if (gone != NULL && gone->owners > 0)
        gone->owners--;
    else if (gone != NULL)
        give_back(s, gone);
    pthread_mutex_unlock(&lock);
    return gone != NULL;
}

bool segment_keep(const void *data)
{
    pthread_mutex_lock(&lock);
    segment *s = data != NULL ? holder(data) : NULL;
    span *kept = s != NULL ? find_span(s, data) : NULL;
    if (kept != NULL) kept->owners++;
    pthread_mutex_unlock(&lock);
    return kept != NULL;
}

bool segment_is_sole(const void *data)
{
    pthread_mutex_lock(&lock);
    const segment *s   = data != NULL ? holder(data) : NULL;
    const span *found  = s != NULL ? find_span(s, data) : NULL;
    const bool is_sole = found != NULL && found->owners == 0 && !found->is_detached;
    pthread_mutex_unlock(&lock);
    return is_sole;
}

/* Large arrays are read completely every step: huge pages help, but none may reach beyond the array. */
void segment_populate(void *data, size_t bytes)
{
    const uintptr_t begin = round_up((uintptr_t)data, PAGE_BYTES), end = (uintptr_t)data + bytes;
    const uintptr_t huge_begin = round_up((uintptr_t)data, HUGE_PAGE_BYTES);
    const uintptr_t huge_end   = end / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    if (huge_begin < huge_end) madvise((void *)huge_begin, huge_end - huge_begin, MADV_HUGEPAGE);
#ifdef MADV_POPULATE_WRITE
    if (begin < end) madvise((void *)begin, round_up(end - begin, PAGE_BYTES), MADV_POPULATE_WRITE);
#else
    (void)begin;
#endif
}

bool segment_find(const void *data, size_t bytes, segment_ref *ref)
{
    pthread_mutex_lock(&lock);
    const segment *s   = holder(data);
    const span *inside = s != NULL ? find_span(s, data) : NULL;
    bool is_found      = inside != NULL && !inside->is_detached && s->pid == own_pid();
    if (is_found) {
        const size_t offset = (size_t)((const unsigned char *)data - s->base);
        is_found            = bytes <= inside->offset + inside->bytes - offset;
        if (is_found)
            *ref = (segment_ref){.id     = s->id,
                                 .size   = s->size,
                                 .offset = offset,
                                 .closed = closed,
                                 .pid    = own_pid(),
                                 .fd     = s->fd};
    }
    pthread_mutex_unlock(&lock);
    return is_found;
}

/* A private copy replaces the pages in one atomic remap. */
static bool replace_pages(unsigned char *at, size_t bytes)
{
    void *copy = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (copy == MAP_FAILED) return false;
    memcpy(copy, at, bytes);
    if (mremap(copy, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, at) != MAP_FAILED) return true;
    munmap(copy, bytes);
    return false;
}

bool segment_detach(const void *data)
{
    pthread_mutex_lock(&lock);
    segment *s   = holder(data);
    span *inside = s != NULL ? find_span(s, data) : NULL;
    bool done    = inside != NULL && inside->is_detached;
    if (inside != NULL && !done && inside->bytes >= SEGMENT_ALONE_BYTES) {
        done                = replace_pages(s->base + inside->offset, inside->bytes);
        inside->is_detached = done;
    }
    pthread_mutex_unlock(&lock);
    return done;
}

/* ---- segments of peers ----------------------------------------------------------------------- */
static bool leads_to(int folder, const char *path, uint64_t id)
{
    char meant[2 * NAME_BYTES], link[2 * NAME_BYTES];
    const ssize_t length = readlinkat(folder, path, link, sizeof link - 1);
    if (length < 0) return false;
    link[length] = '\0';
    /* The kernel's name of a segment's file. */
    char name[NAME_BYTES];
    name_of(id, name);
    snprintf(meant, 2 * NAME_BYTES, "/memfd:%s (deleted)", name);
    return strcmp(link, meant) == 0;
}

/* Whether the name of a reference's descriptor is that of the segment. */
static bool is_still_there(const segment_ref *ref)
{
    char path[NAME_BYTES];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)ref->pid, (int)ref->fd);
    return leads_to(AT_FDCWD, path, ref->id);
}

static void mapping_drop(mapping *m)
{
    LIST_REMOVE(mappings, m);
    munmap(m->base, round_up(m->ref.size, PAGE_BYTES));
    free(m);
}

/* Its process has freed segments since: drop unused mappings of those. */
static void forget_gone(const segment_ref *ref)
{
    LIST_EACH(m, mappings) {
        if (m->ref.pid != ref->pid || m->users > 0 || m->ref.closed == ref->closed) continue;
        m->ref.closed = ref->closed;
        if (!is_still_there(&m->ref)) mapping_drop(m);
    }
}

static void forget_oldest(void)
{
    unsigned idle   = 0;
    mapping *oldest = NULL;
    LIST_EACH(m, mappings) {
        if (m->users > 0) continue;
        idle++;
        if (oldest == NULL || m->used < oldest->used) oldest = m;
    }
    if (idle > IDLE_MAPPINGS_MAX) mapping_drop(oldest);
}

/* The /proc folder of the process, which must be this user's; -1: it is not, or has ended. */
static int open_process(pid_t pid)
{
    char path[NAME_BYTES];
    struct stat is;
    snprintf(path, sizeof path, "/proc/%d", (int)pid);
    const int folder = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0) return -1;
    if (fstat(folder, &is) == 0 && is.st_uid == geteuid()) return folder;
    close(folder);
    return -1;
}

/* Checks the file before opening it: it may be a device or a pipe. */
static int open_named(int process, const segment_ref *ref)
{
    char path[NAME_BYTES];
    struct stat is;
    snprintf(path, sizeof path, "fd/%d", (int)ref->fd);
    const int found = openat(process, path, O_PATH | O_CLOEXEC);
    if (found < 0) return -1;
    snprintf(path, sizeof path, "/proc/self/fd/%d", found);
    const bool is_meant = fstat(found, &is) == 0 && S_ISREG(is.st_mode) && is.st_uid == geteuid() &&
                          leads_to(AT_FDCWD, path, ref->id);
    const int fd = is_meant ? open(path, O_RDWR | O_CLOEXEC) : -1;
    close(found);
    return fd;
}

/* As long as claimed and sealed: touching pages beyond the end of a file kills. */
static bool is_sealed(int fd, uint64_t size)
{
    struct stat is;
    const int seals = fcntl(fd, F_GET_SEALS);
    return seals >= 0 && (seals & F_SEAL_SHRINK) != 0 && fstat(fd, &is) == 0 && is.st_size > 0 &&
           (uint64_t)is.st_size == size;
}

static pen_status open_peer(const segment_ref *ref, int *fd, pen_error *why)
{
    const int process = open_process(ref->pid);
    *fd               = process >= 0 ? open_named(process, ref) : -1;
    if (process >= 0) close(process);
    if (*fd < 0)
        return why_set(why, PEN_UNREACHABLE,
                       "cannot open the memory of process %d: it has ended or freed it, or "
                       "belongs to another user or container; run all workers of a host as one "
                       "user in one pid namespace",
                       (int)ref->pid);
    if (is_sealed(*fd, ref->size)) return PEN_OK;
    close(*fd);
    return why_set(why, PEN_CORRUPT, "process %d has no segment of %llu bytes at the given place",
                   (int)ref->pid, (unsigned long long)ref->size);
}

static pen_status mapping_open(const segment_ref *ref, mapping **made, pen_error *why)
{
    int fd            = -1;
    pen_status status = open_peer(ref, &fd, why);
    if (status != PEN_OK) return status;
    mapping *m = calloc(1, sizeof *m);
    if (m != NULL) m->base = map_aligned(fd, ref->size);
    close(fd);
    if (m == NULL || m->base == NULL) {
        free(m);
        return why_set(why, PEN_NO_MEMORY, "no memory to map %llu bytes of process %d",
                       (unsigned long long)ref->size, (int)ref->pid);
    }
    m->ref = *ref;
    LIST_PREPEND(mappings, m);
    *made = m;
    return PEN_OK;
}

/* A reference must match what was checked when it was mapped. */
static bool is_of(const mapping *m, const segment_ref *ref)
{
    return m->ref.id == ref->id && m->ref.pid == ref->pid && m->ref.fd == ref->fd &&
           m->ref.size == ref->size;
}

static mapping *find_mapping(const segment_ref *ref)
{
    mapping *m = mappings;
    while (m != NULL && !is_of(m, ref)) m = m->next;
    return m;
}

static pen_status map_locked(const segment_ref *ref, void **data, pen_error *why)
{
    forget_gone(ref);
    mapping *m = find_mapping(ref);
    if (m == NULL) {
        forget_oldest();
        pen_status status = mapping_open(ref, &m, why);
        if (status != PEN_OK) return status;
    }
    m->users++;
    m->used = ++calls;
    *data   = m->base + ref->offset;
    return PEN_OK;
}

/* Inside the mapping, if the size is true: mapping_open() and is_of() check that. */
static bool is_inside(const segment_ref *ref, size_t bytes)
{
    return ref->size <= PTRDIFF_MAX / 2 && ref->offset <= ref->size &&
           bytes <= ref->size - ref->offset;
}

static pen_status check_place(const segment_ref *ref, size_t bytes, pen_error *why)
{
    if (ref->pid > 0 && ref->fd >= 0 && is_inside(ref, bytes)) return PEN_OK;
    return why_set(why, PEN_CORRUPT,
                   "process %d names %zu bytes at %llu of a segment of %llu bytes", (int)ref->pid,
                   bytes, (unsigned long long)ref->offset, (unsigned long long)ref->size);
}

pen_status segment_map(const segment_ref *given, size_t bytes, void **data, pen_error *why)
{
    const segment_ref ref = *given; /* a peer may write to *given meanwhile */
    pen_status status     = check_place(&ref, bytes, why);
    if (status != PEN_OK) return status;
    pthread_mutex_lock(&lock);
    status = map_locked(&ref, data, why);
    pthread_mutex_unlock(&lock);
    return status;
}

pen_status segment_read(const segment_ref *given, void *to, size_t bytes, pen_error *why)
{
    const segment_ref ref = *given;
    int fd                = -1;
    pen_status status     = check_place(&ref, bytes, why);
    if (status == PEN_OK) status = open_peer(&ref, &fd, why);
    if (status != PEN_OK) return status;
    if (pread(fd, to, bytes, (off_t)ref.offset) != (ssize_t)bytes)
        status = why_set(why, PEN_UNREACHABLE, "cannot read the memory of process %d: %s",
                         (int)ref.pid, strerror(errno));
    close(fd);
    return status;
}

void segment_unmap(const segment_ref *ref)
{
    pthread_mutex_lock(&lock);
    mapping *m = find_mapping(ref);
    if (m != NULL && m->users > 0) m->users--;
    pthread_mutex_unlock(&lock);
}

void segment_unmap_all_of(int32_t pid)
{
    pthread_mutex_lock(&lock);
    LIST_EACH(m, mappings)
        if (m->ref.pid == pid && m->users == 0) mapping_drop(m);
    pthread_mutex_unlock(&lock);
}
