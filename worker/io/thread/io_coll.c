/* io_coll.c - between collectives (engine.h), the membership client and requests to the scheduler.
 *
 * DESIGN.  Threads of the engine append their requests to a list and do not wait.  "pen-io" takes the list, sends the
 * requests (requests.h) and passes the answers to the engine.
 */
#include "worker/io/thread/io_thread.h"

#include "common/base/log.h"
#include "common/base/why.h"
#include "worker/collective/engine/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct io_coll_request {
    io_coll_request *next;
    wire_control_kind kind; /* FAULT, OVERDUE, SHRINK, UNREACHED */
    uint64_t group, call, waited_ms;
    pen_error why;
    char what[320]; /* UNREACHED: the address; why.text has the reason */
    bool is_quiet;
    uint32_t n;
    int32_t rank[];
};

enum {
    MISSING_MAX      = sizeof((pen_error){0}.missing) / sizeof(int32_t),
    RECORD_BYTES_MAX = 256 << 10, /* of the newest calls */
    /* Interval for polling collectives that no call drives; it doubles while there is nothing to do. */
    LOOK_MS       = 20,
    LOOK_IDLE_MS  = 160,
    REACH_MS      = 2, /* the same while connections are missing before the first step */
    REACH_IDLE_MS = 32,
    /* of a host.  With more, the intervals grow as their number: the cores of a host have to do all these polls. */
    FEW_WORKERS = 64
};

/* ---- from any thread ------------------------------------------------------------------------- */
static io_coll_request *make_request(wire_control_kind kind, const int *ranks, int n)
{
    const uint32_t count = n > 0 ? (uint32_t)n : 0;
    io_coll_request *a   = calloc(1, sizeof *a + count * sizeof *a->rank);
    if (a == NULL) return NULL;
    a->kind = kind;
    a->n    = count;
    for (uint32_t i = 0; i < count; i++) a->rank[i] = ranks[i];
    return a;
}

static void on_coll_requests(void *user);

/* NULL: no memory; the engine falls back to its own sentence and deadlines. */
static void post(io_thread *c, io_coll_request *a)
{
    if (a == NULL) return;
    pthread_mutex_lock(&c->coll_requests_lock);
    const bool was_empty = c->coll_requests == NULL;
    io_coll_request **at = &c->coll_requests;
    while (*at != NULL) at = &(*at)->next;
    *at = a;
    if (was_empty) {
        c->coll_requests_task = (loop_task){.fn = on_coll_requests, .user = c};
        loop_post(c->loop, &c->coll_requests_task);
    }
    pthread_mutex_unlock(&c->coll_requests_lock);
}

static void fault(void *user, uint64_t group, uint64_t call, const int *ranks, int n,
                  const pen_error *why)
{
    (void)ranks, (void)n; /* the scheduler tells all workers */
    io_coll_request *a = make_request(WIRE_FAULT, NULL, 0);
    if (a == NULL) return;
    a->group = group;
    a->call  = call;
    a->why   = *why;
    post(user, a);
}

static void overdue(void *user, const char *what, uint64_t waited_ms, const int *missing, int n,
                    bool is_quiet)
{
    io_coll_request *a = make_request(WIRE_OVERDUE, missing, n < MISSING_MAX ? n : MISSING_MAX);
    if (a == NULL) return;
    a->waited_ms = waited_ms;
    a->is_quiet  = is_quiet;
    snprintf(a->what, sizeof a->what, "%s", what);
    post(user, a);
}

static void shrink(void *user, uint64_t group, const int *ranks, int n)
{
    io_coll_request *a = make_request(WIRE_SHRINK, ranks, n);
    if (a == NULL) return;
    a->group = group;
    post(user, a);
}

static void unreached(void *user, int rank, const char *address, const char *words)
{
    io_coll_request *a = make_request(WIRE_UNREACHED, &rank, 1);
    if (a == NULL) return;
    snprintf(a->what, sizeof a->what, "%s", address);
    why_set(&a->why, PEN_UNREACHABLE, "%s", words);
    post(user, a);
}

const coll_job io_coll_job = {fault, overdue, shrink, unreached};

/* ---- in the loop's thread -------------------------------------------------------------------- */
static void begin_ask(io_thread *c, const io_coll_request *a)
{
    pen_status status     = PEN_OK;
    const uint64_t now_ms = loop_now_ms(c->loop);
    if (a->kind == WIRE_FAULT)
        status = unanswered_fault(c->unanswered, a->group, a->call, &a->why, now_ms);
    else if (a->kind == WIRE_SHRINK)
        status = unanswered_shrink(c->unanswered, a->group, a->rank, a->n, now_ms);
    else if (a->kind == WIRE_UNREACHED)
        io_send_unreached(c, PEN_WORKER, a->rank[0], a->what, a->why.text);
    else
        membership_client_overdue(c->membership_client, a->what, a->waited_ms, a->rank, a->n,
                                  a->is_quiet);
    if (status != PEN_OK) log_error("no memory to ask the scheduler about a failed call");
}

static void on_coll_requests(void *user)
{
    io_thread *c = user;
    pthread_mutex_lock(&c->coll_requests_lock);
    io_coll_request *a = c->coll_requests;
    c->coll_requests   = NULL;
    pthread_mutex_unlock(&c->coll_requests_lock);
    while (a != NULL) {
        io_coll_request *next = a->next;
        if (!c->is_leaving) begin_ask(c, a); /* else the connection is closed */
        free(a);
        a = next;
    }
    io_after(c);
}

void io_coll_fini(io_thread *c)
{
    while (c->coll_requests != NULL) {
        io_coll_request *next = c->coll_requests->next;
        free(c->coll_requests);
        c->coll_requests = next;
    }
    pthread_mutex_destroy(&c->coll_requests_lock);
}

/* ---- messages of the scheduler ----------------------------------------------------------------- */
static coll_member *list_members(const wire_member *worker, uint32_t n)
{
    coll_member *members = calloc((size_t)n + 1, sizeof *members);
    for (uint32_t i = 0; i < n && members != NULL; i++)
        members[i] = (coll_member){.rank        = worker[i].rank,
                                   .local_rank  = worker[i].local_rank,
                                   .node        = worker[i].node,
                                   .sharing     = worker[i].sharing,
                                   .incarnation = worker[i].incarnation,
                                   .host        = worker[i].host,
                                   .n_addresses = worker[i].n_addresses,
                                   .address     = worker[i].address};
    return members;
}

uint32_t io_prove(void *user, const wire_member *worker, uint32_t n, int32_t *rank,
                  uint64_t *number)
{
    const io_thread *c   = user;
    coll_member *members = list_members(worker, n);
    const uint32_t read =
        members != NULL ? coll_engine_prove(c->ctx->coll, members, (int)n, rank, number) : 0;
    free(members);
    return read;
}

pen_status io_coll_joined(io_thread *c, const wire_control *m, pen_error *why)
{
    const uint32_t n     = m->u.epoch.n_workers;
    coll_member *members = list_members(m->u.epoch.worker, n);
    pen_status status    = PEN_NO_MEMORY;
    if (members != NULL)
        status = coll_engine_joined(c->ctx->coll, members, (int)n, m->u.epoch.term, why);
    else
        why_set(why, PEN_NO_MEMORY, "no memory for %u members", n);
    free(members);
    /* Others are told by the calls that they concern, but would wait here for one without memory. */
    return status == PEN_NO_MEMORY ? status : PEN_OK;
}

void io_lost(void *user, int32_t rank, const pen_error *why)
{
    io_thread *c = user;
    coll_engine_lost(c->ctx->coll, rank, why);
    io_tell(c, PEN_EV_LOST, rank, why->text);
}

void io_faulted(void *user, uint64_t group, uint64_t call, const pen_error *why)
{
    io_thread *c = user;
    coll_engine_fault(c->ctx->coll, group, call, why);
}

void io_shrunk(void *user, uint64_t group, uint64_t new_group, const int32_t *ranks, uint32_t n,
               const pen_error *why)
{
    io_thread *c = user;
    _Static_assert(sizeof(int) == sizeof(int32_t), "ranks are handed on as they came");
    coll_engine_shrunk(c->ctx->coll, group, new_group, (const int *)ranks, (int)n, why);
}

/* The newest complete lines that fit. */
static const char *newest_lines(const char *text, size_t *size)
{
    *size = strlen(text);
    if (*size <= RECORD_BYTES_MAX) return text;
    const char *from = strchr(text + *size - RECORD_BYTES_MAX, '\n');
    from             = from != NULL ? from + 1 : text + *size;
    *size -= (size_t)(from - text);
    return from;
}

void io_recorder_please(void *user, uint64_t id, uint64_t asker)
{
    io_thread *c     = user;
    char *text       = coll_engine_recorder(c->ctx->coll);
    wire_control m   = {.kind = WIRE_RECORD};
    m.u.record.id    = id;
    m.u.record.asker = asker;
    m.u.record.rank  = c->ctx->env.rank;
    if (text != NULL) m.u.record.data = newest_lines(text, &m.u.record.data_size);
    membership_client_send(c->membership_client, &m);
    free(text);
}

void io_look(void *user)
{
    io_thread *c = user;
    if (c->ctx->coll == NULL) return;
    const bool did = coll_engine_look(c->ctx->coll), reaches = io_is_reaching(c);
    io_look_at_links(c, loop_now_ms(c->loop));
    const int64_t local  = c->ctx->env.local_world_size;
    const uint64_t crowd = local > FEW_WORKERS ? (uint64_t)local : FEW_WORKERS;
    const uint64_t least = crowd * (reaches ? REACH_MS : LOOK_MS) / FEW_WORKERS,
                   most  = crowd * (reaches ? REACH_IDLE_MS : LOOK_IDLE_MS) / FEW_WORKERS;
    c->look_ms           = did ? least : 2 * c->look_ms;
    if (c->look_ms < least) c->look_ms = least;
    if (c->look_ms > most) c->look_ms = most;
    loop_timer_start(c->loop, &c->look, loop_now_ms(c->loop) + c->look_ms, io_look, c);
}
