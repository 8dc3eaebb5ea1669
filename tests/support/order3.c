/* order3.c - counts in one open-addressing table: contexts, and contexts with the byte that followed. */
#include "order3.h"

#include <math.h>
#include <stdlib.h>

typedef struct {
    uint64_t key;   /* 0: empty */
    uint32_t n;     /* how often */
    uint32_t kinds; /* of a context: different bytes after it */
} count;

struct order3 {
    int order;
    count *place;
    size_t places, taken;
};

/* The length is part of the key, so that "" and "\0" are two contexts. */
static uint64_t key_of(const uint8_t *before, int length, int byte)
{
    uint64_t key = (uint64_t)(byte + 1);
    for (int i = length; i > 0; i--) key = key << 8 | before[-i];
    return key << 3 | (uint64_t)(length + 1);
}

static count *find(const order3 *m, uint64_t key)
{
    size_t at = (size_t)((key * UINT64_C(0x9e3779b97f4a7c15)) >> 20) & (m->places - 1);
    while (m->place[at].key && m->place[at].key != key) at = (at + 1) & (m->places - 1);
    return &m->place[at];
}

static bool grow(order3 *m)
{
    order3 wider = {.order = m->order, .places = m->places * 2, .taken = m->taken};
    wider.place  = calloc(wider.places, sizeof *wider.place);
    if (!wider.place) return false;
    for (size_t i = 0; i < m->places; i++)
        if (m->place[i].key) *find(&wider, m->place[i].key) = m->place[i];
    free(m->place);
    *m = wider;
    return true;
}

static count *take(order3 *m, uint64_t key)
{
    count *c = find(m, key);
    if (!c->key) {
        c->key = key;
        m->taken++;
    }
    return c;
}

order3 *order3_new(int order)
{
    order3 *m = malloc(sizeof *m);
    if (!m || order < 0 || order > ORDER3_MOST) {
        free(m);
        return NULL;
    }
    *m       = (order3){.order = order, .places = 1 << 16};
    m->place = calloc(m->places, sizeof *m->place);
    if (m->place) return m;
    free(m);
    return NULL;
}

void order3_free(order3 *m)
{
    if (m) free(m->place);
    free(m);
}

bool order3_learn(order3 *m, const uint8_t *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (m->taken * 2 + 16 > m->places && !grow(m)) return false;
        for (int length = 0; length <= m->order && (size_t)length <= i; length++) {
            const bool is_new = take(m, key_of(bytes + i, length, bytes[i]))->n++ == 0;
            count *context    = take(m, key_of(bytes + i, length, -1));
            context->n++;
            context->kinds += is_new;
        }
    }
    return true;
}

double order3_chance(const order3 *m, const uint8_t *before, int known, uint8_t byte)
{
    double chance = 1.0 / 256;
    for (int length = 0; length <= m->order && length <= known; length++) {
        const count *context = find(m, key_of(before, length, -1));
        if (!context->key) break;
        const double seen = find(m, key_of(before, length, byte))->n;
        chance = (seen + context->kinds * chance) / ((double)context->n + context->kinds);
    }
    return chance;
}

double order3_bits(const order3 *m, const uint8_t *bytes, size_t n)
{
    double bits = 0;
    for (size_t i = 0; i < n; i++)
        bits -= log2(order3_chance(m, bytes + i, i < ORDER3_MOST ? (int)i : ORDER3_MOST, bytes[i]));
    return bits / (double)n;
}
