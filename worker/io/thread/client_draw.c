/* client_draw.c - initial values of a model that no worker holds whole (zero3): rank 0 sends them to the shards,
 * a few chunks at a time.
 *
 * Values that the program wrote through pen_view() go like all others; a tensor with neither is zero.
 */
#include "worker/io/thread/client.h"

#include "common/base/why.h"
#include "worker/tensor/held.h"

#include <stdlib.h>

bool client_is_drawing(const client *c, const void *token)
{
    return token == &c->drawing;
}

void client_draw_fini(client *c)
{
    for (int i = 0; i < CLIENT_DRAWN_MAX; i++) {
        free(c->drawing.piece[i]);
        c->drawing.piece[i] = NULL;
    }
}

/* The next chunk to make; NULL: none is left. */
static const plan_chunk *next_chunk(client *c)
{
    for (; c->drawing.next < c->plan->n_chunks; c->drawing.next++) {
        const plan_chunk *cut = &c->plan->chunk[c->drawing.next];
        const pen_tensor *t   = c->ctx->model.tensor[cut->tensor];
        if (!t->stays && t->param == NULL) return cut;
    }
    return NULL;
}

static bool draw_one(client *c, exchange_request *r, int at)
{
    const plan_chunk *cut = next_chunk(c);
    const pen_tensor *t   = c->ctx->model.tensor[cut->tensor];
    void *piece           = calloc(cut->count, plan_dtype_bytes(t->desc.dtype));
    if (piece == NULL) return false;
    c->drawing.piece[at] = piece;
    (void)held_draw_as_is(t, cut->start, cut->count, piece);
    exchange_add_chunk(c->exchange, r, EXCHANGE_INIT, c->drawing.next++, piece, NULL);
    return true;
}

client_draw_state client_draw_next(client *c, pen_error *why)
{
    const uint64_t now = loop_now_ms(c->loop);
    client_draw_fini(c);
    if (!c->drawing.is_sender || next_chunk(c) == NULL) return CLIENT_DRAW_OVER;
    exchange_request *r = exchange_open(c->exchange, now);
    bool has_memory     = r != NULL;
    for (int i = 0; i < CLIENT_DRAWN_MAX && has_memory && next_chunk(c) != NULL; i++)
        has_memory = draw_one(c, r, i);
    /* Closed also after a failure: chunks added before memory ran out are still read. */
    if (r != NULL) exchange_close(c->exchange, r, &c->drawing, c->commit->deadline_ms, now);
    if (has_memory) return CLIENT_DRAW_UNDER_WAY;
    why_set(why, PEN_NO_MEMORY, "no memory for the first values of the model");
    return CLIENT_DRAW_FAILED;
}
