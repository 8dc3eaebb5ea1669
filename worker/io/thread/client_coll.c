/* client_coll.c - between collectives (engine.h), the membership client and requests to the scheduler.
 *
 * DESIGN.  Threads of the engine append their requests to a list and go on; "pen-io" takes the list and sends them
 * (requests.h).  It passes the answers to the engine.
 */
#include "worker/io/thread/client.h"

#include "common/base/log.h"
#include "common/base/why.h"
#include "worker/collective/engine/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct client_ask {
    client_ask *next;
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
    LOOK_MS          = 20,        /* between two looks at collectives while no call drives them */
    REACHING_MS      = 2          /* the same while connections are missing before the first step */
};

/* ---- from any thread ------------------------------------------------------------------------- */
static client_ask *make(wire_control_kind kind, const int *ranks, int n)
{
    const uint32_t count = n > 0 ? (uint32_t)n : 0;
    client_ask *a        = calloc(1, sizeof *a + count * sizeof *a->rank);
    if (a == NULL) return NULL;
    a->kind = kind;
    a->n    = count;
    for (uint32_t i = 0; i < count; i++) a->rank[i] = ranks[i];
    return a;
}

static void take_asks(void *user);

/* NULL: no memory; the engine falls back to its own sentence and deadlines. */
static void post(client *c, client_ask *a)
{
    if (a == NULL) return;
    pthread_mutex_lock(&c->asks_lock);
    const bool was_empty = c->asks == NULL;
    client_ask **at      = &c->asks;
    while (*at != NULL) at = &(*at)->next;
    *at = a;
    if (was_empty) {
        c->asks_task = (loop_task){.fn = take_asks, .user = c};
        loop_post(c->loop, &c->asks_task);
    }
    pthread_mutex_unlock(&c->asks_lock);
}

static void fault(void *user, uint64_t group, uint64_t call, const int *ranks, int n,
                  const pen_error *why)
{
    (void)ranks, (void)n; /* the scheduler tells all workers */
    client_ask *a = make(WIRE_FAULT, NULL, 0);
    if (a == NULL) return;
    a->group = group;
    a->call  = call;
    a->why   = *why;
    post(user, a);
}

static void overdue(void *user, const char *what, uint64_t waited_ms, const int *missing, int n,
                    bool is_quiet)
{
    client_ask *a = make(WIRE_OVERDUE, missing, n < MISSING_MAX ? n : MISSING_MAX);
    if (a == NULL) return;
    a->waited_ms = waited_ms;
    a->is_quiet  = is_quiet;
    snprintf(a->what, sizeof a->what, "%s", what);
    post(user, a);
}

static void shrink(void *user, uint64_t group, const int *ranks, int n)
{
    client_ask *a = make(WIRE_SHRINK, ranks, n);
    if (a == NULL) return;
    a->group = group;
    post(user, a);
}

static void unreached(void *user, int rank, const char *address, const char *words)
{
    client_ask *a = make(WIRE_UNREACHED, &rank, 1);
    if (a == NULL) return;
    snprintf(a->what, sizeof a->what, "%s", address);
    why_set(&a->why, PEN_UNREACHABLE, "%s", words);
    post(user, a);
}

const coll_job client_coll_job = {fault, overdue, shrink, unreached};

/* ---- in the loop's thread -------------------------------------------------------------------- */
static void begin_ask(client *c, const client_ask *a)
{
    pen_status status     = PEN_OK;
    const uint64_t now_ms = loop_now_ms(c->loop);
    if (a->kind == WIRE_FAULT)
        status = requests_fault(c->requests, a->group, a->call, &a->why, now_ms);
    else if (a->kind == WIRE_SHRINK)
        status = requests_shrink(c->requests, a->group, a->rank, a->n, now_ms);
    else if (a->kind == WIRE_UNREACHED)
        client_say_unreached(c, PEN_WORKER, a->rank[0], a->what, a->why.text);
    else
        liaison_overdue(c->liaison, a->what, a->waited_ms, a->rank, a->n, a->is_quiet);
    if (status != PEN_OK) log_error("no memory to ask the scheduler about a failed call");
}

static void take_asks(void *user)
{
    client *c = user;
    pthread_mutex_lock(&c->asks_lock);
    client_ask *a = c->asks;
    c->asks       = NULL;
    pthread_mutex_unlock(&c->asks_lock);
    while (a != NULL) {
        client_ask *next = a->next;
        if (!c->is_leaving) begin_ask(c, a); /* else the connection is closed */
        free(a);
        a = next;
    }
    client_after(c);
}

void client_coll_fini(client *c)
{
    while (c->asks != NULL) {
        client_ask *next = c->asks->next;
        free(c->asks);
        c->asks = next;
    }
    pthread_mutex_destroy(&c->asks_lock);
}

/* ---- what the scheduler says ------------------------------------------------------------------- */
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

uint32_t client_prove(void *user, const wire_member *worker, uint32_t n, int32_t *rank,
                      uint64_t *number)
{
    const client *c      = user;
    coll_member *members = list_members(worker, n);
    const uint32_t read =
        members != NULL ? coll_engine_prove(c->ctx->coll, members, (int)n, rank, number) : 0;
    free(members);
    return read;
}

void client_coll_joined(client *c, const wire_control *m)
{
    const uint32_t n     = m->u.epoch.n_workers;
    coll_member *members = list_members(m->u.epoch.worker, n);
    if (members == NULL) {
        pen_error why;
        why_set(&why, PEN_NO_MEMORY, "no memory for %u members", n);
        coll_engine_fail(c->ctx->coll, &why);
        return;
    }
    coll_engine_joined(c->ctx->coll, members, (int)n, m->u.epoch.term);
    free(members);
}

void client_lost(void *user, int32_t rank, const pen_error *why)
{
    client *c = user;
    coll_engine_lost(c->ctx->coll, rank, why);
    client_tell(c, PEN_EV_LOST, rank, why->text);
}

void client_faulted(void *user, uint64_t group, uint64_t call, const pen_error *why)
{
    client *c = user;
    coll_engine_fault(c->ctx->coll, group, call, why);
}

void client_shrunk(void *user, uint64_t group, uint64_t new_group, const int32_t *ranks, uint32_t n,
                   const pen_error *why)
{
    client *c = user;
    _Static_assert(sizeof(int) == sizeof(int32_t), "ranks are handed on as they came");
    coll_engine_shrunk(c->ctx->coll, group, new_group, (const int *)ranks, (int)n, why);
}

/* The newest whole lines that fit. */
static const char *newest_lines(const char *text, size_t *size)
{
    *size = strlen(text);
    if (*size <= RECORD_BYTES_MAX) return text;
    const char *from = strchr(text + *size - RECORD_BYTES_MAX, '\n');
    from             = from != NULL ? from + 1 : text + *size;
    *size -= (size_t)(from - text);
    return from;
}

void client_record_please(void *user, uint64_t id, uint64_t asker)
{
    client *c        = user;
    char *text       = coll_engine_record(c->ctx->coll);
    wire_control m   = {.kind = WIRE_RECORD};
    m.u.record.id    = id;
    m.u.record.asker = asker;
    m.u.record.rank  = c->ctx->env.rank;
    if (text != NULL) m.u.record.data = newest_lines(text, &m.u.record.data_size);
    liaison_say(c->liaison, &m);
    free(text);
}

void client_look(void *user)
{
    client *c = user;
    if (c->ctx->coll == NULL) return;
    coll_engine_look(c->ctx->coll);
    client_look_at_links(c, loop_now_ms(c->loop));
    const uint64_t nap = client_is_reaching(c) ? REACHING_MS : LOOK_MS;
    loop_timer_start(c->loop, &c->look, loop_now_ms(c->loop) + nap, client_look, c);
}
