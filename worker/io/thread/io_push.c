/* io_push.c - the path of a gradient from pen_ready() to the connection of its server. */
#include "worker/train/ps.h"

#include "common/base/crc.h"
#include "common/base/log.h"
#include "common/base/why.h"
#include "common/compute/simd/simd.h"
#include "common/trace/trace.h"

#include <stdlib.h>
#include <string.h>

enum { ALONE_BYTES = 64 << 10 };

/* ---- into the ps client ------------------------------------------------------------------------- */
static void open_step(void *user)
{
    ps *p        = user;
    io_thread *c = p->c;
    p->step =
        ps_client_step_open(c->ps_client, p->index, &c->ctx->step.inputs, loop_now_ms(c->loop));
}

void ps_step_open(strategy *s, uint64_t index, const wire_inputs *inputs)
{
    ps *p    = (ps *)s;
    p->index = index;
    (void)inputs; /* ctx->step.inputs: unchanged until the step has ended */
    p->open = (loop_task){.fn = open_step, .user = p};
    loop_post(p->c->loop, &p->open);
}

/* Zeros for the largest gradient serve all tensors; not freed while one may be pushed. */
static const void *zeros(ps *p)
{
    const model *m = &p->c->ctx->model;
    size_t largest = 1;
    if (p->zeros != NULL) return p->zeros;
    for (uint32_t i = 0; i < m->n_tensors; i++)
        if (m->tensor[i]->grad_bytes > largest) largest = m->tensor[i]->grad_bytes;
    p->zeros = calloc(1, largest);
    return p->zeros;
}

static void push_ready(void *user)
{
    pen_tensor *t    = user;
    ps *p            = ps_of(t->ctx);
    const void *from = t->pushed;
    if (p->step == NULL) return;
    if (from == NULL && (from = zeros(p)) == NULL) {
        pen_error why;
        why_set(&why, PEN_NO_MEMORY, "no memory for the zeros of '%s'", t->name);
        io_report(p->c, &why);
        return;
    }
    if (t->stays) request_values_begin(&t->ctx->requests, t);
    ps_client_add(p->c->ps_client, p->step, PS_STEP, t->index, from, t->stays ? t->param : NULL);
}

void ps_ready(strategy *s, pen_tensor *t, const void *grad)
{
    t->pushed = grad;
    t->ready  = (loop_task){.fn = push_ready, .user = t};
    loop_post(((ps *)s)->c->loop, &t->ready);
}

/* ---- out of the ps client ----------------------------------------------------------------------------------- */
typedef struct {
    loop_task task;
    io_thread *owner;
    void *op;
} hold;

static void let_go(void *user)
{
    hold *h      = user;
    io_thread *c = h->owner;
    c->holds--;
    ps_client_release(c->ps_client, h->op);
    free(h);
    io_after(c);
}

/* Runs in any thread that drops the transport's last reference. */
static void released(void *user)
{
    hold *h = user;
    h->task = (loop_task){.fn = let_go, .user = h};
    loop_post(h->owner->loop, &h->task);
}

static bool travels_alone(const ps_client_piece *pieces, uint32_t n)
{
    return n == 1 && pieces->size >= ALONE_BYTES && pieces->encode == PEN_DTYPE_DEFAULT;
}

static buf *lend(io_thread *c, const ps_client_piece *piece)
{
    hold *h = malloc(sizeof *h);
    if (h == NULL) return NULL;
    *h     = (hold){.owner = c, .op = piece->op};
    buf *b = buf_wrap((void *)(uintptr_t)piece->data, piece->size, released, h);
    if (b == NULL) {
        free(h);
        return NULL;
    }
    c->holds++;
    ps_client_tx_ref(c->ps_client, piece->op);
    c->crc[0] = crc32c(0, piece->data, piece->size);
    return b;
}

/* Checksums cover the bytes on the wire. */
static buf *pack(io_thread *c, const ps_client_piece *pieces, uint32_t n, size_t size)
{
    buf *b = buf_new(size);
    if (b == NULL) return NULL;
    char *to = b->data;
    for (uint32_t i = 0; i < n; i++) {
        const ps_client_piece *p = &pieces[i];
        if (p->encode != PEN_DTYPE_DEFAULT)
            simd()->encode(to, p->data, p->encode, p->size / plan_dtype_bytes(p->encode));
        else
            memcpy(to, p->data, p->size);
        c->crc[i] = crc32c(0, to, p->size);
        to += p->size;
    }
    return b;
}

pen_status io_send(void *user, uint32_t shard, uint32_t lane, const wire_data *d,
                   const ps_client_piece *pieces, uint32_t n)
{
    io_thread *c            = user;
    lane_link *l            = &c->links[shard * (uint32_t)c->ctx->settings.lanes + lane];
    wire_data full          = *d;
    buf *body               = NULL;
    const uint64_t begun_ns = trace_begin();
    if (l->t == NULL || l->is_disconnected) return PEN_AGAIN;
    for (uint32_t i = 0; i < n; i++) full.payload_bytes += pieces[i].size;
    if (n > 0) {
        full.crc = c->crc;
        body = travels_alone(pieces, n) ? lend(c, pieces) : pack(c, pieces, n, full.payload_bytes);
        if (body == NULL) return PEN_NO_MEMORY;
    }
    pen_error why;
    pen_status status = wire_data_encode(&full, &c->out, &why);
    if (status == PEN_OK)
        status = transport_send(l->t, 0, c->out.data, c->out.size, body);
    else
        log_error("cannot encode a message to %s: %s", c->route.server[shard], why.text);
    if (status != PEN_OK)
        buf_release(body);
    else
        io_trace_sent(c, shard, &full, begun_ns);
    return status;
}
