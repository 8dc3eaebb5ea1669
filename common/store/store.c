/* store.c - snapshots in LMDB: one environment per server, one transaction per snapshot part.
 *
 * DESIGN.  Keys are fixed-size, big-endian, so that a cursor walks a snapshot in order:
 *     'M' step                          the manifest: id, applied, job, tensors
 *     'V' step tensor what start        CRC32C, count, then float32[count]; tensor is the row of the manifest,
 *                                       what is 0 for parameters and 1 + k for slot k
 *     'B' step name                     CRC32C, then bytes
 * The map is sized from the manifest before a part is begun, so it cannot run full half-way.
 * LMDB forbids opening an environment twice in one process; `envs` therefore shares them by path.
 * A file that is shorter than its own page count would end a reader in SIGBUS; open_env() refuses it first.
 */
#include "common/store/store.h"
#include "common/crc.h"
#include "common/why.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <lmdb.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    PATH_BYTES       = 512,
    NAME_BYTES       = 256,
    KEY_BYTES        = 1 + 8 + 4 + 1 + 8,
    VALUE_HEAD_BYTES = 16, /* CRC32C, zero, count: keeps the floats 8-byte aligned */
    PARTS_MAX        = 4096
};

/* ---- keys ---------------------------------------------------------------------------------------- */

static size_t put_be(uint8_t *out, uint64_t value, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) out[i] = (uint8_t)(value >> 8 * (bytes - 1 - i));
    return bytes;
}

static uint64_t get_be(const uint8_t *in, size_t bytes)
{
    uint64_t value = 0;
    for (size_t i = 0; i < bytes; i++) value = value << 8 | in[i];
    return value;
}

static MDB_val step_key(uint8_t *key, char kind, int64_t step)
{
    key[0] = (uint8_t)kind;
    return (MDB_val){1 + put_be(key + 1, (uint64_t)step, 8), key};
}

static MDB_val value_key(uint8_t *key, int64_t step, uint32_t tensor, int what, uint64_t start)
{
    MDB_val k = step_key(key, 'V', step);
    k.mv_size += put_be(key + k.mv_size, tensor, 4);
    key[k.mv_size++] = (uint8_t)what;
    k.mv_size += put_be(key + k.mv_size, start, 8);
    return k;
}

/* ---- environments, shared within the process ------------------------------------------------------ */

typedef struct env {
    struct env *next;
    char path[PATH_BYTES]; /* of the part's folder */
    MDB_env *mdb;
    MDB_dbi dbi;
    int users;
} env;

static pthread_mutex_t envs_lock = PTHREAD_MUTEX_INITIALIZER;
static env *envs;

static pen_status lmdb_failed(int rc, const char *doing, const char *path, pen_error *why)
{
    switch (rc) {
    case ENOSPC:
        return why_set(why, PEN_STORE,
                       "no space left while %s %s; free some, older snapshots are intact", doing,
                       path);
    case EROFS:
    case EACCES:
        return why_set(why, PEN_STORE, "%s %s is not permitted (%s); give another --store", doing,
                       path, strerror(rc));
    case MDB_INVALID:
    case MDB_CORRUPTED:
    case MDB_PAGE_NOTFOUND:
    case MDB_VERSION_MISMATCH:
        return why_set(why, PEN_CORRUPT, "%s/data.mdb is damaged or no snapshot (%s); move it away",
                       path, mdb_strerror(rc));
    default: return why_set(why, PEN_STORE, "%s %s: %s", doing, path, mdb_strerror(rc));
    }
}

/* A reader of a file that is shorter than its pages would be killed by SIGBUS. */
static pen_status check_length(MDB_env *mdb, const char *path, pen_error *why)
{
    MDB_envinfo info;
    MDB_stat stat_;
    mdb_filehandle_t fd;
    struct stat file;

    if (mdb_env_info(mdb, &info) != 0 || mdb_env_stat(mdb, &stat_) != 0 ||
        mdb_env_get_fd(mdb, &fd) != 0 || fstat(fd, &file) != 0)
        return why_set(why, PEN_STORE, "cannot look at %s/data.mdb: %m", path);
    uint64_t needed = ((uint64_t)info.me_last_pgno + 1) * stat_.ms_psize;
    if ((uint64_t)file.st_size < needed)
        return why_set(why, PEN_CORRUPT,
                       "%s/data.mdb is truncated: %lld bytes of %llu; restore it, or move it away",
                       path, (long long)file.st_size, (unsigned long long)needed);
    return PEN_OK;
}

static pen_status open_dbi(env *e, unsigned flags, pen_error *why)
{
    MDB_txn *txn;
    int rc = mdb_txn_begin(e->mdb, NULL, flags, &txn);
    if (rc != 0) return lmdb_failed(rc, "opening", e->path, why);
    if ((rc = mdb_dbi_open(txn, NULL, 0, &e->dbi)) != 0 || (rc = mdb_txn_commit(txn)) != 0) {
        mdb_txn_abort(txn);
        return lmdb_failed(rc, "opening", e->path, why);
    }
    return PEN_OK;
}

static pen_status open_env(env *e, pen_error *why)
{
    int rc = mdb_env_create(&e->mdb);
    if (rc != 0) return lmdb_failed(rc, "opening", e->path, why);
    unsigned flags = MDB_NOTLS;
    rc             = mdb_env_open(e->mdb, e->path, flags, 0600);
    if (rc == EACCES || rc == EROFS) { /* a snapshot on a read-only disk can still be read */
        mdb_env_close(e->mdb);
        if ((rc = mdb_env_create(&e->mdb)) != 0) return lmdb_failed(rc, "opening", e->path, why);
        flags |= MDB_RDONLY | MDB_NOLOCK;
        rc = mdb_env_open(e->mdb, e->path, flags, 0600);
    }
    pen_status status =
        rc == 0 ? check_length(e->mdb, e->path, why) : lmdb_failed(rc, "opening", e->path, why);
    if (status == PEN_OK) status = open_dbi(e, flags & MDB_RDONLY, why);
    if (status != PEN_OK) mdb_env_close(e->mdb);
    return status;
}

static pen_status env_acquire(const char *path, env **out, pen_error *why)
{
    pen_status status = PEN_OK;
    pthread_mutex_lock(&envs_lock);
    env *e = envs;
    while (e != NULL && strcmp(e->path, path) != 0) e = e->next;
    if (e == NULL) {
        e = calloc(1, sizeof *e);
        if (e == NULL) {
            status = why_set(why, PEN_NO_MEMORY, "no memory to open %s", path);
        } else {
            snprintf(e->path, sizeof e->path, "%s", path);
            status = open_env(e, why);
            if (status == PEN_OK) {
                e->next = envs;
                envs    = e;
            } else {
                free(e);
            }
        }
    }
    if (status == PEN_OK) {
        e->users++;
        *out = e;
    }
    pthread_mutex_unlock(&envs_lock);
    return status;
}

static void env_release(env *e)
{
    pthread_mutex_lock(&envs_lock);
    if (--e->users == 0) {
        env **link = &envs;
        while (*link != e) link = &(*link)->next;
        *link = e->next;
        mdb_env_close(e->mdb);
        free(e);
    }
    pthread_mutex_unlock(&envs_lock);
}

/* ---- manifests -------------------------------------------------------------------------------------- */

/* A manifest travels as one block of memory: the struct, its tensors, then all strings. */
typedef struct {
    store_manifest m;
    char text[];
} manifest_block;

typedef struct {
    uint8_t *data;
    size_t size, capacity;
    bool failed;
} writer;

static void write_bytes(writer *w, const void *data, size_t size)
{
    if (w->size + size > w->capacity && !w->failed) {
        size_t capacity = 2 * (w->size + size) + 256;
        uint8_t *grown  = realloc(w->data, capacity);
        w->failed       = grown == NULL;
        if (!w->failed) {
            w->data     = grown;
            w->capacity = capacity;
        }
    }
    if (w->failed) return;
    memcpy(w->data + w->size, data, size);
    w->size += size;
}

static void write_u64(writer *w, uint64_t value)
{
    uint8_t bytes[8];
    put_be(bytes, value, 8);
    write_bytes(w, bytes, 8);
}

static void write_text(writer *w, const char *text)
{
    size_t size = text == NULL ? 0 : strnlen(text, NAME_BYTES - 1);
    write_u64(w, size);
    if (size > 0) write_bytes(w, text, size);
}

/* Everything that makes two manifests the same model goes first, so that a prefix compare would do. */
static void write_manifest(writer *w, const store_manifest *m)
{
    write_u64(w, 0); /* place of the CRC */
    write_u64(w, (uint64_t)m->step);
    write_u64(w, (uint64_t)m->applied);
    write_u64(w, m->id);
    write_text(w, m->job);
    write_u64(w, m->n_tensors);
    for (uint32_t t = 0; t < m->n_tensors; t++) {
        const store_tensor *row = &m->tensor[t];
        write_text(w, row->name);
        write_text(w, row->optim);
        write_u64(w, row->elements);
        write_u64(w, (uint64_t)row->slots);
        for (int k = 0; k < row->slots; k++) write_text(w, row->slot_names[k]);
    }
    if (!w->failed) put_be(w->data, crc32c(0, w->data + 8, w->size - 8), 8);
}

typedef struct {
    const uint8_t *at, *end;
    char *text; /* where the next string is copied to; NULL while counting */
    size_t text_bytes;
    bool failed;
} parser;

static uint64_t read_u64(parser *p)
{
    if (p->end - p->at < 8) {
        p->failed = true;
        return 0;
    }
    p->at += 8;
    return get_be(p->at - 8, 8);
}

static const char *read_text(parser *p)
{
    uint64_t size = read_u64(p);
    if (p->failed || size >= NAME_BYTES || (uint64_t)(p->end - p->at) < size) {
        p->failed = true;
        return "";
    }
    const char *result = "";
    if (p->text != NULL) {
        memcpy(p->text, p->at, size);
        p->text[size] = '\0';
        result        = p->text;
        p->text += size + 1;
    }
    p->text_bytes += size + 1;
    p->at += size;
    return result;
}

static bool read_manifest(parser *p, store_manifest *m, store_tensor *rows, uint32_t rows_max)
{
    m->step    = (int64_t)read_u64(p);
    m->applied = (int64_t)read_u64(p);
    m->id      = read_u64(p);
    m->job     = read_text(p);
    uint64_t n = read_u64(p);
    if (p->failed || n > (uint64_t)(p->end - p->at) / 32) return false;
    m->n_tensors = (uint32_t)n;
    m->tensor    = rows;
    for (uint32_t t = 0; t < m->n_tensors && !p->failed; t++) {
        store_tensor row = {0};
        row.name  = read_text(p); /* one by one: an initialiser list has no order of evaluation */
        row.optim = read_text(p);
        row.elements   = read_u64(p);
        uint64_t slots = read_u64(p);
        if (slots > 3) return false;
        row.slots = (int32_t)slots;
        for (int k = 0; k < row.slots; k++) row.slot_names[k] = read_text(p);
        if (rows != NULL && t < rows_max) rows[t] = row;
    }
    return !p->failed && p->at == p->end;
}

/* NULL: damaged, or no memory. */
static store_manifest *parse_manifest(const MDB_val *value)
{
    const uint8_t *data = value->mv_data;
    if (value->mv_size < 16 || get_be(data, 8) != crc32c(0, data + 8, value->mv_size - 8))
        return NULL;

    store_manifest count;
    parser first = {.at = data + 8, .end = data + value->mv_size};
    if (!read_manifest(&first, &count, NULL, 0)) return NULL;

    size_t rows_bytes     = count.n_tensors * sizeof(store_tensor);
    manifest_block *block = calloc(1, sizeof *block + rows_bytes + first.text_bytes);
    if (block == NULL) return NULL;
    store_tensor *rows = (store_tensor *)(void *)block->text;
    parser second      = {.at = data + 8, .end = first.end, .text = block->text + rows_bytes};
    read_manifest(&second, &block->m, rows, count.n_tensors);
    return &block->m;
}

static int find_tensor(const store_manifest *m, const char *name)
{
    for (uint32_t t = 0; t < m->n_tensors; t++)
        if (strcmp(m->tensor[t].name, name) == 0) return (int)t;
    return -1;
}

/* 0 for "param", 1 + k for slot k, -1 when the tensor has no such thing. */
static int find_what(const store_tensor *row, const char *what)
{
    if (strcmp(what, "param") == 0) return 0;
    for (int k = 0; k < row->slots; k++)
        if (strcmp(row->slot_names[k], what) == 0) return 1 + k;
    return -1;
}

/* ---- writing ------------------------------------------------------------------------------------------ */

struct store {
    env *env;
    int owner_fd; /* holds the lock that keeps a second server away */
    MDB_txn *txn; /* of the part being written */
    store_manifest *manifest;
};

static pen_status make_folder(const char *path, pen_error *why)
{
    if (mkdir(path, 0700) == 0 || errno == EEXIST) return PEN_OK;
    return why_set(why, PEN_STORE, "cannot make the store folder %s: %m; give another --store",
                   path);
}

static pen_status take_ownership(store *s, const char *path, pen_error *why)
{
    char owner[PATH_BYTES + 16];
    snprintf(owner, sizeof owner, "%s/owner", path);
    s->owner_fd = open(owner, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (s->owner_fd < 0)
        return why_set(why, PEN_STORE, "cannot write in %s: %m; give another --store", path);
    if (flock(s->owner_fd, LOCK_EX | LOCK_NB) != 0)
        return why_set(why, PEN_STORE,
                       "%s is in use by another server; two jobs cannot share a store", path);
    return PEN_OK;
}

pen_status store_open(const char *dir, int32_t rank, store **out, pen_error *why)
{
    char path[PATH_BYTES];
    if ((size_t)snprintf(path, sizeof path, "%s/part-%d", dir, rank) >= sizeof path)
        return why_set(why, PEN_STORE, "the path of the store is longer than %d bytes: %s",
                       PATH_BYTES, dir);
    store *s = calloc(1, sizeof *s);
    if (s == NULL) return why_set(why, PEN_NO_MEMORY, "no memory to open the store %s", dir);
    s->owner_fd = -1;

    pen_status status = make_folder(dir, why);
    if (status == PEN_OK) status = make_folder(path, why);
    if (status == PEN_OK) status = take_ownership(s, path, why);
    if (status == PEN_OK) status = env_acquire(path, &s->env, why);
    if (status != PEN_OK) {
        store_close(s);
        return status;
    }
    *out = s;
    return PEN_OK;
}

void store_close(store *s)
{
    if (s == NULL) return;
    store_abort(s);
    if (s->env != NULL) env_release(s->env);
    if (s->owner_fd >= 0) close(s->owner_fd);
    free(s);
}

/* Room for the kept snapshots, the one being written and the pages LMDB copies on the way, were this
 * server to hold the whole model. */
static uint64_t map_bytes_for(const store_manifest *m)
{
    uint64_t bytes = 0;
    for (uint32_t t = 0; t < m->n_tensors; t++)
        bytes += (m->tensor[t].elements + 4096) * 4 * (uint64_t)(1 + m->tensor[t].slots);
    return (STORE_KEEP + 2) * (bytes + bytes / 8) + ((uint64_t)64 << 20);
}

static int delete_prefix(MDB_txn *txn, MDB_dbi dbi, const uint8_t *prefix, size_t prefix_size)
{
    MDB_cursor *cursor;
    MDB_val key = {prefix_size, (void *)prefix}, value;
    int rc      = mdb_cursor_open(txn, dbi, &cursor);
    if (rc != 0) return rc;
    rc = mdb_cursor_get(cursor, &key, &value, MDB_SET_RANGE);
    while (rc == 0 && key.mv_size >= prefix_size && memcmp(key.mv_data, prefix, prefix_size) == 0) {
        rc = mdb_cursor_del(cursor, 0); /* the cursor then stands before the next key */
        if (rc == 0) rc = mdb_cursor_get(cursor, &key, &value, MDB_NEXT);
    }
    mdb_cursor_close(cursor);
    return rc == MDB_NOTFOUND ? 0 : rc;
}

static int delete_step(MDB_txn *txn, MDB_dbi dbi, int64_t step)
{
    static const char kinds[] = "MVB";
    uint8_t key[KEY_BYTES];
    for (size_t i = 0; i < 3; i++) {
        MDB_val prefix = step_key(key, kinds[i], step);
        int rc         = delete_prefix(txn, dbi, key, prefix.mv_size);
        if (rc != 0) return rc;
    }
    return 0;
}

pen_status store_begin(store *s, const store_manifest *m, pen_error *why)
{
    assert(s->txn == NULL);
    MDB_envinfo info;
    uint64_t wanted = map_bytes_for(m);
    int rc          = mdb_env_info(s->env->mdb, &info);
    if (rc == 0 && info.me_mapsize < wanted)
        rc = mdb_env_set_mapsize(s->env->mdb, (wanted | 0xfffff) + 1);
    if (rc == 0) rc = mdb_txn_begin(s->env->mdb, NULL, 0, &s->txn);
    if (rc != 0) return lmdb_failed(rc, "beginning a snapshot in", s->env->path, why);

    writer w = {0};
    uint8_t key[KEY_BYTES];
    write_manifest(&w, m);
    MDB_val value = {w.size, w.data}, k = step_key(key, 'M', m->step);
    s->manifest = w.failed ? NULL : parse_manifest(&value);
    rc = w.failed || s->manifest == NULL ? ENOMEM : delete_step(s->txn, s->env->dbi, m->step);
    if (rc == 0) rc = mdb_put(s->txn, s->env->dbi, &k, &value, 0);
    free(w.data);
    if (rc == 0) return PEN_OK;
    store_abort(s);
    return lmdb_failed(rc, "beginning a snapshot in", s->env->path, why);
}

pen_status store_put(store *s, const char *tensor, const char *what, uint64_t start, uint64_t count,
                     const float *values, pen_error *why)
{
    int t = find_tensor(s->manifest, tensor);
    int w = t < 0 ? -1 : find_what(&s->manifest->tensor[t], what);
    if (w < 0)
        return why_set(why, PEN_NOT_FOUND, "the snapshot's manifest has no %s of '%s'", what,
                       tensor);

    uint8_t key[KEY_BYTES];
    MDB_val k = value_key(key, s->manifest->step, (uint32_t)t, w, start);
    MDB_val v = {VALUE_HEAD_BYTES + count * sizeof *values, NULL};
    int rc    = mdb_put(s->txn, s->env->dbi, &k, &v, MDB_RESERVE);
    if (rc != 0) return lmdb_failed(rc, "writing a snapshot to", s->env->path, why);
    uint8_t *out = v.mv_data;
    put_be(out, crc32c(0, values, count * sizeof *values), 8);
    put_be(out + 8, count, 8);
    memcpy(out + VALUE_HEAD_BYTES, values, count * sizeof *values);
    return PEN_OK;
}

pen_status store_put_blob(store *s, const char *name, const void *data, size_t size, pen_error *why)
{
    uint8_t key[KEY_BYTES + NAME_BYTES];
    MDB_val k        = step_key(key, 'B', s->manifest->step);
    size_t name_size = strnlen(name, NAME_BYTES - 1);
    memcpy(key + k.mv_size, name, name_size);
    k.mv_size += name_size;
    MDB_val v = {8 + size, NULL};
    int rc    = mdb_put(s->txn, s->env->dbi, &k, &v, MDB_RESERVE);
    if (rc != 0) return lmdb_failed(rc, "writing a snapshot to", s->env->path, why);
    put_be(v.mv_data, crc32c(0, data, size), 8);
    memcpy((uint8_t *)v.mv_data + 8, data, size);
    return PEN_OK;
}

static void end_part(store *s)
{
    free(s->manifest);
    s->manifest = NULL;
    s->txn      = NULL;
}

pen_status store_commit(store *s, pen_error *why)
{
    int rc = mdb_txn_commit(s->txn);
    end_part(s);
    return rc == 0 ? PEN_OK : lmdb_failed(rc, "writing a snapshot to", s->env->path, why);
}

void store_abort(store *s)
{
    if (s->txn != NULL) mdb_txn_abort(s->txn);
    end_part(s);
}

/* The steps that have a manifest in this environment, ascending. */
static size_t list_steps(MDB_txn *txn, MDB_dbi dbi, int64_t *steps, size_t cap)
{
    MDB_cursor *cursor;
    size_t n = 0;
    if (mdb_cursor_open(txn, dbi, &cursor) != 0) return 0;
    MDB_val key = {1, "M"}, value;
    int rc      = mdb_cursor_get(cursor, &key, &value, MDB_SET_RANGE);
    while (rc == 0 && key.mv_size == 9 && *(const char *)key.mv_data == 'M') {
        if (n < cap) steps[n] = (int64_t)get_be((const uint8_t *)key.mv_data + 1, 8);
        n++;
        rc = mdb_cursor_get(cursor, &key, &value, MDB_NEXT);
    }
    mdb_cursor_close(cursor);
    return n;
}

enum { STEPS_MAX = 1024 };

pen_status store_forget_before(store *s, int64_t step, pen_error *why)
{
    int64_t steps[STEPS_MAX];
    MDB_txn *txn;
    int rc = mdb_txn_begin(s->env->mdb, NULL, 0, &txn);
    if (rc != 0) return lmdb_failed(rc, "deleting old snapshots in", s->env->path, why);
    size_t n = list_steps(txn, s->env->dbi, steps, STEPS_MAX);
    for (size_t i = 0; i < n && i < STEPS_MAX && rc == 0; i++)
        if (steps[i] < step) rc = delete_step(txn, s->env->dbi, steps[i]);
    if (rc == 0)
        rc = mdb_txn_commit(txn);
    else
        mdb_txn_abort(txn);
    return rc == 0 ? PEN_OK : lmdb_failed(rc, "deleting old snapshots in", s->env->path, why);
}

/* ---- reading ------------------------------------------------------------------------------------------ */

typedef struct {
    env *env;
    MDB_txn *txn;
} part;

struct store_reader {
    char dir[PATH_BYTES];
    size_t n_parts, n_manifests;
    part *part;
    store_manifest **manifest; /* one per complete snapshot, ascending by step */
};

static pen_status open_part(store_reader *r, const char *name, pen_error *why)
{
    char path[PATH_BYTES + NAME_BYTES + 2], file[PATH_BYTES + NAME_BYTES + 16];
    snprintf(path, sizeof path, "%s/%s", r->dir, name);
    snprintf(file, sizeof file, "%s/data.mdb", path);
    if (access(file, F_OK) != 0) return PEN_OK; /* made, but never written */
    if (r->n_parts == PARTS_MAX)
        return why_set(why, PEN_STORE, "%s has more than %d parts", r->dir, PARTS_MAX);

    part *p           = &r->part[r->n_parts];
    pen_status status = env_acquire(path, &p->env, why);
    if (status != PEN_OK) return status;
    int rc = mdb_txn_begin(p->env->mdb, NULL, MDB_RDONLY, &p->txn);
    if (rc != 0) {
        env_release(p->env);
        return lmdb_failed(rc, "reading", path, why);
    }
    r->n_parts++;
    return PEN_OK;
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int is_part(const struct dirent *entry)
{
    return strncmp(entry->d_name, "part-", 5) == 0;
}

static pen_status open_parts(store_reader *r, pen_error *why)
{
    struct dirent **entries;
    int n = scandir(r->dir, &entries, is_part, by_name);
    if (n < 0) {
        if (errno == ENOENT) return PEN_OK;
        return why_set(why, PEN_STORE, "cannot read the store folder %s: %m", r->dir);
    }
    pen_status status = PEN_OK;
    for (int i = 0; i < n; i++) {
        if (status == PEN_OK) status = open_part(r, entries[i]->d_name, why);
        free(entries[i]);
    }
    free(entries);
    return status;
}

static store_manifest *part_manifest(const part *p, int64_t step)
{
    uint8_t key[KEY_BYTES];
    MDB_val k = step_key(key, 'M', step), v;
    return mdb_get(p->txn, p->env->dbi, &k, &v) == 0 ? parse_manifest(&v) : NULL;
}

/* Elements of one tensor and what that the parts of snapshot `id` hold; chunks never overlap. */
static uint64_t covered(const store_reader *r, const store_manifest *m, uint32_t t, int what)
{
    uint64_t elements = 0;
    for (size_t i = 0; i < r->n_parts; i++) {
        store_manifest *own = part_manifest(&r->part[i], m->step);
        bool same           = own != NULL && own->id == m->id;
        free(own);
        MDB_cursor *cursor;
        if (!same || mdb_cursor_open(r->part[i].txn, r->part[i].env->dbi, &cursor) != 0) continue;
        uint8_t prefix[KEY_BYTES];
        MDB_val key = value_key(prefix, m->step, t, what, 0), value;
        int rc      = mdb_cursor_get(cursor, &key, &value, MDB_SET_RANGE);
        while (rc == 0 && key.mv_size == KEY_BYTES &&
               memcmp(key.mv_data, prefix, KEY_BYTES - 8) == 0) {
            if (value.mv_size >= VALUE_HEAD_BYTES)
                elements += (value.mv_size - VALUE_HEAD_BYTES) / sizeof(float);
            rc = mdb_cursor_get(cursor, &key, &value, MDB_NEXT);
        }
        mdb_cursor_close(cursor);
    }
    return elements;
}

static bool is_complete(const store_reader *r, const store_manifest *m)
{
    for (uint32_t t = 0; t < m->n_tensors; t++)
        for (int what = 0; what <= m->tensor[t].slots; what++)
            if (covered(r, m, t, what) < m->tensor[t].elements) return false;
    return true;
}

static int by_step(const void *a, const void *b)
{
    const store_manifest *const *x = a, *const *y = b;
    return ((*x)->step > (*y)->step) - ((*x)->step < (*y)->step);
}

static bool knows_step(const store_reader *r, int64_t step)
{
    for (size_t i = 0; i < r->n_manifests; i++)
        if (r->manifest[i]->step == step) return true;
    return false;
}

static void find_complete(store_reader *r)
{
    int64_t steps[STEPS_MAX];
    for (size_t i = 0; i < r->n_parts; i++) {
        size_t n = list_steps(r->part[i].txn, r->part[i].env->dbi, steps, STEPS_MAX);
        for (size_t k = 0; k < n && k < STEPS_MAX; k++) {
            store_manifest *m =
                knows_step(r, steps[k]) ? NULL : part_manifest(&r->part[i], steps[k]);
            if (m == NULL) continue;
            store_manifest **grown =
                is_complete(r, m) ? realloc(r->manifest, (r->n_manifests + 1) * sizeof *grown)
                                  : NULL;
            if (grown == NULL) {
                free(m);
                continue;
            }
            r->manifest                   = grown;
            r->manifest[r->n_manifests++] = m;
        }
    }
    if (r->n_manifests > 0) qsort(r->manifest, r->n_manifests, sizeof *r->manifest, by_step);
}

pen_status store_reader_open(const char *dir, store_reader **out, pen_error *why)
{
    store_reader *r = calloc(1, sizeof *r);
    if (r != NULL) r->part = calloc(PARTS_MAX, sizeof *r->part);
    if (r == NULL || r->part == NULL) {
        free(r);
        return why_set(why, PEN_NO_MEMORY, "no memory to read the store %s", dir);
    }
    snprintf(r->dir, sizeof r->dir, "%s", dir);
    pen_status status = open_parts(r, why);
    if (status != PEN_OK) {
        store_reader_close(r);
        return status;
    }
    find_complete(r);
    *out = r;
    return PEN_OK;
}

void store_reader_close(store_reader *r)
{
    if (r == NULL) return;
    for (size_t i = 0; i < r->n_parts; i++) {
        mdb_txn_abort(r->part[i].txn);
        env_release(r->part[i].env);
    }
    for (size_t i = 0; i < r->n_manifests; i++) free(r->manifest[i]);
    free(r->manifest);
    free(r->part);
    free(r);
}

size_t store_reader_steps(store_reader *r, int64_t *steps, size_t cap)
{
    for (size_t i = 0; i < r->n_manifests && i < cap; i++) steps[i] = r->manifest[i]->step;
    return r->n_manifests;
}

pen_status store_reader_manifest(store_reader *r, int64_t step, const store_manifest **m,
                                 pen_error *why)
{
    for (size_t i = 0; i < r->n_manifests; i++) {
        if (r->manifest[i]->step != step) continue;
        *m = r->manifest[i];
        return PEN_OK;
    }
    return why_set(why, PEN_NOT_FOUND, "%s has no complete snapshot of step %lld", r->dir,
                   (long long)step);
}

/* Copies what one stored range and [start, start + count) share; returns how many elements that was. */
static pen_status copy_overlap(const part *p, const char *tensor, const MDB_val *key,
                               const MDB_val *value, uint64_t start, uint64_t count, float *values,
                               uint64_t *copied, pen_error *why)
{
    const uint8_t *head = value->mv_data;
    uint64_t at         = get_be((const uint8_t *)key->mv_data + KEY_BYTES - 8, 8);
    if (value->mv_size < VALUE_HEAD_BYTES ||
        get_be(head + 8, 8) != (value->mv_size - VALUE_HEAD_BYTES) / sizeof *values)
        return why_set(why, PEN_CORRUPT, "'%s' from element %llu in %s has a wrong length", tensor,
                       (unsigned long long)at, p->env->path);
    uint64_t n     = get_be(head + 8, 8);
    uint64_t first = at > start ? at : start,
             last  = at + n < start + count ? at + n : start + count;
    if (first >= last) return PEN_OK;
    if (get_be(head, 8) != crc32c(0, head + VALUE_HEAD_BYTES, n * sizeof *values))
        return why_set(
            why, PEN_CORRUPT,
            "checksum of '%s' from element %llu in %s does not match; use an older snapshot",
            tensor, (unsigned long long)at, p->env->path);
    memcpy(values + (first - start), head + VALUE_HEAD_BYTES + (first - at) * sizeof *values,
           (last - first) * sizeof *values);
    *copied += last - first;
    return PEN_OK;
}

static pen_status read_part(const part *p, const store_manifest *m, uint32_t t, int what,
                            uint64_t start, uint64_t count, float *values, uint64_t *copied,
                            pen_error *why)
{
    MDB_cursor *cursor;
    uint8_t prefix[KEY_BYTES];
    MDB_val key       = value_key(prefix, m->step, t, what, 0), value;
    pen_status status = PEN_OK;
    int rc            = mdb_cursor_open(p->txn, p->env->dbi, &cursor);
    if (rc != 0) return lmdb_failed(rc, "reading", p->env->path, why);
    rc = mdb_cursor_get(cursor, &key, &value, MDB_SET_RANGE);
    while (rc == 0 && status == PEN_OK && key.mv_size == KEY_BYTES &&
           memcmp(key.mv_data, prefix, KEY_BYTES - 8) == 0) {
        status =
            copy_overlap(p, m->tensor[t].name, &key, &value, start, count, values, copied, why);
        rc = mdb_cursor_get(cursor, &key, &value, MDB_NEXT);
    }
    mdb_cursor_close(cursor);
    if (status == PEN_OK && rc != 0 && rc != MDB_NOTFOUND)
        return lmdb_failed(rc, "reading", p->env->path, why);
    return status;
}

pen_status store_read(store_reader *r, int64_t step, const char *tensor, const char *what,
                      uint64_t start, uint64_t count, float *values, pen_error *why)
{
    const store_manifest *m = NULL;
    uint64_t copied         = 0;
    pen_status status       = store_reader_manifest(r, step, &m, why);
    if (status != PEN_OK) return status;
    int t = find_tensor(m, tensor);
    int w = t < 0 ? -1 : find_what(&m->tensor[t], what);
    if (w < 0)
        return why_set(why, PEN_NOT_FOUND, "the snapshot of step %lld in %s has no %s of '%s'",
                       (long long)step, r->dir, what, tensor);
    for (size_t i = 0; i < r->n_parts && status == PEN_OK && copied < count; i++) {
        store_manifest *own = part_manifest(&r->part[i], step);
        if (own != NULL && own->id == m->id)
            status = read_part(&r->part[i], m, (uint32_t)t, w, start, count, values, &copied, why);
        free(own);
    }
    if (status == PEN_OK && copied < count)
        return why_set(
            why, PEN_NOT_FOUND,
            "the snapshot of step %lld in %s has only %llu of %llu elements of %s of '%s'",
            (long long)step, r->dir, (unsigned long long)copied, (unsigned long long)count, what,
            tensor);
    return status;
}

pen_status store_read_blobs(store_reader *r, int64_t step, const char *name,
                            void (*fn)(const void *data, size_t size, void *user), void *user,
                            pen_error *why)
{
    const store_manifest *m = NULL;
    pen_status status       = store_reader_manifest(r, step, &m, why);
    for (size_t i = 0; i < r->n_parts && status == PEN_OK; i++) {
        uint8_t key[KEY_BYTES + NAME_BYTES];
        MDB_val k        = step_key(key, 'B', step), v;
        size_t name_size = strnlen(name, NAME_BYTES - 1);
        memcpy(key + k.mv_size, name, name_size);
        k.mv_size += name_size;
        store_manifest *own = part_manifest(&r->part[i], step);
        bool same           = own != NULL && own->id == m->id;
        free(own);
        if (!same || mdb_get(r->part[i].txn, r->part[i].env->dbi, &k, &v) != 0) continue;
        const uint8_t *data = v.mv_data;
        if (v.mv_size < 8 || get_be(data, 8) != crc32c(0, data + 8, v.mv_size - 8))
            return why_set(why, PEN_CORRUPT, "checksum of '%s' in %s does not match", name,
                           r->part[i].env->path);
        fn(data + 8, v.mv_size - 8, user);
    }
    return status;
}

pen_status store_verify(store_reader *r, int64_t step, pen_error *why)
{
    const store_manifest *m = NULL;
    pen_status status       = store_reader_manifest(r, step, &m, why);
    for (uint32_t t = 0; status == PEN_OK && t < m->n_tensors; t++) {
        const store_tensor *row = &m->tensor[t];
        float *values           = malloc(row->elements * sizeof *values + 1);
        if (values == NULL)
            return why_set(why, PEN_NO_MEMORY, "no memory to verify '%s'", row->name);
        for (int what = 0; status == PEN_OK && what <= row->slots; what++)
            status = store_read(r, step, row->name, what == 0 ? "param" : row->slot_names[what - 1],
                                0, row->elements, values, why);
        free(values);
    }
    return status;
}
