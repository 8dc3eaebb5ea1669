/* io_init.c - initial values of a model that no worker holds whole (zero3): rank 0 sends them to the shards,
 * a few chunks at a time.
 *
 * Values come from the init string or from the program, through pen_view(); a tensor with neither is zero.
 */
#include "worker/io/thread/io_thread.h"

#include "common/base/why.h"
#include "worker/tensor/param_memory.h"

#include <stdlib.h>

bool io_is_initializing(const io_thread *c, const void *token)
{
    return token == &c->initializing;
}

void io_init_fini(io_thread *c)
{
    for (int i = 0; i < IO_INIT_MAX; i++) {
        free(c->initializing.piece[i]);
        c->initializing.piece[i] = NULL;
    }
}

/* The next chunk to make; NULL: none is left. */
static const plan_chunk *next_chunk(io_thread *c)
{
    for (; c->initializing.next < c->plan->first_chunk[c->ctx->model.n_tensors];
         c->initializing.next++) {
        const plan_chunk *planned = &c->plan->chunk[c->initializing.next];
        const pen_tensor *t       = c->ctx->model.tensor[planned->tensor];
        if (!t->stays && t->param == NULL) return planned;
    }
    return NULL;
}

static bool draw_one(io_thread *c, ps_client_request *r, int at)
{
    const plan_chunk *planned = next_chunk(c);
    const pen_tensor *t       = c->ctx->model.tensor[planned->tensor];
    void *piece               = calloc(planned->count, plan_dtype_bytes(t->desc.dtype));
    if (piece == NULL) return false;
    c->initializing.piece[at] = piece;
    (void)param_memory_init_as_is(t, planned->start, planned->count, piece);
    ps_client_add_chunk(c->ps_client, r, PS_INIT, c->initializing.next++, piece, NULL);
    return true;
}

io_init_state io_init_next(io_thread *c, pen_error *why)
{
    const uint64_t now = loop_now_ms(c->loop);
    io_init_fini(c);
    if (!c->initializing.is_sender || next_chunk(c) == NULL) return IO_INIT_OVER;
    ps_client_request *r = ps_client_open(c->ps_client, now);
    bool has_memory      = r != NULL;
    for (int i = 0; i < IO_INIT_MAX && has_memory && next_chunk(c) != NULL; i++)
        has_memory = draw_one(c, r, i);
    /* Closed also after a failure: chunks added before memory ran out are still read. */
    if (r != NULL) ps_client_close(c->ps_client, r, &c->initializing, c->commit->deadline_ms, now);
    if (has_memory) return IO_INIT_UNDER_WAY;
    why_set(why, PEN_NO_MEMORY, "no memory for the first values of the model");
    return IO_INIT_FAILED;
}
