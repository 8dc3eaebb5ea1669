/* position.c - a shared page with one word for the step and one for the call. */
#include "common/launch/position.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct launch_position {
    uint64_t magic;
    _Atomic int64_t step;
    atomic_bool is_written, is_inside;
    atomic_bool is_changing;      /* one thread copies `call`; others leave it */
    _Atomic(const char *) newest; /* in the worker's own memory: what `call` is a copy of */
    char call[POSITION_CALL_BYTES - 8];
};

enum { PAGE_BYTES = 4096, SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL };
static const uint64_t magic = 0x6e6f697469736f70u; /* "position" */

static launch_position *map(int fd)
{
    void *page = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return page == MAP_FAILED ? NULL : page;
}

/* ---- launcher -------------------------------------------------------------------------------------- */
launch_position *position_create(int *fd)
{
    _Static_assert(sizeof(launch_position) <= PAGE_BYTES, "a page");
    *fd = memfd_create("penstock-position", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (*fd < 0) return NULL;
    const bool is_sized = ftruncate(*fd, PAGE_BYTES) == 0 && fcntl(*fd, F_ADD_SEALS, SEALS) == 0;
    launch_position *p  = is_sized ? map(*fd) : NULL;
    if (p == NULL) {
        close(*fd);
        *fd = -1;
        return NULL;
    }
    /* Else each fork copies the pages of all workers before. */
    (void)madvise(p, PAGE_BYTES, MADV_DONTFORK);
    p->magic = magic;
    p->step  = -1;
    return p;
}

bool position_pass(int fd)
{
    return fd >= 0 && fcntl(fd, F_SETFD, 0) == 0; /* without FD_CLOEXEC */
}

bool position_read(launch_position *p, int64_t *step, char call[POSITION_CALL_BYTES])
{
    *step   = -1;
    call[0] = '\0';
    if (p == NULL || !atomic_load(&p->is_written)) return false;
    char text[sizeof p->call];
    memcpy(text, p->call, sizeof text);
    text[sizeof text - 1] = '\0';
    *step                 = atomic_load(&p->step);
    if (*step < -1) *step = -1;
    for (const char *c = text; *c != '\0'; c++)
        if (*c != '_' && (*c < 'a' || *c > 'z')) return true; /* not the name of a function */
    if (text[0] != '\0' && !atomic_load(&p->is_changing))
        snprintf(call, POSITION_CALL_BYTES, "%s%s", atomic_load(&p->is_inside) ? "" : "after ",
                 text);
    return true;
}

/* ---- worker ---------------------------------------------------------------------------------------- */
launch_position *position_open(const char *text)
{
    struct stat s;
    char *end;
    const long fd = text != NULL ? strtol(text, &end, 10) : -1;
    if (fd < 3 || fd > 1 << 20 || *end != '\0') return NULL;
    const int seals = fcntl((int)fd, F_GET_SEALS);
    if (seals < 0 || (seals & SEALS) != SEALS) return NULL;
    if (fstat((int)fd, &s) != 0 || s.st_size != PAGE_BYTES) return NULL;
    launch_position *p = map((int)fd);
    if (p == NULL || p->magic == magic) return p;
    position_close(p);
    return NULL;
}

void position_close(launch_position *p)
{
    if (p != NULL) munmap(p, PAGE_BYTES);
}

void position_set_step(launch_position *p, int64_t step)
{
    if (p != NULL) atomic_store_explicit(&p->step, step, memory_order_relaxed);
}

void position_set_call(launch_position *p, const char *call, bool is_inside)
{
    if (p == NULL) return;
    atomic_store_explicit(&p->is_inside, is_inside, memory_order_relaxed);
    if (call == atomic_load_explicit(&p->newest, memory_order_relaxed) ||
        atomic_exchange_explicit(&p->is_changing, true, memory_order_acquire))
        return;
    strncpy(p->call, call, sizeof p->call - 1);
    atomic_store_explicit(&p->newest, call, memory_order_relaxed);
    atomic_store_explicit(&p->is_written, true, memory_order_relaxed);
    atomic_store_explicit(&p->is_changing, false, memory_order_release);
}
