/* engine_stage.c - host memory for calls on device memory that no device path carries: copied in, and copied out.
 *
 * Nothing here waits: copies are polled by their event.  The memory is page-locked, so that copies do not wait either, and
 * stays with the group for its next calls; after a call in stream order the copy out may still be in progress.
 */
#include "worker/collective/engine/engine_internal.h"

#include "common/base/why.h"
#include "common/trace/trace.h"
#include "proto/plan.h"

#include <stdlib.h>
#include <time.h>

enum { STAGES_KEPT = 2, STAGE_BYTES = 1 << 16 };

typedef struct {
    void *data;
    size_t room;
} stage_memory;

struct engine_stage {
    struct engine_stage *next; /* of its group, between calls */
    const device_ops *ops;
    stat_set *stats;
    stat_traffic traffic;
    trace_kind direction; /* of the copy in progress */
    uint64_t begun_ns, bytes;
    int device;
    device_event *event; /* of the newest copy */
    stage_memory in_memory, out_memory;
    void *in, *out; /* the same for a broadcast */
    const void *from;
    void *to; /* the caller's */
    size_t in_bytes, out_bytes;
    device_stream stream;
};

static bool is_busy(const struct engine_stage *s)
{
    return s->event != NULL && s->ops->event_done(s->event, NULL) == PEN_AGAIN;
}

/* Waits for a copy in progress, which uses the caller's memory and ours: it ends by itself, soon. */
static void wait_for(const struct engine_stage *s)
{
    const struct timespec pause = {.tv_nsec = 50000};
    while (is_busy(s)) nanosleep(&pause, NULL);
}

static void free_stage(struct engine_stage *s)
{
    if (s->event != NULL) s->ops->event_free(s->event);
    if (s->out_memory.data != NULL) s->ops->host_free(s->out_memory.data);
    if (s->in_memory.data != NULL) s->ops->host_free(s->in_memory.data);
    free(s);
}

static pen_status copy(struct engine_stage *s, void *to, const void *from, size_t bytes,
                       pen_error *why)
{
    pen_status status = s->ops->enter(s->device, why);
    if (status != PEN_OK) return status;
    if (s->event == NULL) s->event = s->ops->event_new();
    if (s->event == NULL) status = why_set(why, PEN_NO_MEMORY, "no memory for an event");
    s->direction = to == s->in ? TRACE_COPY_DOWN : TRACE_COPY_UP;
    s->begun_ns  = trace_begin();
    s->bytes     = bytes;
    if (status == PEN_OK)
        status = device_copy(s->ops, s->traffic, s->stats, to, from, bytes, s->stream, why);
    if (status == PEN_OK) status = s->ops->event_record(s->event, s->stream, why);
    s->ops->leave();
    return status;
}

/* Page-locking enters the kernel for each page, so memory grows in powers of two and is used again. */
static pen_status make_room(const struct engine_stage *s, stage_memory *m, size_t bytes,
                            pen_error *why)
{
    size_t room = STAGE_BYTES;
    if (m->data != NULL && m->room >= bytes) return PEN_OK;
    while (room < bytes) room *= 2;
    if (m->data != NULL) s->ops->host_free(m->data);
    m->data = s->ops->host_alloc(room, why);
    m->room = room;
    return m->data != NULL ? PEN_OK : PEN_NO_MEMORY;
}

static pen_status take_memory(engine_call *c, struct engine_stage *s, pen_error *why)
{
    const pen_group *g   = c->g;
    const size_t element = plan_dtype_bytes(c->call.dtype);
    const bool is_one    = c->call.kind == COLL_BROADCAST;
    s->in_bytes          = element * coll_in_elements(&c->call, g->size, g->rank);
    s->out_bytes         = element * coll_out_elements(&c->call, g->size, g->rank);
    pen_status status    = s->ops->enter(s->device, why);
    if (status != PEN_OK) return status;
    status = make_room(s, &s->in_memory, is_one ? element * c->call.n : s->in_bytes, why);
    if (status == PEN_OK && !is_one) status = make_room(s, &s->out_memory, s->out_bytes, why);
    s->ops->leave();
    s->in  = s->in_memory.data;
    s->out = is_one ? s->in_memory.data : s->out_memory.data;
    if (is_one && s->in_bytes > 0) s->out_bytes = 0; /* the root has it already */
    return status;
}

/* One that is free, with a NULL event or a done one; its stream waits for copies in progress of calls before. */
static pen_status take_stage(engine_call *c, device_stream stream, struct engine_stage **stage,
                             pen_error *why)
{
    struct engine_stage **at = &c->g->stages;
    int n                    = 0;
    *stage                   = NULL;
    while (*at != NULL) {
        struct engine_stage *s = *at;
        const bool is_free     = !is_busy(s);
        if (!is_free) {
            pen_status status = s->ops->stream_wait(stream, s->event, why);
            if (status != PEN_OK) return status;
        }
        const bool fits = s->ops == c->ops && *stage == NULL;
        if (is_free && (fits || n >= STAGES_KEPT)) {
            *at = s->next;
            if (fits)
                *stage = s;
            else
                free_stage(s);
            continue;
        }
        at = &s->next;
        n++;
    }
    if (*stage == NULL) *stage = calloc(1, sizeof **stage);
    return *stage != NULL ? PEN_OK : why_set(why, PEN_NO_MEMORY, "no memory for a call");
}

pen_status engine_stage_begin(engine_call *c, pen_error *why)
{
    struct engine_stage *s;
    pen_status status = take_stage(c, c->call.stream, &s, why);
    if (status != PEN_OK) return status;
    c->stage   = s;
    s->ops     = c->ops;
    s->stats   = c->g->engine->setup.stats;
    s->traffic = c->call.traffic;
    s->device  = engine_device_of(&c->call, c->ops);
    s->stream  = c->call.stream;
    s->from    = c->call.in;
    s->to      = c->call.out;
    status     = take_memory(c, s, why);
    if (status != PEN_OK) return status;
    c->call.in        = s->in;
    c->call.out       = s->out;
    c->call.is_staged = true;
    return copy(s, s->in, s->from, s->in_bytes, why);
}

coll_state engine_stage_state(engine_call *c, pen_error *why)
{
    const struct engine_stage *s = c->stage;
    pen_status status            = s->ops->event_done(s->event, why);
    if (status == PEN_AGAIN) return COLL_RUNNING;
    if (s->bytes > 0)
        trace_span(s->direction, s->begun_ns,
                   &(trace_note){.step = -1, .bytes = s->bytes, .label = c->label});
    return status == PEN_OK ? COLL_DONE : COLL_FAILED;
}

pen_status engine_stage_follow(const engine_call *c, device_stream stream, pen_error *why)
{
    return c->stage->ops->stream_wait(stream, c->stage->event, why);
}

pen_status engine_stage_return(engine_call *c, pen_error *why)
{
    struct engine_stage *s = c->stage;
    return copy(s, s->to, s->out, s->out_bytes, why);
}

void engine_stage_end(engine_call *c)
{
    struct engine_stage *s = c->stage;
    if (s == NULL) return;
    if (!c->call.in_stream_order) wait_for(s);
    s->next      = c->g->stages;
    c->g->stages = s;
    c->stage     = NULL;
}

void engine_stages_free(pen_group *g)
{
    while (g->stages != NULL) {
        struct engine_stage *s = g->stages;
        g->stages              = s->next;
        wait_for(s);
        free_stage(s);
    }
}
