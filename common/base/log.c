/* log.c - log lines: level, hook, and the rate limit against bad peers. */
#include "common/base/log.h"

#include "common/base/clock.h"
#include "common/base/utf8.h"
#include "penstock.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    LINE_BYTES = 2048,
    ALLOWED_SETS =
        64, /* times ALLOWED_WAYS = maximum lines a minute from all hostile peers together */
    ALLOWED_WAYS = 4,
    ALLOWED_MS   = 60 * 1000
};

/* The library's only global.  Readers hold the lock while the hook runs: when pen_log_set() returns, no thread is
 * inside the old hook, and its user data may be freed.  The lock prefers writers; otherwise busy loggers would
 * block pen_log_set(). */
static pthread_rwlock_t hook_lock = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;
static pen_log_fn hook_fn;
static void *hook_user;
static atomic_int level_max = LOG_NOTICE;

static atomic_int line_format = LOG_TEXT, own_rank = -1;
static _Atomic(const char *) own_role;

static _Thread_local bool in_hook;

static const char *const level_names[] = {"error", "warning", "notice", "info", "debug"};

const char *const log_formats[] = {"text", "json", NULL};

void log_format_set(int format)
{
    atomic_store_explicit(&line_format, format, memory_order_relaxed);
}

void log_format_as(const char *role, int rank)
{
    atomic_store_explicit(&own_rank, rank, memory_order_relaxed);
    atomic_store_explicit(&own_role, role, memory_order_relaxed);
}

void log_own_name(char *text, size_t size)
{
    const char *role = atomic_load_explicit(&own_role, memory_order_relaxed);
    const int rank   = atomic_load_explicit(&own_rank, memory_order_relaxed);
    const bool is    = role != NULL && role[0] != '\0';
    if (is && rank >= 0)
        snprintf(text, size, "%s %d", role, rank);
    else
        snprintf(text, size, "%s", is ? role : "this process");
}

void log_level_set(int level)
{
    atomic_store_explicit(&level_max, level, memory_order_relaxed);
}

int log_level_find(const char *name)
{
    if (strcmp(name, "silent") == 0) return -1;
    for (int i = 0; i < (int)(sizeof level_names / sizeof level_names[0]); i++)
        if (strcmp(name, level_names[i]) == 0) return i;
    return -2;
}

void pen_log_set(pen_log_fn fn, void *user, int level)
{
    const bool nested = in_hook; /* a hook that replaces itself holds the read lock */
    if (nested) pthread_rwlock_unlock(&hook_lock);
    pthread_rwlock_wrlock(&hook_lock);
    hook_fn   = fn;
    hook_user = user;
    log_level_set(level);
    pthread_rwlock_unlock(&hook_lock);
    if (nested) pthread_rwlock_rdlock(&hook_lock);
}

/* Texts contain words from the network: removes terminal escapes and newlines. */
static void make_printable(char *text)
{
    for (; *text != '\0'; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7f) *text = '?';
}

/* At most `room` bytes; never splits a letter. */
static size_t quote(char *to, size_t room, const char *text)
{
    size_t used = 0;
    while (*text != '\0') {
        const size_t n = utf8_letter(text);
        char one[8]    = "?";
        size_t size    = 1;
        if (*text == '"' || *text == '\\')
            size = (size_t)snprintf(one, sizeof one, "\\%c", *text);
        else if ((unsigned char)*text < 0x20 || *text == 0x7f)
            size = (size_t)snprintf(one, sizeof one, "\\u%04x", (unsigned char)*text);
        else if (n > 0)
            memcpy(one, text, size = n);
        if (used + size > room) break;
        memcpy(to + used, one, size);
        used += size;
        text += n > 0 ? n : 1;
    }
    return used;
}

size_t log_json(char *line, size_t size, int level, const char *role, int rank, const char *stream,
                const char *text)
{
    enum { END = 3 }; /* "}\n */
    char stamp[32], number[32] = "";
    struct timespec now;
    struct tm parts;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &parts);
    strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%S", &parts);
    if (rank >= 0) snprintf(number, sizeof number, "\"rank\":%d,", rank);
    const int head = snprintf(
        line, size, "{\"time\":\"%s.%03dZ\",\"%s\":\"%.15s\",\"role\":\"%.15s\",%s\"text\":\"",
        stamp, (int)(now.tv_nsec / 1000000), level < 0 ? "stream" : "level",
        level < 0 ? stream : level_names[level], role != NULL ? role : "program", number);
    if (head < 0 || (size_t)head + END >= size) return 0;
    const size_t at = (size_t)head + quote(line + head, size - (size_t)head - END - 1, text);
    memcpy(line + at, "\"}\n", END + 1);
    return at + END;
}

static void write_json(int level, const char *text)
{
    char line[2 * LINE_BYTES];
    const size_t length =
        log_json(line, sizeof line, level, atomic_load_explicit(&own_role, memory_order_relaxed),
                 atomic_load_explicit(&own_rank, memory_order_relaxed), NULL, text);
    while (write(STDERR_FILENO, line, length) < 0 && errno == EINTR) continue;
}

static void write_stderr(int level, const char *text)
{
    char stamp[16] = "", line[LINE_BYTES + 64];
    if (atomic_load_explicit(&line_format, memory_order_relaxed) == LOG_JSON) {
        write_json(level, text);
        return;
    }
    if (level >= LOG_INFO) {
        struct timespec now;
        struct tm parts;
        clock_gettime(CLOCK_REALTIME, &now);
        localtime_r(&now.tv_sec, &parts);
        size_t length = strftime(stamp, sizeof stamp, "%H:%M:%S", &parts);
        snprintf(stamp + length, sizeof stamp - length, ".%03d ", (int)(now.tv_nsec / 1000000));
    }
    int length = snprintf(line, sizeof line, "penstock: %s%s\n", stamp, text);
    while (write(STDERR_FILENO, line, (size_t)length) < 0 && errno == EINTR) continue;
}

static void emit(int level, const char *text)
{
    if (in_hook) { /* called from the hook: do not recurse */
        write_stderr(level, text);
        return;
    }
    pthread_rwlock_rdlock(&hook_lock);
    if (hook_fn != NULL) {
        in_hook = true;
        hook_fn(level, text, hook_user);
        in_hook = false;
    } else {
        write_stderr(level, text);
    }
    pthread_rwlock_unlock(&hook_lock);
}

void log_line(int level, const char *format, ...)
{
    if (level > atomic_load_explicit(&level_max, memory_order_relaxed)) return;

    const int saved = errno; /* "%m" and the caller need it unchanged */
    char text[LINE_BYTES];
    va_list args;
    va_start(args, format);
    int length = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (length < 0) return;
    if (length >= (int)sizeof text) memcpy(text + sizeof text - 4, "...", 4);
    make_printable(text);
    emit(level, text);
    errno = saved;
}

/* A key uses one of the few slots of its set.  If other keys of the last minute fill the set, the line is dropped,
 * so a peer gains nothing by inventing keys. */
int log_allowed(uint64_t key)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static struct {
        uint64_t key, free_ms; /* free_ms 0: never used */
    } table[ALLOWED_SETS][ALLOWED_WAYS];

    const uint64_t now_ms = clock_ms(&clock_real);
    const size_t set      = (size_t)(key * 0x9e3779b97f4a7c15u >> 32) % ALLOWED_SETS;
    int place             = -1;

    pthread_mutex_lock(&lock);
    for (int i = 0; i < ALLOWED_WAYS; i++) {
        const bool is_free = table[set][i].free_ms <= now_ms;
        if (!is_free && table[set][i].key == key) {
            place = -1;
            break;
        }
        if (is_free) place = i;
    }
    if (place >= 0) {
        table[set][place].key     = key;
        table[set][place].free_ms = now_ms + ALLOWED_MS;
    }
    pthread_mutex_unlock(&lock);
    return place >= 0;
}
