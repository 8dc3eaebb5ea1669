/* io_slots.c - questions about slots, chunk by chunk. */
#include "worker/io/thread/io_slots.h"

#include "common/base/why.h"
#include "worker/io/thread/io_thread.h"

#include <stdlib.h>
#include <string.h>

typedef struct { /* of a chunk */
    ps_client_sink sink;
    uint32_t what;
    uint64_t count;
    float *out;
    slots_call call; /* with the numbers behind it */
    float numbers[];
} question;

static bool take_answer(ps_client_sink *sink, const void *answer, size_t size)
{
    const question *q = (const question *)sink;
    if (size != slots_answer_bytes(q->what, q->count)) return false;
    if (q->what == SLOTS_READ) memcpy(q->out, answer, q->count * sizeof(float));
    return true;
}

static size_t bytes_of(const io_slots *s, uint64_t count)
{
    const size_t numbers = s->call.what == SLOTS_SET ? count * sizeof(float) : 0;
    return (sizeof(question) + numbers + 63) / 64 * 64;
}

static void ask(io_thread *c, ps_client_request *e, io_slots *s, uint32_t chunk, question *q)
{
    const plan_chunk *planned = &c->plan->chunk[chunk];
    const bool sets           = s->call.what == SLOTS_SET;
    *q                        = (question){.sink  = {take_answer},
                                           .what  = s->call.what,
                                           .count = planned->count,
                                           .out   = s->out != NULL ? (float *)s->out + planned->start : NULL,
                                           .call  = s->call};
    if (model_rule_of(&c->ctx->model, s->tensor) != STEP_TWO_PHASE)
        q->call.round = ps_client_next_push(c->ps_client, chunk);
    const size_t numbers = sets ? planned->count * sizeof(float) : 0;
    if (sets) memcpy(q->numbers, s->in + planned->start, numbers);
    ps_client_add_rows(c->ps_client, e, PS_PULL, chunk, &q->call,
                       (uint32_t)(sizeof q->call + numbers), &q->sink);
}

void io_slots_begin(io_thread *c, request *r, uint64_t now_ms)
{
    io_slots *s = r->u.slots;
    if (s->tensor == NULL) {
        ps_client_applied_is(c->ps_client, s->call.applied);
        request_end(r, PEN_OK, NULL);
        return;
    }
    const uint32_t *first = &c->plan->first_chunk[s->tensor->index];
    const bool asks       = s->call.what != 0;
    size_t bytes          = 1;
    for (uint32_t i = first[0]; asks && i < first[1]; i++)
        bytes += bytes_of(s, c->plan->chunk[i].count);
    s->memory            = malloc(bytes);
    ps_client_request *e = s->memory != NULL ? ps_client_open(c->ps_client, now_ms) : NULL;
    if (e == NULL) {
        pen_error why;
        why_set(&why, PEN_NO_MEMORY, "no memory to ask for a slot of '%s'", s->tensor->name);
        request_end(r, PEN_NO_MEMORY, &why);
        return;
    }
    if (!asks) ps_client_add(c->ps_client, e, PS_PULL, s->tensor->index, NULL, s->out);
    char *at = s->memory;
    for (uint32_t i = first[0]; asks && i < first[1]; i++) {
        ask(c, e, s, i, (question *)(void *)at);
        at += bytes_of(s, c->plan->chunk[i].count);
    }
    ps_client_close(c->ps_client, e, r, r->deadline_ms, now_ms);
}

bool io_has_begun(const pen_ctx *ctx)
{
    bool has_ended_a_step = false;
    for (int i = 0; i < CONTEXT_DECIDED_MAX; i++) has_ended_a_step |= ctx->step.decided[i].is_there;
    return ctx->mode == MODE_LOCAL || has_ended_a_step || !io_of(ctx)->is_late;
}
