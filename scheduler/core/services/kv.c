/* kv.c - the key-value store of a job: sets, adds, waiting gets, and answers kept for a repeat. */
#include "scheduler/core/services/kv.h"
#include "common/containers/arrays.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void kv_fini(kv *self)
{
    for (uint32_t i = 0; i < self->n_workers; i++) free(self->memory[i]);
    value_table_destroy(self->values);
    free(self->memory);
    free(self->waiter);
    *self = (kv){0};
}

bool kv_reserve(kv *self, uint32_t n_workers)
{
    if (!self->values) self->values = value_table_create(VALUE_TABLE_BYTES_MAX);
    if (!self->values || !VEC_ROOM(self->memory, self->n_memories, n_workers)) return false;
    if (n_workers > self->n_workers) self->n_workers = n_workers;
    return true;
}

/* ---- waiting gets -------------------------------------------------------------------------- */
void kv_drop_waiter(kv *self, uint32_t index)
{
    self->n_waiters--;
    memmove(&self->waiter[index], &self->waiter[index + 1],
            (self->n_waiters - index) * sizeof *self->waiter);
}

void kv_wait(kv *self, const member_slot *s, uint64_t id, const char *key)
{
    for (uint32_t i = 0; i < self->n_waiters; i++)
        if (self->waiter[i].incarnation == s->incarnation && self->waiter[i].id == id) return;
    if (self->n_waiters == KV_WAITERS_MAX) kv_drop_waiter(self, 0);
    if (!VEC_ROOM(self->waiter, self->capacity, (size_t)self->n_waiters + 1))
        return; /* its asker repeats it */
    kv_waiter *w = &self->waiter[self->n_waiters++];
    *w           = (kv_waiter){.incarnation = s->incarnation, .id = id, .rank = s->rank};
    snprintf(w->key, sizeof w->key, "%s", key);
}

/* ---- sets and adds --------------------------------------------------------------------------- */
kv_answer *kv_answer_of(kv *self, const member_slot *s, uint64_t id)
{
    kv_memory **m = &self->memory[s->rank];
    if (!*m && !(*m = calloc(1, sizeof **m))) return NULL;
    if ((*m)->incarnation != s->incarnation) **m = (kv_memory){.incarnation = s->incarnation};
    kv_answer *a = &(*m)->answer[id % KV_AT_ONCE];
    return a->id <= id ? a : NULL;
}

/* ---- persisted and loaded --------------------------------------------------------------------- */
enum { KEPT_NUMBERS = 2 + 3 * KV_AT_ONCE };
_Static_assert(sizeof(kv_answer) == 3 * sizeof(int64_t), "what is kept has no padding");

void kv_each(const kv *self,
             void (*value)(void *user, const char *key, const void *data, size_t size),
             void (*answers)(void *user, const int64_t *number, size_t n), void *user)
{
    if (self->values) value_table_each(self->values, value, user);
    for (uint32_t i = 0; i < self->n_workers; i++) {
        const kv_memory *m = self->memory[i];
        if (!m) continue;
        int64_t number[KEPT_NUMBERS] = {i, (int64_t)m->incarnation};
        memcpy(&number[2], m->answer, sizeof m->answer);
        answers(user, number, KEPT_NUMBERS);
    }
}

bool kv_adopt(kv *self, const wire_control *set, uint32_t n_workers)
{
    pen_error why;
    return kv_reserve(self, n_workers) &&
           value_table_set(self->values, set->u.store.key, set->u.store.data,
                           set->u.store.data_size, &why) == PEN_OK;
}

bool kv_adopt_answers(kv *self, const void *data, size_t size, uint32_t n_workers)
{
    int64_t number[KEPT_NUMBERS];
    if (size != sizeof number || !kv_reserve(self, n_workers)) return false;
    memcpy(number, data, size);
    if (number[0] < 0 || number[0] >= self->n_workers) return false;
    kv_memory **m = &self->memory[number[0]];
    if (!*m && !(*m = calloc(1, sizeof **m))) return false;
    (*m)->incarnation = (uint64_t)number[1];
    memcpy((*m)->answer, &number[2], sizeof(*m)->answer);
    return true;
}
