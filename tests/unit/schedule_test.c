/* schedule_test.c - every algorithm, run by all members at once on symbols instead of
 * numbers.
 *
 * An element is a sum (of values that differ by member and place) and an expression (a hash of which
 * members were folded, in which order).  A member's step ends when its sends have been taken and
 * its receives have arrived, which is stricter than any link: what runs here runs everywhere.
 */
#include "proto/plan.h"
#include "worker/collective/schedule/schedule.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SIZES = 64, SIZES_CHOSEN = 1100, LIMIT_S = 400 };

/* ---- symbols --------------------------------------------------------------------------------- */
typedef struct {
    uint64_t sum, expression;
    int of;        /* whose input this is; -1: a fold; -2: nothing */
    bool is_final; /* the result of a FOLD that is_last */
} symbol;

typedef struct {
    symbol *at;
    uint32_t *stamp; /* the last step that wrote it, from 1 */
    size_t n;
} memory;

typedef struct {
    coll_call call;
    schedule *s;
    memory place[3];
    uint32_t step;
    bool *is_done;       /* [n_moves] of SEND and RECV */
    size_t *partner;     /* [n_moves] index of the matching move of the peer */
    double started;      /* when the step began */
    double ends;         /* when it will have ended, if known */
    double sent, folded; /* elements */
    size_t counts[SIZES], out_counts[SIZES];
} member;

typedef struct {
    const schedule_algorithm *algorithm;
    coll_kind kind;
    int size, root;
    member m[SIZES];
    double rounds;
} world;

static uint64_t mix(uint64_t a, uint64_t b)
{
    uint64_t x = (a ^ 0x9e3779b97f4a7c15u) * 0xff51afd7ed558ccdu + b;
    x ^= x >> 29;
    x *= 0xc4ceb9fe1a85ec53u;
    return x ^ (x >> 32);
}

static symbol input_of(int rank, size_t i)
{
    uint64_t value = mix((uint64_t)rank + 1, i);
    return (symbol){.sum = value, .expression = value, .of = rank};
}

#define check(what, ...)                                                                           \
    do {                                                                                           \
        if (!(what)) complain(w, __VA_ARGS__);                                                     \
    } while (0)

static void complain(const world *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void complain(const world *w, const char *format, ...)
{
    char text[200];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fail_msg("%s %s size %d root %d n %zu%s: %s", w->algorithm->name, coll_kind_name(w->kind),
             w->size, w->root, w->m[0].call.n, w->m[0].call.counts ? " with counts" : "", text);
}

/* ---- a world --------------------------------------------------------------------------------- */
static bool is_rooted(coll_kind kind)
{
    return kind == COLL_BROADCAST || kind == COLL_REDUCE || kind == COLL_GATHER ||
           kind == COLL_SCATTER;
}

static bool has_counts(coll_kind kind)
{
    return kind == COLL_GATHER || kind == COLL_ALL_GATHER || kind == COLL_SCATTER ||
           kind == COLL_REDUCE_SCATTER || kind == COLL_ALL_TO_ALL;
}

static void set_counts(world *w)
{
    for (int r = 0; r < w->size; r++) {
        member *m = &w->m[r];
        for (int i = 0; i < w->size; i++) {
            bool each        = w->kind == COLL_ALL_TO_ALL;
            m->counts[i]     = each ? (size_t)(r * 3 + i * 5) % 4 : (size_t)(i * 7) % 5;
            m->out_counts[i] = each ? (size_t)(i * 3 + r * 5) % 4 : 0;
        }
        m->call.counts = m->counts;
        if (w->kind == COLL_ALL_TO_ALL) m->call.out_counts = m->out_counts;
        m->call.n = w->kind == COLL_ALL_TO_ALL ? 0 : m->counts[r];
    }
}

static size_t all_parts(const coll_call *call, const size_t *counts, int size)
{
    size_t total = 0;
    for (int i = 0; i < size; i++) total += counts ? counts[i] : call->n;
    return total;
}

/* The room of a place, from penstock.h and not from the code. */
static size_t room_in(const world *w, int r)
{
    const coll_call *call = &w->m[r].call;
    size_t own            = call->counts ? call->counts[r] : call->n;
    switch (w->kind) {
    case COLL_BARRIER: return 0;
    case COLL_BROADCAST: return r == w->root ? call->n : 0;
    case COLL_REDUCE:
    case COLL_ALL_REDUCE: return call->n;
    case COLL_GATHER:
    case COLL_ALL_GATHER: return own;
    case COLL_SCATTER: return r == w->root ? all_parts(call, call->counts, w->size) : 0;
    default: return all_parts(call, call->counts, w->size);
    }
}

static size_t room_out(const world *w, int r)
{
    const coll_call *call = &w->m[r].call;
    size_t own            = call->counts ? call->counts[r] : call->n;
    switch (w->kind) {
    case COLL_BARRIER: return 0;
    case COLL_BROADCAST: return r == w->root ? 0 : call->n;
    case COLL_REDUCE: return r == w->root ? call->n : 0;
    case COLL_ALL_REDUCE: return call->n;
    case COLL_GATHER: return r == w->root ? all_parts(call, call->counts, w->size) : 0;
    case COLL_ALL_GATHER: return all_parts(call, call->counts, w->size);
    case COLL_SCATTER:
    case COLL_REDUCE_SCATTER: return own;
    default: return all_parts(call, call->out_counts, w->size);
    }
}

static void make_room(memory *place, size_t n)
{
    place->n     = n;
    place->at    = calloc(n + 1, sizeof *place->at);
    place->stamp = calloc(n + 1, sizeof *place->stamp);
    for (size_t i = 0; i < n; i++) place->at[i].of = -2;
}

static void open_world(world *w, size_t n, bool counts)
{
    for (int r = 0; r < w->size; r++)
        w->m[r].call = (coll_call){.kind = w->kind, .root = w->root, .n = n, .dtype = PEN_I64};
    if (counts) set_counts(w);
    for (int r = 0; r < w->size; r++) {
        member *m         = &w->m[r];
        pen_status status = w->algorithm->build(w->kind, w->size, r, w->root, &m->s);
        check(status == PEN_OK, "cannot be built");
        make_room(&m->place[MOVE_IN], room_in(w, r));
        make_room(&m->place[MOVE_OUT], room_out(w, r));
        make_room(&m->place[MOVE_TEMP], schedule_temp_elements(m->s, &m->call, w->size));
        for (size_t i = 0; i < m->place[MOVE_IN].n; i++) m->place[MOVE_IN].at[i] = input_of(r, i);
        m->is_done = calloc(m->s->n_moves + 1, sizeof *m->is_done);
        m->partner = calloc(m->s->n_moves + 1, sizeof *m->partner);
    }
}

static void close_world(world *w)
{
    for (int r = 0; r < w->size; r++) {
        member *m = &w->m[r];
        for (int p = 0; p < 3; p++) {
            free(m->place[p].at);
            free(m->place[p].stamp);
        }
        free(m->is_done);
        free(m->partner);
        schedule_free(m->s);
    }
    free(w);
}

static schedule_span where(const world *w, int r, const move_range *range)
{
    const member *m    = &w->m[r];
    schedule_span span = schedule_where(m->s, &m->call, w->size, r, range);
    check(span.at + span.elements <= m->place[range->place].n || !span.elements,
          "rank %d: place %d [%zu + %zu) of %zu", r, range->place, span.at, span.elements,
          m->place[range->place].n);
    return span;
}

/* ---- what holds for every schedule before it runs -------------------------------------------- */
/* Finds the RECV that each SEND fills: the k-th of a pair with the k-th. */
static void match_pair(world *w, int from, int to)
{
    const schedule *a = w->m[from].s, *b = w->m[to].s;
    uint32_t j = 0;
    for (uint32_t i = 0; i < a->n_moves; i++) {
        if (a->moves[i].verb != MOVE_SEND || a->moves[i].peer != to) continue;
        while (j < b->n_moves && (b->moves[j].verb != MOVE_RECV || b->moves[j].peer != from)) j++;
        check(j < b->n_moves, "rank %d sends to %d what it does not receive", from, to);
        size_t out = where(w, from, &a->moves[i].range).elements;
        size_t in  = where(w, to, &b->moves[j].range).elements;
        check(out == in, "rank %d sends %zu, %d receives %zu", from, out, to, in);
        w->m[from].partner[i] = j;
        w->m[to].partner[j]   = i;
        j++;
    }
    while (j < b->n_moves && (b->moves[j].verb != MOVE_RECV || b->moves[j].peer != from)) j++;
    check(j == b->n_moves, "rank %d waits for what %d does not send", to, from);
}

static uint32_t step_of(const schedule *s, size_t move_index)
{
    uint32_t step = 0;
    while (s->step[step + 1] <= move_index) step++;
    return step;
}

static void check_shape(const world *w, int r)
{
    const schedule *s = w->m[r].s;
    check(s->step[0] == 0 && s->step[s->n_steps] == s->n_moves, "steps do not cover the moves");
    for (uint32_t i = 0; i < s->n_steps; i++) check(s->step[i] < s->step[i + 1], "an empty step");
    for (uint32_t i = 0; i < s->n_moves; i++) {
        const move *v = &s->moves[i];
        if (v->verb == MOVE_SEND || v->verb == MOVE_RECV)
            check(v->peer >= 0 && v->peer < w->size && v->peer != r, "peer %d", v->peer);
        else
            check(v->peer == -1 && v->n_from >= 1, "a local move with a peer or no operand");
        check(v->from + v->n_from <= s->n_operands, "operands beyond the end");
        check(v->verb != MOVE_COPY || v->n_from == 1, "a copy of several");
        check(v->verb == MOVE_SEND || v->range.place != MOVE_IN, "writes an input");
    }
}

/* ---- running --------------------------------------------------------------------------------- */
static void stamp(const world *w, int r, const move_range *range, bool must_be_new)
{
    const member *m    = &w->m[r];
    schedule_span span = where(w, r, range);
    for (size_t i = span.at; i < span.at + span.elements; i++) {
        uint32_t *at = &m->place[range->place].stamp[i];
        check(!must_be_new || *at != m->step + 1, "rank %d: two receives overlap", r);
        *at = m->step + 1;
    }
}

/* No bytes that this step sends are written in it. */
static void begin_step(world *w, int r)
{
    member *m         = &w->m[r];
    const schedule *s = m->s;
    m->ends           = m->started;
    if (m->step == s->n_steps) return;
    uint32_t begin = s->step[m->step], end = s->step[m->step + 1];
    for (uint32_t i = begin; i < end; i++)
        if (s->moves[i].verb == MOVE_RECV) stamp(w, r, &s->moves[i].range, true);
    for (uint32_t i = begin; i < end; i++)
        if (s->moves[i].verb == MOVE_FOLD || s->moves[i].verb == MOVE_COPY)
            stamp(w, r, &s->moves[i].range, false);
    for (uint32_t i = begin; i < end; i++) {
        if (s->moves[i].verb != MOVE_SEND) continue;
        schedule_span span = where(w, r, &s->moves[i].range);
        for (size_t e = span.at; e < span.at + span.elements; e++)
            check(m->place[s->moves[i].range.place].stamp[e] != m->step + 1,
                  "rank %d writes what it sends", r);
    }
}

static void deliver(world *w, int r, uint32_t i)
{
    member *m       = &w->m[r];
    const move *in  = &m->s->moves[i];
    member *peer    = &w->m[in->peer];
    const move *out = &peer->s->moves[m->partner[i]];
    if (peer->step != step_of(peer->s, m->partner[i])) return;
    schedule_span to = where(w, r, &in->range), from = where(w, in->peer, &out->range);
    for (size_t e = 0; e < to.elements; e++) {
        symbol came = peer->place[out->range.place].at[from.at + e];
        check(came.of != -2, "rank %d sends what nobody wrote", in->peer);
        m->place[in->range.place].at[to.at + e] = came;
    }
    m->is_done[i]                = true;
    peer->is_done[m->partner[i]] = true;
    peer->sent += (double)to.elements;
    if (m->ends < peer->started + 1) m->ends = peer->started + 1;
    if (peer->ends < peer->started + 1) peer->ends = peer->started + 1;
}

static symbol fold_operands(const world *w, int r, const move *v, size_t e)
{
    const member *m = &w->m[r];
    symbol acc      = {0};
    for (uint32_t k = 0; k < v->n_from; k++) {
        const move_range *operand = &m->s->operand[v->from + k];
        symbol x                  = m->place[operand->place].at[where(w, r, operand).at + e];
        check(x.of == operand->of, "rank %d folds input of %d as that of %d", r, x.of, operand->of);
        check(!x.is_final, "rank %d folds a final result again", r);
        acc.expression = k == 0 ? x.expression : mix(acc.expression, x.expression);
        acc.sum += x.sum;
    }
    acc.of       = -1;
    acc.is_final = v->is_last;
    return acc;
}

static void do_local(world *w, int r, const move *v)
{
    member *m        = &w->m[r];
    schedule_span to = where(w, r, &v->range);
    for (uint32_t k = 0; k < v->n_from; k++) {
        size_t n = where(w, r, &m->s->operand[v->from + k]).elements;
        check(n == to.elements, "rank %d: an operand of %zu for %zu", r, n, to.elements);
    }
    check(v->verb != MOVE_FOLD || !m->s->keeps_order || (int)v->n_from == w->size,
          "rank %d keeps the order but rounds twice", r);
    for (size_t e = 0; e < to.elements; e++) {
        symbol *target = &m->place[v->range.place].at[to.at + e];
        if (v->verb == MOVE_FOLD) {
            *target = fold_operands(w, r, v, e);
            continue;
        }
        const move_range *from = &m->s->operand[v->from];
        *target                = m->place[from->place].at[where(w, r, from).at + e];
        check(target->of != -2, "rank %d copies what nobody wrote", r);
    }
    if (v->verb == MOVE_FOLD) m->folded += (double)(to.elements * v->n_from);
}

/* True if any progress was made. */
static bool advance(world *w, int r)
{
    member *m         = &w->m[r];
    const schedule *s = m->s;
    if (m->step == s->n_steps) return false;
    bool moved = false, all_done = true;
    for (uint32_t i = s->step[m->step]; i < s->step[m->step + 1]; i++) {
        bool was = m->is_done[i];
        if (s->moves[i].verb == MOVE_RECV && !was) deliver(w, r, i);
        if (s->moves[i].verb != MOVE_RECV && s->moves[i].verb != MOVE_SEND) continue;
        moved    = moved || m->is_done[i] != was;
        all_done = all_done && m->is_done[i];
    }
    if (!all_done) return moved;
    for (uint32_t i = s->step[m->step]; i < s->step[m->step + 1]; i++)
        if (s->moves[i].verb == MOVE_FOLD || s->moves[i].verb == MOVE_COPY)
            do_local(w, r, &s->moves[i]);
    m->started = m->ends;
    m->step++;
    begin_step(w, r);
    return true;
}

static void carry_out(world *w)
{
    for (int r = 0; r < w->size; r++) check_shape(w, r);
    for (int a = 0; a < w->size; a++)
        for (int b = 0; b < w->size; b++)
            if (a != b) match_pair(w, a, b);
    for (int r = 0; r < w->size; r++) begin_step(w, r);
    for (bool moved = true; moved;) {
        moved = false;
        for (int r = w->size - 1; r >= 0; r--) moved = advance(w, r) || moved;
    }
    for (int r = 0; r < w->size; r++) {
        const member *m = &w->m[r];
        check(m->step == m->s->n_steps, "rank %d hangs in step %u", r, m->step);
        if (w->rounds < m->started) w->rounds = m->started;
    }
}

/* ---- results --------------------------------------------------------------------------------- */
static void check_fold(const world *w, int r, size_t at, size_t element)
{
    symbol got = w->m[r].place[MOVE_OUT].at[at], want = input_of(0, element);
    for (int q = 1; q < w->size; q++) {
        symbol x        = input_of(q, element);
        want.expression = mix(want.expression, x.expression);
        want.sum += x.sum;
    }
    check(got.is_final, "rank %d: element %zu is not final", r, at);
    check(got.sum == want.sum, "rank %d: element %zu is wrong", r, at);
    if (w->m[r].s->keeps_order || w->algorithm->in_rank_order)
        check(got.expression == want.expression, "rank %d: element %zu is not in rank order", r,
              at);
}

static void check_copy(const world *w, int r, size_t at, int of, size_t element)
{
    symbol got = w->m[r].place[MOVE_OUT].at[at], want = input_of(of, element);
    check(got.of == of && got.sum == want.sum, "rank %d: element %zu is not %d's %zu", r, at, of,
          element);
}

static size_t before(const size_t *counts, size_t n, int who)
{
    size_t sum = 0;
    for (int i = 0; i < who; i++) sum += counts ? counts[i] : n;
    return sum;
}

/* Element `at` of member r's output. */
static void check_element(const world *w, int r, int part, size_t e, size_t at)
{
    const coll_call *call = &w->m[r].call;
    switch (w->kind) {
    case COLL_BROADCAST: check_copy(w, r, at, w->root, at); break;
    case COLL_REDUCE:
    case COLL_ALL_REDUCE: check_fold(w, r, at, at); break;
    case COLL_REDUCE_SCATTER: check_fold(w, r, at, before(call->counts, call->n, r) + at); break;
    case COLL_SCATTER: check_copy(w, r, at, w->root, before(call->counts, call->n, r) + at); break;
    case COLL_ALL_TO_ALL: {
        const coll_call *theirs = &w->m[part].call;
        check_copy(w, r, at, part, before(theirs->counts, theirs->n, r) + e);
        break;
    }
    default: check_copy(w, r, at, part, e); break;
    }
}

static void check_results(const world *w)
{
    for (int r = 0; r < w->size; r++) {
        const member *m = &w->m[r];
        for (size_t i = 0; i < m->place[MOVE_IN].n; i++)
            check(m->place[MOVE_IN].at[i].sum == input_of(r, i).sum, "rank %d: input changed", r);
        bool parts =
            w->kind == COLL_GATHER || w->kind == COLL_ALL_GATHER || w->kind == COLL_ALL_TO_ALL;
        const size_t *counts = w->kind == COLL_ALL_TO_ALL ? m->call.out_counts : m->call.counts;
        int part             = 0;
        for (size_t at = 0; at < m->place[MOVE_OUT].n; at++) {
            size_t begin = before(counts, m->call.n, part);
            while (parts && at >= begin + (counts ? counts[part] : m->call.n))
                begin = before(counts, m->call.n, ++part);
            check_element(w, r, part, at - begin, at);
        }
    }
}

/* Runs and checks; the caller closes it. */
static world *run(const schedule_algorithm *a, coll_kind kind, int size, int root, size_t n,
                  bool counts)
{
    world *w     = calloc(1, sizeof *w);
    w->algorithm = a;
    w->kind      = kind;
    w->size      = size;
    w->root      = root;
    open_world(w, n, counts);
    carry_out(w);
    check_results(w);
    return w;
}

static void run_roots(const schedule_algorithm *a, coll_kind kind, int size, size_t n, bool counts)
{
    int step = is_rooted(kind) ? (size > 8 ? size / 3 : 1) : size;
    for (int root = 0; root < size; root += step) close_world(run(a, kind, size, root, n, counts));
}

/* ---- tests of all algorithms ----------------------------------------------------------------- */
#define EACH_ALGORITHM(a)                                                                          \
    for (const schedule_algorithm *const *list = schedule_all, *a = *list; a; a = *++list)

static void every_algorithm_is_right_for_every_kind_and_1_to_64_ranks(void **state)
{
    (void)state;
    EACH_ALGORITHM(a)
    for (int kind = 0; kind < COLL_KINDS; kind++)
        for (int size = 1; size <= SIZES; size++) {
            if (!a->fits((coll_kind)kind, size)) continue;
            run_roots(a, (coll_kind)kind, size, kind == COLL_BARRIER ? 0 : 5, false);
            if (size > 9 && size % 4 != 1 && size != SIZES) continue;
            if (kind != COLL_BARRIER && !has_counts((coll_kind)kind))
                run_roots(a, (coll_kind)kind, size, (size_t)size * 2 + 1, false);
        }
}

static void parts_may_have_different_lengths_or_be_empty(void **state)
{
    (void)state;
    EACH_ALGORITHM(a)
    for (int kind = 0; kind < COLL_KINDS; kind++)
        for (int size = 1; size <= SIZES; size += size > 16 ? 5 : 1) {
            if (!a->fits((coll_kind)kind, size) || !has_counts((coll_kind)kind)) continue;
            run_roots(a, (coll_kind)kind, size, 0, false);
            if (kind == COLL_ALL_TO_ALL && a->even_all_to_all) continue;
            run_roots(a, (coll_kind)kind, size, 0, true);
        }
}

static void an_order_keeping_algorithm_keeps_it_in_every_schedule(void **state)
{
    (void)state;
    EACH_ALGORITHM(a)
    for (int kind = 0; kind < COLL_KINDS; kind++)
        for (int size = 1; size <= SIZES; size++) {
            if (!a->fits((coll_kind)kind, size) || !coll_reduces((coll_kind)kind)) continue;
            schedule *s = NULL;
            assert_int_equal(a->build((coll_kind)kind, size, size - 1, 0, &s), PEN_OK);
            if (a->keeps_order) assert_true(s->keeps_order);
            if (size == 1) assert_true(s->keeps_order);
            schedule_free(s);
        }
}

static void every_kind_and_size_has_an_algorithm_in_rank_order(void **state)
{
    (void)state;
    for (int kind = 0; kind < COLL_KINDS; kind++)
        for (int size = 1; size <= SIZES; size++) {
            int found = 0;
            EACH_ALGORITHM(a) found += a->keeps_order && a->fits((coll_kind)kind, size);
            assert_true(found > 0);
        }
}

static void algorithms_are_found_by_name(void **state)
{
    (void)state;
    EACH_ALGORITHM(a)
    {
        assert_ptr_equal(schedule_find(a->name), a);
        assert_true(strlen(a->doc) > 20);
    }
    assert_null(schedule_find("rings"));
    assert_null(schedule_find(""));
}

/* ---- costs: the formulas of the literature, written again here ------------------------------- */
static double log2_up(int n)
{
    return ceil(log2(n) - 1e-9);
}

static int inner(int n)
{
    int p = 1;
    while (p * 2 <= n) p *= 2;
    return p;
}

/* Each position sends its subtree's inputs up, and one result to each child down. */
static double bytes_funnel(int n, bool comes_back)
{
    double most = 0;
    for (int v = 0; v < n; v++) {
        int whole = v & -v, sent = v == 0 ? 0 : whole < n - v ? whole : n - v;
        for (int k = 1; comes_back && (v == 0 || k < whole) && v + k < n; k *= 2) sent++;
        if (sent > most) most = sent;
    }
    return most;
}

static double bytes_all_reduce(const char *name, int n, double S)
{
    double p = inner(n), observers = n > p;
    if (strcmp(name, "one_shot") == 0 || strcmp(name, "bruck") == 0) return (n - 1) * S;
    if (strcmp(name, "recursive_doubling") == 0) return log2(p) * S + observers * S;
    if (strcmp(name, "halving_doubling") == 0) return 2 * (p - 1) / p * S + observers * S;
    if (strcmp(name, "chain") == 0) return n > 2 ? 2 * S : S;
    if (strcmp(name, "funnel") == 0) return bytes_funnel(n, true) * S;
    return 2.0 * (n - 1) / n * S; /* ring, direct */
}

/* A member sends on all blocks with bit k in round k. */
static double bytes_all_to_all_bruck(int n, double S)
{
    double blocks = 0;
    for (int i = 0; i < n; i++) blocks += __builtin_popcount((unsigned)i);
    return blocks * S;
}

/* The largest subtree below the root: of the last power of two, or of the one before, which is
 * complete. */
static double bytes_gather_tree(int n, double S)
{
    double largest = 0;
    for (int v = 1; v < n; v++) {
        int whole = v & -v, there = whole < n - v ? whole : n - v;
        if (there > largest) largest = there;
    }
    return largest * S;
}

static double bytes_expected(const char *name, coll_kind kind, int n, double S)
{
    bool is_tree = strcmp(name, "tree") == 0;
    if (n == 1) return 0;
    switch (kind) {
    case COLL_BARRIER: return 0;
    case COLL_BROADCAST:
        if (strcmp(name, "pipeline") == 0) return S;
        return is_tree ? log2_up(n) * S : (n - 1) * S;
    case COLL_REDUCE: return strcmp(name, "funnel") == 0 ? bytes_funnel(n, false) * S : S;
    case COLL_ALL_REDUCE: return bytes_all_reduce(name, n, S);
    case COLL_GATHER: return is_tree ? bytes_gather_tree(n, S) : S;
    case COLL_ALL_TO_ALL:
        return strcmp(name, "bruck") == 0 ? bytes_all_to_all_bruck(n, S) : (n - 1) * S;
    case COLL_ALL_GATHER: return strcmp(name, "funnel") == 0 ? log2_up(n) * n * S : (n - 1) * S;
    default: return (n - 1) * S; /* all_gather, scatter, reduce_scatter: each part once */
    }
}

static double rounds_expected(const char *name, coll_kind kind, int n)
{
    double p = inner(n), observers = n > p ? 2 : 0;
    if (n == 1) return 0;
    if (strcmp(name, "direct") == 0) return kind == COLL_REDUCE || kind == COLL_ALL_REDUCE ? 2 : 1;
    if (strcmp(name, "one_shot") == 0) return 1;
    if (strcmp(name, "ring") == 0) return kind == COLL_ALL_REDUCE ? 2 * (n - 1) : n - 1;
    if (strcmp(name, "pairwise") == 0) return n - 1;
    if (strcmp(name, "pipeline") == 0) return 32 + n - 2;
    if (strcmp(name, "halving_doubling") == 0)
        return (kind == COLL_ALL_REDUCE ? 2 : 1) * log2(p) + observers;
    if (strcmp(name, "recursive_doubling") == 0 && kind == COLL_ALL_REDUCE)
        return log2(p) + observers;
    if (strcmp(name, "chain") == 0) return 2 * (n - 1);
    if (strcmp(name, "funnel") == 0)
        return kind == COLL_BARRIER ? 0 : (kind == COLL_REDUCE ? 1 : 2) * log2_up(n);
    return log2_up(n);
}

static void check_costs(const schedule_algorithm *a, coll_kind kind, int size)
{
    schedule *s = NULL;
    assert_int_equal(a->build(kind, size, 0, 0, &s), PEN_OK);
    size_t n = kind == COLL_BARRIER ? 0 : has_counts(kind) ? 3 : (size_t)s->units * 3;
    schedule_free(s);
    world *w    = run(a, kind, size, 0, n, false);
    double sent = 0, folded = 0;
    for (int r = 0; r < size; r++) {
        if (w->m[r].sent > sent) sent = w->m[r].sent;
        if (w->m[r].folded > folded) folded = w->m[r].folded;
    }
    schedule_cost cost = a->cost(kind, size, (double)n);
    double expected    = bytes_expected(a->name, kind, size, (double)n);
    double rounds      = rounds_expected(a->name, kind, size);
    check(fabs(sent - expected) < 1e-6, "sent %g, formula of the literature %g", sent, expected);
    check(fabs(cost.bytes - expected) < 1e-6, "cost says %g bytes, not %g", cost.bytes, expected);
    check(fabs(cost.folded - folded) < 1e-6, "cost says %g folded, not %g", cost.folded, folded);
    check(fabs(cost.rounds - rounds) < 1e-6, "cost says %g rounds, not %g", cost.rounds, rounds);
    /* A tree's members send to their children one after the other; in this model to all at once. */
    bool is_exact =
        (strcmp(a->name, "tree") != 0 && strcmp(a->name, "funnel") != 0) || size == inner(size);
    check(is_exact ? fabs(w->rounds - rounds) < 1e-6 : w->rounds <= rounds,
          "took %g rounds, formula %g", w->rounds, rounds);
    close_world(w);
}

static void bytes_sent_and_folded_match_the_formulas(void **state)
{
    (void)state;
    EACH_ALGORITHM(a)
    for (int kind = 0; kind < COLL_KINDS; kind++)
        for (int size = 1; size <= SIZES; size++)
            if (a->fits((coll_kind)kind, size)) check_costs(a, (coll_kind)kind, size);
}

static void units_are_even_and_the_first_are_one_longer(void **state)
{
    (void)state;
    schedule s                  = {.units = 4};
    static const size_t begin[] = {0, 3, 6, 8, 10};
    for (uint32_t u = 0; u <= 4; u++) assert_int_equal(schedule_unit(&s, 10, u), begin[u]);
    assert_int_equal(schedule_unit(&s, 0, 4), 0);
    assert_int_equal(schedule_unit(&s, SIZE_MAX, 4), SIZE_MAX);
}

/* ---- choosing -------------------------------------------------------------------------------- */
static schedule_table *parse(const char *text)
{
    schedule_table *table = NULL;
    pen_error why         = {0};
    if (schedule_table_parse(text, &table, &why) != PEN_OK) fail_msg("%s: %s", text, why.text);
    return table;
}

/* The choice for a call of this many bytes.  is_exact: the result does not depend on the order. */
static const schedule_algorithm *choose(const schedule_table *t, coll_kind kind, int size,
                                        size_t bytes, int order, bool is_exact, bool on_one_host)
{
    const pen_dtype dtype = is_exact ? PEN_U8 : PEN_F32;
    const coll_call call  = {.kind = kind, .n = is_exact ? bytes : bytes / 4, .dtype = dtype};
    return schedule_for_call(t, &call, size, (schedule_order)order, on_one_host);
}

static void the_choice_fits_and_keeps_the_order_where_it_matters(void **state)
{
    (void)state;
    static const size_t bytes[] = {0, 1, 256, 4096, 16384, 1 << 17, 1 << 20, (size_t)1 << 34};
    schedule_table *table =
        parse("all_reduce : ring; reduce : tree; reduce_scatter : halving_doubling");
    for (int with = 0; with < 2; with++)
        for (int kind = 0; kind < COLL_KINDS; kind++)
            for (int size = 1; size <= SIZES_CHOSEN; size++)
                for (size_t b = 0; b < sizeof bytes / sizeof *bytes; b++)
                    for (int bits = 0; bits < 12; bits++) {
                        const int order     = bits / 4;
                        const bool is_exact = bits & 2;
                        const schedule_algorithm *a =
                            choose(with ? table : NULL, (coll_kind)kind, size, bytes[b], order,
                                   is_exact, bits & 1);
                        assert_true(a->fits((coll_kind)kind, size));
                        if (order == SCHEDULE_ANY_ORDER || is_exact ||
                            !coll_reduces((coll_kind)kind))
                            continue;
                        assert_true(
                            a->keeps_order ||
                            (order == SCHEDULE_RANK_ORDER ? a->in_rank_order : a->any_order));
                    }
    schedule_table_free(table);
}

static void the_first_rule_that_fits_wins(void **state)
{
    (void)state;
    schedule_table *t = parse(" all_reduce ranks=2-4 bytes=0-16k : one_shot ; all_reduce ranks=8 : "
                              "halving_doubling;all_reduce bytes=1m- :ring;; broadcast:tree ;");
    struct {
        coll_kind kind;
        int size;
        size_t bytes;
        const char *name;
    } cases[] = {
        {COLL_ALL_REDUCE, 2, 0, "one_shot"},
        {COLL_ALL_REDUCE, 4, 16384, "one_shot"},
        {COLL_ALL_REDUCE, 4, 16385, "direct"},
        {COLL_ALL_REDUCE, 8, 1, "halving_doubling"},
        {COLL_ALL_REDUCE, 3, 1 << 20, "ring"},
        {COLL_BROADCAST, 3, (size_t)1 << 33, "tree"},
        {COLL_BARRIER, 3, 0, "direct"},
        {COLL_REDUCE, 3, 1 << 20, "direct"},
        {COLL_ALL_REDUCE, 3, (1 << 20) - 1, "direct"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const schedule_algorithm *a =
            choose(t, cases[i].kind, cases[i].size, cases[i].bytes, false, true, false);
        assert_string_equal(a->name, cases[i].name);
    }
    schedule_table_free(t);
}

static void an_invalid_rule_is_quoted(void **state)
{
    (void)state;
    static const char *const wrong[][2] = {
        {"all_reduce : rings", "unknown algorithm rings in the rule \"all_reduce : rings\""},
        {"all_reduced : ring", "unknown operation all_reduced"},
        {"barrier : direct; all_reduce ring",
         "expected ranks=, bytes=, memory= or ':' in the rule \"all_reduce ring\""},
        {"all_reduce rank=2 : ring", "unknown condition rank"},
        {"all_reduce ranks=4-2 : ring", "not a range of numbers after ranks"},
        {"all_reduce ranks=x : ring", "not a range of numbers after ranks"},
        {"all_reduce bytes=99999999999999999999g : ring", "not a range of numbers after bytes"},
        {"all_reduce", "no ':' and algorithm"},
        {"all_reduce :", "no algorithm"},
        {": ring", "no operation"},
        {"barrier : ring", "this operation cannot use ring"},
        {"all_reduce : ring ring", "unexpected text after ring"},
        {"all_reduce ranks=3 : all_reduce", "unknown algorithm all_reduce"},
        {"this_is_far_too_long_for_an_operation : ring", "no operation"},
        {"all_reduce : nccl", "unknown algorithm nccl"},
        {"all_reduce memory=device : ring",
         "device memory has the ways kernels and nccl, not ring"},
        {"all_to_all memory=device : nccl", "this operation cannot use nccl"},
        {"all_reduce memory=gpu : nccl", "unknown memory gpu"},
        {"all_reduce memory= : nccl", "expected host or device after memory="},
        {"all_reduce memory=device-2 : nccl", "expected ranks=, bytes=, memory= or ':'"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        schedule_table *table = NULL;
        pen_error why         = {0};
        assert_int_equal(schedule_table_parse(wrong[i][0], &table, &why), PEN_BAD_SETTING);
        assert_null(table);
        if (strncmp(why.text, wrong[i][1], strlen(wrong[i][1])) != 0) fail_msg("%s", why.text);
    }
}

static void rules_for_device_memory_are_apart_from_those_for_algorithms(void **state)
{
    (void)state;
    schedule_table *t      = parse("all_reduce memory=device bytes=1k-4k : kernels;"
                                        "all_reduce memory=device bytes=1k- : nccl;"
                                        "all_gather memory=device ranks=4 : kernels; all_reduce : ring;"
                                        "broadcast memory=host : tree");
    const size_t counts[3] = {100, 200, 300};
    coll_call call         = {.kind = COLL_ALL_REDUCE, .dtype = PEN_F32, .n = 255};
    assert_int_equal(schedule_for_device(t, &call, 2), SCHEDULE_DEVICE_MEASURED);
    call.n = 256;
    assert_int_equal(schedule_for_device(t, &call, 2), SCHEDULE_DEVICE_KERNELS);
    call.n = 1025;
    assert_int_equal(schedule_for_device(t, &call, 2), SCHEDULE_DEVICE_NCCL);
    assert_string_equal(choose(t, COLL_ALL_REDUCE, 4, 4096, false, false, false)->name, "ring");
    assert_string_equal(choose(t, COLL_BROADCAST, 4, 4096, true, false, false)->name, "tree");
    call.kind = COLL_ALL_GATHER;
    assert_int_equal(schedule_for_device(t, &call, 4), SCHEDULE_DEVICE_KERNELS);
    call.counts = counts;
    assert_int_equal(schedule_for_device(t, &call, 3), SCHEDULE_DEVICE_MEASURED);
    assert_true(schedule_wants_nccl(t));
    schedule_table_free(t);
    t = parse("all_reduce memory=device : kernels");
    assert_false(schedule_wants_nccl(t));
    schedule_table_free(t);
    assert_false(schedule_wants_nccl(NULL));
    assert_int_equal(schedule_for_device(NULL, &call, 3), SCHEDULE_DEVICE_MEASURED);
}

static void a_table_of_nothing_is_a_table(void **state)
{
    (void)state;
    static const char *const nothing[] = {"", "  ", ";", " ; ;; "};
    for (size_t i = 0; i < sizeof nothing / sizeof *nothing; i++) {
        schedule_table *t = parse(nothing[i]);
        assert_non_null(choose(t, COLL_BARRIER, 2, 0, true, false, false));
        schedule_table_free(t);
    }
    schedule_table_free(NULL);
}

static void the_parser_survives_any_text(void **state)
{
    (void)state;
    static const char letters[] =
        "all_reduce memory=device:nccl;all_reduce ranks=2-4 bytes=0-16k:one_shot;\x80-9g=";
    uint64_t draw = 7;
    for (int i = 0; i < 20000; i++) {
        char text[64];
        draw          = mix(draw, (uint64_t)i);
        size_t length = draw % 60, from = (draw >> 8) % 60;
        for (size_t k = 0; k < length; k++) text[k] = letters[(from + k) % (sizeof letters - 1)];
        for (int k = 0; k < 3 && length; k++) {
            draw                = mix(draw, (uint64_t)k);
            text[draw % length] = letters[(draw >> 16) % (sizeof letters - 1)];
        }
        text[length]          = '\0';
        schedule_table *table = NULL;
        pen_error why         = {0};
        pen_status status     = schedule_table_parse(text, &table, &why);
        assert_true(status == PEN_OK ? table != NULL : why.text[0] != '\0');
        schedule_table_free(table);
    }
}

static void members_of_one_call_choose_alike(void **state)
{
    (void)state;
    const size_t few[] = {1, 2, 3}, many[] = {100000, 0, 7};
    schedule_table *t = parse("all_to_all : bruck; gather bytes=100k- : direct; gather : tree");
    coll_call a = {.kind = COLL_ALL_TO_ALL, .dtype = PEN_F32, .counts = few, .out_counts = many};
    coll_call b = {.kind = COLL_ALL_TO_ALL, .dtype = PEN_F32, .counts = many, .out_counts = few};
    assert_ptr_equal(schedule_for_call(t, &a, 3, true, false),
                     schedule_for_call(t, &b, 3, true, false));
    assert_false(schedule_for_call(t, &a, 3, true, false)->even_all_to_all);
    coll_call even = {.kind = COLL_ALL_TO_ALL, .dtype = PEN_F32, .n = 3};
    assert_string_equal(schedule_for_call(t, &even, 3, true, false)->name, "bruck");
    /* A gather's n is the member's own part; the mean of all decides. */
    coll_call first = {.kind = COLL_GATHER, .dtype = PEN_F32, .counts = many, .n = 100000};
    coll_call last  = {.kind = COLL_GATHER, .dtype = PEN_F32, .counts = many, .n = 7};
    assert_string_equal(schedule_for_call(t, &first, 3, true, false)->name, "direct");
    assert_string_equal(schedule_for_call(t, &last, 3, true, false)->name, "direct");
    schedule_table_free(t);
}

/* Rounds cost between hosts, messages on one, whose processors do the work of all members. */
static void small_sums_on_one_host_take_the_fewest_messages(void **state)
{
    (void)state;
    for (int size = 3; size <= 64; size++) {
        assert_string_equal(choose(NULL, COLL_ALL_REDUCE, size, 4096, true, false, true)->name,
                            "bruck");
        assert_string_not_equal(choose(NULL, COLL_ALL_REDUCE, size, 4096, true, false, false)->name,
                                "bruck");
    }
}

static void floats_keep_their_order_and_integers_need_not(void **state)
{
    (void)state;
    schedule_table *t = parse("all_reduce : ring");
    coll_call call    = {.kind = COLL_ALL_REDUCE, .dtype = PEN_I32, .op = PEN_SUM, .n = 100};
    assert_string_equal(schedule_for_call(t, &call, 5, true, false)->name, "ring");
    static const pen_dtype floats[] = {PEN_F32, PEN_F64, PEN_F16, PEN_BF16};
    for (size_t i = 0; i < 4; i++) {
        call.dtype = floats[i];
        assert_true(schedule_for_call(t, &call, 5, true, false)->keeps_order);
        assert_string_equal(schedule_for_call(t, &call, 5, false, false)->name, "ring");
    }
    schedule_table_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_algorithm_is_right_for_every_kind_and_1_to_64_ranks),
        cmocka_unit_test(parts_may_have_different_lengths_or_be_empty),
        cmocka_unit_test(an_order_keeping_algorithm_keeps_it_in_every_schedule),
        cmocka_unit_test(every_kind_and_size_has_an_algorithm_in_rank_order),
        cmocka_unit_test(algorithms_are_found_by_name),
        cmocka_unit_test(bytes_sent_and_folded_match_the_formulas),
        cmocka_unit_test(units_are_even_and_the_first_are_one_longer),
        cmocka_unit_test(the_choice_fits_and_keeps_the_order_where_it_matters),
        cmocka_unit_test(the_first_rule_that_fits_wins),
        cmocka_unit_test(an_invalid_rule_is_quoted),
        cmocka_unit_test(rules_for_device_memory_are_apart_from_those_for_algorithms),
        cmocka_unit_test(a_table_of_nothing_is_a_table),
        cmocka_unit_test(the_parser_survives_any_text),
        cmocka_unit_test(members_of_one_call_choose_alike),
        cmocka_unit_test(small_sums_on_one_host_take_the_fewest_messages),
        cmocka_unit_test(floats_keep_their_order_and_integers_need_not),
    };
    alarm(LIMIT_S);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
