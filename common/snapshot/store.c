/* store.c - writing: one file per part of a snapshot, atomically.
 *
 * A part is gathered in "making", in transactions of at most STORE_GROUP_BYTES that only bound memory; it is
 * sealed (everything on the disk) and then renamed; the name is on the disk when store_commit() returns.  Crash
 * consistency rests on this order alone.
 */
#include "common/base/crc.h"
#include "common/base/why.h"
#include "common/snapshot/store_env.h"
#include "common/snapshot/store_files.h"
#include "common/snapshot/store_manifest.h"
#include "common/snapshot/store_test.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { PIECE_BYTES = 128 << 10 }; /* read twice, for checksum and copy, while in the cache */

struct store {
    char folder[STORE_PATH_BYTES];
    int owner_fd; /* holds the lock that excludes a second server */
    uint64_t group_bytes_max;

    /* The part being written; env is NULL if there is none. */
    store_env *env;
    store_txn *txn;
    uint64_t group_bytes; /* in txn */
    uint32_t last_tensor;
    store_manifest *manifest;
};

static void making_path(const store *s, char path[STORE_PATH_BYTES])
{
    (void)store_files_join(path, s->folder, "making"); /* store_open() rejected longer names */
}

/* ---- opening --------------------------------------------------------------------------------- */
static pen_status lock(store *s, pen_error *why)
{
    char owner[STORE_PATH_BYTES];
    (void)store_files_join(owner, s->folder, "owner");
    const pen_status status = store_files_lock(owner, &s->owner_fd, why);
    if (status != PEN_AGAIN) return status;
    return why_set(why, PEN_STORE, "%s is in use by another server; two jobs cannot share a store",
                   s->folder);
}

pen_status store_open(const char *dir, int32_t rank, store **out, pen_error *why)
{
    char making[STORE_PATH_BYTES];
    store *s = calloc(1, sizeof *s);
    if (s == NULL) return why_set(why, PEN_NO_MEMORY, "no memory to open the store %s", dir);
    s->owner_fd        = -1;
    s->group_bytes_max = STORE_GROUP_BYTES;
    pen_status status  = PEN_OK;
    if ((size_t)snprintf(s->folder, sizeof s->folder, "%s/part-%d", dir, rank) +
            STORE_FILE_NAME_BYTES >=
        sizeof s->folder)
        status = why_set(why, PEN_STORE, "the path of the store is longer than %d bytes: %s",
                         STORE_PATH_BYTES - STORE_FILE_NAME_BYTES, dir);
    if (status == PEN_OK) status = store_files_make_folder(dir, why);
    if (status == PEN_OK) status = store_files_make_folder(s->folder, why);
    if (status == PEN_OK) status = lock(s, why);
    if (status != PEN_OK) {
        store_close(s);
        return status;
    }
    making_path(s, making);
    unlink(making); /* left by a crash; store_begin() reports if it cannot be removed */
    *out = s;
    return PEN_OK;
}

void store_group(store *s, uint64_t bytes)
{
    s->group_bytes_max = bytes;
}

void store_close(store *s)
{
    if (s == NULL) return;
    store_abort(s);
    if (s->owner_fd >= 0) close(s->owner_fd);
    free(s);
}

/* ---- a part ---------------------------------------------------------------------------------- */
static pen_status put_manifest(store *s, const store_manifest *m, pen_error *why)
{
    char version[32];
    size_t size;
    snprintf(version, sizeof version, "%d.%d.%d", PEN_VERSION_MAJOR, PEN_VERSION_MINOR,
             PEN_VERSION_PATCH);
    store_manifest whole = *m;
    whole.format         = STORE_FORMAT;
    whole.version        = version;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    whole.written_ms = (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
    uint8_t *bytes   = store_manifest_encode(&whole, &size);
    if (bytes == NULL)
        return why_set(why, PEN_NO_MEMORY, "no memory for the manifest of a snapshot");
    const store_bytes value = {bytes, size};
    pen_status status       = store_manifest_decode(value, s->folder, &s->manifest, why);
    if (status == PEN_OK) status = store_txn_put(s->txn, (store_bytes){"M", 1}, value, why);
    free(bytes);
    return status;
}

pen_status store_begin(store *s, const store_manifest *m, pen_error *why)
{
    char making[STORE_PATH_BYTES];
    if (s->env != NULL)
        return why_set(why, PEN_WRONG_STATE, "%s is writing a snapshot already", s->folder);
    making_path(s, making);
    s->group_bytes    = 0;
    s->last_tensor    = 0;
    pen_status status = store_env_open(making, STORE_ENV_FRESH, &s->env, why);
    if (status == PEN_OK) status = store_txn_begin(s->env, true, s->group_bytes_max, &s->txn, why);
    if (status == PEN_OK) status = put_manifest(s, m, why);
    if (status != PEN_OK) store_abort(s);
    return status;
}

/* Reserves a value in the current transaction, or in a new one if it is full. */
static pen_status reserve(store *s, store_bytes key, size_t size, void **room, pen_error *why)
{
    if (s->txn != NULL && s->group_bytes > 0 && s->group_bytes + size > s->group_bytes_max) {
        const pen_status status = store_txn_commit(s->txn, why);
        s->txn                  = NULL;
        if (status != PEN_OK) return status;
    }
    if (s->txn == NULL) {
        const uint64_t bytes    = size > s->group_bytes_max ? size : s->group_bytes_max;
        const pen_status status = store_txn_begin(s->env, true, 2 * bytes, &s->txn, why);
        if (status != PEN_OK) return status;
        s->group_bytes = 0;
    }
    s->group_bytes += size;
    return store_txn_reserve(s->txn, key, size, room, why);
}

/* Copies and updates a checksum in one pass over memory. */
static uint32_t copy(uint8_t *to, const void *from, size_t size, uint32_t crc)
{
    const uint8_t *at = from;
    for (size_t done = 0; done < size; done += PIECE_BYTES) {
        const size_t piece = size - done < PIECE_BYTES ? size - done : PIECE_BYTES;
        crc                = crc32c(crc, at + done, piece);
        memcpy(to + done, at + done, piece);
    }
    return crc;
}

pen_status store_put(store *s, const char *tensor, const char *what, uint64_t start, uint64_t count,
                     const float *values, pen_error *why)
{
    const int t = store_find_tensor(s->manifest, tensor, s->last_tensor);
    const int w = t < 0 ? -1 : store_find_what(&s->manifest->tensor[t], what);
    if (w < 0)
        return why_set(why, PEN_NOT_FOUND, "the snapshot's manifest has no %s of '%s'", what,
                       tensor);
    s->last_tensor = (uint32_t)t;
    uint8_t name[STORE_VALUE_KEY_BYTES];
    void *room;
    const store_bytes key   = store_value_key(name, (uint32_t)t, w, start);
    const size_t bytes      = count * sizeof *values;
    const pen_status status = reserve(s, key, STORE_VALUE_HEAD_BYTES + bytes, &room, why);
    if (status != PEN_OK) return status;
    uint8_t *out = room;
    store_put_be(out + 8, count, 8);
    const uint32_t crc = crc32c(crc32c(0, key.data, key.size), out + 8, 8);
    store_put_be(out, copy(out + STORE_VALUE_HEAD_BYTES, values, bytes, crc), 8);
    return PEN_OK;
}

pen_status store_put_blob(store *s, const char *name, const void *data, size_t size, pen_error *why)
{
    uint8_t room_for_key[STORE_KEY_ROOM];
    void *room;
    const store_bytes key   = store_blob_key(room_for_key, name);
    const pen_status status = reserve(s, key, STORE_BLOB_HEAD_BYTES + size, &room, why);
    if (status != PEN_OK) return status;
    uint8_t *out = room;
    store_put_be(out, copy(out + STORE_BLOB_HEAD_BYTES, data, size, crc32c(0, key.data, key.size)),
                 8);
    return PEN_OK;
}

static void end_part(store *s)
{
    store_env_close(s->env);
    free(s->manifest);
    s->env      = NULL;
    s->txn      = NULL;
    s->manifest = NULL;
}

/* One more than the highest existing serial. */
static pen_status next_serial(const store *s, uint32_t *serial, pen_error *why)
{
    store_file *files;
    size_t n;
    const pen_status status = store_files_list(s->folder, &files, &n, why);
    if (status != PEN_OK) return status;
    *serial = n > 0 ? files[n - 1].serial + 1 : 1;
    free(files);
    return PEN_OK;
}

static pen_status put_in_place(store *s, int64_t step, uint64_t id, pen_error *why)
{
    char making[STORE_PATH_BYTES], path[STORE_PATH_BYTES], name[STORE_FILE_NAME_BYTES];
    store_file file         = {.step = step, .id = id};
    const pen_status status = next_serial(s, &file.serial, why);
    if (status != PEN_OK) return status;
    store_file_name(&file, name);
    making_path(s, making);
    (void)store_files_join(path, s->folder, name);
    return store_files_put_in_place(making, path, why);
}

pen_status store_commit(store *s, pen_error *why)
{
    const int64_t step = s->manifest->step;
    const uint64_t id  = s->manifest->id;
    pen_status status  = s->txn != NULL ? store_txn_commit(s->txn, why) : PEN_OK;
    s->txn             = NULL;
    if (status == PEN_OK) status = store_env_seal(s->env, why);
    end_part(s);
    if (status == PEN_OK) status = put_in_place(s, step, id, why);
    store_abort(s);
    return status;
}

void store_abort(store *s)
{
    char making[STORE_PATH_BYTES];
    end_part(s);
    if (s->owner_fd < 0) return; /* another process owns it */
    making_path(s, making);
    unlink(making); /* absent after a commit */
}

bool store_lacked_room(void)
{
    return store_env_lacked_room();
}

/* ---- deleting -------------------------------------------------------------------------------- */
static pen_status remove_file(const char *folder, const store_file *file, pen_error *why)
{
    char path[STORE_PATH_BYTES], name[STORE_FILE_NAME_BYTES];
    store_file_name(file, name);
    (void)store_files_join(path, folder, name);
    if (unlink(path) == 0 || errno == ENOENT) return PEN_OK;
    return why_set(why, PEN_STORE, "cannot remove %s: %m; remove it by hand", path);
}

/* Removes all files of the folder that fn selects, durably. */
static pen_status remove_files(const char *folder,
                               bool (*goes)(const store_file *files, size_t n, size_t i,
                                            const void *user),
                               const void *user, pen_error *why)
{
    store_file *files;
    size_t n, removed = 0;
    pen_status status = store_files_list(folder, &files, &n, why);
    if (status != PEN_OK) return status;
    for (size_t i = 0; i < n && status == PEN_OK; i++) {
        if (!goes(files, n, i, user)) continue;
        status = remove_file(folder, &files[i], why);
        removed++;
    }
    free(files);
    if (status == PEN_OK && removed > 0) status = store_files_sync_folder(folder, why);
    return status;
}

typedef struct {
    const int64_t *keep;
    size_t n;
    bool is_stray; /* nothing more will be written here */
} kept;

/* The last file of its step; n if there is none. */
static size_t newest_of(const store_file *files, size_t n, int64_t step)
{
    for (size_t i = n; i-- > 0;)
        if (files[i].step == step) return i;
    return n;
}

static bool is_past(const store_file *files, size_t n, size_t i, const void *user)
{
    const kept *k       = user;
    const int64_t last  = k->keep[k->n - 1];
    const size_t border = newest_of(files, n, last);
    if (!k->is_stray && (border < n ? i >= border : files[i].step > last)) return false;
    for (size_t j = 0; j < k->n; j++)
        if (k->keep[j] == files[i].step) return newest_of(files, n, files[i].step) != i;
    return true;
}

pen_status store_forget(store *s, const int64_t *keep, size_t n, pen_error *why)
{
    const kept k = {.keep = keep, .n = n};
    return n > 0 ? remove_files(s->folder, is_past, &k, why) : PEN_OK;
}

static bool is_after(const store_file *files, size_t n, size_t i, const void *user)
{
    const size_t border = newest_of(files, n, *(const int64_t *)user);
    return border < n && i > border;
}

pen_status store_forget_after(store *s, int64_t step, pen_error *why)
{
    return remove_files(s->folder, is_after, &step, why);
}

static bool is_same(const store_file *files, size_t n, size_t i, const void *user)
{
    (void)n;
    const store_file *wanted = user;
    return files[i].step == wanted->step && files[i].id == wanted->id;
}

pen_status store_drop(store *s, int64_t step, uint64_t id, pen_error *why)
{
    const store_file wanted = {.step = step, .id = id};
    return remove_files(s->folder, is_same, &wanted, why);
}

static pen_status forget_stray(const char *dir, int32_t rank, const kept *k, pen_error *why)
{
    char folder[STORE_PATH_BYTES], owner[STORE_PATH_BYTES];
    int fd;
    if ((size_t)snprintf(folder, sizeof folder, "%s/part-%d", dir, rank) + STORE_FILE_NAME_BYTES >=
        sizeof folder)
        return PEN_OK;
    (void)store_files_join(owner, folder, "owner");
    pen_status status = store_files_lock(owner, &fd, why);
    if (status == PEN_AGAIN) return PEN_OK;
    if (status != PEN_OK) return status;
    status = remove_files(folder, is_past, k, why);
    close(fd);
    return status;
}

pen_status store_forget_strays(const char *dir, int32_t n_servers, const int64_t *keep, size_t n,
                               pen_error *why)
{
    int32_t *ranks;
    size_t n_ranks;
    const kept k      = {.keep = keep, .n = n, .is_stray = true};
    pen_status status = store_files_parts(dir, &ranks, &n_ranks, why);
    if (status != PEN_OK) return status;
    for (size_t i = 0; i < n_ranks && status == PEN_OK; i++)
        if (ranks[i] >= n_servers) status = forget_stray(dir, ranks[i], &k, why);
    free(ranks);
    return status;
}
