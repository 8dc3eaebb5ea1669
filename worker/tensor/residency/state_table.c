/* state_table.c - rows of bytes, and bundles of them. */
#include "worker/tensor/residency/state_table.h"

#include "common/base/log.h"
#include "common/base/why.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

void state_table_init(state_table *t)
{
    *t = (state_table){.rank = 0, .kept_step = -1};
    pthread_mutex_init(&t->lock, NULL);
}

void state_table_fini(state_table *t)
{
    pthread_mutex_destroy(&t->lock);
    free(t->row);
    free(t->kept);
}

/* ---- reading a bundle ------------------------------------------------------------------------ */
static bool is_for(const bundle_cursor *c, const state_row *row, int32_t rank)
{
    return c->rank == (row->is_per_rank ? rank : BUNDLE_ALL_RANKS) &&
           strcmp(c->name, row->name) == 0;
}

static pen_status wrong_size(const state_table *t, const state_row *row, uint64_t size,
                             pen_error *why)
{
    return why_set(
        why, PEN_MISMATCH,
        "the snapshot of step %" PRId64 " has %" PRIu64
        " bytes of the state '%s', and the program has %zu; resume with the program that wrote it",
        t->kept_step, size, row->name, row->size);
}

/* Fills one row from the kept bundle; *found: the bundle has it. */
static pen_status fill(const state_table *t, state_row *row, bool *found, pen_error *why)
{
    bundle_cursor c = bundle_open(t->kept, t->kept_bytes);
    *found          = false;
    while (bundle_next(&c)) {
        if (!is_for(&c, row, t->rank)) continue;
        if (c.size != row->size) return wrong_size(t, row, c.size, why);
        if (row->size > 0) memcpy(row->data, c.data, row->size);
        *found = true;
        return PEN_OK;
    }
    return PEN_OK;
}

static pen_status check_sizes(const state_table *t, pen_error *why)
{
    for (uint32_t i = 0; i < t->n; i++) {
        bundle_cursor c = bundle_open(t->kept, t->kept_bytes);
        while (bundle_next(&c))
            if (is_for(&c, &t->row[i], t->rank) && c.size != t->row[i].size)
                return wrong_size(t, &t->row[i], c.size, why);
    }
    return PEN_OK;
}

static pen_status fill_all(state_table *t, pen_error *why)
{
    pen_status status = check_sizes(t, why);
    for (uint32_t i = 0; i < t->n && status == PEN_OK; i++) {
        bool found;
        status = fill(t, &t->row[i], &found, why);
        if (status == PEN_OK && !found)
            log_warning("the snapshot of step %" PRId64 " has nothing of the state '%s'%s, which "
                        "stays as the program has it",
                        t->kept_step, t->row[i].name,
                        t->row[i].is_per_rank ? " for this rank" : "");
    }
    return status;
}

pen_status state_table_restore(state_table *t, int64_t step, const void *bytes, size_t size,
                               pen_error *why)
{
    if (!bundle_makes_sense(bytes, size))
        return why_set(why, PEN_CORRUPT,
                       "the states in the snapshot of step %" PRId64
                       " make no sense; use an older snapshot",
                       step);
    void *copy = malloc(size + 1);
    if (copy == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for the states of a snapshot");
    if (size > 0) memcpy(copy, bytes, size);
    pthread_mutex_lock(&t->lock);
    free(t->kept);
    t->kept                 = copy;
    t->kept_bytes           = size;
    t->kept_step            = step;
    const pen_status status = fill_all(t, why);
    pthread_mutex_unlock(&t->lock);
    return status;
}

/* ---- rows ------------------------------------------------------------------------------------ */
static state_row *find_state(state_table *t, const char *name)
{
    for (uint32_t i = 0; i < t->n; i++)
        if (strcmp(t->row[i].name, name) == 0) return &t->row[i];
    return NULL;
}

static pen_status check_row(state_table *t, const char *name, const void *data, size_t size,
                            pen_error *why)
{
    if (name == NULL || name[0] == '\0' || strlen(name) >= STATE_NAME_BYTES)
        return why_set(why, PEN_INVALID_ARGUMENT, "invalid state name; expected 1 to %d bytes",
                       STATE_NAME_BYTES - 1);
    if (size > STATE_ROW_MAX)
        return why_set(
            why, PEN_INVALID_ARGUMENT,
            "the state '%s' has %zu bytes; at most %d are allowed; use a tensor for more", name,
            size, STATE_ROW_MAX);
    if (size > 0 && data == NULL)
        return why_set(why, PEN_INVALID_ARGUMENT, "the state '%s': data is NULL", name);
    if (find_state(t, name) != NULL)
        return why_set(why, PEN_INVALID_ARGUMENT, "the state '%s' was already added", name);
    if (t->n == STATE_ROWS_MAX || t->bytes + size > STATE_TABLE_MAX)
        return why_set(
            why, PEN_INVALID_ARGUMENT,
            "cannot add the state '%s': at most %d states of %d bytes in total are allowed", name,
            STATE_ROWS_MAX, STATE_TABLE_MAX);
    if (t->row == NULL) t->row = calloc(STATE_ROWS_MAX, sizeof *t->row);
    if (t->row == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for the state '%s'", name);
    return PEN_OK;
}

pen_status state_table_add(state_table *t, const char *name, void *data, size_t size,
                           bool is_per_rank, pen_error *why)
{
    bool found;
    pthread_mutex_lock(&t->lock);
    pen_status status = check_row(t, name, data, size, why);
    if (status == PEN_OK) {
        state_row *row = &t->row[t->n];
        *row           = (state_row){.data = data, .size = size, .is_per_rank = is_per_rank};
        memcpy(row->name, name, strlen(name) + 1);
        status = fill(t, row, &found, why);
    }
    if (status == PEN_OK) {
        t->n++;
        t->bytes += size;
    }
    pthread_mutex_unlock(&t->lock);
    return status;
}

void state_table_remove(state_table *t, const char *name)
{
    pthread_mutex_lock(&t->lock);
    state_row *row = find_state(t, name);
    if (row != NULL) {
        t->bytes -= row->size;
        *row = t->row[--t->n];
    }
    pthread_mutex_unlock(&t->lock);
}

/* ---- writing a bundle ------------------------------------------------------------------------ */
static pen_status pack(const state_table *t, bool shares, void **bytes, size_t *size,
                       pen_error *why)
{
    uint32_t n  = 0;
    size_t room = 0;
    for (uint32_t i = 0; i < t->n; i++) {
        if (!t->row[i].is_per_rank && !shares) continue;
        room += bundle_row_bytes(t->row[i].name, t->row[i].size);
        n++;
    }
    if (n == 0) return PEN_OK;
    uint8_t *at = *bytes = malloc(room);
    if (at == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for the states of a snapshot");
    for (uint32_t i = 0; i < t->n; i++) {
        const state_row *row = &t->row[i];
        if (row->is_per_rank || shares)
            at = bundle_put(at, row->is_per_rank ? t->rank : BUNDLE_ALL_RANKS, row->name, row->data,
                            row->size);
    }
    *size = room;
    return PEN_OK;
}

pen_status state_table_pack(state_table *t, bool shares, void **bytes, size_t *size, pen_error *why)
{
    *bytes = NULL;
    *size  = 0;
    pthread_mutex_lock(&t->lock);
    const pen_status status = pack(t, shares, bytes, size, why);
    pthread_mutex_unlock(&t->lock);
    return status;
}
