/* server_command.c - commands of workers to this server: its handlers run them, part by part.
 *
 * Main asks each thread, which runs the command in the parts of its shards.  Answers come from any thread, now or later;
 * the answer of the server is those of its parts one behind the other, in the order of tables and parts.
 */
#include "server/process/server_state.h"

#include "common/containers/arrays.h"

#include <stdlib.h>
#include <string.h>

typedef struct {
    uint32_t chunk;
    pen_status status;
    void *data; /* OWNED */
    size_t size;
} piece;

typedef struct { /* to one thread; its task goes there and back */
    struct server_gather *gather;
    server_shard *place;
    loop_task task;
    uint32_t expected; /* answers of its parts, once it is back */
    pen_status refused;
} question;

typedef struct server_gather {
    struct server_gather *next;
    server *server;
    command_call *call; /* of commands.h, which keeps it until it is answered */
    uint32_t threads_left, expected, n_heard, n;
    pen_status refused; /* why some parts do not answer */
    piece *piece;       /* [n] */
    size_t capacity, size;
    void *body;          /* [size], behind the questions */
    question question[]; /* of each thread */
} gather;

/* ---- answers, in main's thread --------------------------------------------------------------- */
static void free_gather(gather *g)
{
    gather **at = &g->server->gathers;
    while (*at != g) at = &(*at)->next;
    *at = g->next;
    for (uint32_t i = 0; i < g->n; i++) free(g->piece[i].data);
    free(g->piece);
    free(g);
}

static int by_chunk(const void *a, const void *b)
{
    const uint32_t x = ((const piece *)a)->chunk, y = ((const piece *)b)->chunk;
    return x < y ? -1 : x > y;
}

static void join(const gather *g, command_call *call)
{
    uint8_t *at = call->size <= WIRE_CALL_BYTES_MAX ? malloc(call->size + 1) : NULL;
    call->data  = at;
    if (at == NULL)
        call->status = call->size <= WIRE_CALL_BYTES_MAX ? PEN_NO_MEMORY : PEN_TOO_SMALL;
    for (uint32_t i = 0; at != NULL && i < g->n; i++) {
        if (g->piece[i].size > 0) memcpy(at, g->piece[i].data, g->piece[i].size);
        at += g->piece[i].size;
    }
}

static void finish_if_whole(gather *g)
{
    if (g->threads_left > 0 || g->n_heard < g->expected) return;
    command_call *call = g->call;
    if (g->n > 0) qsort(g->piece, g->n, sizeof *g->piece, by_chunk);
    call->status = g->refused;
    call->size   = 0;
    for (uint32_t i = 0; i < g->n; i++) {
        if (call->status == PEN_OK) call->status = g->piece[i].status;
        call->size += g->piece[i].size;
    }
    if (call->status == PEN_OK) join(g, call);
    atomic_store(&call->is_answered, true);
    commands *all = g->server->commands;
    free_gather(g);
    commands_answer(all, call);
}

typedef struct {
    gather *gather;
    piece piece;
} said;

static void hear_part(void *user)
{
    const said *a = user;
    gather *g     = a->gather;
    g->n_heard++;
    if (VEC_ROOM(g->piece, g->capacity, g->n + 1)) {
        g->piece[g->n++] = a->piece;
    } else {
        free(a->piece.data);
        g->refused = PEN_NO_MEMORY;
    }
    finish_if_whole(g);
}

static void hear_thread(void *user)
{
    const question *q = user;
    gather *g         = q->gather;
    g->threads_left--;
    g->expected += q->expected;
    if (q->refused != PEN_OK) g->refused = q->refused;
    finish_if_whole(g);
}

/* ---- in other threads ------------------------------------------------------------------------ */
static bool answered(void *user, uint32_t token, pen_status status, void *data, size_t size)
{
    gather *g    = user;
    const said a = {.gather = g, .piece = {token, status, data, size}};
    return server_post(g->server->loop, hear_part, &a, sizeof a);
}

static void ask(void *user)
{
    question *q       = user;
    const gather *g   = q->gather;
    handler_command c = {.head     = g->call->head,
                         .body     = g->body,
                         .size     = g->size,
                         .user     = q->gather,
                         .answered = answered};
    for (uint32_t i = 0; i < q->place->n_hosted; i++)
        q->expected += shard_command(q->place->hosted[i]->shard, &c, &q->refused);
    q->task = (loop_task){.fn = hear_thread, .user = q};
    loop_post(g->server->loop, &q->task);
}

/* ---- commands -------------------------------------------------------------------------------- */
static bool takes_commands(const server *s)
{
    for (uint32_t i = 0; i < s->handlers.n; i++)
        if (s->handlers.at[i].command != NULL) return true;
    return false;
}

static pen_status run_command(void *user, command_call *call, const void *body, size_t size)
{
    server *s        = user;
    const uint32_t n = s->settings.shards;
    if (!takes_commands(s)) return PEN_NOT_FOUND;
    gather *g = calloc(1, sizeof *g + n * sizeof *g->question + size);
    if (g == NULL) return PEN_NO_MEMORY;
    g->next         = s->gathers;
    g->server       = s;
    g->call         = call;
    g->threads_left = n;
    g->size         = size;
    g->body         = &g->question[n];
    if (size > 0) memcpy(g->body, body, size);
    s->gathers = g;
    for (uint32_t i = 0; i < n; i++) {
        question *q = &g->question[i];
        *q = (question){.gather = g, .place = &s->shard[i], .task = {.fn = ask, .user = q}};
        loop_post(s->shard[i].loop, &q->task);
    }
    return PEN_OK;
}

static void send_reply(void *user, const wire_control *message)
{
    server *s = user;
    if (!s->has_ended) server_send(s, message);
}

void server_command(server *s, const wire_control *command)
{
    static const commands_actions actions = {send_reply, run_command};
    if (s->commands == NULL) s->commands = commands_create(PEN_SERVER, s->rank, &actions, s);
    if (s->commands != NULL) commands_receive(s->commands, command);
}

void server_commands_close(server *s)
{
    while (s->gathers != NULL) free_gather(s->gathers);
    commands_destroy(s->commands);
}
