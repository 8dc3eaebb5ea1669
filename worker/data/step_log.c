/* step_log.c - appends a line or an event record for each step to a file. */
#include "worker/data/step_log.h"

#include "common/base/crc.h"
#include "common/base/log.h"
#include "common/base/why.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { PATH_BYTES = 1024, EVENT_BYTES = 256, NAME_BYTES = 64, FLUSH_S = 1 };

typedef struct {
    bool is_csv;
    char path[PATH_BYTES];
    FILE *file; /* NULL: it has failed, and a warning was given */
} sink;

struct step_log {
    int n;
    double flushed_s;
    sink at[2];
};

/* "csv:" or "tensorboard:"; NULL: neither.  *size is the length of what follows, up to a comma. */
static const char *rest_of(const char *part, bool *is_csv, size_t *size)
{
    static const char csv[] = "csv:", board[] = "tensorboard:";
    *is_csv = strncmp(part, csv, sizeof csv - 1) == 0;
    if (!*is_csv && strncmp(part, board, sizeof board - 1) != 0) return NULL;
    part += *is_csv ? sizeof csv - 1 : sizeof board - 1;
    *size = strcspn(part, ",");
    return part;
}

pen_status step_log_check(const char *log_to, pen_error *why)
{
    bool is_csv;
    size_t size;
    int n = 0;
    for (const char *part = log_to; *part != '\0'; n++) {
        const char *path = rest_of(part, &is_csv, &size);
        if (path == NULL || size == 0 || size > PATH_BYTES - 128 || n == 2)
            return why_set(
                why, PEN_BAD_SETTING,
                "log_to=%.200s: expected csv:FILE, tensorboard:DIR, or both with a comma "
                "between them",
                log_to);
        part = path + size + (path[size] == ',');
    }
    return PEN_OK;
}

static double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- Event messages -------------------------------------------------------------------------- */
typedef struct {
    unsigned char byte[EVENT_BYTES];
    size_t n;
} message;

static void put_bytes(message *m, const void *data, size_t size)
{
    if (m->n + size > sizeof m->byte) return; /* names are bounded: never */
    memcpy(m->byte + m->n, data, size);
    m->n += size;
}

static void put_varint(message *m, uint64_t value)
{
    for (; value >= 0x80; value >>= 7)
        put_bytes(m, &(unsigned char){(unsigned char)(value | 0x80)}, 1);
    put_bytes(m, &(unsigned char){(unsigned char)value}, 1);
}

/* Wire types of protobuf. */
enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 };

static void put_key(message *m, int field, int type)
{
    put_varint(m, (uint64_t)field << 3 | (uint64_t)type);
}

static void put_text(message *m, int field, const void *data, size_t size)
{
    put_key(m, field, BYTES);
    put_varint(m, size);
    put_bytes(m, data, size);
}

static uint32_t masked_crc(const void *data, size_t size)
{
    const uint32_t crc = crc32c(0, data, size);
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

/* Little-endian, as this library's hosts are. */
static bool write_record(FILE *file, const message *m)
{
    const uint64_t size     = m->n;
    const uint32_t head_crc = masked_crc(&size, sizeof size);
    const uint32_t body_crc = masked_crc(m->byte, m->n);
    return fwrite(&size, sizeof size, 1, file) == 1 &&
           fwrite(&head_crc, sizeof head_crc, 1, file) == 1 &&
           fwrite(m->byte, m->n, 1, file) == 1 && fwrite(&body_crc, sizeof body_crc, 1, file) == 1;
}

static void begin_event(message *m, double now_s)
{
    m->n = 0;
    put_key(m, 1, FIXED64); /* wall_time */
    put_bytes(m, &now_s, sizeof now_s);
}

static bool write_version(FILE *file)
{
    static const char version[] = "brain.Event:2";
    message m;
    begin_event(&m, seconds_now());
    put_text(&m, 3, version, sizeof version - 1);
    return write_record(file, &m);
}

static bool write_scalar(FILE *file, double now_s, int64_t step, const char *name, double value)
{
    const float simple = (float)value;
    message v = {.n = 0}, summary = {.n = 0}, event;
    put_text(&v, 1, name, strlen(name)); /* tag */
    put_key(&v, 2, FIXED32);             /* simple_value */
    put_bytes(&v, &simple, sizeof simple);
    put_text(&summary, 1, v.byte, v.n);
    begin_event(&event, now_s);
    put_key(&event, 2, VARINT);
    put_varint(&event, (uint64_t)step);
    put_text(&event, 5, summary.byte, summary.n);
    return write_record(file, &event);
}

/* ---- files ------------------------------------------------------------------------------------- */
static pen_status open_csv(sink *s, pen_error *why)
{
    struct stat st;
    const int fd = open(s->path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0644);
    s->file      = fd >= 0 ? fdopen(fd, "a") : NULL;
    if (s->file == NULL) {
        const int error = errno;
        if (fd >= 0) close(fd);
        return why_set(why, PEN_STORE, "log_to: cannot write %s: %s", s->path, strerror(error));
    }
    if (fstat(fd, &st) == 0 && st.st_size == 0) fprintf(s->file, "step,time,name,value\n");
    return PEN_OK;
}

static pen_status open_board(sink *s, pen_error *why)
{
    char host[64] = "", path[PATH_BYTES];
    gethostname(host, sizeof host - 1);
    if (mkdir(s->path, 0755) != 0 && errno != EEXIST)
        return why_set(why, PEN_STORE, "log_to: cannot make the folder %s: %s", s->path,
                       strerror(errno));
    snprintf(path, sizeof path, "%.880s/events.out.tfevents.%010lld.%s.%d", s->path,
             (long long)time(NULL), host, (int)getpid());
    const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644);
    s->file      = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (s->file == NULL || !write_version(s->file)) {
        const int error = errno;
        if (fd >= 0 && s->file == NULL) close(fd);
        return why_set(why, PEN_STORE, "log_to: cannot write %s: %s", path, strerror(error));
    }
    return PEN_OK;
}

pen_status step_log_open(const char *log_to, step_log **out, pen_error *why)
{
    size_t size       = 0;
    pen_status status = PEN_OK;
    *out              = NULL;
    if (log_to[0] == '\0') return PEN_OK;
    step_log *log = calloc(1, sizeof *log);
    if (log == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for the log of steps");
    for (const char *part = log_to; *part != '\0' && status == PEN_OK && log->n < 2; log->n++) {
        sink *s          = &log->at[log->n];
        const char *path = rest_of(part, &s->is_csv, &size);
        snprintf(s->path, sizeof s->path, "%.*s", (int)size, path);
        status = s->is_csv ? open_csv(s, why) : open_board(s, why);
        part   = path + size + (path[size] == ',');
    }
    if (status != PEN_OK)
        step_log_close(log);
    else
        *out = log;
    return status;
}

static void give_up(sink *s)
{
    log_warning("log_to: cannot write %s: %s; the log ends here, the training does not", s->path,
                strerror(errno));
    fclose(s->file);
    s->file = NULL;
}

/* A name in a line of CSV: without what would need quotes. */
static void write_line(FILE *file, double now_s, int64_t step, const char *name, double value)
{
    char plain[NAME_BYTES];
    snprintf(plain, sizeof plain, "%s", name);
    for (char *c = plain; *c != '\0'; c++)
        if (*c == ',' || *c == '"') *c = '_';
    fprintf(file, "%" PRId64 ",%.3f,%s,%.17g\n", step, now_s, plain, value);
}

void step_log_value(step_log *log, int64_t step, const char *name, double value)
{
    const double now_s = log != NULL ? seconds_now() : 0;
    for (int i = 0; log != NULL && i < log->n; i++) {
        sink *s = &log->at[i];
        if (s->file == NULL) continue;
        if (s->is_csv)
            write_line(s->file, now_s, step, name, value);
        else
            (void)write_scalar(s->file, now_s, step, name, value);
        if (ferror(s->file)) give_up(s);
    }
}

void step_log_step_ended(step_log *log)
{
    const double now_s = log != NULL ? seconds_now() : 0;
    if (log == NULL || (now_s >= log->flushed_s && now_s < log->flushed_s + FLUSH_S)) return;
    log->flushed_s = now_s;
    for (int i = 0; i < log->n; i++)
        if (log->at[i].file != NULL && fflush(log->at[i].file) != 0) give_up(&log->at[i]);
}

void step_log_close(step_log *log)
{
    for (int i = 0; log != NULL && i < 2; i++)
        if (log->at[i].file != NULL && fclose(log->at[i].file) != 0)
            log_warning("log_to: cannot write %s: %s", log->at[i].path, strerror(errno));
    free(log);
}
