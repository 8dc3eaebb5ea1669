/* mesh_loss_test.c - many meshes in one process: members that die or leave, and connections that end. */
#include "mesh_rig.h"

#include <unistd.h>

/* ---- loss ---------------------------------------------------------------------------------------- */
static void an_aborted_call_leaves_inputs_intact_and_returns_buffers(void **unused)
{
    enum { COUNT = 2000000 };
    (void)unused;
    for (size_t s = 0; s < 2; s++) {
        rig *r      = rig_open(3, schemes[s]);
        float *data = malloc(COUNT * sizeof *data);
        r->seq      = 1;
        for (size_t k = 0; k < COUNT; k++) data[k] = 3;
        begin_sum(r, 0, COUNT, data, data, "");
        for (int i = 0; i < 100; i++) {
            advance(r, 0);
            mesh_advance(r->member[1].m);
        }
        mesh_lost(r->member[0].m, 2);
        if (r->member[0].state == COLL_RUNNING) advance(r, 0);
        if (r->member[0].state == COLL_RUNNING) coll_path_wire.abort(r->member[0].op);
        for (size_t k = 0; k < COUNT; k++) assert_true(data[k] == 3);
        free(data); /* AddressSanitizer checks that nothing reads it */
        for (int i = 0; i < 50; i++)
            for (int k = 0; k < 3; k++) mesh_advance(r->member[k].m);
        rig_close(r);
    }
}

static void a_member_that_dies_in_a_call_is_named(void **unused)
{
    (void)unused;
    rig *r            = rig_open(3, schemes[1]);
    const coll_call c = {.kind = COLL_BARRIER, .dtype = PEN_U8, .scale = 1, .label = ""};
    for (r->seq = 1; r->seq <= 2; r->seq++) {
        for (int i = 0; i < (r->seq == 1 ? 3 : 2); i++) begin(r, i, &c);
        if (r->seq == 1) {
            run(r, 3);
            expect_done(r);
        }
    }
    mesh_destroy(r->member[2].m, 0);
    r->member[2].m = NULL;
    run(r, 2);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(r->member[i].state, COLL_FAILED);
        assert_int_equal(r->member[i].why.status, PEN_PEER_LOST);
        assert_int_equal(r->member[i].why.rank, 2);
        assert_non_null(strstr(r->member[i].why.text, "rank 2"));
    }
    rig_close(r);
}

/* Destroys each mesh as soon as its call has ended, while the others may still be in theirs. */
static void run_and_leave(rig *r)
{
    const uint64_t until = clock_ms(&clock_real) + PATIENCE_MS;
    for (int left = 0; left < r->n;) {
        for (int i = 0; i < r->n; i++) {
            member *m = &r->member[i];
            if (m->m == NULL) continue;
            advance(r, i);
            if (m->state == COLL_RUNNING) continue;
            if (m->state != COLL_DONE) fail_msg("member %d: %s", i, m->why.text);
            mesh_destroy(m->m, 500);
            m->m = NULL;
            left++;
        }
        if (clock_ms(&clock_real) > until) fail_msg("%d of %d have left", left, r->n);
    }
}

static void a_rank_that_leaves_after_its_last_call_fails_no_other(void **unused)
{
    (void)unused;
    static float in[3][100000], out[3][100000];
    static const coll_kind kinds[] = {COLL_BARRIER, COLL_BROADCAST, COLL_REDUCE, COLL_ALL_REDUCE};
    for (int round = 0; round < 48; round++) {
        rig *r =
            rig_open_with(3, &(rig_options){.scheme = schemes[1], .lanes = round % 8 < 4 ? 1 : 2});
        r->seq = 1;
        for (int i = 0; i < 3; i++) {
            coll_call c = {.kind  = kinds[round % 4],
                           .in    = in[i],
                           .out   = out[i],
                           .n     = round % 3 == 0 ? 10 : 100000,
                           .dtype = PEN_F32,
                           .op    = PEN_SUM,
                           .scale = 1,
                           .label = ""};
            if (c.kind == COLL_BROADCAST) c.in = out[i];
            if (c.kind == COLL_BARRIER) c.in = c.out = NULL, c.n = 0;
            begin(r, i, &c);
        }
        run_and_leave(r);
        rig_close(r);
    }
}

static void a_call_with_a_rank_that_has_left_names_it(void **unused)
{
    (void)unused;
    rig *r            = rig_open(2, schemes[1]);
    const coll_call c = {.kind = COLL_BARRIER, .dtype = PEN_U8, .scale = 1, .label = ""};
    r->seq            = 1;
    for (int i = 0; i < 2; i++) begin(r, i, &c);
    run(r, 2);
    expect_done(r);
    mesh_destroy(r->member[1].m, 500);
    r->member[1].m = NULL;
    r->seq         = 2;
    begin(r, 0, &c);
    run(r, 1);
    assert_int_equal(r->member[0].why.status, PEN_PEER_LOST);
    assert_int_equal(r->member[0].why.rank, 1);
    assert_non_null(strstr(r->member[0].why.text, "rank 1 (unknown)"));
    rig_close(r);
}

/* ---- connections that end, goodbyes ---------------------------------------------------------- */
/* It closes the connection to get its memory back; the other is in the next call by then. */
static void a_connection_closed_on_purpose_is_not_a_loss(void **unused)
{
    (void)unused;
    enum { COUNT = 10 << 20, LONGER_THAN_ANY_DOUBT_MS = 3100 };
    rig *r      = rig_open(2, schemes[1]);
    float *sent = calloc(COUNT, sizeof *sent), *come = calloc(COUNT, sizeof *come);
    float one[2]      = {1, 2}, sum[2];
    sent[0]           = 1;
    mesh_message *out = post_send(r, 0, 1, 1, sent, COUNT);
    mesh_message *in  = post_recv(r, 1, 0, 1, come, COUNT);
    uint64_t until    = clock_ms(&clock_real) + PATIENCE_MS;
    while (come[0] == 0 && clock_ms(&clock_real) < until)
        for (int k = 0; k < 2; k++) mesh_advance(r->member[k].m);
    coll_call call = {.kind = COLL_ALL_REDUCE, .dtype = PEN_F32, .n = 1, .scale = 1};
    r->seq++;
    call.in = &one[1], call.out = &sum[1];
    begin(r, 1, &call);
    mesh_settle(r->member[0].m, out, 0);
    mesh_cancel(out);
    free(sent);
    assert_int_not_equal(wait_for(r, in).status, PEN_OK);
    until = clock_ms(&clock_real) + LONGER_THAN_ANY_DOUBT_MS;
    while (clock_ms(&clock_real) < until) {
        mesh_advance(r->member[0].m);
        advance(r, 1);
        if (r->member[1].state != COLL_RUNNING) fail_msg("it ended: %s", r->member[1].why.text);
    }
    call.in = &one[0], call.out = &sum[0];
    begin(r, 0, &call);
    run(r, 2);
    expect_done(r);
    assert_true(sum[0] == 3 && sum[1] == 3);
    free(come);
    rig_close(r);
}

/* The listener reads from all in turn: what the old connection sent is read after the new one's first message. */
static void late_messages_of_a_replaced_connection_do_not_make_its_end_a_loss(void **unused)
{
    (void)unused;
    rig *r     = rig_open(2, schemes[0]);
    forger old = forge(r), next = forge(r);
    r->seq = 1;
    begin(r, 0, &(coll_call){.kind = COLL_BARRIER, .dtype = PEN_U8, .scale = 1, .label = ""});
    wire_peer before = {.kind = WIRE_CREDIT, .dial = 1}, after = {.kind = WIRE_CREDIT, .dial = 2};
    say(&old, &before, NULL, 0, -1);
    while (mesh_advance(r->member[0].m)) {}
    say(&next, &after, NULL, 0, -1);
    while (mesh_advance(r->member[0].m)) {}
    say(&old, &before, NULL, 0, -1);
    transport_close(old.t, 1000);
    while (mesh_advance(r->member[0].m)) {}
    assert_int_equal(r->member[0].m->n_suspects, 0);
    transport_close(next.t, 1000);
    while (mesh_advance(r->member[0].m)) {}
    assert_int_equal(r->member[0].m->n_suspects, 1); /* the end of that one is what matters */
    rig_close(r);
}

static void messages_of_a_lost_rank_fail(void **unused)
{
    (void)unused;
    static float sent[100000], come[10];
    rig *r            = rig_open(2, schemes[0]);
    mesh_message *out = post_send(r, 0, 1, 1, sent, 100000);
    mesh_message *in  = post_recv(r, 0, 1, 1, come, 10), *again;
    mesh_lost(r->member[0].m, 1);
    assert_int_equal(wait_for(r, out).status, PEN_PEER_LOST);
    assert_int_equal(wait_for(r, in).status, PEN_PEER_LOST);
    pen_error why;
    assert_int_equal(mesh_send(r->member[0].team, 1, 1, sent, 1, PEN_F32, "", &again, &why),
                     PEN_PEER_LOST);
    assert_int_equal(mesh_recv(r->member[0].team, 1, 1, come, 1, PEN_F32, "", &again, &why),
                     PEN_PEER_LOST);
    rig_close(r);
}

/* A member that only received has never dialled, and dials to say goodbye. */
static void a_silent_member_can_leave_in_order_too(void **unused)
{
    (void)unused;
    static float sent[100000], come[10];
    rig *r            = rig_open(2, schemes[1]);
    mesh_message *out = post_send(r, 0, 1, 1, sent, 10);
    expect_letter(r, post_recv(r, 1, 0, 1, come, 10), 0, 1, 10);
    expect_letter(r, out, 1, 1, 10);
    out = post_send(r, 0, 1, 2, sent, 100000); /* no receive is posted for it */
    mesh_destroy(r->member[1].m, 500);
    r->member[1].m       = NULL;
    mesh_result result   = {0};
    const uint64_t until = clock_ms(&clock_real) + PATIENCE_MS;
    while (!mesh_test(out, &result) && clock_ms(&clock_real) < until) mesh_advance(r->member[0].m);
    assert_int_equal(result.status, PEN_PEER_LOST);
    assert_string_equal(result.why.text, "send 'mail': rank 1: it has left the job");
    rig_close(r);
}

static void a_received_message_counts_as_sent_although_its_receiver_leaves_at_once(void **unused)
{
    (void)unused;
    enum { COUNT = 10000 }; /* lent to the transport, not copied */
    static float sent[COUNT], come[COUNT];
    for (int round = 0; round < 40; round++) {
        rig *r            = rig_open(2, schemes[1]);
        mesh_message *out = post_send(r, 0, 1, 1, sent, COUNT);
        expect_letter(r, post_recv(r, 1, 0, 1, come, COUNT), 0, 1, COUNT);
        mesh_destroy(r->member[1].m, 500);
        r->member[1].m = NULL;
        if (round % 2 == 1) usleep(2000); /* all events have arrived before the sender runs */
        mesh_result result   = {0};
        const uint64_t until = clock_ms(&clock_real) + PATIENCE_MS;
        while (!mesh_test(out, &result) && clock_ms(&clock_real) < until)
            mesh_advance(r->member[0].m);
        if (result.status != PEN_OK) fail_msg("round %d: %s", round, result.why.text);
        rig_close(r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_aborted_call_leaves_inputs_intact_and_returns_buffers),
        cmocka_unit_test(a_member_that_dies_in_a_call_is_named),
        cmocka_unit_test(a_rank_that_leaves_after_its_last_call_fails_no_other),
        cmocka_unit_test(a_call_with_a_rank_that_has_left_names_it),
        cmocka_unit_test(a_connection_closed_on_purpose_is_not_a_loss),
        cmocka_unit_test(late_messages_of_a_replaced_connection_do_not_make_its_end_a_loss),
        cmocka_unit_test(messages_of_a_lost_rank_fail),
        cmocka_unit_test(a_silent_member_can_leave_in_order_too),
        cmocka_unit_test(a_received_message_counts_as_sent_although_its_receiver_leaves_at_once),
    };
    alarm(400);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
