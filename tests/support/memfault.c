/* memfault.c - a library to preload: it counts the allocations that our code makes in one process, and fails one of them.
 *
 *   MEMFAULT_IN     the process: "worker", "server" (PENSTOCK_ROLE), or the first word after penstock: "scheduler", "run"
 *   MEMFAULT_RANK   its rank; not set: any
 *   MEMFAULT_AT     which allocation, from 1; 0: none fails
 *   MEMFAULT_MANY   how many fail from there on; not set: one
 *   MEMFAULT_NOTE   a file; it gets a line with the calls that led to the first one that failed, for addr2line, and one
 *                   with the number of all
 *
 * Ours are those of libpenstock and of the program that links it; libraries below have their own rules.
 * A sanitizer has malloc already: there the calls are wrapped when our code is linked (MEMFAULT_WRAPPED, --wrap), and this
 * file is a part of libpenstock and of the command.
 */
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <link.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CALLER ((uintptr_t)__builtin_return_address(0))
#ifdef MEMFAULT_WRAPPED
#define OURS(name)  __wrap_##name
#define BELOW(name) __real_##name
#else
#define OURS(name)           name
#define BELOW(name)          __libc_##name
#define __libc_aligned_alloc __libc_memalign
#endif

enum { CALLS = 12 };

void *BELOW(malloc)(size_t size);
void *BELOW(calloc)(size_t n, size_t size);
void *BELOW(realloc)(void *from, size_t size);
void *BELOW(aligned_alloc)(size_t alignment, size_t size);

static struct {
    uintptr_t from, to;
    const char *name;
} ours[2];
static int n_ours;
static bool is_meant;
static long at, many = 1;
static const char *note;
static atomic_long calls;

static int find_ours(struct dl_phdr_info *info, size_t size, void *user)
{
    (void)size;
    const bool is_first = (*(int *)user)++ == 0;
    if (n_ours == 2 || (!is_first && strstr(info->dlpi_name, "/libpenstock.so") == NULL)) return 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        if (p->p_type != PT_LOAD || (p->p_flags & PF_X) == 0) continue;
        ours[n_ours].from = info->dlpi_addr + p->p_vaddr;
        ours[n_ours].to   = ours[n_ours].from + p->p_memsz;
        ours[n_ours].name = is_first ? "program" : "libpenstock.so";
        n_ours++;
        return 0;
    }
    return 0;
}

static void write_note(const char *format, ...)
{
    char line[24 * CALLS + 64];
    va_list args;
    va_start(args, format);
    const int n = vsnprintf(line, sizeof line, format, args);
    va_end(args);
    const int fd = note != NULL ? open(note, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
    if (fd < 0) return;
    const ssize_t written = write(fd, line, (size_t)n);
    (void)written;
    close(fd);
}

__attribute__((constructor)) static void start(int argc, char **argv)
{
    const char *in = getenv("MEMFAULT_IN"), *rank = getenv("MEMFAULT_RANK"),
               *role = getenv("PENSTOCK_ROLE");
    if (in == NULL) return;
    if (role == NULL && argc > 1 && strstr(argv[0], "penstock") != NULL) role = argv[1];
    const char *own = getenv("PENSTOCK_RANK") != NULL ? getenv("PENSTOCK_RANK") : getenv("RANK");
    if (role == NULL || strcmp(role, in) != 0) return;
    if (rank != NULL && (own == NULL || strcmp(rank, own) != 0)) return;
    int n = 0;
    dl_iterate_phdr(find_ours, &n);
    if (getenv("MEMFAULT_AT") != NULL) at = atol(getenv("MEMFAULT_AT"));
    if (getenv("MEMFAULT_MANY") != NULL) many = atol(getenv("MEMFAULT_MANY"));
    note = getenv("MEMFAULT_NOTE");
    void *frame[1];
    (void)backtrace(frame, 1); /* loads what it needs */
    is_meant = true;
}

__attribute__((destructor)) static void finish(void)
{
    if (is_meant) write_note("%ld allocations\n", atomic_load(&calls));
}

static void note_calls(const char *in)
{
    void *frame[CALLS];
    char text[24 * CALLS] = "";
    const int n           = backtrace(frame, CALLS);
    for (int i = 2; i < n; i++) {
        Dl_info info;
        if (dladdr(frame[i], &info) == 0) break;
        const uintptr_t from = (uintptr_t)frame[i] - (uintptr_t)info.dli_fbase;
        snprintf(text + strlen(text), sizeof text - strlen(text), " 0x%lx",
                 (unsigned long)from - 1);
    }
    write_note("failed in %s at%s\n", in, text);
}

static bool fails(uintptr_t caller)
{
    int i = 0;
    if (!is_meant) return false;
    while (i < n_ours && (caller < ours[i].from || caller >= ours[i].to)) i++;
    if (i == n_ours) return false;
    const long call = atomic_fetch_add(&calls, 1) + 1;
    if (at == 0 || call < at || call >= at + many) return false;
    if (call == at) note_calls(ours[i].name);
    errno = ENOMEM;
    return true;
}

void *OURS(malloc)(size_t size)
{
    return fails(CALLER) ? NULL : BELOW(malloc)(size);
}

void *OURS(calloc)(size_t n, size_t size)
{
    return fails(CALLER) ? NULL : BELOW(calloc)(n, size);
}

void *OURS(realloc)(void *from, size_t size)
{
    return fails(CALLER) ? NULL : BELOW(realloc)(from, size);
}

void *OURS(aligned_alloc)(size_t alignment, size_t size)
{
    return fails(CALLER) ? NULL : BELOW(aligned_alloc)(alignment, size);
}

int OURS(posix_memalign)(void **to, size_t alignment, size_t size)
{
    void *got = fails(CALLER) ? NULL : BELOW(aligned_alloc)(alignment, size);
    if (got == NULL) return ENOMEM;
    *to = got;
    return 0;
}

char *OURS(strdup)(const char *text)
{
    const size_t size = strlen(text) + 1;
    char *copy        = fails(CALLER) ? NULL : BELOW(malloc)(size);
    return copy != NULL ? memcpy(copy, text, size) : NULL;
}
