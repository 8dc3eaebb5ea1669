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

typedef struct server_gather {
    struct server_gather *next;
    server *server;
    command_call *call; /* of commands.h, which keeps it until it is answered */
    uint32_t threads_left, expected, n;
    piece *piece; /* [n] */
    size_t capacity;
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
    if (g->threads_left > 0 || g->n < g->expected) return;
    command_call *call = g->call;
    if (g->n > 0) qsort(g->piece, g->n, sizeof *g->piece, by_chunk);
    call->status = PEN_OK;
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
    uint32_t expected; /* of a thread that has asked all its parts */
    bool is_thread;
} said;

static void hear(void *user)
{
    const said *a = user;
    gather *g     = a->gather;
    if (a->is_thread) {
        g->threads_left--;
        g->expected += a->expected;
    } else if (VEC_ROOM(g->piece, g->capacity, g->n + 1)) {
        g->piece[g->n++] = a->piece;
    } else {
        free(a->piece.data); /* the asker waits until its deadline */
        return;
    }
    finish_if_whole(g);
}

/* ---- in other threads ------------------------------------------------------------------------ */
static void answered(void *user, uint32_t token, pen_status status, void *data, size_t size)
{
    gather *g    = user;
    const said a = {.gather = g, .piece = {token, status, data, size}};
    if (!server_post(g->server->loop, hear, &a, sizeof a)) free(data);
}

typedef struct {
    gather *gather;
    server_shard *place;
    int32_t head;
    size_t size;
    uint8_t body[];
} question;

static void ask(void *user)
{
    question *q       = user;
    handler_command c = {
        .head = q->head, .body = q->body, .size = q->size, .user = q->gather, .answered = answered};
    said a = {.gather = q->gather, .is_thread = true};
    for (uint32_t i = 0; i < q->place->n_hosted; i++)
        a.expected += shard_command(q->place->hosted[i]->shard, &c);
    server *s = q->gather->server;
    free(q);
    (void)server_post(s->loop, hear, &a, sizeof a);
}

/* ---- commands -------------------------------------------------------------------------------- */
static bool takes_commands(const server *s)
{
    for (uint32_t i = 0; i < s->handlers.n; i++)
        if (s->handlers.at[i].command != NULL) return true;
    return false;
}

static bool run_command(void *user, command_call *call, const void *body, size_t size)
{
    server *s = user;
    gather *g = takes_commands(s) ? calloc(1, sizeof *g) : NULL;
    if (g == NULL) return false;
    *g         = (gather){.next = s->gathers, .server = s, .call = call};
    s->gathers = g;
    for (uint32_t i = 0; i < s->settings.shards; i++) {
        question *q = malloc(sizeof *q + size);
        if (q == NULL) continue;
        *q = (question){.gather = g, .place = &s->shard[i], .head = call->head, .size = size};
        if (size > 0) memcpy(q->body, body, size);
        g->threads_left++;
        if (server_post(s->shard[i].loop, ask, q, 0)) continue;
        g->threads_left--;
        free(q);
    }
    return true;
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
