/* mesh_dial_test.c - when members dial each other, and when a mesh has work. */
#include "mesh_rig.h"

#include <poll.h>
#include <unistd.h>

/* ---- sleeping --------------------------------------------------------------------------------------- */
static void the_descriptor_is_readable_when_there_is_work(void **unused)
{
    (void)unused;
    for (size_t s = 0; s < 2; s++) {
        rig *r               = rig_open(2, schemes[s]);
        const uint64_t until = clock_ms(&clock_real) + PATIENCE_MS;
        const size_t count   = 1500000;
        float *data[2]       = {calloc(count, 4), calloc(count, 4)};
        r->seq               = 1;
        for (int i = 0; i < 2; i++)
            begin(r, i,
                  &(coll_call){.kind  = COLL_ALL_REDUCE,
                               .dtype = PEN_F32,
                               .n     = count,
                               .in    = data[i],
                               .out   = data[i],
                               .scale = 1,
                               .label = ""});
        while (r->member[0].state == COLL_RUNNING || r->member[1].state == COLL_RUNNING) {
            struct pollfd fd[2];
            for (int i = 0; i < 2; i++) {
                advance(r, i);
                fd[i] = (struct pollfd){.fd = mesh_poll_fd(r->member[i].m), .events = POLLIN};
            }
            if (r->member[0].state != COLL_RUNNING && r->member[1].state != COLL_RUNNING) break;
            if (poll(fd, 2, 5000) == 0) fail_msg("asleep for ever");
            assert_true(clock_ms(&clock_real) < until);
        }
        expect_done(r);
        free(data[0]);
        free(data[1]);
        rig_close(r);
    }
}

/* ---- dialling -------------------------------------------------------------------------------- */
static void members_of_a_group_are_dialled_before_its_first_call(void **unused)
{
    (void)unused;
    pen_error why;
    rig *r               = rig_open(3, "tcp://127.0.0.1:0");
    const uint64_t until = clock_ms(&clock_real) + PATIENCE_MS;
    for (int i = 0; i < 3; i++) {
        assert_true(mesh_is_linked(r->member[i].m)); /* nothing is needed yet */
        must(wire_team_dial(r->member[i].team, &why), &why);
        must(wire_team_dial(r->member[i].team, &why), &why);
        assert_false(mesh_is_linked(r->member[i].m));
    }
    for (int linked = 0; linked < 3;) {
        linked = 0;
        for (int i = 0; i < 3; i++) {
            mesh_advance(r->member[i].m);
            linked += mesh_is_linked(r->member[i].m);
        }
        assert_true(clock_ms(&clock_real) < until);
    }
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 3; k++) assert_int_equal(r->member[i].m->peer[k].link[0].is_up, i != k);
    rig_close(r);
}

/* No listener is at that address: a dial either starts or does not. */
static void count_dialled(int n, int self, bool *dialled)
{
    pen_error why;
    mesh *m;
    wire_team *team;
    stat_set stats                          = {0};
    uint64_t incarnation[MESH_DIAL_ALL * 2] = {0};
    const char *address[MESH_DIAL_ALL * 2];
    int ranks[MESH_DIAL_ALL * 2];
    const mesh_options options = {.listen         = "tcp://127.0.0.1:0",
                                  .lanes          = 1,
                                  .heartbeat_ms   = 2000,
                                  .park_bytes_max = PARK_BYTES,
                                  .stats          = &stats};
    for (int i = 0; i < n; i++) {
        incarnation[i] = 1000 + (uint64_t)i;
        address[i]     = "tcp://127.0.0.1:1";
        ranks[i]       = i;
    }
    must(mesh_create(&options, &m, &why), &why);
    must(mesh_set_peers(m, self, n, incarnation, address, NULL, 5, &why), &why);
    must(wire_team_create(m, GROUP, ranks, n, self, &team, &why), &why);
    must(wire_team_dial(team, &why), &why);
    for (int i = 0; i < n; i++) dialled[i] = m->peer[i].link[0].t != NULL;
    mesh_destroy(m, 0);
}

static bool is_power(int n)
{
    return (n & (n - 1)) == 0;
}

static void in_a_large_group_members_dial_those_at_powers_of_two_above(void **unused)
{
    (void)unused;
    enum { LARGE = MESH_DIAL_ALL + 36 };
    bool dialled[MESH_DIAL_ALL * 2], back[MESH_DIAL_ALL * 2];
    int count = 0;
    count_dialled(MESH_DIAL_ALL, 5, dialled);
    for (int i = 0; i < MESH_DIAL_ALL; i++) assert_int_equal(dialled[i], i != 5);
    count_dialled(LARGE, 0, dialled);
    for (int i = 0; i < LARGE; i++) count += dialled[i];
    assert_int_equal(count, 7); /* 1, 2, 4, ... 64 */
    for (int i = 1; i < LARGE; i++) assert_int_equal(dialled[i], is_power(i));
    for (int i = 1; i < LARGE; i += 33) {
        count_dialled(LARGE, i, back);
        assert_int_equal(back[0], is_power(LARGE - i));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_descriptor_is_readable_when_there_is_work),
        cmocka_unit_test(members_of_a_group_are_dialled_before_its_first_call),
        cmocka_unit_test(in_a_large_group_members_dial_those_at_powers_of_two_above),
    };
    alarm(400);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
