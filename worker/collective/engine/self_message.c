/* self_message.c - a group of one sends to itself: messages are kept until they are received. */
#include "worker/collective/engine/self_message.h"

#include "common/base/why.h"
#include "common/containers/list.h"
#include "proto/plan.h"

#include <stdlib.h>
#include <string.h>

struct self_message {
    struct self_message *next, *prev;
    int tag;
    pen_dtype dtype;
    size_t n;
    void *data; /* a send: a copy, OWNED; a waiting receive: its buffer */
    void (*done)(void *user, const mesh_result *result);
    void *user;
};

static void deliver(const self_message *from, void *to, size_t room, pen_dtype dtype,
                    mesh_result *result)
{
    *result = (mesh_result){.status = PEN_OK, .tag = from->tag, .count = from->n};
    if (from->dtype != dtype)
        result->status =
            why_set(&result->why, PEN_MISMATCH, "a message was sent as %s, but is received as %s",
                    plan_dtype_name(from->dtype), plan_dtype_name(dtype));
    else if (from->n > room)
        result->status =
            why_set(&result->why, PEN_TOO_SMALL,
                    "a message has %zu elements, but the receive has room for %zu", from->n, room);
    else if (from->n > 0)
        memcpy(to, from->data, from->n * plan_dtype_bytes(dtype));
}

static bool fits(int tag, int other)
{
    return tag == PEN_ANY || other == PEN_ANY || tag == other;
}

/* Removes the first of the list that fits; NULL: none. */
static self_message *take(self_message **list, int tag)
{
    self_message *m = *list;
    while (m != NULL && !fits(tag, m->tag)) m = m->next;
    if (m != NULL) LIST_REMOVE(*list, m);
    return m;
}

static void free_message(self_message *m, bool owns)
{
    if (owns) free(m->data);
    free(m);
}

static self_message *make_self_message(const engine_transfer *t)
{
    self_message *m = calloc(1, sizeof *m);
    if (m == NULL) return NULL;
    *m = (self_message){.tag = t->tag, .dtype = t->dtype, .n = t->n, .data = t->data};
    if (!t->is_send) return m;
    const size_t size = t->n * plan_dtype_bytes(t->dtype);
    m->data           = malloc(size + 1);
    if (m->data == NULL) {
        free(m);
        return NULL;
    }
    if (size > 0) memcpy(m->data, t->data, size);
    return m;
}

/* A send ends at once.  Returns a receive that waited for it; its callback runs later, without the lock. */
static pen_status send(coll_engine *e, const engine_transfer *t, self_message **receiver,
                       mesh_result *received, pen_error *why)
{
    self_message *m = make_self_message(t);
    if (m == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for another message");
    *receiver = take(&e->self_waiting, t->tag);
    if (*receiver != NULL) {
        deliver(m, (*receiver)->data, (*receiver)->n, (*receiver)->dtype, received);
        free_message(m, true);
    } else {
        LIST_APPEND(e->self_sent, m);
        pthread_cond_broadcast(&e->ended);
    }
    return PEN_OK;
}

pen_status self_transfer_begin(coll_engine *e, const engine_transfer *t,
                               void (*done)(void *user, const mesh_result *result), void *user,
                               pen_error *why)
{
    mesh_result own        = {.status = PEN_OK, .tag = t->tag, .count = t->n}, received;
    self_message *receiver = NULL, *sent = NULL;
    pen_status status = PEN_OK;
    pthread_mutex_lock(&e->lock);
    if (t->is_send) {
        status = send(e, t, &receiver, &received, why);
    } else if ((sent = take(&e->self_sent, t->tag)) == NULL) {
        self_message *m = make_self_message(t);
        if (m == NULL) {
            status = why_set(why, PEN_NO_MEMORY, "no memory for another message");
        } else {
            m->done = done;
            m->user = user;
            LIST_APPEND(e->self_waiting, m);
        }
    }
    pthread_mutex_unlock(&e->lock);
    if (status != PEN_OK) return status;
    if (sent != NULL) {
        deliver(sent, t->data, t->n, t->dtype, &own);
        free_message(sent, true);
    }
    if (t->is_send || sent != NULL) done(user, &own);
    if (receiver != NULL) {
        receiver->done(receiver->user, &received);
        free_message(receiver, false);
    }
    return PEN_OK;
}

static self_message *await_sent(coll_engine *e, int tag, uint64_t deadline_ms)
{
    int error = 0;
    self_message *m;
    pthread_mutex_lock(&e->lock);
    while ((m = take(&e->self_sent, tag)) == NULL && error == 0)
        error = engine_await(e, deadline_ms);
    pthread_mutex_unlock(&e->lock);
    return m;
}

static void ignore(void *user, const mesh_result *result)
{
    *(mesh_result *)user = *result;
}

pen_status self_transfer_run(coll_engine *e, const engine_transfer *t, uint64_t deadline_ms,
                             mesh_result *result, pen_error *why)
{
    if (t->is_send) return self_transfer_begin(e, t, ignore, result, why);
    self_message *m = await_sent(e, t->tag, deadline_ms);
    if (m == NULL)
        return why_set(why, PEN_TIMED_OUT, "no message with tag %d was sent in time", t->tag);
    deliver(m, t->data, t->n, t->dtype, result);
    free_message(m, true);
    if (result->status != PEN_OK) *why = result->why;
    return result->status;
}

/* Ends receives that no send will answer. */
void self_messages_end(coll_engine *e)
{
    mesh_result ended = {0};
    self_message *m;
    ended.status =
        why_set(&ended.why, PEN_WRONG_STATE, "the context ended before a message arrived");
    while ((m = take(&e->self_sent, PEN_ANY)) != NULL) free_message(m, true);
    while ((m = take(&e->self_waiting, PEN_ANY)) != NULL) {
        m->done(m->user, &ended);
        free_message(m, false);
    }
}
