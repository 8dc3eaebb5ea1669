/* handler_part.c - requests of ranks to a handler, the answers that are kept, and its state saved and loaded. */
#include "server/shard/handler/handler_part.h"

#include "common/base/why.h"
#include "proto/plan.h"
#include "proto/wire/wire.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK_BYTES = 16 << 20 };

typedef enum { COMMAND_WAITS, COMMAND_IS_TAKEN, COMMAND_IS_OVER } command_state;

typedef struct part_command {
    pen_call call;
    struct part_command *next;
    handler_command of;
    atomic_int state;
} part_command;

struct handler_part {
    handler_setup setup;
    void *state;
    handler_call *(*kept)[ROWS_IN_FLIGHT_MAX]; /* [world_size] by number */
    handler_call *left;                        /* not kept, and not answered yet */
    part_command *commands;
    atomic_ullong answers; /* by other threads */
    uint8_t *loading;      /* blocks of a saved state so far */
    size_t loading_size;
    uint32_t n_loading;
};

typedef struct { /* of an answer in a saved state; its bytes follow, padded to 8 */
    int32_t rank;
    uint32_t zero;
    uint64_t incarnation, seq, size;
} saved_answer;

static _Thread_local const void *inside; /* the owner whose handler this thread runs */

static void enter(const handler_part *p, const char *what)
{
    const handler_setup *s = &p->setup;
    inside                 = s->owner;
    if (s->set.enter != NULL)
        s->set.enter(&(handler_place){.handler = s->handler->name,
                                      .plugin  = s->set.plugin,
                                      .table   = s->table,
                                      .what    = what,
                                      .part    = s->part});
}

static void leave(const handler_part *p)
{
    if (p->setup.set.leave != NULL) p->setup.set.leave();
    inside = NULL;
}

static pen_status failed(const handler_part *p, const char *what, pen_status status, pen_error *why)
{
    return why_set(why, status, "%s() of handler '%.64s' failed on part %u of table '%.64s': %s",
                   what, p->setup.handler->name, p->setup.part, p->setup.table,
                   pen_status_info(status)->text);
}

/* ---- life ------------------------------------------------------------------------------------ */
static pen_status open_state(handler_part *p, pen_error *why)
{
    const handler_setup *s = &p->setup;
    if (s->handler->open == NULL) return PEN_OK;
    enter(p, "open");
    p->state = s->handler->open((int)s->part, (int)s->parts, s->handler->user);
    leave(p);
    return p->state != NULL ? PEN_OK : failed(p, "open", PEN_NO_MEMORY, why);
}

static void close_state(handler_part *p)
{
    if (p->setup.handler->close == NULL || p->state == NULL) return;
    enter(p, "close");
    p->setup.handler->close(p->state);
    leave(p);
    p->state = NULL;
}

pen_status handler_part_open(const handler_setup *setup, handler_part **out, pen_error *why)
{
    handler_part *p = calloc(1, sizeof *p);
    if (p != NULL) p->kept = calloc(setup->world_size + 1, sizeof *p->kept);
    if (p == NULL || p->kept == NULL) {
        free(p);
        return why_set(why, PEN_NO_MEMORY, "no memory for part %u of '%s'", setup->part,
                       setup->table);
    }
    p->setup                = *setup;
    const pen_status status = open_state(p, why);
    if (status == PEN_OK)
        *out = p;
    else
        handler_part_close(p);
    return status;
}

static void free_call(handler_call *call)
{
    if (call == NULL) return;
    buf_release(call->answer);
    free(call);
}

/* The program still points to one that it has not answered. */
static void leave_out(handler_part *p, handler_call *call)
{
    if (call == NULL || call->is_ready) {
        free_call(call);
        return;
    }
    call->is_left = true;
    call->next    = p->left;
    p->left       = call;
}

void *handler_call_owner(const handler_call *call)
{
    return call->part->setup.owner;
}

const handler_setup *handler_call_settle(handler_call *call)
{
    handler_part *p = call->part;
    call->is_ready  = true;
    if (p != NULL && !call->is_left) return &p->setup;
    handler_call **at = p != NULL ? &p->left : NULL;
    while (at != NULL && *at != call) at = &(*at)->next;
    if (at != NULL) *at = call->next;
    free_call(call);
    return NULL;
}

static void drop_answered_commands(handler_part *p, bool all)
{
    for (part_command **at = &p->commands; *at != NULL;) {
        part_command *c = *at;
        int state       = COMMAND_WAITS;
        if (all && atomic_compare_exchange_strong(&c->state, &state, COMMAND_IS_OVER))
            (void)c->of.answered(c->of.user, c->of.token, PEN_AGAIN, NULL, 0);
        if (atomic_load(&c->state) == COMMAND_IS_OVER) {
            *at = c->next;
            free(c);
        } else {
            at = &c->next;
        }
    }
}

/* After close(): the program has no calls any more.  One that another thread has answered is on its way here. */
static void forget_calls(handler_part *p)
{
    for (uint32_t r = 0; r < p->setup.world_size; r++)
        for (int i = 0; i < ROWS_IN_FLIGHT_MAX; i++) {
            leave_out(p, p->kept[r][i]);
            p->kept[r][i] = NULL;
        }
    while (p->left != NULL) {
        handler_call *call = p->left;
        p->left            = call->next;
        call->part         = NULL;
        if (atomic_load(&call->state) != HANDLER_CALL_IS_ANSWERED) free_call(call);
    }
}

void handler_part_close(handler_part *p)
{
    if (p == NULL) return;
    close_state(p);
    forget_calls(p);
    drop_answered_commands(p, true);
    free(p->loading);
    free(p->kept);
    free(p);
}

/* ---- answers --------------------------------------------------------------------------------- */
static pen_status check_lengths(const handler_call *c, uint64_t elements, const uint32_t *lens,
                                pen_error *why)
{
    const uint32_t dim = c->part->setup.dim;
    uint64_t sum       = lens == NULL && dim > 0 ? (uint64_t)c->n * dim : 0;
    for (uint32_t i = 0; lens != NULL && i < c->n; i++) {
        sum += lens[i];
        if (lens[i] > ROWS_LENGTH_MAX || (dim > 0 && lens[i] != dim))
            return why_set(why, PEN_INVALID_ARGUMENT, "pen_reply: lens[%u] is %u; expected %s%u", i,
                           lens[i], dim > 0 ? "" : "at most ",
                           dim > 0 ? dim : (uint32_t)ROWS_LENGTH_MAX);
    }
    if (lens == NULL && dim == 0 && c->n > 0 && elements % c->n == 0 &&
        elements / c->n <= ROWS_LENGTH_MAX)
        sum = elements;
    if (sum == elements) return PEN_OK;
    return why_set(why, PEN_INVALID_ARGUMENT,
                   "pen_reply: %" PRIu64 " values for %u keys; expected %" PRIu64, elements, c->n,
                   sum);
}

static buf *refusal(const handler_call *c, pen_status status)
{
    char text[ROWS_TEXT_MAX];
    const handler_setup *s = &c->part->setup;
    snprintf(text, sizeof text, "handler '%.100s' on server %d refused a request to '%.100s': %s",
             s->handler->name, s->server, s->table, pen_status_info(status)->text);
    const rows_reply head = {.status = status, .text = (uint32_t)strlen(text)};
    buf *answer           = buf_new(sizeof head + ((head.text + 7) & ~7u));
    if (answer == NULL) return NULL;
    memset(answer->data, 0, answer->size);
    memcpy(answer->data, &head, sizeof head);
    memcpy((char *)answer->data + sizeof head, text, head.text);
    return answer;
}

static buf *rows_of(const handler_call *c, const void *data, uint64_t elements,
                    const uint32_t *lens)
{
    const rows_reply head = {.status = PEN_OK};
    const uint32_t dim    = c->part->setup.dim;
    const size_t width    = plan_dtype_bytes(c->part->setup.dtype);
    const size_t size     = c->pulls ? rows_bytes(ROWS_ANSWERED, c->n, elements, dim, width) : 0;
    buf *answer           = size != SIZE_MAX ? buf_new(sizeof head + size) : NULL;
    if (answer == NULL) return NULL;
    memset(answer->data, 0, answer->size);
    memcpy(answer->data, &head, sizeof head);
    if (!c->pulls) return answer;
    const rows r =
        rows_lay((char *)answer->data + sizeof head, ROWS_ANSWERED, c->n, (uint32_t)elements, dim);
    for (uint32_t i = 0; dim == 0 && i < c->n; i++) {
        const uint32_t length = lens != NULL ? lens[i] : (uint32_t)(elements / c->n);
        memcpy((uint8_t *)(uintptr_t)r.length + i * sizeof length, &length, sizeof length);
    }
    if (elements > 0) memcpy((uint8_t *)(uintptr_t)r.value, data, elements * width);
    return answer;
}

static pen_status check_answer(const handler_call *c, const void *data, size_t n,
                               const uint32_t *lens, pen_error *why)
{
    const size_t width = plan_dtype_bytes(c->part->setup.dtype);
    if (data == NULL && n > 0)
        return why_set(why, PEN_INVALID_ARGUMENT, "pen_reply: data is NULL, but n is %zu", n);
    if (!c->pulls && (n > 0 || lens != NULL))
        return why_set(why, PEN_INVALID_ARGUMENT,
                       "pen_reply: the request is a push and takes no values; n must be 0 and "
                       "lens NULL");
    if (n % width != 0)
        return why_set(why, PEN_INVALID_ARGUMENT,
                       "pen_reply: %zu bytes are no whole number of values of %zu bytes", n, width);
    if (n > WIRE_PAYLOAD_BYTES_MAX - (64 + 8 * (uint64_t)c->n))
        return why_set(why, PEN_UNSUPPORTED, "pen_reply: %zu bytes are more than a message takes",
                       n);
    return c->pulls ? check_lengths(c, n / width, lens, why) : PEN_OK;
}

static pen_status reply(pen_call *call, pen_status status, const void *data, size_t n,
                        const uint32_t *lens, pen_error *why)
{
    handler_call *c        = (handler_call *)call;
    const handler_setup *s = &c->part->setup;
    if (call_check_status(status, why) != PEN_OK ||
        (status == PEN_OK && check_answer(c, data, n, lens, why) != PEN_OK))
        return why->status;
    buf *answer = status == PEN_OK ? rows_of(c, data, n / plan_dtype_bytes(s->dtype), lens)
                                   : refusal(c, status);
    if (answer == NULL) return why_set(why, PEN_NO_MEMORY, "pen_reply: no memory for %zu bytes", n);
    int state = HANDLER_CALL_WAITS;
    if (!atomic_compare_exchange_strong(&c->state, &state, HANDLER_CALL_IS_TAKEN)) {
        buf_release(answer);
        return why_set(why, PEN_WRONG_STATE, "pen_reply: the request was already answered");
    }
    c->answer = answer;
    atomic_store(&c->state, HANDLER_CALL_IS_ANSWERED);
    if (inside == s->owner) {
        s->answered(s->owner, c);
        return PEN_OK;
    }
    atomic_fetch_add(&c->part->answers, 1);
    if (s->post(s->owner, c)) return PEN_OK;
    c->answer = NULL;
    atomic_store(&c->state, HANDLER_CALL_WAITS);
    atomic_fetch_add(&c->part->answers, 1); /* a state that is being saved may have counted it */
    buf_release(answer);
    return why_set(why, PEN_NO_MEMORY, "pen_reply: no memory to pass an answer on");
}

/* ---- requests -------------------------------------------------------------------------------- */
static handler_call **place_of(handler_part *p, int32_t rank, uint64_t seq)
{
    return &p->kept[rank][seq % ROWS_IN_FLIGHT_MAX];
}

handler_call *handler_part_find(handler_part *p, int32_t rank, uint64_t incarnation, uint64_t seq)
{
    handler_call *c = *place_of(p, rank, seq);
    return c != NULL && c->seq == seq && c->incarnation == incarnation ? c : NULL;
}

bool handler_part_has_room(const handler_part *p, int32_t rank, uint64_t incarnation, uint64_t seq)
{
    const handler_call *c = p->kept[rank][seq % ROWS_IN_FLIGHT_MAX];
    return c == NULL || c->is_ready || c->incarnation != incarnation || c->seq == seq;
}

pen_status handler_part_request(handler_part *p, const handler_call *from, const rows_call *head,
                                const rows *r, pen_error *why)
{
    const handler_setup *s = &p->setup;
    handler_call *c        = calloc(1, sizeof *c);
    if (c == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for a request");
    handler_call **place = place_of(p, from->rank, from->seq);
    leave_out(p, *place);
    *place          = c;
    *c              = *from;
    c->call.reply   = reply;
    c->part         = p;
    c->n            = r->n;
    c->pulls        = (head->verbs & ROWS_PULLS) != 0;
    const bool push = (head->verbs & ROWS_PUSHES) != 0;
    /* The bytes lie at multiples of 8 in a message, which may lie anywhere. */
    const size_t width  = plan_dtype_bytes(s->dtype);
    const uint8_t *last = push ? r->value + r->elements * width : r->key + r->n * sizeof(uint64_t);
    uint8_t *copy       = (uintptr_t)r->key % 8 != 0 ? malloc((size_t)(last - r->key) + 1) : NULL;
    if ((uintptr_t)r->key % 8 != 0 && copy == NULL) {
        *place = NULL;
        free(c);
        return why_set(why, PEN_NO_MEMORY, "no memory for a request");
    }
    if (copy != NULL) memcpy(copy, r->key, (size_t)(last - r->key));
    const uint8_t *at    = copy != NULL ? copy : r->key;
    const pen_kv_msg msg = {.table   = s->table,
                            .from    = {PEN_WORKER, from->rank},
                            .cmd     = head->cmd,
                            .push    = push,
                            .pull    = c->pulls,
                            .request = from->seq,
                            .keys    = (const uint64_t *)(const void *)at,
                            .n       = r->n,
                            .vals    = push ? at + (r->value - r->key) : NULL,
                            .lens =
                                push && r->length != NULL
                                    ? (const uint32_t *)(const void *)(at + (r->length - r->key))
                                    : NULL,
                            .vals_n = push ? r->elements : 0};
    enter(p, "request");
    s->handler->request(p->state, &c->call, &msg);
    leave(p);
    free(copy);
    return PEN_OK;
}

/* ---- saved states ---------------------------------------------------------------------------- */
bool handler_part_can_save(const handler_part *p)
{
    return p->setup.handler->save != NULL && p->setup.handler->load != NULL;
}

static size_t padded(size_t size)
{
    return (size + 7) & ~(size_t)7;
}

/* Chooses the answers of a state that moves: their number and bytes. */
static size_t choose_answers(handler_part *p, uint64_t *n)
{
    size_t size = 0;
    for (uint32_t r = 0; r < p->setup.world_size; r++)
        for (int i = 0; i < ROWS_IN_FLIGHT_MAX; i++) {
            handler_call *c = p->kept[r][i];
            if (c != NULL) c->is_chosen = atomic_load(&c->state) == HANDLER_CALL_IS_ANSWERED;
            if (c == NULL || !c->is_chosen) continue;
            ++*n;
            size += sizeof(saved_answer) + padded(c->answer->size);
        }
    return size;
}

static void write_answers(const handler_part *p, uint8_t *at)
{
    for (uint32_t r = 0; r < p->setup.world_size; r++)
        for (int i = 0; i < ROWS_IN_FLIGHT_MAX; i++) {
            const handler_call *c = p->kept[r][i];
            if (c == NULL || !c->is_chosen) continue;
            const saved_answer a = {.rank        = c->rank,
                                    .incarnation = c->incarnation,
                                    .seq         = c->seq,
                                    .size        = c->answer->size};
            memcpy(at, &a, sizeof a);
            memcpy(at + sizeof a, c->answer->data, c->answer->size);
            at += sizeof a + padded(c->answer->size);
        }
}

static pen_status split(const uint8_t *all, size_t size, buf ***blocks, uint32_t *n, pen_error *why)
{
    *n            = (uint32_t)((size + BLOCK_BYTES - 1) / BLOCK_BYTES);
    *blocks       = calloc(*n, sizeof(buf *));
    bool is_whole = *blocks != NULL;
    for (uint32_t i = 0; is_whole && i < *n; i++) {
        const size_t left = size - (size_t)i * BLOCK_BYTES;
        (*blocks)[i]      = buf_new(left < BLOCK_BYTES ? left : BLOCK_BYTES);
        is_whole          = (*blocks)[i] != NULL;
        if (is_whole) memcpy((*blocks)[i]->data, all + (size_t)i * BLOCK_BYTES, (*blocks)[i]->size);
    }
    if (is_whole) return PEN_OK;
    for (uint32_t i = 0; *blocks != NULL && i < *n; i++) buf_release((*blocks)[i]);
    free(*blocks);
    return why_set(why, PEN_NO_MEMORY, "no memory for a state of %zu bytes", size);
}

/* All of it: *all is OWNED by the caller, zeroed but for the state. */
static pen_status save_state(handler_part *p, size_t before, uint8_t **all, size_t *size)
{
    pen_bytes state = {0};
    enter(p, "save");
    pen_status status = p->setup.handler->save(p->state, &state);
    leave(p);
    if (status == PEN_OK && state.data == NULL && state.size > 0) status = PEN_INTERNAL;
    *size = before + state.size;
    *all  = status == PEN_OK ? calloc(1, *size) : NULL;
    if (*all != NULL && state.size > 0) memcpy(*all + before, state.data, state.size);
    free(state.data);
    return status == PEN_OK && *all == NULL ? PEN_NO_MEMORY : status;
}

/* AGAIN: another thread answered meanwhile, before or after the handler wrote its state. */
static pen_status try_to_save(handler_part *p, uint64_t *clock, uint8_t **all, size_t *size)
{
    const unsigned long long before = atomic_load(&p->answers);
    uint64_t n                      = 0;
    const size_t answers            = clock != NULL ? choose_answers(p, &n) : 0;
    const pen_status status         = save_state(p, sizeof n + answers, all, size);
    if (status != PEN_OK) return status;
    memcpy(*all, &n, sizeof n);
    if (clock != NULL) {
        /* The first request of each rank without an answer, if it comes before its next one. */
        for (uint32_t r = 0; r < p->setup.world_size; r++)
            for (int i = 0; i < ROWS_IN_FLIGHT_MAX; i++) {
                handler_call *c = p->kept[r][i];
                if (c != NULL && !c->is_chosen && c->seq < clock[r]) clock[r] = c->seq;
            }
    }
    if (atomic_load(&p->answers) != before) return PEN_AGAIN;
    if (clock != NULL) write_answers(p, *all + sizeof n);
    return PEN_OK;
}

pen_status handler_part_save(handler_part *p, uint64_t *clock, buf ***blocks, uint32_t *n,
                             pen_error *why)
{
    uint8_t *all      = NULL;
    size_t size       = 0;
    const size_t list = clock != NULL ? p->setup.world_size * sizeof *clock : 0;
    uint64_t *next    = malloc(list + 1);
    pen_status status = next == NULL                ? PEN_NO_MEMORY
                        : !handler_part_can_save(p) ? PEN_UNSUPPORTED
                                                    : PEN_AGAIN;
    if (next != NULL && list > 0) memcpy(next, clock, list);
    while (status == PEN_AGAIN) { /* once for each request that waits, at most: no new one comes */
        if (list > 0) memcpy(clock, next, list);
        free(all);
        all    = NULL;
        status = try_to_save(p, clock, &all, &size);
    }
    free(next);
    status = status == PEN_OK ? split(all, size, blocks, n, why) : failed(p, "save", status, why);
    free(all);
    return status;
}

/* An answer of a saved state, from a file or another server.  0: it does not fit. */
static size_t take_answer(handler_part *p, const uint8_t *at, size_t left)
{
    saved_answer a;
    rows_reply head;
    if (left < sizeof a) return 0;
    memcpy(&a, at, sizeof a);
    if (a.rank < 0 || (uint32_t)a.rank >= p->setup.world_size || a.size < sizeof head ||
        a.size > WIRE_PAYLOAD_BYTES_MAX || padded(a.size) > left - sizeof a)
        return 0;
    handler_call *c = calloc(1, sizeof *c);
    buf *answer     = buf_new(a.size);
    if (c == NULL || answer == NULL) {
        free(c);
        buf_release(answer);
        return 0;
    }
    memcpy(answer->data, at + sizeof a, a.size);
    *c = (handler_call){.call.reply  = reply,
                        .part        = p,
                        .rank        = a.rank,
                        .incarnation = a.incarnation,
                        .seq         = a.seq,
                        .is_ready    = true,
                        .state       = HANDLER_CALL_IS_ANSWERED,
                        .answer      = answer};
    leave_out(p, *place_of(p, a.rank, a.seq));
    *place_of(p, a.rank, a.seq) = c;
    return sizeof a + padded(a.size);
}

static pen_status load(handler_part *p, const uint8_t *at, size_t left, pen_error *why)
{
    uint64_t n;
    pen_status status = PEN_CORRUPT;
    if (left < sizeof n) return failed(p, "load", status, why);
    memcpy(&n, at, sizeof n);
    at += sizeof n;
    left -= sizeof n;
    close_state(p);
    forget_calls(p);
    if (open_state(p, why) != PEN_OK) return why->status;
    for (size_t size; n > 0; n--, at += size, left -= size)
        if ((size = take_answer(p, at, left)) == 0) return failed(p, "load", status, why);
    enter(p, "load");
    status = p->setup.handler->load(p->state, at, left);
    leave(p);
    return status == PEN_OK ? PEN_OK : failed(p, "load", status, why);
}

pen_status handler_part_take(handler_part *p, uint32_t block, const void *data, size_t size,
                             bool is_last, pen_error *why)
{
    if (!handler_part_can_save(p)) return failed(p, "load", PEN_UNSUPPORTED, why);
    if (block == 0) p->loading_size = p->n_loading = 0;
    if (block != p->n_loading || size > BLOCK_BYTES) return failed(p, "load", PEN_CORRUPT, why);
    uint8_t *more = realloc(p->loading, p->loading_size + size + 1);
    if (more == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for the state of a handler");
    p->loading = more;
    memcpy(p->loading + p->loading_size, data, size);
    p->loading_size += size;
    p->n_loading++;
    if (!is_last) return PEN_OK;
    const pen_status status = load(p, p->loading, p->loading_size, why);
    free(p->loading);
    p->loading      = NULL;
    p->loading_size = p->n_loading = 0;
    return status;
}

/* ---- commands -------------------------------------------------------------------------------- */
static pen_status reply_command(pen_call *call, pen_status status, const void *data, size_t n,
                                const uint32_t *lens, pen_error *why)
{
    part_command *c = (part_command *)call;
    int state       = COMMAND_WAITS;
    if (call_check_status(status, why) != PEN_OK) return why->status;
    if ((data == NULL && n > 0) || lens != NULL)
        return why_set(why, PEN_INVALID_ARGUMENT,
                       "pen_reply: to a command lens must be NULL, and data only with n = 0");
    if (n > WIRE_CALL_BYTES_MAX)
        return why_set(why, PEN_UNSUPPORTED,
                       "pen_reply: %zu bytes are too many; a command carries at most %d", n,
                       WIRE_CALL_BYTES_MAX);
    void *copy = n > 0 ? malloc(n) : NULL;
    if (n > 0 && copy == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for %zu bytes", n);
    if (!atomic_compare_exchange_strong(&c->state, &state, COMMAND_IS_TAKEN)) {
        free(copy);
        return why_set(why, PEN_WRONG_STATE, "pen_reply: command %d was already answered",
                       (int)c->of.head);
    }
    if (n > 0) memcpy(copy, data, n);
    if (!c->of.answered(c->of.user, c->of.token, status, copy, n)) {
        free(copy);
        atomic_store(&c->state, COMMAND_WAITS);
        return why_set(why, PEN_NO_MEMORY, "pen_reply: no memory to pass an answer on");
    }
    atomic_store(&c->state, COMMAND_IS_OVER);
    return PEN_OK;
}

pen_status handler_part_command(handler_part *p, const handler_command *of)
{
    if (p->setup.handler->command == NULL) return PEN_NOT_FOUND;
    drop_answered_commands(p, false);
    part_command *c = calloc(1, sizeof *c);
    if (c == NULL) return PEN_NO_MEMORY;
    *c          = (part_command){.call.reply = reply_command, .next = p->commands, .of = *of};
    p->commands = c;
    enter(p, "command");
    p->setup.handler->command(p->state, &c->call, of->head, of->body, of->size);
    leave(p);
    return PEN_OK;
}
