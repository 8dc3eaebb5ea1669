/* mesh_p2p_test.c - many meshes in one process: messages between two members. */
#include "mesh_rig.h"

#include <unistd.h>

/* ---- messages -------------------------------------------------------------------------------------- */
static void messages_match_by_sender_and_tag_in_the_order_sent(void **unused)
{
    (void)unused;
    for (size_t s = 0; s < 2; s++) {
        rig *r = rig_open(3, schemes[s]);
        float sent[6], come[6] = {0};
        mesh_message *out[6];
        for (int i = 0; i < 6; i++) sent[i] = (float)i;
        for (int i = 0; i < 6; i++) out[i] = post_send(r, i % 2, 2, i / 2, &sent[i], 1);
        for (int i = 0; i < 6; i++) wait_for(r, out[i]);
        expect_letter(r, post_recv(r, 2, 1, 1, &come[3], 1), 1, 1, 1);
        expect_letter(r, post_recv(r, 2, 0, PEN_ANY, &come[0], 1), 0, 0, 1);
        expect_letter(r, post_recv(r, 2, 0, 2, &come[4], 1), 0, 2, 1);
        expect_letter(r, post_recv(r, 2, 0, PEN_ANY, &come[2], 1), 0, 1, 1);
        expect_letter(r, post_recv(r, 2, PEN_ANY, PEN_ANY, &come[1], 1), 1, 0, 1);
        expect_letter(r, post_recv(r, 2, PEN_ANY, PEN_ANY, &come[5], 1), 1, 2, 1);
        for (int i = 0; i < 6; i++) assert_true(come[i] == (float)i);
        rig_close(r);
    }
}

static void many_messages_keep_their_order_also_beyond_the_budget(void **unused)
{
    (void)unused;
    enum { N = 1500, EACH = 500 };
    static float sent[N][EACH], come[EACH];
    static mesh_message *out[N];
    rig *r = rig_open_with(2, &(rig_options){.scheme = schemes[1], .park = 1 << 20});
    for (int i = 0; i < N; i++) {
        sent[i][0] = (float)i;
        out[i]     = post_send(r, 0, 1, 4, sent[i], i % 7 == 0 ? 0 : EACH);
    }
    for (int i = 0; i < 100; i++) mesh_advance(r->member[1].m);
    for (int i = 0; i < N; i++) {
        expect_letter(r, post_recv(r, 1, 0, 4, come, EACH), 0, 4, i % 7 == 0 ? 0 : EACH);
        if (i % 7 != 0) assert_true(come[0] == (float)i);
    }
    for (int i = 0; i < N; i++) expect_letter(r, out[i], 1, 4, i % 7 == 0 ? 0 : EACH);
    assert_int_equal(stat_get(&r->member[1].stats, STAT_REFUSED), 0);
    rig_close(r);
}

/* With rendezvous alone, two sends that each wait for the other's receive would never end. */
static void large_messages_in_a_circle_all_arrive(void **unused)
{
    enum { N = 4, COUNT = 1000003 };
    (void)unused;
    for (size_t s = 0; s < 2; s++) {
        rig *r = rig_open_with(N, &(rig_options){.scheme = schemes[s], .lanes = 2});
        float *sent[N], *come[N];
        mesh_message *out[N], *in[N];
        for (int i = 0; i < N; i++) {
            sent[i] = malloc(COUNT * sizeof(float));
            come[i] = calloc(COUNT, sizeof(float));
            for (size_t k = 0; k < COUNT; k++) sent[i][k] = (float)(k % 1000) + (float)i;
            out[i] = post_send(r, i, (i + 1) % N, 9, sent[i], COUNT);
        }
        for (int i = 0; i < N; i++) in[i] = post_recv(r, i, (i + N - 1) % N, 9, come[i], COUNT);
        for (int i = 0; i < N; i++) expect_letter(r, in[i], (i + N - 1) % N, 9, COUNT);
        for (int i = 0; i < N; i++) expect_letter(r, out[i], (i + 1) % N, 9, COUNT);
        for (int i = 0; i < N; i++)
            assert_memory_equal(come[(i + 1) % N], sent[i], COUNT * sizeof(float));
        for (int i = 0; i < N; i++) {
            free(sent[i]);
            free(come[i]);
        }
        rig_close(r);
    }
}

static void a_message_too_large_for_a_receive_stays_for_a_larger_one(void **unused)
{
    (void)unused;
    static float sent[100000], come[100000];
    static const size_t sizes[] = {10, 100000};
    rig *r                      = rig_open(2, schemes[0]);
    for (int i = 0; i < 4; i++) {
        const size_t n     = sizes[i / 2];
        const int to       = i % 2; /* also to itself */
        mesh_message *out  = post_send(r, 0, to, 1, sent, n);
        mesh_result result = wait_for(r, post_recv(r, to, 0, 1, come, n - 1));
        assert_int_equal(result.status, PEN_TOO_SMALL);
        assert_int_equal(result.count, n);
        assert_non_null(strstr(result.why.text, "room for"));
        mesh_message *in;
        pen_error why;
        must(mesh_recv(r->member[to].team, 0, 1, come, n, PEN_I32, "mail", &in, &why), &why);
        assert_int_equal(wait_for(r, in).status, PEN_MISMATCH);
        for (size_t k = 0; k < n; k++) sent[k] = (float)(k + (size_t)i);
        expect_letter(r, post_recv(r, to, 0, 1, come, n), 0, 1, n);
        expect_letter(r, out, to, 1, n);
        if (to == 0 || n > 50000) assert_memory_equal(sent, come, n * sizeof(float));
    }
    rig_close(r);
}

static void a_cancelled_message_writes_no_memory(void **unused)
{
    (void)unused;
    enum { COUNT = 10 << 20 }; /* more than is sent before the receiver requests more */
    rig *r      = rig_open(2, schemes[1]);
    float *sent = calloc(COUNT, sizeof *sent), *come = calloc(COUNT, sizeof *come), one = 1, got;
    sent[0]              = 1;
    mesh_message *out    = post_send(r, 0, 1, 1, sent, COUNT);
    mesh_message *in     = post_recv(r, 1, 0, 1, come, COUNT);
    const uint64_t until = clock_ms(&clock_real) + PATIENCE_MS;
    while (come[0] == 0 && clock_ms(&clock_real) < until)
        for (int k = 0; k < 2; k++) mesh_advance(r->member[k].m);
    mesh_cancel(out);
    free(sent);
    assert_int_not_equal(wait_for(r, in).status, PEN_OK);
    mesh_cancel(post_recv(r, 1, 0, 1, come, COUNT));
    free(come);
    out = post_send(r, 0, 1, 2, &one, 1);
    expect_letter(r, post_recv(r, 1, 0, 2, &got, 1), 0, 2, 1);
    expect_letter(r, out, 1, 2, 1);
    rig_close(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_match_by_sender_and_tag_in_the_order_sent),
        cmocka_unit_test(many_messages_keep_their_order_also_beyond_the_budget),
        cmocka_unit_test(large_messages_in_a_circle_all_arrive),
        cmocka_unit_test(a_message_too_large_for_a_receive_stays_for_a_larger_one),
        cmocka_unit_test(a_cancelled_message_writes_no_memory),
    };
    alarm(400);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
