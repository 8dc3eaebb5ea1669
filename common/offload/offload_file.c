/* offload_file.c - a tier in its own file, bypassing the kernel's cache if the file system allows it.
 *
 * The file is unlinked once it is open, so it disappears with its process, however that ends.  Its room is
 * allocated before use (fallocate), so a full disk fails at the start and not in the middle of a step, if the file
 * system keeps its promise.  O_DIRECT saves memory: the kernel's cache counts as memory of the process's cgroup.
 * A file system that refuses O_DIRECT gets ordinary writes, and the pages are dropped at once. */
#include "common/offload/offload_member.h"

#include "common/base/log.h"
#include "common/base/why.h"
#include "common/system/own_files.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { TRIES = 4 /* for a call that transfers nothing */ };

typedef struct {
    int fd; /* 0: none */
    bool is_direct;
    char dir[512];
    uint64_t size;
} file_state;

/* ---- opening --------------------------------------------------------------------------------- */
static int make_file(const char *dir, int flags)
{
    static atomic_uint serial;
    char path[640];
    const int n =
        snprintf(path, sizeof path, "%s/penstock-%d-%u.state", dir, (int)getpid(), serial++);
    if (n < 0 || (size_t)n >= sizeof path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    const int fd    = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | flags, 0600);
    const int error = errno;
    if (fd >= 0 || error == EINVAL) unlink(path); /* it may exist before the flag is refused */
    errno = error;
    return fd;
}

static void warn_of_cache(const file_state *f)
{
    struct statfs fs;
    if (fstatfs(f->fd, &fs) == 0 && (fs.f_type == TMPFS_MAGIC || fs.f_type == RAMFS_MAGIC))
        log_warning("%.300s keeps its files in memory: offloading to it saves nothing", f->dir);
    else if (!f->is_direct)
        log_warning("the file system of %.300s has no O_DIRECT: optimizer state passes through the "
                    "kernel's cache",
                    f->dir);
}

static pen_status file_open(void *state, const char *dir, pen_error *why)
{
    file_state *f = state;
    if (snprintf(f->dir, sizeof f->dir, "%s", dir) >= (int)sizeof f->dir)
        return why_set(why, PEN_STORE, "the offload_path %.80s... is too long", dir);
    pen_error inner;
    const int folder = own_folder_open(AT_FDCWD, dir, dir, OWN_FOLDER_GIVEN, &inner);
    if (folder < 0)
        return why_set(why, PEN_STORE, "%s; set offload_path to a writable folder on a disk",
                       inner.text);
    close(folder);
    f->is_direct = true;
    int fd       = make_file(dir, O_DIRECT);
    if (fd < 0 && errno == EINVAL) {
        f->is_direct = false;
        fd           = make_file(dir, 0);
    }
    if (fd < 0)
        return why_set(why, PEN_STORE,
                       "cannot create a file for optimizer state in %.300s: %m; set offload_path "
                       "to a writable "
                       "folder on a disk",
                       dir);
    f->fd = fd;
    warn_of_cache(f);
    return PEN_OK;
}

/* ---- room ------------------------------------------------------------------------------------ */
static uint64_t free_bytes(const file_state *f)
{
    struct statvfs fs;
    return fstatvfs(f->fd, &fs) == 0 ? (uint64_t)fs.f_bavail * fs.f_frsize : 0;
}

static pen_status file_grow(void *state, uint64_t bytes, pen_error *why)
{
    file_state *f = state;
    if (bytes <= f->size) return PEN_OK;
    const uint64_t more = bytes - f->size;
    int error           = posix_fallocate(f->fd, (off_t)f->size, (off_t)more);
    if (error == EOPNOTSUPP || error == EINVAL) { /* at least check that it fits now */
        error = free_bytes(f) < more ? ENOSPC : ftruncate(f->fd, (off_t)bytes) != 0 ? errno : 0;
    }
    if (error != 0) {
        errno = error;
        return why_set(why, PEN_STORE,
                       "optimizer state in %.300s needs %" PRIu64 " KiB more, but %" PRIu64
                       " KiB are free: %m; free some space or set another offload_path",
                       f->dir, more >> 10, free_bytes(f) >> 10);
    }
    f->size = bytes;
    return PEN_OK;
}

/* ---- moving bytes ---------------------------------------------------------------------------- */
static pen_status failed(const file_state *f, const char *what, pen_error *why)
{
    return why_set(why, PEN_STORE,
                   "%s optimizer state in %.300s: %m; check that disk, then continue from the "
                   "newest snapshot "
                   "(--resume), with another offload_path if need be",
                   what, f->dir);
}

/* Truncates a short transfer to the alignment, where the next one continues. */
static size_t whole(ssize_t n)
{
    return n <= 0 ? 0 : (size_t)n & ~(size_t)(OFFLOAD_ALIGN - 1);
}

/* Whether to retry a call that moved n bytes; if not, errno gives the reason. */
static bool may_go_on(ssize_t n, int *idle)
{
    if (n < 0 && errno != EINTR) return false;
    *idle = whole(n) > 0 ? 0 : *idle + 1;
    errno = EIO;
    return *idle < TRIES;
}

static void give_up_pages(const file_state *f, uint64_t at, size_t n, bool are_dirty)
{
    if (f->is_direct) return;
    if (are_dirty)
        (void)sync_file_range(f->fd, (off_t)at, (off_t)n,
                              SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
    (void)posix_fadvise(f->fd, (off_t)at, (off_t)n, POSIX_FADV_DONTNEED);
}

static pen_status file_read(void *state, uint64_t at, void *to, size_t n, pen_error *why)
{
    const file_state *f = state;
    int idle            = 0;
    for (size_t done = 0; done < n;) {
        const ssize_t got = pread(f->fd, (char *)to + done, n - done, (off_t)(at + done));
        if (whole(got) == 0 && !may_go_on(got, &idle)) return failed(f, "cannot read", why);
        done += whole(got);
    }
    give_up_pages(f, at, n, false);
    return PEN_OK;
}

static pen_status file_write(void *state, uint64_t at, const void *from, size_t n, pen_error *why)
{
    const file_state *f = state;
    int idle            = 0;
    for (size_t done = 0; done < n;) {
        const ssize_t put = pwrite(f->fd, (const char *)from + done, n - done, (off_t)(at + done));
        if (whole(put) == 0 && !may_go_on(put, &idle)) return failed(f, "cannot write", why);
        done += whole(put);
    }
    give_up_pages(f, at, n, true);
    return PEN_OK;
}

static void file_close(void *state)
{
    file_state *f = state;
    if (f->fd > 0) close(f->fd);
}

const offload_ops offload_file = {
    .name = "file",
    .doc =
        "A file without a name on a disk, past the kernel's cache where its file system allows it.",
    .state_size = sizeof(file_state),
    .open       = file_open,
    .grow       = file_grow,
    .read       = file_read,
    .write      = file_write,
    .close      = file_close,
};
