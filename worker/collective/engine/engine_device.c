/* engine_device.c - calls with buffers in device memory: on the device path, or through host memory.
 *
 * DESIGN
 * Members on one host work on each other's device memory (device.h); the first such call creates a team for that.
 * Elsewhere, and if peers' devices cannot be reached, a call goes through host memory: copied in on the caller's
 * stream, run, copied out on the caller's stream.  Nothing here waits: copies are polled by their event.
 * Alike.  Some members may be unable to create a team, and some may pass host memory by mistake.  So before the first
 * such call of a group, members vote on the group's own path, with the header of the call itself; later, each member
 * marks which memory each call of the group has.
 */
#include "worker/collective/engine/engine_internal.h"

#include "common/base/log.h"
#include "common/base/why.h"
#include "proto/plan.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

struct engine_stage {
    const device_ops *ops;
    int device;
    device_event *event;
    void *in, *out; /* host memory; the same for a broadcast */
    const void *from;
    void *to; /* the caller's */
    size_t in_bytes, out_bytes;
    device_stream stream;
};

static const device_ops *host(void)
{
    int i = 0;
    while (device_all[i + 1] != NULL) i++;
    return device_all[i];
}

/* ---- kinds of memory ------------------------------------------------------------------------- */
/* A member without elements has no buffer to inspect: a stream then means a device, else the previous call decides. */
static const device_ops *ops_of(engine_call *c)
{
    const pen_group *g = c->g;
    coll_call *call    = &c->call;
    const void *data   = NULL;
    if (coll_in_elements(call, g->size, g->rank) > 0) data = call->in;
    if (data == NULL && coll_out_elements(call, g->size, g->rank) > 0) data = call->out;
    if (!device_is_loaded()) return host();
    if (data != NULL) return device_of(data);
    call->any_memory = call->stream == NULL;
    return call->stream != NULL || g->was_on_device ? device_all[0] : host();
}

/* ---- the team -------------------------------------------------------------------------------- */
static bool may_have_team(const coll_engine *e, const pen_group *g)
{
    if (e->device_place == NULL || g->size == 1) return false;
    for (int i = 0; i < g->size; i++)
        if (e->place_of[g->ranks[i]] != e->place_of[e->rank] ||
            e->device_address[g->ranks[i]][0] == '\0')
            return false;
    return true;
}

/* Looks for NCCL only if it may be used, because that loads it. */
static device_options options_of(const coll_engine *e, const device_ops *ops)
{
    device_options o = {.ops         = ops,
                        .device      = -1,
                        .sync        = (device_sync_choice)e->setup.settings->device_backend,
                        .may_reorder = !e->is_deterministic};
    const bool is_wanted =
        o.sync == DEVICE_SYNC_NCCL || (o.sync == DEVICE_SYNC_AUTO && o.may_reorder);
    if (is_wanted && !device_is_host(ops)) o.nccl = nccl_find();
    return o;
}

static device_team *make_team(coll_engine *e, pen_group *g, const device_ops *ops, pen_error *why)
{
    const device_options o = options_of(e, ops);
    const size_t many      = g->size > 0 ? (size_t)g->size : 0;
    const char **address   = calloc(many, sizeof *address);
    device_team *team      = NULL;
    if (address == NULL) {
        why_set(why, PEN_NO_MEMORY, "no memory for a group of %d", g->size);
        return NULL;
    }
    for (size_t i = 0; i < many; i++) address[i] = e->device_address[g->ranks[i]];
    if (device_team_create(e->device_place, g->id, address, g->ranks, g->size, g->rank, &o, &team,
                           why) != PEN_OK)
        team = NULL;
    free(address);
    return team;
}

static void say_that_host_carries(const coll_engine *e, const char *reason)
{
    log_notice("rank %d: calls on device memory go through the host: %s", e->rank, reason);
}

/* ---- staging --------------------------------------------------------------------------------- */
static void free_stage(engine_call *c)
{
    struct engine_stage *s = c->stage;
    if (s == NULL) return;
    if (s->event != NULL) s->ops->event_free(s->event);
    if (s->out != s->in) free(s->out);
    free(s->in);
    free(s);
    c->stage = NULL;
}

static pen_status copy(struct engine_stage *s, void *to, const void *from, size_t bytes,
                       pen_error *why)
{
    pen_status status = s->ops->enter(s->device, why);
    if (status != PEN_OK) return status;
    if (s->event == NULL) s->event = s->ops->event_new();
    if (s->event == NULL) status = why_set(why, PEN_NO_MEMORY, "no memory for an event");
    if (status == PEN_OK && bytes > 0) status = s->ops->copy(to, from, bytes, s->stream, why);
    if (status == PEN_OK) status = s->ops->event_record(s->event, s->stream, why);
    s->ops->leave();
    return status;
}

static bool take_memory(engine_call *c, struct engine_stage *s)
{
    const pen_group *g   = c->g;
    const size_t element = plan_dtype_bytes(c->call.dtype);
    s->in_bytes          = element * coll_in_elements(&c->call, g->size, g->rank);
    s->out_bytes         = element * coll_out_elements(&c->call, g->size, g->rank);
    if (c->call.kind == COLL_BROADCAST) {
        s->in = s->out = malloc(element * c->call.n + 1);
        if (s->in_bytes > 0) s->out_bytes = 0; /* the root has it already */
    } else {
        s->in  = malloc(s->in_bytes + 1);
        s->out = malloc(s->out_bytes + 1);
    }
    return s->in != NULL && s->out != NULL;
}

static pen_status begin_stage(engine_call *c, pen_error *why)
{
    struct engine_stage *s = calloc(1, sizeof *s);
    if (s == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for a call");
    c->state  = CALL_STAGING;
    c->stage  = s;
    s->ops    = c->ops;
    s->device = c->ops->device(c->call.in != NULL ? c->call.in : c->call.out);
    s->stream = c->call.stream;
    s->from   = c->call.in;
    s->to     = c->call.out;
    if (!take_memory(c, s)) return why_set(why, PEN_NO_MEMORY, "no memory to stage a call");
    c->call.in  = s->in;
    c->call.out = s->out;
    return copy(s, s->in, s->from, s->in_bytes, why);
}

/* ---- the path of a call ---------------------------------------------------------------------- */
static void take_device(engine_call *c)
{
    c->state    = CALL_RUNNING;
    c->path     = &coll_path_device;
    c->team     = c->g->device;
    c->on_mesh  = false;
    c->path_seq = ++c->g->device_seq;
}

static void begin_vote(engine_call *c)
{
    pen_group *g   = c->g;
    coll_engine *e = g->engine;
    pen_error why;
    if (g->device == NULL) g->device = make_team(e, g, c->ops, &why);
    if (g->device == NULL) say_that_host_carries(e, why.text);
    c->can  = g->device != NULL;
    c->vote = (coll_call){.kind  = COLL_ALL_REDUCE,
                          .op    = PEN_MIN,
                          .dtype = PEN_I32,
                          .n     = 1,
                          .in    = &c->can,
                          .out   = &c->all_can,
                          .scale = 1,
                          .label = c->label,
                          .shown = &c->call};
    engine_take_path_of_group(c);
    c->state = CALL_AGREEING;
}

static pen_status choose_for_device(engine_call *c, pen_error *why)
{
    pen_group *g      = c->g;
    coll_engine *e    = g->engine;
    c->call.on_device = true;
    if (e->pretence != PRETEND_UNREACHABLE && may_have_team(e, g)) {
        if (!g->device_is_settled) {
            begin_vote(c);
            return PEN_OK;
        }
        if (g->device_carries) {
            take_device(c);
            return PEN_OK;
        }
    }
    engine_take_path_of_group(c);
    return begin_stage(c, why);
}

/* ---- for engine_drive.c ---------------------------------------------------------------------- */
pen_status engine_choose_path(engine_call *c, pen_error *why)
{
    pen_group *g            = c->g;
    const coll_engine *e    = g->engine;
    const bool is_barrier   = c->call.kind == COLL_BARRIER;
    c->ops                  = is_barrier ? host() : ops_of(c);
    const bool is_on_device = !device_is_host(c->ops) || e->pretence != PRETEND_NOTHING;
    c->call.on_device       = is_on_device && !is_barrier;
    if (!is_barrier) g->was_on_device = c->call.on_device;
    if (g->device != NULL) device_team_mark(g->device, c->seq, c->call.on_device);
    if (c->call.on_device) return choose_for_device(c, why);
    engine_take_path_of_group(c);
    c->state = CALL_RUNNING;
    return PEN_OK;
}

pen_status engine_settle_device(engine_call *c, pen_error *why)
{
    pen_group *g         = c->g;
    g->device_is_settled = true;
    g->device_carries    = c->all_can != 0;
    if (g->device_carries) {
        device_team_mark(g->device, c->seq, true);
        take_device(c);
        return PEN_OK;
    }
    if (g->device != NULL) {
        say_that_host_carries(g->engine, "another member of the group cannot reach all devices");
        device_team_destroy(g->device);
        g->device = NULL;
    }
    engine_take_path_of_group(c);
    return begin_stage(c, why);
}

bool engine_goes_round_device(engine_call *c, pen_error *why)
{
    pen_group *g = c->g;
    if (c->path != &coll_path_device || why->status != PEN_UNSUPPORTED ||
        !device_team_is_refused(g->device))
        return false;
    say_that_host_carries(g->engine, why->text);
    g->device_carries = false;
    engine_take_path_of_group(c);
    return begin_stage(c, why) == PEN_OK;
}

/* Without a device team, the headers show the difference: those of a vote, or of a path that carries both kinds. */
pen_status engine_compare_memory(engine_call *c, pen_error *why)
{
    const pen_group *g = c->g;
    if (g->device == NULL || !g->device_carries) return PEN_OK;
    return device_team_compare(g->device, c->seq, c->call.on_device, why);
}

coll_state engine_stage_state(engine_call *c, pen_error *why)
{
    pen_status status = c->stage->ops->event_done(c->stage->event, why);
    if (status == PEN_AGAIN) return COLL_RUNNING;
    return status == PEN_OK ? COLL_DONE : COLL_FAILED;
}

pen_status engine_stage_return(engine_call *c, pen_error *why)
{
    struct engine_stage *s = c->stage;
    return copy(s, s->to, s->out, s->out_bytes, why);
}

/* Waits for a copy in progress, which uses the caller's memory and ours: it ends by itself, soon. */
void engine_stage_end(engine_call *c)
{
    const struct timespec pause = {.tv_nsec = 50000};
    pen_error why;
    if (c->stage == NULL) return;
    while (c->stage->event != NULL && c->stage->ops->event_done(c->stage->event, &why) == PEN_AGAIN)
        nanosleep(&pause, NULL);
    free_stage(c);
}
