/* iofault.c - a library to preload: it counts the calls that change files below one folder, and makes one of them fail.
 *
 *   IOFAULT_DIR    the folder
 *   IOFAULT_AT     which call, from 1; 0: none fails
 *   IOFAULT_HOW    kill    the process dies instead of the call
 *                  torn    a write writes half of its bytes, then the process dies
 *                  lose    the process dies, and a part of what was not synced to the disk is lost, as in a power
 *                          failure: writes without fsync() of the file, names without fsync() of their folder
 *                  enospc  from this call on there is no space
 *                  eio     this call fails
 *                  short   a write writes half of its bytes, once
 *   IOFAULT_SEED   lose: which part; 0 loses all of it
 *   IOFAULT_COUNT  file into which the number of calls is written when the process exits
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define SHOWN      __attribute__((visibility("default")))

enum { UNDO_MAX = 4096 };
typedef enum { PASS, KILL, TORN, LOSE, NO_SPACE, IO_ERROR, SHORT } fault;
typedef enum { WRITTEN, RENAMED, REMOVED, MADE } change;

typedef struct { /* how to undo one change */
    change what;
    bool is_done; /* synced */
    char folder[PATH_MAX], path[PATH_MAX], other[PATH_MAX];
    int fd; /* WRITTEN */
    off_t offset, size;
    size_t n;
    char *old;
    ino_t file;
} undo;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char dir[PATH_MAX], how[16], count_file[PATH_MAX];
static long at, calls;
static uint64_t seed;
static undo *undos;
static int n_undos, hidden;

__attribute__((constructor)) static void start(void)
{
    const char *text = getenv("IOFAULT_DIR");
    if (text == NULL || realpath(text, dir) == NULL) return;
    if ((text = getenv("IOFAULT_AT")) != NULL) at = atol(text);
    if ((text = getenv("IOFAULT_HOW")) != NULL) snprintf(how, sizeof how, "%s", text);
    if ((text = getenv("IOFAULT_SEED")) != NULL) seed = strtoull(text, NULL, 10);
    if ((text = getenv("IOFAULT_COUNT")) != NULL)
        snprintf(count_file, sizeof count_file, "%s", text);
    if (strcmp(how, "lose") == 0) undos = calloc(UNDO_MAX, sizeof *undos);
}

__attribute__((destructor)) static void finish(void)
{
    if (count_file[0] == '\0') return;
    FILE *out = fopen(count_file, "w");
    if (out == NULL) return;
    fprintf(out, "%ld\n", calls);
    fclose(out);
}

static bool is_below(const char *path)
{
    const size_t n = strlen(dir);
    return n > 0 && strncmp(path, dir, n) == 0 && (path[n] == '/' || path[n] == '\0');
}

static bool path_of(int fd, char path[PATH_MAX])
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t n = readlink(link, path, PATH_MAX - 1);
    if (n < 0) return false;
    path[n] = '\0';
    return is_below(path);
}

/* ---- losing what was not synced -------------------------------------------------------------- */
static undo *note(change what, const char *path)
{
    char copy[PATH_MAX];
    if (undos == NULL || n_undos == UNDO_MAX) return NULL;
    undo *u = &undos[n_undos++];
    *u      = (undo){.what = what, .fd = -1};
    snprintf(u->path, sizeof u->path, "%s", path);
    snprintf(copy, sizeof copy, "%s", path);
    snprintf(u->folder, sizeof u->folder, "%s", dirname(copy));
    return u;
}

static void note_write(int fd, off_t offset, size_t n)
{
    char path[PATH_MAX];
    struct stat found;
    if (undos == NULL || !path_of(fd, path) || fstat(fd, &found) != 0) return;
    if (fcntl(fd, F_GETFL) & O_DSYNC) return; /* on the disk when it returns */
    undo *u = note(WRITTEN, path);
    if (u == NULL) return;
    u->fd     = dup(fd);
    u->offset = offset;
    u->size   = found.st_size;
    u->file   = found.st_ino;
    u->old    = malloc(n + 1);
    if (u->old != NULL && offset < found.st_size) {
        char reopened[64];
        snprintf(reopened, sizeof reopened, "/proc/self/fd/%d", fd);
        const int reader  = NEXT(open)(reopened, O_RDONLY);
        const ssize_t got = pread(reader, u->old, n, offset);
        u->n              = got > 0 ? (size_t)got : 0;
        close(reader);
    }
}

/* Another name for a file that is about to lose its own. */
static void hide(const char *path, char other[PATH_MAX])
{
    char copy[PATH_MAX];
    snprintf(copy, sizeof copy, "%s", dir);
    snprintf(other, PATH_MAX, "%s/.hidden-%d-%d", dirname(copy), (int)getpid(), hidden++);
    if (link(path, other) != 0) other[0] = '\0';
}

static void settle_file(ino_t file)
{
    for (int i = 0; i < n_undos; i++)
        if (undos[i].what == WRITTEN && undos[i].file == file) undos[i].is_done = true;
}

static void settle_folder(const char *path)
{
    for (int i = 0; i < n_undos; i++)
        if (undos[i].what != WRITTEN && strcmp(undos[i].folder, path) == 0) undos[i].is_done = true;
}

static void settle(int fd)
{
    char path[PATH_MAX];
    struct stat found;
    if (undos == NULL || !path_of(fd, path) || fstat(fd, &found) != 0) return;
    if (S_ISDIR(found.st_mode))
        settle_folder(path);
    else
        settle_file(found.st_ino);
}

static void take_back(const undo *u)
{
    switch (u->what) {
    case WRITTEN:
        if (u->n > 0) (void)!NEXT(pwrite)(u->fd, u->old, u->n, u->offset);
        (void)!NEXT(ftruncate)(u->fd, u->size);
        break;
    case RENAMED: NEXT(rename)(u->path, u->other); break;
    case REMOVED:
        if (u->other[0] != '\0') NEXT(rename)(u->other, u->path);
        break;
    case MADE:
        if (NEXT(unlink)(u->path) != 0) rmdir(u->path);
        break;
    }
}

static bool is_lost(int i)
{
    if (seed == 0) return true;
    uint64_t x = (seed + (uint64_t)i) * 0x9e3779b97f4a7c15u;
    return (x ^ x >> 29) >> 17 & 1;
}

static void die(bool loses)
{
    for (int i = n_undos; loses && i-- > 0;)
        if (!undos[i].is_done && is_lost(i)) take_back(&undos[i]);
    for (int i = 0; i < n_undos; i++)
        if (undos[i].what == REMOVED && undos[i].other[0] != '\0') NEXT(unlink)(undos[i].other);
    kill(getpid(), SIGKILL);
    for (;;) pause();
}

/* ---- which call fails ------------------------------------------------------------------------ */
static fault next_call(bool takes_space)
{
    calls++;
    if (at == 0 || calls < at) return PASS;
    if (strcmp(how, "enospc") == 0) return takes_space ? NO_SPACE : PASS;
    if (calls > at) return PASS;
    if (strcmp(how, "kill") == 0) return KILL;
    if (strcmp(how, "torn") == 0) return TORN;
    if (strcmp(how, "lose") == 0) return LOSE;
    if (strcmp(how, "eio") == 0) return IO_ERROR;
    return strcmp(how, "short") == 0 ? SHORT : PASS;
}

/* True: the call is made unchanged. */
static bool passes(bool takes_space)
{
    switch (next_call(takes_space)) {
    case KILL:
    case TORN: die(false); break;
    case LOSE: die(true); break;
    case NO_SPACE: errno = ENOSPC; return false;
    case IO_ERROR: errno = EIO; return false;
    default: break;
    }
    return true;
}

/* The same for a write of n bytes; *n is how many of them are written.  False: none, with an error. */
static bool writes(size_t *n, bool *dies)
{
    *dies = false;
    switch (next_call(true)) {
    case KILL: die(false); break;
    case LOSE: die(true); break;
    case TORN:
        *dies = true;
        *n /= 2;
        break;
    case SHORT: *n /= 2; break;
    case NO_SPACE: errno = ENOSPC; return false;
    case IO_ERROR: errno = EIO; return false;
    default: break;
    }
    return true;
}

static bool concerns(int fd)
{
    char path[PATH_MAX];
    return dir[0] != '\0' && path_of(fd, path);
}

/* ---- writes ---------------------------------------------------------------------------------- */
SHOWN ssize_t pwrite(int fd, const void *data, size_t n, off_t offset)
{
    if (!concerns(fd)) return NEXT(pwrite)(fd, data, n, offset);
    pthread_mutex_lock(&lock);
    bool dies;
    ssize_t done = -1;
    if (writes(&n, &dies)) {
        note_write(fd, offset, n);
        done = NEXT(pwrite)(fd, data, n, offset);
    }
    if (dies) die(false);
    pthread_mutex_unlock(&lock);
    return done;
}

SHOWN ssize_t pwrite64(int fd, const void *data, size_t n, off_t offset)
{
    return pwrite(fd, data, n, offset);
}

SHOWN ssize_t write(int fd, const void *data, size_t n)
{
    if (!concerns(fd)) return NEXT(write)(fd, data, n);
    pthread_mutex_lock(&lock);
    bool dies;
    ssize_t done = -1;
    if (writes(&n, &dies)) {
        note_write(fd, lseek(fd, 0, SEEK_CUR), n);
        done = NEXT(write)(fd, data, n);
    }
    if (dies) die(false);
    pthread_mutex_unlock(&lock);
    return done;
}

/* As one block of bytes, so that it can be split anywhere. */
static ssize_t gathered(int fd, const struct iovec *iov, int count, off_t offset)
{
    size_t n = 0, filled = 0;
    for (int i = 0; i < count; i++) n += iov[i].iov_len;
    char *all = malloc(n + 1);
    if (all == NULL) {
        errno = ENOMEM;
        return -1;
    }
    for (int i = 0; i < count; i++) {
        memcpy(all + filled, iov[i].iov_base, iov[i].iov_len);
        filled += iov[i].iov_len;
    }
    const ssize_t done = offset < 0 ? write(fd, all, n) : pwrite(fd, all, n, offset);
    free(all);
    return done;
}

SHOWN ssize_t pwritev(int fd, const struct iovec *iov, int count, off_t offset)
{
    return concerns(fd) ? gathered(fd, iov, count, offset) : NEXT(pwritev)(fd, iov, count, offset);
}

SHOWN ssize_t writev(int fd, const struct iovec *iov, int count)
{
    return concerns(fd) ? gathered(fd, iov, count, -1) : NEXT(writev)(fd, iov, count);
}

SHOWN int ftruncate(int fd, off_t size)
{
    if (!concerns(fd)) return NEXT(ftruncate)(fd, size);
    pthread_mutex_lock(&lock);
    const int rc = passes(true) ? NEXT(ftruncate)(fd, size) : -1;
    pthread_mutex_unlock(&lock);
    return rc;
}

/* ---- syncing --------------------------------------------------------------------------------- */
static int synced(int fd, int (*call)(int fd))
{
    if (!concerns(fd)) return call(fd);
    pthread_mutex_lock(&lock);
    const int rc = passes(true) ? call(fd) : -1;
    if (rc == 0) settle(fd);
    pthread_mutex_unlock(&lock);
    return rc;
}

SHOWN int fsync(int fd)
{
    return synced(fd, NEXT(fsync));
}

SHOWN int fdatasync(int fd)
{
    return synced(fd, NEXT(fdatasync));
}

SHOWN int sync_file_range(int fd, off_t offset, off_t n, unsigned flags)
{
    if (!concerns(fd)) return NEXT(sync_file_range)(fd, offset, n, flags);
    pthread_mutex_lock(&lock);
    const int rc = passes(false) ? NEXT(sync_file_range)(fd, offset, n, flags) : -1;
    pthread_mutex_unlock(&lock);
    return rc;
}

/* ---- names ----------------------------------------------------------------------------------- */
static int opened(int (*call)(const char *path, int flags, ...), const char *path, int flags,
                  mode_t mode)
{
    if (dir[0] == '\0' || !is_below(path) || !(flags & O_CREAT)) return call(path, flags, mode);
    pthread_mutex_lock(&lock);
    const bool is_new = access(path, F_OK) != 0;
    const int fd      = passes(true) ? call(path, flags, mode) : -1;
    if (fd >= 0 && is_new) (void)note(MADE, path);
    pthread_mutex_unlock(&lock);
    return fd;
}

static mode_t mode_of(int flags, va_list args)
{
    return flags & (O_CREAT | __O_TMPFILE) ? (mode_t)va_arg(args, int) : 0;
}

SHOWN int open(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    const mode_t mode = mode_of(flags, args);
    va_end(args);
    return opened(NEXT(open), path, flags, mode);
}

SHOWN int open64(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    const mode_t mode = mode_of(flags, args);
    va_end(args);
    return opened(NEXT(open), path, flags, mode);
}

static int open_here(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    const mode_t mode = mode_of(flags, args);
    va_end(args);
    return NEXT(openat)(AT_FDCWD, path, flags, mode);
}

/* Of a path; what is relative to another folder is passed on. */
SHOWN int openat(int at_folder, const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    const mode_t mode = mode_of(flags, args);
    va_end(args);
    if (at_folder != AT_FDCWD) return NEXT(openat)(at_folder, path, flags, mode);
    return opened(open_here, path, flags, mode);
}

SHOWN int mkdir(const char *path, mode_t mode)
{
    if (dir[0] == '\0' || !is_below(path)) return NEXT(mkdir)(path, mode);
    pthread_mutex_lock(&lock);
    const int rc = passes(true) ? NEXT(mkdir)(path, mode) : -1;
    if (rc == 0) (void)note(MADE, path);
    pthread_mutex_unlock(&lock);
    return rc;
}

SHOWN int rename(const char *from, const char *to)
{
    if (dir[0] == '\0' || !is_below(to)) return NEXT(rename)(from, to);
    pthread_mutex_lock(&lock);
    int rc = -1;
    if (passes(false)) {
        rc      = NEXT(rename)(from, to);
        undo *u = rc == 0 ? note(RENAMED, to) : NULL;
        if (u != NULL) snprintf(u->other, sizeof u->other, "%s", from);
    }
    pthread_mutex_unlock(&lock);
    return rc;
}

SHOWN int unlink(const char *path)
{
    if (dir[0] == '\0' || !is_below(path)) return NEXT(unlink)(path);
    pthread_mutex_lock(&lock);
    int rc = -1;
    if (passes(false)) {
        undo *u = access(path, F_OK) == 0 ? note(REMOVED, path) : NULL;
        if (u != NULL) hide(path, u->other);
        rc = NEXT(unlink)(path);
    }
    pthread_mutex_unlock(&lock);
    return rc;
}
