/* own_files.c - opens folders step by step without following links, and files inside them. */
#include "common/system/own_files.h"

#include "common/base/why.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NOBODY = 65534 }; /* whose files a network file system shows that maps their owner */

/* ---- folders --------------------------------------------------------------------------------- */
static pen_status check_folder(const struct stat *st, bool is_new, const char *shown,
                               own_folder_kind kind, pen_error *why)
{
    const bool is_ours = st->st_uid == geteuid() || (is_new && st->st_uid == NOBODY);
    if (!is_ours && (kind == OWN_FOLDER || (st->st_uid != 0 && st->st_uid != NOBODY)))
        return why_set(why, PEN_STORE,
                       "the folder %.300s belongs to another user (uid %u); choose another place",
                       shown, (unsigned)st->st_uid);
    if (kind == OWN_FOLDER && (st->st_mode & 0022) != 0)
        return why_set(why, PEN_STORE,
                       "others may write to the folder %.300s (mode %04o): check its contents, "
                       "then chmod 700 it or remove it",
                       shown, (unsigned)(st->st_mode & 07777));
    return PEN_OK;
}

int own_folder_open(int at, const char *name, const char *shown, own_folder_kind kind,
                    pen_error *why)
{
    struct stat st;
    const int follow  = kind == OWN_FOLDER ? O_NOFOLLOW : 0;
    const bool is_new = mkdirat(at, name, 0700) == 0; /* opening it tells more */
    const int fd      = openat(at, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | follow);
    if (fd < 0 && errno == ENOTDIR && follow != 0 &&
        fstatat(at, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(st.st_mode)) {
        why_set(why, PEN_STORE, "%.300s is a link, which may lead anywhere; remove it", shown);
        return -1;
    }
    if (fd < 0 || fstat(fd, &st) != 0)
        why_set(why, PEN_STORE, "cannot %s the folder %.300s: %s",
                errno == ENOENT ? "create" : "open", shown, strerror(errno));
    else if (check_folder(&st, is_new, shown, kind, why) == PEN_OK)
        return fd;
    if (fd >= 0) close(fd);
    return -1;
}

/* ---- files ----------------------------------------------------------------------------------- */
int own_file_open(int folder, const char *name, int flags)
{
    struct stat st;
    const int common = O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NOCTTY | (flags & O_APPEND);
    int fd           = openat(folder, name, common | O_CREAT | O_EXCL, 0600);
    if (fd >= 0 || errno != EEXIST) return fd;
    fd = openat(folder, name, common | O_NONBLOCK);
    if (fd < 0 && errno == ELOOP) errno = EPERM;
    if (fd < 0) return -1;
    const bool is_ours = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_nlink == 1 &&
                         (st.st_uid == geteuid() || st.st_uid == NOBODY);
    if (is_ours && ((flags & O_TRUNC) == 0 || ftruncate(fd, 0) == 0)) return fd;
    const int error = is_ours ? errno : EPERM;
    close(fd);
    errno = error;
    return -1;
}

FILE *own_file_beside(const char *path, char *making, size_t size)
{
    if ((size_t)snprintf(making, size, "%s.XXXXXX", path) >= size) {
        errno = ENAMETOOLONG;
        return NULL;
    }
    const int fd = mkostemp(making, O_CLOEXEC);
    FILE *file   = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (fd >= 0 && file == NULL) {
        unlink(making);
        close(fd);
    }
    return file;
}

/* ---- secrets --------------------------------------------------------------------------------- */
static pen_status check_secret(const char *what, const char *path, const struct stat *st,
                               pen_error *why)
{
    const bool is_ours  = st->st_uid == geteuid();
    const mode_t others = is_ours ? 0077 : 0037;
    if (!S_ISREG(st->st_mode))
        return why_set(why, PEN_BAD_SETTING, "%s %.200s is not a file", what, path);
    if (!is_ours && st->st_uid != 0)
        return why_set(why, PEN_BAD_SETTING,
                       "%s %.200s belongs to another user (uid %u), who may change it: it must be "
                       "this user's or root's",
                       what, path, (unsigned)st->st_uid);
    if ((st->st_mode & others) == 0) return PEN_OK;
    return why_set(
        why, PEN_BAD_SETTING,
        "%s %.200s is open to others (mode %04o): chmod 600 it; make a new one if others "
        "may have read it",
        what, path, (unsigned)(st->st_mode & 07777));
}

pen_status own_secret_read(const char *what, const char *path, char *text, size_t size,
                           pen_error *why)
{
    struct stat st;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0 || fstat(fd, &st) != 0) {
        why_set(why, PEN_BAD_SETTING, "cannot read %s %.200s: %s", what, path, strerror(errno));
        if (fd >= 0) close(fd);
        return PEN_BAD_SETTING;
    }
    pen_status status = check_secret(what, path, &st, why);
    const ssize_t n   = status == PEN_OK ? read(fd, text, size) : 0;
    close(fd);
    if (status == PEN_OK && n <= 0)
        status = why_set(why, PEN_BAD_SETTING, "%s %.200s is empty", what, path);
    if (status == PEN_OK && (size_t)n == size)
        status = why_set(why, PEN_BAD_SETTING, "%s %.200s is too long", what, path);
    if (status == PEN_OK)
        text[n] = '\0';
    else
        explicit_bzero(text, size);
    return status;
}
