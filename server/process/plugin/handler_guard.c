/* handler_guard.c - a seat for each thread, and a signal handler that waits for its sentence. */
#include "server/process/plugin/handler_guard.h"

#include "common/base/clock.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    THREADS_MAX  = 128,
    PLACE_BYTES  = 400,
    STACK_BYTES  = 64 << 10,
    DIE_AFTER_MS = 3000,
    LOOK_MS      = 10
};

typedef struct {
    _Atomic uint64_t since_ms; /* 0: in no handler */
    atomic_int signal;         /* of the crash */
    handler_place place;       /* while since_ms is set */
    void *stack;               /* for its signals */
} seat;

static seat seats[THREADS_MAX];
static atomic_uint n_seats;
static atomic_int wake = -1;
static atomic_bool is_told, is_installed;
static _Thread_local seat *mine;

static const int crashes[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP};
enum { CRASHES = sizeof crashes / sizeof *crashes };
static struct sigaction before[CRASHES];

/* ---- entering -------------------------------------------------------------------------------- */
/* A handler may overflow its stack, so signals of this thread run on another one, for as long as the process lives. */
static void set_stack(seat *of)
{
    stack_t own;
    if (sigaltstack(NULL, &own) != 0 || (own.ss_flags & SS_DISABLE) == 0) return; /* it has one */
    of->stack = malloc(STACK_BYTES);
    if (of->stack != NULL)
        (void)sigaltstack(&(stack_t){.ss_sp = of->stack, .ss_size = STACK_BYTES}, NULL);
}

void handler_guard_enter(const handler_place *place)
{
    if (mine == NULL) {
        const unsigned n = atomic_fetch_add(&n_seats, 1);
        mine             = &seats[n < THREADS_MAX ? n : THREADS_MAX - 1];
        if (mine->stack == NULL) set_stack(mine);
    }
    mine->place = *place;
    atomic_store(&mine->since_ms, clock_ms(&clock_real));
}

void handler_guard_leave(void)
{
    atomic_store(&mine->since_ms, 0);
}

/* ---- crashes --------------------------------------------------------------------------------- */
static void put(const char *text)
{
    if (write(STDERR_FILENO, text, strlen(text)) < 0) return;
}

/* Only functions that are safe in a handler of signals.  On return the instruction is run again, and the signal kills. */
static void on_crash(int number)
{
    int which = 0;
    while (crashes[which] != number) which++;
    const int fd = atomic_load(&wake);
    if (mine != NULL && atomic_load(&mine->since_ms) != 0 && fd >= 0) {
        static const uint64_t one = 1;
        atomic_store(&mine->signal, number);
        const bool is_woken = write(fd, &one, sizeof one) == (ssize_t)sizeof one;
        for (int ms = 0; is_woken && ms < DIE_AFTER_MS && !atomic_load(&is_told); ms += LOOK_MS)
            nanosleep(&(struct timespec){.tv_nsec = LOOK_MS * 1000000}, NULL);
        if (!atomic_load(&is_told)) {
            put("penstock: a crash in ");
            put(mine->place.what);
            put("() of handler '");
            put(mine->place.handler);
            put("' of table '");
            put(mine->place.table);
            put("'\n");
        }
    }
    sigaction(number, &before[which], NULL);
    if (number == SIGABRT || number == SIGTRAP) raise(number);
}

void handler_guard_watch(int wake_fd)
{
    struct sigaction act = {.sa_handler = on_crash, .sa_flags = SA_NODEFER | SA_ONSTACK};
    atomic_store(&wake, wake_fd);
    if (wake_fd < 0 || atomic_exchange(&is_installed, true)) return;
    for (int i = 0; i < CRASHES; i++) sigaction(crashes[i], &act, &before[i]);
}

/* ---- looking --------------------------------------------------------------------------------- */
static unsigned count(void)
{
    const unsigned n = atomic_load(&n_seats);
    return n < THREADS_MAX ? n : THREADS_MAX;
}

int handler_guard_look(uint64_t limit_ms, int32_t rank, char *text, size_t size)
{
    char place[PLACE_BYTES];
    const uint64_t now = clock_ms(&clock_real);
    for (unsigned i = 0; i < count(); i++) {
        const uint64_t since = atomic_load(&seats[i].since_ms);
        const int number     = atomic_load(&seats[i].signal);
        if (since == 0 || (number == 0 && (now < since || now - since <= limit_ms))) continue;
        const handler_place *p = &seats[i].place;
        snprintf(place, sizeof place,
                 "%s() of handler '%.100s'%s%.100s (part %u of table '%.100s')", p->what,
                 p->handler, p->plugin[0] != '\0' ? " of plugin " : "", p->plugin, p->part,
                 p->table);
        if (number != 0) {
            snprintf(text, size, "server %d crashed (%s) in %s", rank, strsignal(number), place);
            return number;
        }
        snprintf(text, size,
                 "server %d has been in %s for %.3g s; it must return within handler_timeout_ms "
                 "(%.3g s), and may answer later",
                 rank, place, (double)(now - since) / 1000, (double)limit_ms / 1000);
        if (atomic_load(&seats[i].since_ms) == since) return -1; /* else it has just left */
    }
    return 0;
}

bool handler_guard_is_empty(uint64_t wait_ms)
{
    for (uint64_t ms = 0;; ms += LOOK_MS) {
        bool is_busy = false, has_crashed = false;
        for (unsigned i = 0; i < count(); i++) {
            is_busy |= atomic_load(&seats[i].since_ms) != 0;
            has_crashed |= atomic_load(&seats[i].signal) != 0;
        }
        if (!is_busy) return true;
        if (has_crashed || ms >= wait_ms) return false;
        nanosleep(&(struct timespec){.tv_nsec = LOOK_MS * 1000000}, NULL);
    }
}

void handler_guard_let_die(void)
{
    bool has_crashed = false;
    for (unsigned i = 0; i < count(); i++) has_crashed |= atomic_load(&seats[i].signal) != 0;
    atomic_store(&is_told, true);
    while (has_crashed) pause();
}
