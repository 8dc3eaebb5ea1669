/* state.c - writes beside the old state, flushes, and takes its name; checks on reading. */
#include "common/snapshot/state.h"
#include "common/base/crc.h"
#include "common/base/why.h"
#include "common/system/own_files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_BYTES = 512, VERSION = 1 };

struct state_file {
    char dir[PATH_BYTES - 16], path[PATH_BYTES], next[PATH_BYTES];
    int dir_fd, lock_fd;
};

typedef struct { /* written before the content, in native byte order */
    char magic[8];
    uint32_t version, crc;
    uint64_t size;
} head;

static const char magic[8] = {'P', 'E', 'N', 'S', 'T', 'A', 'T', 'E'};

static pen_status failed(const char *doing, const char *path, pen_error *why)
{
    const int error = errno;
    return why_set(why, PEN_STORE, "%s %.300s: %s; give another --state, or make room there", doing,
                   path, strerror(error));
}

/* ---- the folder ------------------------------------------------------------------------------ */
static pen_status lock(state_file *s, pen_error *why)
{
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/lock", s->dir);
    s->lock_fd = own_file_open(s->dir_fd, "lock", 0);
    if (s->lock_fd < 0) return failed("opening", path, why);
    if (flock(s->lock_fd, LOCK_EX | LOCK_NB) == 0) return PEN_OK;
    if (errno != EWOULDBLOCK) return failed("locking", path, why);
    return why_set(why, PEN_STORE,
                   "another scheduler uses %.300s; end it first, or give another --state", s->dir);
}

static pen_status set_up(state_file *s, const char *dir, pen_error *why)
{
    s->dir_fd = s->lock_fd = -1;
    const int n            = snprintf(s->dir, sizeof s->dir, "%s", dir);
    if (n < 0 || (size_t)n >= sizeof s->dir)
        return why_set(why, PEN_STORE, "the name of the folder %.80s... is too long", dir);
    snprintf(s->path, sizeof s->path, "%s/state", s->dir);
    snprintf(s->next, sizeof s->next, "%s/state.next", s->dir);
    pen_error inner;
    s->dir_fd = own_folder_open(AT_FDCWD, s->dir, s->dir, OWN_FOLDER_GIVEN, &inner);
    if (s->dir_fd < 0) return why_set(why, PEN_STORE, "%s; give another --state", inner.text);
    return lock(s, why);
}

pen_status state_open(const char *dir, state_file **state, pen_error *why)
{
    state_file *s = calloc(1, sizeof *s);
    if (s == NULL) return why_set(why, PEN_NO_MEMORY, "no memory to open %.300s", dir);
    const pen_status status = set_up(s, dir, why);
    if (status == PEN_OK)
        *state = s;
    else
        state_close(s);
    return status;
}

void state_close(state_file *state)
{
    if (state == NULL) return;
    if (state->lock_fd >= 0) close(state->lock_fd);
    if (state->dir_fd >= 0) close(state->dir_fd);
    free(state);
}

/* ---- reading --------------------------------------------------------------------------------- */
static bool read_all(int fd, void *data, size_t size)
{
    uint8_t *at = data;
    while (size > 0) {
        const ssize_t n = read(fd, at, size);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        at += n;
        size -= (size_t)n;
    }
    return true;
}

static pen_status read_open(const state_file *s, int fd, void **data, size_t *size, pen_error *why)
{
    head h;
    struct stat file;
    if (fstat(fd, &file) != 0) return failed("reading", s->path, why);
    const bool is_whole = file.st_size >= (off_t)sizeof h && read_all(fd, &h, sizeof h) &&
                          memcmp(h.magic, magic, sizeof magic) == 0 && h.version == VERSION &&
                          h.size <= STATE_BYTES_MAX && (uint64_t)file.st_size == sizeof h + h.size;
    void *read_into = is_whole ? malloc((size_t)h.size + 1) : NULL;
    if (is_whole && read_into == NULL)
        return why_set(why, PEN_NO_MEMORY, "no memory for the %llu bytes of %.300s",
                       (unsigned long long)h.size, s->path);
    if (!is_whole || !read_all(fd, read_into, (size_t)h.size) ||
        crc32c(0, read_into, (size_t)h.size) != h.crc) {
        free(read_into);
        return why_set(why, PEN_CORRUPT,
                       "%.300s is damaged, or of another version; move it away to start anew",
                       s->path);
    }
    *data = read_into;
    *size = (size_t)h.size;
    return PEN_OK;
}

pen_status state_read(const state_file *state, void **data, size_t *size, pen_error *why)
{
    *data        = NULL;
    *size        = 0;
    const int fd = open(state->path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT) return PEN_OK;
    if (fd < 0) return failed("opening", state->path, why);
    const pen_status status = read_open(state, fd, data, size, why);
    close(fd);
    return status;
}

/* ---- writing --------------------------------------------------------------------------------- */
static bool write_all(int fd, const void *data, size_t size)
{
    const uint8_t *at = data;
    while (size > 0) {
        const ssize_t n = write(fd, at, size);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return false;
        at += n;
        size -= (size_t)n;
    }
    return true;
}

pen_status state_keep(state_file *state, const void *data, size_t size, pen_error *why)
{
    if (size > STATE_BYTES_MAX)
        return why_set(why, PEN_STORE, "%zu bytes are more than a state may have", size);
    head h = {.version = VERSION, .crc = crc32c(0, data, size), .size = size};
    memcpy(h.magic, magic, sizeof magic);
    const int fd = own_file_open(state->dir_fd, "state.next", O_TRUNC);
    if (fd < 0) return failed("writing", state->next, why);
    const bool is_written =
        write_all(fd, &h, sizeof h) && write_all(fd, data, size) && fsync(fd) == 0;
    pen_status status = is_written ? PEN_OK : failed("writing", state->next, why);
    if (close(fd) != 0 && status == PEN_OK) status = failed("writing", state->next, why);
    if (status != PEN_OK) return status;
    if (rename(state->next, state->path) != 0 || fsync(state->dir_fd) != 0)
        return failed("renaming", state->next, why);
    return PEN_OK;
}

pen_status state_forget(state_file *state, pen_error *why)
{
    if (unlink(state->path) != 0 && errno != ENOENT) return failed("removing", state->path, why);
    return fsync(state->dir_fd) == 0 ? PEN_OK : failed("removing", state->path, why);
}
