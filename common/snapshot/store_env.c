/* store_env.c - LMDB behind an interface of a dozen functions. */
#include "common/snapshot/store_env.h"
#include "common/base/why.h"
#include "common/snapshot/store_files.h"
#include "common/snapshot/store_pages.h"

#include <errno.h>
#include <fcntl.h>
#include <lmdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* Room for pages that LMDB copies, and the smallest step by which the map grows. */
static const uint64_t spare_bytes = (uint64_t)16 << 20;

struct store_txn {
    store_env *env;
    MDB_txn *mdb;
};

struct store_env {
    char file[STORE_PATH_BYTES];
    store_env_mode mode;
    MDB_env *mdb;
    MDB_dbi dbi;
    store_txn txn; /* .mdb is NULL: none */
};

/* LMDB reports every short write as EIO.  Finds the real cause. */
static int cause_of(int rc, const char *file)
{
    struct rlimit limit;
    struct stat found;
    struct statvfs disk;
    if (rc != EIO || stat(file, &found) != 0) return rc;
    if (statvfs(file, &disk) == 0 && disk.f_bavail == 0) return ENOSPC;
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && (rlim_t)found.st_size >= limit.rlim_cur)
        return EFBIG;
    return rc;
}

static _Thread_local bool lacked_room;

bool store_env_lacked_room(void)
{
    return lacked_room;
}

static pen_status failed(int error, const char *doing, const char *file, pen_error *why)
{
    const int rc = cause_of(error, file);
    lacked_room  = rc == ENOSPC || rc == EDQUOT;
    switch (rc) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
        return why_set(why, PEN_STORE,
                       "no room while %s %s (%s); make some, older snapshots are intact", doing,
                       file, strerror(rc));
    case EIO:
        return why_set(why, PEN_STORE,
                       "%s %s failed half-way (%s): the disk is full or failing; older snapshots "
                       "are intact",
                       doing, file, strerror(rc));
    case EROFS:
    case EACCES:
    case EPERM:
        return why_set(why, PEN_STORE, "%s %s is not permitted (%s); give another --store", doing,
                       file, strerror(rc));
    case ENOMEM: return why_set(why, PEN_NO_MEMORY, "no memory for %s %s", doing, file);
    case MDB_INVALID:
    case MDB_CORRUPTED:
    case MDB_PAGE_NOTFOUND:
    case MDB_VERSION_MISMATCH:
        return why_set(why, PEN_CORRUPT, "%s is damaged or no snapshot (%s); move it away", file,
                       mdb_strerror(rc));
    default: return why_set(why, PEN_STORE, "%s %s: %s", doing, file, mdb_strerror(rc));
    }
}

/* ---- opening --------------------------------------------------------------------------------- */
static unsigned flags_of(store_env_mode mode)
{
    switch (mode) {
    case STORE_ENV_READ: return MDB_RDONLY;
    case STORE_ENV_FRESH: return MDB_NOSYNC;
    default: return 0;
    }
}

static pen_status open_mdb(store_env *e, pen_error *why)
{
    const unsigned flags = flags_of(e->mode) | MDB_NOSUBDIR | MDB_NOLOCK | MDB_NOTLS;
    int rc               = mdb_env_create(&e->mdb);
    if (rc != 0) return failed(rc, "opening", e->file, why);
    if (e->mode == STORE_ENV_FRESH) rc = mdb_env_set_mapsize(e->mdb, spare_bytes);
    if (rc == 0) rc = mdb_env_open(e->mdb, e->file, flags, 0600);
    return rc == 0 ? PEN_OK : failed(rc, "opening", e->file, why);
}

static pen_status open_dbi(store_env *e, pen_error *why)
{
    store_txn *txn;
    pen_status status = store_txn_begin(e, e->mode != STORE_ENV_READ, 0, &txn, why);
    if (status != PEN_OK) return status;
    const int rc = mdb_dbi_open(txn->mdb, NULL, 0, &e->dbi);
    if (rc != 0) {
        store_txn_abort(txn);
        return failed(rc, "opening", e->file, why);
    }
    return store_txn_commit(txn, why);
}

/* An incomplete file never has its final name. */
static pen_status make_state(const char *file, pen_error *why)
{
    char making[STORE_PATH_BYTES];
    store_env *fresh;
    if (access(file, F_OK) == 0) return PEN_OK;
    if ((size_t)snprintf(making, sizeof making, "%s.making", file) >= sizeof making)
        return why_set(why, PEN_STORE, "the path is too long: %s", file);
    pen_status status = store_env_open(making, STORE_ENV_FRESH, &fresh, why);
    if (status != PEN_OK) return status;
    status = store_env_seal(fresh, why);
    store_env_close(fresh);
    return status == PEN_OK ? store_files_put_in_place(making, file, why) : status;
}

static pen_status prepare_file(const char *file, store_env_mode mode, pen_error *why)
{
    if (mode == STORE_ENV_STATE) {
        const pen_status status = make_state(file, why);
        if (status != PEN_OK) return status;
    }
    if (mode != STORE_ENV_FRESH) return store_pages_check(file, why);
    if (unlink(file) == 0 || errno == ENOENT) return PEN_OK;
    return why_set(why, PEN_STORE, "cannot remove %s: %m; give another --store", file);
}

pen_status store_env_open(const char *file, store_env_mode mode, store_env **out, pen_error *why)
{
    store_env *e = calloc(1, sizeof *e);
    if (e == NULL) return why_set(why, PEN_NO_MEMORY, "no memory to open %s", file);
    e->mode           = mode;
    e->txn.env        = e;
    pen_status status = PEN_OK;
    if ((size_t)snprintf(e->file, sizeof e->file, "%s", file) >= sizeof e->file)
        status =
            why_set(why, PEN_STORE, "the path is longer than %d bytes: %s", STORE_PATH_BYTES, file);
    if (status == PEN_OK) status = prepare_file(file, mode, why);
    if (status == PEN_OK) status = open_mdb(e, why);
    if (status == PEN_OK) status = open_dbi(e, why);
    if (status != PEN_OK) {
        store_env_close(e);
        return status;
    }
    *out = e;
    return PEN_OK;
}

void store_env_close(store_env *e)
{
    if (e == NULL) return;
    store_txn_abort(&e->txn);
    if (e->mdb != NULL) mdb_env_close(e->mdb);
    free(e);
}

pen_status store_env_seal(store_env *e, pen_error *why)
{
    const int rc = mdb_env_sync(e->mdb, 1);
    return rc == 0 ? PEN_OK : failed(rc, "bringing to the disk", e->file, why);
}

/* ---- transactions ---------------------------------------------------------------------------- */
/* The map is virtual memory and costs nothing; a transaction that outgrows it fails. */
static int make_room(store_env *e, uint64_t bytes)
{
    MDB_envinfo info;
    MDB_stat pages;
    int rc = mdb_env_info(e->mdb, &info);
    if (rc == 0) rc = mdb_env_stat(e->mdb, &pages);
    if (rc != 0) return rc;
    const uint64_t used   = ((uint64_t)info.me_last_pgno + 1) * pages.ms_psize;
    const uint64_t wanted = used + bytes + bytes / 8 + spare_bytes;
    if (info.me_mapsize >= wanted) return 0;
    return mdb_env_set_mapsize(e->mdb, (2 * wanted + 0xfffff) & ~(uint64_t)0xfffff);
}

pen_status store_txn_begin(store_env *e, bool writes, uint64_t bytes, store_txn **txn,
                           pen_error *why)
{
    if (e->txn.mdb != NULL)
        return why_set(why, PEN_WRONG_STATE, "%s has a transaction already", e->file);
    int rc = writes ? make_room(e, bytes) : 0;
    if (rc == 0) rc = mdb_txn_begin(e->mdb, NULL, writes ? 0 : MDB_RDONLY, &e->txn.mdb);
    if (rc != 0) {
        e->txn.mdb = NULL;
        return failed(rc, writes ? "writing" : "reading", e->file, why);
    }
    *txn = &e->txn;
    return PEN_OK;
}

/* Starts writing committed data to the disk, so that sealing has less to wait for. */
static void push(store_env *e)
{
    mdb_filehandle_t fd;
    if (mdb_env_get_fd(e->mdb, &fd) == 0) (void)sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE);
}

pen_status store_txn_commit(store_txn *txn, pen_error *why)
{
    store_env *e = txn->env;
    const int rc = mdb_txn_commit(txn->mdb);
    txn->mdb     = NULL;
    if (rc != 0) return failed(rc, "writing", e->file, why);
    if (e->mode == STORE_ENV_FRESH) push(e);
    return PEN_OK;
}

void store_txn_abort(store_txn *txn)
{
    if (txn == NULL || txn->mdb == NULL) return;
    mdb_txn_abort(txn->mdb);
    txn->mdb = NULL;
}

/* ---- keys and values ------------------------------------------------------------------------- */
static MDB_val val(store_bytes bytes)
{
    return (MDB_val){bytes.size, (void *)bytes.data};
}

static store_bytes bytes_of(MDB_val v)
{
    return (store_bytes){v.mv_data, v.mv_size};
}

pen_status store_txn_reserve(store_txn *txn, store_bytes key, size_t size, void **room,
                             pen_error *why)
{
    MDB_val k = val(key), v = {size, NULL};
    const int rc = mdb_put(txn->mdb, txn->env->dbi, &k, &v, MDB_RESERVE);
    if (rc != 0) return failed(rc, "writing", txn->env->file, why);
    *room = v.mv_data;
    return PEN_OK;
}

pen_status store_txn_put(store_txn *txn, store_bytes key, store_bytes value, pen_error *why)
{
    void *room              = NULL;
    const pen_status status = store_txn_reserve(txn, key, value.size, &room, why);
    if (status == PEN_OK && value.size > 0) memcpy(room, value.data, value.size);
    return status;
}

pen_status store_txn_get(store_txn *txn, store_bytes key, store_bytes *value, pen_error *why)
{
    MDB_val k    = val(key), v;
    const int rc = mdb_get(txn->mdb, txn->env->dbi, &k, &v);
    if (rc == MDB_NOTFOUND) return PEN_NOT_FOUND;
    if (rc != 0) return failed(rc, "reading", txn->env->file, why);
    *value = bytes_of(v);
    return PEN_OK;
}

static bool begins_with(const MDB_val *key, store_bytes prefix)
{
    return key->mv_size >= prefix.size && memcmp(key->mv_data, prefix.data, prefix.size) == 0;
}

pen_status store_txn_walk(store_txn *txn, store_bytes prefix,
                          pen_status (*fn)(store_bytes key, store_bytes value, void *user,
                                           pen_error *why),
                          void *user, pen_error *why)
{
    MDB_cursor *cursor;
    MDB_val key       = val(prefix), value;
    pen_status status = PEN_OK;
    int rc            = mdb_cursor_open(txn->mdb, txn->env->dbi, &cursor);
    if (rc != 0) return failed(rc, "reading", txn->env->file, why);
    rc = mdb_cursor_get(cursor, &key, &value, prefix.size > 0 ? MDB_SET_RANGE : MDB_FIRST);
    while (rc == 0 && status == PEN_OK && begins_with(&key, prefix)) {
        status = fn(bytes_of(key), bytes_of(value), user, why);
        if (status == PEN_OK) rc = mdb_cursor_get(cursor, &key, &value, MDB_NEXT);
    }
    mdb_cursor_close(cursor);
    if (status == PEN_OK && rc != 0 && rc != MDB_NOTFOUND)
        return failed(rc, "reading", txn->env->file, why);
    return status;
}
