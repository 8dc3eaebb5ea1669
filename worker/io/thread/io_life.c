/* io_life.c - opens and closes the link to the job; the scheduler that rank 0 may host. */
#include "worker/io/hosted.h"
#include "worker/io/thread/io_thread.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/why.h"
#include "common/system/file_limit.h"
#include "common/system/fp_env.h"
#include "common/system/machine.h"
#include "common/trace/trace.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

enum {
    ARENA_BYTES_MAX  = 64 << 20,
    LET_GO_MS        = 5000, /* for the transport to return buffers */
    FAREWELL_MS      = 500,  /* for BYE or a FAILURE to be sent */
    LINGER_FAILED_MS = 15000 /* for a hosted scheduler to tell all members */
};

/* ---- abort ----------------------------------------------------------------------------------- */
static void on_abort(void *user)
{
    io_thread *c = user;
    pen_error why;
    if (c->is_leaving) return;
    why_set(&why, PEN_ABORTED, "pen_abort on rank %d (%s): %s", c->ctx->env.rank, c->ctx->host,
            c->ctx->abort_why);
    why_culprit(&why, PEN_WORKER, c->ctx->env.rank, -1, NULL);
    io_report(c, &why);
    io_after(c);
}

/* Once at most. */
static void io_abort(job_link *l)
{
    io_thread *c = (io_thread *)l;
    c->abort     = (loop_task){.fn = on_abort, .user = c};
    loop_post(c->loop, &c->abort);
}

/* ---- open ------------------------------------------------------------------------------------ */
/* Rank 0 hosts the scheduler unless another process does: the port is taken, or the host is another one. */
static pen_status host_scheduler(pen_ctx *ctx, pen_error *why)
{
    const worker_settings *s = &ctx->settings;
    if (ctx->env.rank != 0 || s->scheduler == SCHEDULER_EXTERNAL) return PEN_OK;
    const job_host_settings hosted = hosted_settings(s, &ctx->env);
    const pen_status status        = job_host_start(&hosted, &ctx->hosted, why);
    if (status == PEN_OK)
        log_info("rank 0 hosts the scheduler at %s:%u", ctx->env.addr, ctx->env.port);
    if (status == PEN_UNREACHABLE && s->scheduler != SCHEDULER_HOSTED) return PEN_OK;
    return status;
}

static void *run_io_thread(void *user)
{
    io_thread *c = user;
    fp_env_set_ours();
    (void)file_limit_block();
    request_mark_sdk_thread();
    loop_run(c->loop);
    return NULL;
}

static uint64_t draw_nonce(void)
{
    uint64_t nonce;
    if (getrandom(&nonce, sizeof nonce, 0) == sizeof nonce) return nonce;
    return clock_ns(&clock_real) ^ (uint64_t)getpid() << 32;
}

enum { BEAT_MS = 100 };

/* The last beat of a dead member tells its progress.  The interval grows with the number of ranks, so that the total
 * rate of beats does not. */
static uint64_t beat_ms_max(const pen_ctx *ctx)
{
    const uint64_t ranks = (uint64_t)ctx->env.world_size;
    if (trace_on()) return TRACE_BEAT_MS;
    return ranks > BEAT_MS ? ranks : BEAT_MS;
}

/* A restarted worker finds its scheduler at once, unless the job has ended meanwhile. */
static uint64_t answer_ms(const pen_ctx *ctx)
{
    const worker_settings *s = &ctx->settings;
    return ctx->env.has_come_back && s->lease_ms < s->init_timeout_ms ? s->lease_ms
                                                                      : s->init_timeout_ms;
}

static pen_status make_membership_client(io_thread *c, pen_error *why)
{
    const pen_ctx *ctx    = c->ctx;
    const char *at        = strstr(c->control_address, "://");
    const int32_t servers = (int32_t)ctx->settings.servers;
    char machine[MACHINE_BYTES];
    machine_identity(ctx->settings.host_id, machine);
    membership_client_setup setup = {.rank             = ctx->env.rank,
                                     .world_size       = ctx->env.world_size,
                                     .servers          = servers > 0 ? servers : 0,
                                     .pid              = (int32_t)ctx->pid,
                                     .local_rank       = ctx->env.local_rank,
                                     .local_world_size = ctx->env.local_world_size,
                                     .node             = ctx->env.node,
                                     .nonce            = draw_nonce(),
                                     .number           = coll_engine_number(ctx->coll),
                                     .machine          = machine,
                                     .lease_ms         = ctx->settings.lease_ms,
                                     .init_timeout_ms  = ctx->settings.init_timeout_ms,
                                     .answer_ms        = answer_ms(ctx),
                                     .beat_ms_max      = beat_ms_max(ctx),
                                     .host             = ctx->host,
                                     .job              = ctx->settings.job,
                                     .scheduler        = at != NULL ? at + 3 : c->control_address};
    setup.address                 = coll_engine_addresses(ctx->coll, &setup.n_addresses);
    c->membership_client = membership_client_create(&setup, &io_membership_client_actions, c,
                                                    clock_ms(&clock_real), why);
    return c->membership_client != NULL ? PEN_OK : why->status;
}

static pen_status build(io_thread *c, pen_error *why)
{
    if (files_check(why) != PEN_OK) return why->status;
    c->loop = loop_create(why);
    if (c->loop == NULL) return why->status;
    c->ctx->io_loop = c->loop;
    c->arena        = wire_arena_create(ARENA_BYTES_MAX);
    c->view_arena   = wire_arena_create(ARENA_BYTES_MAX);
    if (c->arena == NULL || c->view_arena == NULL)
        return why_set(why, PEN_NO_MEMORY, "no memory for incoming messages");
    pen_status status = io_dial_control(c, why);
    if (status == PEN_OK) status = context_make_coll(c->ctx, &io_coll_job, c, why);
    if (status == PEN_OK) status = make_membership_client(c, why);
    if (status == PEN_OK) io_look(c);
    if (status == PEN_OK) status = io_make_requests(c, why);
    if (status == PEN_OK) status = loop_before_sleep(c->loop, io_before_sleep, c, why);
    return status;
}

static pen_status open_auth(pen_ctx *ctx, pen_error *why)
{
    worker_settings *s = &ctx->settings;
    char address[CONFIG_TEXT_BYTES];
    io_scheduler_address(ctx, address, sizeof address);
    const auth_options who  = {.encryption    = s->encryption,
                               .transport     = s->transport,
                               .secret_file   = s->secret_file,
                               .local_sockets = s->local_sockets,
                               .role          = AUTH_WORKER,
                               .rank          = ctx->env.rank,
                               .scheduler     = address,
                               .address       = {ctx->env.addr}};
    const pen_status status = auth_open(&who, &ctx->auth, why);
    if (s->lanes == 0) s->lanes = auth_lanes(ctx->auth);
    return status;
}

/* ---- close ----------------------------------------------------------------------------------- */
/* Runs in the io thread, which owns the sockets.  Released buffers of the program arrive as tasks. */
static void stop(void *user)
{
    io_thread *c  = user;
    c->is_leaving = true;
    loop_remove(c->loop, c);
    io_close_links(c);
    lifeline_close(c->control, FAREWELL_MS);
    c->control = NULL;
    loop_stop(c->loop);
}

static void free_io_thread(io_thread *c)
{
    io_coll_fini(c);
    io_init_fini(c);
    io_trace_fini(c);
    ps_client_destroy(c->ps_client);
    membership_client_destroy(c->membership_client);
    unanswered_destroy(c->unanswered);
    commands_destroy(c->commands);
    wire_arena_destroy(c->arena);
    wire_arena_destroy(c->view_arena);
    wire_out_free(&c->out);
    plan_destroy(c->plan);
    io_route_fini(c);
    free(c->links);
    free(c->shard);
    free(c->crc);
    loop_destroy(c->loop);
    free(c);
}

static void io_close(job_link *l)
{
    io_thread *c = (io_thread *)l;
    pen_ctx *ctx = c->ctx;
    if (c->has_thread) {
        c->stop = (loop_task){.fn = stop, .user = c};
        loop_post(c->loop, &c->stop);
        pthread_join(c->thread, NULL);
    }
    coll_engine_destroy(ctx->coll); /* its threads send requests through this link */
    ctx->coll = NULL;
    lifeline_close(c->control, 0);
    if (c->loop != NULL) {
        const uint64_t until = clock_ms(&clock_real) + LET_GO_MS;
        while (c->holds > 0 && clock_ms(&clock_real) < until) loop_turn(c->loop, 10);
    }
    if (c->holds == 0)
        free_io_thread(c);
    else
        log_error("the transport did not return %llu buffers; their memory is lost",
                  (unsigned long long)c->holds);
    /* A hosted scheduler serves long while the job is healthy. */
    const bool is_early = ctx->phase == CONTEXT_OPEN || atomic_load(&ctx->has_failed);
    job_host_close(ctx->hosted, is_early ? LINGER_FAILED_MS : ctx->settings.deadline_ms);
    ctx->hosted = NULL;
    auth_close(ctx->auth);
    ctx->auth = NULL;
}

/* ---- the link -------------------------------------------------------------------------------- */
pen_status io_open(pen_ctx *ctx, pen_error *why)
{
    static const job_link_ops ops = {io_start, io_answer, io_abort, io_close};
    io_thread *c                  = calloc(1, sizeof *c);
    if (c == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for the connection to the job");
    c->ctx    = ctx;
    c->link   = (job_link){&ops};
    ctx->link = &c->link;
    pthread_mutex_init(&c->coll_requests_lock, NULL);
    pen_status status = open_auth(ctx, why);
    if (status == PEN_OK) status = host_scheduler(ctx, why);
    if (status == PEN_OK) status = build(c, why);
    if (status != PEN_OK) return status;
    int error = pthread_create(&c->thread, NULL, run_io_thread, c);
    if (error != 0)
        return why_set(why, PEN_NO_MEMORY,
                       "cannot start the thread of the connection to the job: %s", strerror(error));
    c->has_thread = true;
    pthread_setname_np(c->thread, "pen-io");
    return PEN_OK;
}
