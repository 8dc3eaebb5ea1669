/* store_reader.h - the inside of a reader, shared by store_reader.c, store_values.c and store_copy.c only. */
#ifndef COMMON_STORE_READER_H
#define COMMON_STORE_READER_H

#include "common/snapshot/store.h"
#include "common/snapshot/store_env.h"
#include "common/snapshot/store_files.h"
#include "common/snapshot/store_manifest.h"

typedef struct { /* one stored range, inside the map of its file */
    uint32_t tensor;
    int what;
    uint64_t start, count;
    const uint8_t *data; /* including its head */
    size_t size, file;
} reader_value;

typedef struct {
    char path[STORE_PATH_BYTES];
    store_env *env;
    store_txn *txn;
    int32_t rank; /* of the part */
    uint64_t bytes;
} reader_file;

typedef struct {
    int64_t step, written_ms;
    uint64_t id, bytes;
    store_manifest *manifest; /* NULL: no readable part */
    reader_value *value;      /* [n_values] by tensor, what, start */
    size_t n_values, n_parts;
    size_t *part; /* [n_parts] its files */
    bool is_complete, is_superseded;
    pen_error trouble; /* status OK: no trouble */
} reader_snapshot;

struct store_reader {
    char dir[STORE_PATH_BYTES];
    reader_file *file;         /* [n_files] */
    reader_snapshot *snapshot; /* [n_snapshots] by step, then by time of writing */
    size_t n_files, n_snapshots;
};

/* Finds the complete snapshot of a step, or returns why there is none. */
pen_status store_reader_find(const store_reader *r, int64_t step, const reader_snapshot **s,
                             pen_error *why);

/* The first value of a tensor, else the next tensor's or the end.  Both are NULL for a snapshot without values. */
const reader_value *store_reader_first(const reader_snapshot *s, uint32_t tensor, int what);
const reader_value *store_reader_end(const reader_snapshot *s);

/* CORRUPT names tensor and file. */
pen_status store_value_check(const store_reader *r, const reader_snapshot *s, const reader_value *v,
                             pen_error *why);
pen_status store_blob_check(const reader_file *f, const char *name, store_bytes key,
                            store_bytes value, pen_error *why);

#endif
