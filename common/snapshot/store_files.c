/* store_files.c - folders and files of a store. */
#include "common/snapshot/store_files.h"
#include "common/base/why.h"
#include "common/containers/arrays.h"
#include "common/system/own_files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- names ----------------------------------------------------------------------------------- */
void store_file_name(const store_file *file, char name[STORE_FILE_NAME_BYTES])
{
    snprintf(name, STORE_FILE_NAME_BYTES, "%08" PRIu32 "-%" PRId64 "-%016" PRIx64 ".mdb",
             file->serial, file->step, file->id);
}

/* Accepts exactly what store_file_name() writes. */
static bool parse_name(const char *name, store_file *file)
{
    store_file read;
    char again[STORE_FILE_NAME_BYTES];
    if (sscanf(name, "%8" SCNu32 "-%" SCNd64 "-%16" SCNx64 ".mdb", &read.serial, &read.step,
               &read.id) != 3)
        return false;
    store_file_name(&read, again);
    if (strcmp(name, again) != 0) return false;
    *file = read;
    return true;
}

bool store_files_join(char path[STORE_PATH_BYTES], const char *folder, const char *name)
{
    return (size_t)snprintf(path, STORE_PATH_BYTES, "%s/%s", folder, name) < STORE_PATH_BYTES;
}

/* ---- listing --------------------------------------------------------------------------------- */
static pen_status open_folder(const char *path, DIR **dir, pen_error *why)
{
    *dir = opendir(path);
    if (*dir != NULL || errno == ENOENT) return PEN_OK;
    return why_set(why, PEN_STORE, "cannot read the store folder %s: %m", path);
}

static int by_serial(const void *a, const void *b)
{
    const store_file *x = a, *y = b;
    return (x->serial > y->serial) - (x->serial < y->serial);
}

pen_status store_files_list(const char *folder, store_file **files, size_t *n, pen_error *why)
{
    DIR *dir;
    store_file *list  = NULL, file;
    size_t count      = 0;
    pen_status status = open_folder(folder, &dir, why);
    for (struct dirent *entry; status == PEN_OK && dir != NULL && (entry = readdir(dir)) != NULL;) {
        if (!parse_name(entry->d_name, &file)) continue;
        if (!VEC_MORE(list, count)) {
            status = why_set(why, PEN_NO_MEMORY, "no memory to list %s", folder);
            break;
        }
        list[count++] = file;
    }
    if (dir != NULL) closedir(dir);
    if (status != PEN_OK) {
        free(list);
        return status;
    }
    if (count > 0) qsort(list, count, sizeof *list, by_serial);
    *files = list;
    *n     = count;
    return PEN_OK;
}

static bool parse_part(const char *name, int32_t *rank)
{
    char again[32];
    if (sscanf(name, "part-%" SCNd32, rank) != 1) return false;
    snprintf(again, sizeof again, "part-%" PRId32, *rank);
    return strcmp(name, again) == 0;
}

static int by_rank(const void *a, const void *b)
{
    const int32_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

pen_status store_files_parts(const char *path, int32_t **ranks, size_t *n, pen_error *why)
{
    DIR *dir;
    int32_t *list     = NULL, rank;
    size_t count      = 0;
    pen_status status = open_folder(path, &dir, why);
    for (struct dirent *entry; status == PEN_OK && dir != NULL && (entry = readdir(dir)) != NULL;) {
        if (!parse_part(entry->d_name, &rank)) continue;
        if (!VEC_MORE(list, count)) {
            status = why_set(why, PEN_NO_MEMORY, "no memory to list %s", path);
            break;
        }
        list[count++] = rank;
    }
    if (dir != NULL) closedir(dir);
    if (status != PEN_OK) {
        free(list);
        return status;
    }
    if (count > 0) qsort(list, count, sizeof *list, by_rank);
    *ranks = list;
    *n     = count;
    return PEN_OK;
}

/* ---- changing -------------------------------------------------------------------------------- */
pen_status store_files_sync_folder(const char *path, pen_error *why)
{
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return why_set(why, PEN_STORE, "cannot open the store folder %s: %m", path);
    const bool failed = fsync(fd) != 0 && errno != EINVAL && errno != EROFS;
    pen_status status = PEN_OK;
    if (failed)
        status = why_set(why, PEN_STORE, "cannot bring the folder %s to the disk: %m", path);
    close(fd);
    return status;
}

static pen_status sync_parent(const char *path, pen_error *why)
{
    char copy[STORE_PATH_BYTES];
    snprintf(copy, sizeof copy, "%s", path);
    return store_files_sync_folder(dirname(copy), why);
}

pen_status store_files_make_folder(const char *path, pen_error *why)
{
    pen_error inner;
    const bool is_new = mkdir(path, 0700) == 0;
    if (!is_new && errno != EEXIST)
        return why_set(why, PEN_STORE,
                       "no store: cannot create the folder %s: %m; give another --store", path);
    const int fd = own_folder_open(AT_FDCWD, path, path, OWN_FOLDER_GIVEN, &inner);
    if (fd < 0) return why_set(why, PEN_STORE, "no store: %s; give another --store", inner.text);
    close(fd);
    return is_new ? sync_parent(path, why) : PEN_OK;
}

pen_status store_files_put_in_place(const char *from, const char *to, pen_error *why)
{
    if (rename(from, to) == 0) return sync_parent(to, why);
    const pen_status status = why_set(why, PEN_STORE, "cannot rename %s to %s: %m", from, to);
    unlink(from);
    return status;
}

pen_status store_files_lock(const char *path, int *fd, pen_error *why)
{
    const int made = own_file_open(AT_FDCWD, path, 0);
    if (made < 0) return why_set(why, PEN_STORE, "cannot write %s: %m; give another --store", path);
    if (flock(made, LOCK_EX | LOCK_NB) != 0) {
        const bool is_held = errno == EWOULDBLOCK;
        pen_status status  = PEN_AGAIN;
        if (!is_held) status = why_set(why, PEN_STORE, "cannot lock %s: %m", path);
        close(made);
        return status;
    }
    *fd = made;
    return PEN_OK;
}
