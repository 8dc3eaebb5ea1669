/* shard_slots.c - reads and sets the state of update rules between two steps (proto/rows.h).
 *
 * A new array replaces the old one as a fill of the log does it, so copies follow by the same entries.
 */
#include "server/shard/shard_state.h"

#include "proto/rows.h"

#include <inttypes.h>
#include <string.h>

static pen_status check(const shard *s, const shard_chunk *k, const slots_call *c, pen_error *why)
{
    if (!shard_core_has_values(s->core, k->index))
        return why_set(why, PEN_AGAIN, "the first values have not arrived yet");
    if (c->what == SLOTS_READ || shard_core_rests(s->core, k->index, c->round)) return PEN_OK;
    return why_set(why, PEN_WRONG_STATE,
                   "step %" PRIu64 " of '%s' is in progress or over; set slots between two steps, "
                   "on all ranks",
                   c->round, shard_tensor_name(s, k));
}

static bool set(shard *s, shard_chunk *k, const slots_call *c, const void *numbers)
{
    if (!shard_chunk_make_writable(s, k) || !shard_offload_replace(s, k, c->array, numbers))
        return false;
    shard_chunk_changed(k);
    if (shard_is_logging(s)) shard_fill_array(s, -1, k, c->array, false);
    return !s->has_failed;
}

/* In the log the count comes with the values. */
static bool count(shard *s, shard_chunk *k, int64_t applied)
{
    k->version = (uint64_t)applied;
    shard_core_applied_is(s->core, k->partition, applied);
    if (!shard_is_logging(s)) return true;
    shard_fill_partition(s, -1, k->partition);
    shard_fill_array(s, -1, k, 0, false);
    return !s->has_failed;
}

void shard_slots_receive(shard *s, const shard_arrival *in, shard_chunk *k)
{
    slots_call c;
    pen_error why;
    pen_status status = slots_read(in->data, in->size, 1 + k->slots, k->count, &c, &why);
    if (status == PEN_OK && c.what != SLOTS_READ && !k->trained)
        status = why_set(&why, PEN_INVALID_ARGUMENT, "a frozen tensor has no slots to set");
    if (status == PEN_OK) status = check(s, k, &c, &why);
    if (status != PEN_OK) {
        shard_refuse_chunk(s, in->peer, in->d, k->number, in->seq, status,
                           status == PEN_AGAIN ? "the first values have not arrived yet"
                                               : why.text);
        return;
    }
    if (c.what == SLOTS_SET && !set(s, k, &c, in->data + sizeof c)) return;
    if (c.what == SLOTS_COUNT && !count(s, k, c.applied)) return;
    buf *numbers = c.what == SLOTS_READ ? shard_offload_array(s, k, c.array) : NULL;
    if (c.what == SLOTS_READ && numbers == NULL) return;
    const shard_core_action a = {
        .index = k->index, .rank = in->d->rank, .peer = in->peer, .seq = in->seq};
    uint8_t *to =
        shard_reply_rows(s, &a, slots_answer_bytes(c.what, k->count)); /* NULL: asks again */
    if (to != NULL && numbers != NULL) memcpy(to, numbers->data, k->count * sizeof(float));
    buf_release(numbers);
}
