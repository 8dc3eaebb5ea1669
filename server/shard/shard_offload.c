/* shard_offload.c - arrays of chunks outside of memory: loaded for an update, and stored after it.
 *
 * Array 0 of a chunk is its values, array 1 + i its slot i.  An array with an extent is in memory (k->values, k->slot)
 * only between shard_offload_in() and shard_offload_out(); all other code asks for a reference.  Chunks of one block or
 * less stay in memory: they hold few bytes, and a disk needs as long for few as for many. */
#include "server/shard/shard_state.h"

#include "common/base/crc.h"

#include <stdlib.h>
#include <string.h>

enum {
    STAGED_CHUNKS = 4 /* reading, updating, writing, and one spare so that none waits */
};

static buf **array_at(shard_chunk *k, uint32_t array)
{
    return array == 0 ? &k->values : &k->slot[array - 1];
}

static bool is_out(const shard_chunk *k, uint32_t array)
{
    return k->extent[array] != OFFLOAD_NO_EXTENT;
}

static bool fail(shard *s, pen_error *why)
{
    why_culprit(why, PEN_SERVER, s->setup.server, -1, NULL);
    shard_fail(s, why);
    return false;
}

/* ---- which arrays ---------------------------------------------------------------------------- */
static uint64_t wanted_bytes(const shard *s, const shard_chunk *k)
{
    const shard_offload *o = &s->options.offload;
    if (k->count <= PLAN_BLOCK) return 0;
    const uint64_t slots = o->has_slots ? k->slots : 0;
    return k->count * sizeof(float) * (slots + o->has_values);
}

static bool add_extents(shard *s, shard_chunk *k)
{
    const shard_offload *o = &s->options.offload;
    const uint32_t slots   = o->has_slots ? k->slots : 0;
    bool done              = true;
    for (uint32_t a = o->has_values ? 0 : 1; done && a <= slots; a++) {
        k->extent[a] = offload_add(s->offload, k->count * sizeof(float));
        done         = is_out(k, a);
    }
    return done;
}

static uint64_t staging_bytes(const shard *s, uint64_t largest)
{
    const shard_offload *o = &s->options.offload;
    const uint64_t arrays  = OPTIM_SLOTS_MAX + 1;
    const uint64_t allowed = o->sub_group < UINT64_MAX / (arrays * sizeof(float))
                                 ? o->sub_group * arrays * sizeof(float)
                                 : UINT64_MAX;
    const uint64_t useful  = STAGED_CHUNKS * largest;
    const uint64_t bytes   = allowed < useful ? allowed : useful;
    return bytes > largest ? bytes : largest;
}

pen_status shard_offload_open(shard *s, pen_error *why)
{
    const shard_offload *o = &s->options.offload;
    uint64_t largest       = 0;
    for (uint32_t i = 0; i < s->n_chunks; i++) {
        shard_chunk *k = &s->chunk[i];
        for (uint32_t a = 0; a <= OPTIM_SLOTS_MAX; a++) k->extent[a] = OFFLOAD_NO_EXTENT;
        const uint64_t bytes = o->ops != NULL ? wanted_bytes(s, k) : 0;
        if (bytes > largest) largest = bytes;
    }
    if (largest == 0) return PEN_OK;
    const offload_options options = {.ops               = o->ops,
                                     .dir               = o->dir,
                                     .staging_bytes_max = staging_bytes(s, largest),
                                     .stats             = s->options.stats};
    pen_status status             = offload_open(&options, &s->offload, why);
    if (status != PEN_OK) return status;
    s->look = calloc(1, sizeof *s->look);
    bool ok = s->look != NULL;
    for (uint32_t i = 0; ok && i < s->n_chunks; i++)
        if (wanted_bytes(s, &s->chunk[i]) > 0) ok = add_extents(s, &s->chunk[i]);
    if (!ok) return why_set(why, PEN_NO_MEMORY, "no memory for the tables of a shard's files");
    return offload_reserve(s->offload, why);
}

void shard_offload_close(shard *s)
{
    if (s->look != NULL) buf_release(s->look->seen);
    free(s->look);
    offload_close(s->offload);
}

/* ---- reading --------------------------------------------------------------------------------- */
buf *shard_offload_array(shard *s, shard_chunk *k, uint32_t array)
{
    buf *seen = *array_at(k, array);
    pen_error why;
    if (seen != NULL) return buf_acquire(seen);
    if (!is_out(k, array)) return NULL;
    if (offload_look(s->offload, k->extent[array], &seen, &why) == PEN_OK) return seen;
    fail(s, &why);
    return NULL;
}

uint32_t shard_offload_crc(shard *s, shard_chunk *k)
{
    if (k->dtype == PEN_F32 && k->has_crc) return k->crc;
    buf *values        = shard_offload_array(s, k, 0);
    const uint32_t crc = values != NULL ? crc32c(0, values->data, values->size) : 0;
    buf_release(values);
    if (k->dtype != PEN_F32) return crc;
    k->crc     = crc;
    k->has_crc = true;
    return crc;
}

/* ---- loading and storing --------------------------------------------------------------------- */
void shard_offload_ahead(shard *s, const shard_chunk *k)
{
    for (uint32_t a = 0; s->offload != NULL && a <= OPTIM_SLOTS_MAX; a++)
        if (is_out(k, a)) offload_prefetch(s->offload, k->extent[a]);
}

pen_status shard_offload_bring_in(shard *s, shard_chunk *k, pen_error *why)
{
    pen_status status = PEN_OK;
    shard_offload_ahead(s, k);
    for (uint32_t a = 0; s->offload != NULL && status == PEN_OK && a <= OPTIM_SLOTS_MAX; a++)
        if (is_out(k, a) && *array_at(k, a) == NULL)
            status = offload_load(s->offload, k->extent[a], array_at(k, a), why);
    return status;
}

/* Before the first step slots are zeros, which are not stored, unless the rule initialises them otherwise. */
bool shard_offload_first_in(shard *s, shard_chunk *k)
{
    pen_error why;
    if (k->trained && s->group[k->group].optim->slot_init != NULL) return shard_offload_in(s, k);
    return s->offload == NULL || !is_out(k, 0) ||
           offload_blank(s->offload, k->extent[0], &k->values, &why) == PEN_OK || fail(s, &why);
}

bool shard_offload_in(shard *s, shard_chunk *k)
{
    pen_error why;
    return s->offload == NULL || shard_offload_bring_in(s, k, &why) == PEN_OK || fail(s, &why);
}

pen_status shard_offload_bring_out(shard *s, shard_chunk *k, pen_error *why)
{
    pen_status status = PEN_OK;
    if (s->offload == NULL) return PEN_OK;
    if (is_out(k, 0) && k->values != NULL) {
        /* Copies compare the checksum of the updated values; computing it now costs no read. */
        if (k->dtype == PEN_F32 && (s->n_copies > 0 || s->role != SHARD_PRIMARY))
            (void)shard_offload_crc(s, k);
    }
    for (uint32_t a = 0; a <= OPTIM_SLOTS_MAX; a++) {
        buf **at = array_at(k, a);
        if (!is_out(k, a) || *at == NULL) continue;
        const pen_status one =
            offload_store(s->offload, k->extent[a], *at, status == PEN_OK ? why : NULL);
        if (status == PEN_OK) status = one;
        *at = NULL;
    }
    return status;
}

void shard_offload_out(shard *s, shard_chunk *k)
{
    pen_error why;
    if (s->offload != NULL && shard_offload_bring_out(s, k, &why) != PEN_OK) fail(s, &why);
}

/* ---- replacing an array ---------------------------------------------------------------------- */
bool shard_offload_replace(shard *s, shard_chunk *k, uint32_t array, const void *numbers)
{
    const size_t size = k->count * sizeof(float);
    buf *fresh        = NULL;
    pen_error why;
    if (!is_out(k, array)) {
        memcpy((*array_at(k, array))->data, numbers, size);
        return true;
    }
    if (offload_blank(s->offload, k->extent[array], &fresh, &why) != PEN_OK) return fail(s, &why);
    memcpy(fresh->data, numbers, size);
    return offload_store(s->offload, k->extent[array], fresh, &why) == PEN_OK || fail(s, &why);
}

offload_hold *shard_offload_hold(shard *s, const shard_chunk *k, uint32_t array)
{
    return is_out(k, array) ? offload_hold_take(s->offload, k->extent[array]) : NULL;
}

const float *shard_offload_look(const shard *s, const shard_chunk *k, uint32_t array)
{
    buf *seen = NULL;
    if (s->offload == NULL || !is_out(k, array) ||
        offload_look(s->offload, k->extent[array], &seen, NULL) != PEN_OK)
        return NULL;
    buf_release(s->look->seen);
    s->look->seen = seen;
    return seen->data;
}
