/* mesh_rig.h - many meshes in one process, whose calls the test advances. */
#ifndef TESTS_UNIT_MESH_RIG_H
#define TESTS_UNIT_MESH_RIG_H

#include "common/base/clock.h"
#include "proto/wire/wire_peer.h"
#include "tests/support/transports.h"
#include "worker/collective/net/mesh_internal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MEMBERS_MAX = 70, PATIENCE_MS = 20000, GROUP = 77, PARK_BYTES = 64 << 20 };

/* ---- a job in one process --------------------------------------------------------------------- */
typedef struct {
    mesh *m;
    wire_team *team;
    stat_set stats;
    coll_call call;
    coll_state state;
    pen_error why;
    _Alignas(64) uint8_t op[COLL_OP_BYTES];
} member;

typedef struct {
    int n;
    uint64_t seq;
    const char *address[MEMBERS_MAX];
    uint64_t incarnation[MEMBERS_MAX];
    member member[MEMBERS_MAX];
} rig;

static const char *const schemes[] = {"inproc://*", "tcp://127.0.0.1:0"};

static inline void must(pen_status status, const pen_error *why)
{
    if (status != PEN_OK) fail_msg("%s", why->text);
}

typedef struct {
    const char *scheme;
    uint64_t lanes, park, show_ms;
    bool disorderly; /* not deterministic */
    const schedule_table *table;
} rig_options;

static inline rig *rig_open_with(int n, const rig_options *o)
{
    pen_error why;
    int ranks[MEMBERS_MAX];
    add_test_transports();
    rig *r = calloc(1, sizeof *r);
    assert_non_null(r);
    r->n = n;
    for (int i = 0; i < n; i++) {
        const mesh_options options = {.listen         = o->scheme,
                                      .lanes          = o->lanes > 0 ? o->lanes : 1,
                                      .heartbeat_ms   = 2000,
                                      .park_bytes_max = o->park > 0 ? o->park : PARK_BYTES,
                                      .show_ms        = o->show_ms,
                                      .deterministic  = !o->disorderly,
                                      .table          = o->table,
                                      .stats          = &r->member[i].stats};
        must(mesh_create(&options, &r->member[i].m, &why), &why);
        r->address[i]     = mesh_address(r->member[i].m);
        r->incarnation[i] = 1000 + (uint64_t)i;
        ranks[i]          = i;
    }
    for (int i = 0; i < n; i++) {
        mesh *m = r->member[i].m;
        must(mesh_set_peers(m, i, n, r->incarnation, r->address, NULL, 5, &why), &why);
        must(wire_team_create(m, GROUP, ranks, n, i, &r->member[i].team, &why), &why);
    }
    return r;
}

static inline rig *rig_open(int n, const char *scheme)
{
    return rig_open_with(n, &(rig_options){.scheme = scheme});
}

static inline void rig_close(rig *r)
{
    for (int i = 0; i < r->n; i++) mesh_destroy(r->member[i].m, 0);
    free(r);
}

static inline void begin(rig *r, int who, const coll_call *call)
{
    member *m = &r->member[who];
    m->call   = *call;
    m->state  = COLL_RUNNING;
    memset(m->op, 0, sizeof m->op);
    must(coll_path_wire.start(m->team, m->op, &m->call, r->seq, &m->why), &m->why);
}

static inline void begin_sum(rig *r, int who, size_t n, const float *in, float *out,
                             const char *label)
{
    begin(r, who,
          &(coll_call){.kind  = COLL_ALL_REDUCE,
                       .dtype = PEN_F32,
                       .n     = n,
                       .in    = in,
                       .out   = out,
                       .scale = 1,
                       .label = label});
}

static inline void advance(rig *r, int who)
{
    member *m = &r->member[who];
    if (m->state != COLL_RUNNING) return;
    mesh_advance(m->m);
    m->state = coll_path_wire.advance(m->op, &m->why);
}

/* Advances all in turn until the first n have ended. */
static inline void run(rig *r, int n)
{
    const uint64_t until = clock_ms(&clock_real) + PATIENCE_MS;
    for (int running = n; running > 0;) {
        running = 0;
        for (int i = 0; i < n; i++) {
            advance(r, i);
            running += r->member[i].state == COLL_RUNNING;
        }
        if (clock_ms(&clock_real) > until) fail_msg("%d of %d members never ended", running, n);
    }
}

static inline void expect_done(rig *r)
{
    for (int i = 0; i < r->n; i++)
        if (r->member[i].state != COLL_DONE) fail_msg("member %d: %s", i, r->member[i].why.text);
}

/* ---- rank 1 is played by the test --------------------------------------------------------- */
typedef struct {
    rig *r;
    transport *t;
} forger;

static inline forger forge(rig *r)
{
    forger f = {.r = r};
    pen_error why;
    transport_event event;
    must(transport_dial(r->address[0], NULL, &f.t, &why), &why);
    const uint64_t until = clock_ms(&clock_real) + PATIENCE_MS;
    while (transport_recv(f.t, &event) != PEN_OK) assert_true(clock_ms(&clock_real) < until);
    assert_int_equal(event.kind, TRANSPORT_UP);
    return f;
}

static inline void say(forger *f, wire_peer *head, const void *data, size_t bytes, int flip)
{
    wire_out out = {0};
    pen_error why;
    head->job           = 5;
    head->from          = f->r->incarnation[1];
    head->to            = f->r->incarnation[0];
    head->rank          = 1;
    head->group         = GROUP;
    head->payload_bytes = bytes;
    must(wire_peer_encode(head, &out, &why), &why);
    if (flip >= 0) out.data[flip / 8] ^= (uint8_t)(1 << flip % 8);
    buf *body = NULL;
    if (bytes > 0) {
        body = buf_new(bytes);
        memcpy(body->data, data, bytes);
    }
    assert_int_equal(transport_send(f->t, 0, out.data, out.size, body), PEN_OK);
    wire_out_free(&out);
}

/* ---- messages -------------------------------------------------------------------------------------- */
static inline mesh_message *post_send(rig *r, int from, int to, int tag, const void *data, size_t n)
{
    mesh_message *one;
    pen_error why;
    must(mesh_send(r->member[from].team, to, tag, data, n, PEN_F32, "mail", &one, &why), &why);
    return one;
}

static inline mesh_message *post_recv(rig *r, int at, int from, int tag, void *data, size_t n)
{
    mesh_message *one;
    pen_error why;
    must(mesh_recv(r->member[at].team, from, tag, data, n, PEN_F32, "mail", &one, &why), &why);
    return one;
}

static inline mesh_result wait_for(rig *r, mesh_message *one)
{
    mesh_result result   = {0};
    const uint64_t until = clock_ms(&clock_real) + PATIENCE_MS;
    while (!mesh_test(one, &result)) {
        for (int i = 0; i < r->n; i++) mesh_advance(r->member[i].m);
        if (clock_ms(&clock_real) > until) fail_msg("a message never ended");
    }
    return result;
}

static inline void expect_letter(rig *r, mesh_message *one, int source, int tag, size_t count)
{
    const mesh_result result = wait_for(r, one);
    if (result.status != PEN_OK) fail_msg("%s", result.why.text);
    assert_int_equal(result.source, source);
    assert_int_equal(result.tag, tag);
    assert_int_equal(result.count, count);
}

#endif
