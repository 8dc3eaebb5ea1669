/* coll_examples_test.c - the examples of the founding articles with their printed values, on every
 * path.
 *
 * C1 to C4 are point to point, D1 to D19 collectives.  All examples of one number of ranks run in
 * one job, one after the other, as in a program; each is a test of its own.
 */
#include "coll_paths.h"

#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>
#include <unistd.h>

enum { RANKS = 4, EXAMPLES = 32, LIMIT_S = 400 };

/* One member's report on one example on one path. */
typedef struct {
    bool has_run;
    char complaint[COMPLAINT_BYTES];
} remark;

static struct board {
    remark remarks[COLL_TEST_PATHS][EXAMPLES][RANKS];
    int code[COLL_TEST_PATHS][RANKS + 1];
} * board;

#define FLOATS(at, ...)                                                                            \
    HOLDS(memcmp(at, ((const float[]){__VA_ARGS__}), sizeof((const float[]){__VA_ARGS__})) == 0)
#define LONGS(at, ...)                                                                             \
    HOLDS(memcmp(at, ((const int64_t[]){__VA_ARGS__}), sizeof((const int64_t[]){__VA_ARGS__})) == 0)

/* ---- C: point to point ----------------------------------------------------------------------- */
static const char *c1_send_and_receive(pen_group *g)
{
    float x = pen_rank(g) == 0 ? 1.0f : 0.0f;
    if (pen_rank(g) == 0)
        DO(pen_send(g, &x, 1, PEN_F32, 1, 0, NULL, NULL));
    else
        DO(pen_recv(g, &x, 1, PEN_F32, 0, 0, NULL, NULL));
    FLOATS(&x, 1.0f);
    return NULL;
}

static const char *c2_send_and_receive_without_waiting(pen_group *g)
{
    float x             = pen_rank(g) == 0 ? 1.0f : 0.0f;
    char lines[3][40]   = {{0}};
    const char *started = pen_rank(g) == 0 ? "Rank 0 started sending" : "Rank 1 started receiving";
    pen_req req;
    if (pen_rank(g) == 0)
        DO(pen_send(g, &x, 1, PEN_F32, 1, 0, NULL, &req));
    else
        DO(pen_recv(g, &x, 1, PEN_F32, 0, 0, NULL, &req));
    snprintf(lines[0], sizeof lines[0], "%s", started);
    DO(pen_wait(&req, NULL));
    snprintf(lines[1], sizeof lines[1], "Rank %d has data [%.0f.]", pen_rank(g), (double)x);
    HOLDS(strcmp(lines[0], started) == 0);
    HOLDS(strcmp(lines[1], pen_rank(g) == 0 ? "Rank 0 has data [1.]" : "Rank 1 has data [1.]") ==
          0);
    return NULL;
}

/* The receives are posted first, and are waited for in another order. */
static const char *c2_sixty_four_outstanding(pen_group *g)
{
    enum { MANY = 64 };
    float x[MANY];
    pen_req req[MANY];
    int peer = 1 - pen_rank(g);
    for (int i = 0; i < MANY; i++) {
        x[i] = pen_rank(g) == 0 ? (float)i : -1.0f;
        if (pen_rank(g) == 0)
            DO(pen_send(g, &x[i], 1, PEN_F32, peer, i, NULL, &req[i]));
        else
            DO(pen_recv(g, &x[i], 1, PEN_F32, peer, i, NULL, &req[i]));
    }
    for (int i = 0; i < MANY; i++) {
        int which         = (i * 37 + 5) % MANY;
        pen_result result = {0};
        DO(pen_wait(&req[which], &result));
        HOLDS(x[which] == (float)which);
        if (pen_rank(g) == 0) continue;
        HOLDS(result.source == 0 && result.tag == which && result.count == 1);
    }
    return NULL;
}

static const char *c3_after_the_wait_the_buffer_is_the_callers(pen_group *g)
{
    enum { N = 100000 };
    static float x[N];
    pen_req req;
    for (int i = 0; i < N; i++) x[i] = pen_rank(g) == 0 ? (float)i : -1.0f;
    if (pen_rank(g) == 0)
        DO(pen_send(g, x, N, PEN_F32, 1, 3, NULL, &req));
    else
        DO(pen_recv(g, x, N, PEN_F32, 0, 3, NULL, &req));
    DO(pen_wait(&req, NULL));
    if (pen_rank(g) == 0) memset(x, 0xff, sizeof x);
    DO(pen_barrier(g, NULL, NULL));
    for (int i = 0; i < N && pen_rank(g) == 1; i++) HOLDS(x[i] == (float)i);
    return NULL;
}

static const char *c4_messages_and_collectives_side_by_side(pen_group *g)
{
    int64_t mine = 10 + pen_rank(g), theirs = 0, sum = 0;
    pen_req req[2];
    DO(pen_recv(g, &theirs, 1, PEN_I64, 1 - pen_rank(g), PEN_ANY, NULL, &req[0]));
    DO(pen_all_reduce(g, &mine, &sum, 1, PEN_I64, PEN_SUM, NULL, NULL));
    DO(pen_send(g, &mine, 1, PEN_I64, 1 - pen_rank(g), 9, NULL, &req[1]));
    DO(pen_barrier(g, NULL, NULL));
    pen_result result = {0};
    DO(pen_wait(&req[0], &result));
    DO(pen_wait(&req[1], NULL));
    HOLDS(sum == 21 && theirs == 11 - pen_rank(g) && result.tag == 9);
    return NULL;
}

/* ---- D: collectives -------------------------------------------------------------------------- */
static const char *d1_broadcast_of_one(pen_group *g)
{
    float x = pen_rank(g) == 0 ? 1.0f : 0.0f;
    DO(pen_broadcast(g, &x, 1, PEN_F32, 0, NULL, NULL));
    FLOATS(&x, 1.0f);
    return NULL;
}

static const char *d2_broadcast_of_the_rank(pen_group *g)
{
    int64_t x = pen_rank(g);
    DO(pen_broadcast(g, &x, 1, PEN_I64, 0, NULL, NULL));
    LONGS(&x, 0);
    return NULL;
}

static const char *d3_reduce_to_rank_1(pen_group *g)
{
    float x = 1.0f;
    DO(pen_reduce(g, &x, &x, 1, PEN_F32, PEN_SUM, 1, NULL, NULL));
    FLOATS(&x, pen_rank(g) == 1 ? 2.0f : 1.0f);
    return NULL;
}

static const char *d4_reduce_of_the_rank_leaves_the_others_as_they_were(pen_group *g)
{
    int64_t x = pen_rank(g);
    DO(pen_reduce(g, &x, &x, 1, PEN_I64, PEN_SUM, 0, NULL, NULL));
    LONGS(&x, pen_rank(g) == 0 ? 6 : pen_rank(g));
    return NULL;
}

static const char *d5_all_reduce_of_ones(pen_group *g)
{
    float x = 1.0f;
    DO(pen_all_reduce(g, &x, &x, 1, PEN_F32, PEN_SUM, NULL, NULL));
    FLOATS(&x, 2.0f);
    return NULL;
}

static const char *d6_all_reduce_of_the_rank(pen_group *g)
{
    int64_t x = pen_rank(g);
    DO(pen_all_reduce(g, &x, &x, 1, PEN_I64, (pen_op){0}, NULL, NULL));
    LONGS(&x, 6);
    return NULL;
}

static const char *d7_all_reduce_is_reduce_and_broadcast(pen_group *g)
{
    enum { N = 1000 };
    float in[N], at_once[N], in_two[N];
    for (int i = 0; i < N; i++) in[i] = 1.0f / (float)(i + 7 * pen_rank(g) + 1);
    DO(pen_all_reduce(g, in, at_once, N, PEN_F32, PEN_SUM, NULL, NULL));
    DO(pen_reduce(g, in, in_two, N, PEN_F32, PEN_SUM, 2, NULL, NULL));
    DO(pen_broadcast(g, in_two, N, PEN_F32, 2, NULL, NULL));
    HOLDS(memcmp(at_once, in_two, sizeof at_once) == 0);
    return NULL;
}

static const char *d8_gather_to_rank_1(pen_group *g)
{
    float x = (float)pen_rank(g), all[2] = {-1, -1};
    DO(pen_gather(g, &x, 1, all, NULL, PEN_F32, 1, NULL, NULL));
    if (pen_rank(g) == 1)
        FLOATS(all, 0.0f, 1.0f);
    else
        FLOATS(all, -1.0f, -1.0f);
    return NULL;
}

static const char *d9_gather_without_a_list_elsewhere(pen_group *g)
{
    float x = (float)pen_rank(g), all[2] = {-1, -1};
    DO(pen_gather(g, &x, 1, pen_rank(g) == 0 ? all : NULL, NULL, PEN_F32, 0, NULL, NULL));
    if (pen_rank(g) == 0) FLOATS(all, 0.0f, 1.0f);
    return NULL;
}

static const char *d10_all_gather_of_floats(pen_group *g)
{
    float x = (float)pen_rank(g), all[2] = {-1, -1};
    DO(pen_all_gather(g, &x, 1, all, NULL, PEN_F32, NULL, NULL));
    FLOATS(all, 0.0f, 1.0f);
    return NULL;
}

static const char *d11_all_gather_of_integers(pen_group *g)
{
    int64_t x = pen_rank(g), all[2] = {-1, -1};
    DO(pen_all_gather(g, &x, 1, all, NULL, PEN_I64, NULL, NULL));
    LONGS(all, 0, 1);
    return NULL;
}

static const char *d12_all_gather_is_gather_and_broadcast(pen_group *g)
{
    enum { N = 321 };
    double in[N], at_once[RANKS * N], in_two[RANKS * N];
    for (int i = 0; i < N; i++) in[i] = 1.0 / (i + 1 + pen_rank(g));
    DO(pen_all_gather(g, in, N, at_once, NULL, PEN_F64, NULL, NULL));
    DO(pen_gather(g, in, N, in_two, NULL, PEN_F64, 3, NULL, NULL));
    DO(pen_broadcast(g, in_two, RANKS * N, PEN_F64, 3, NULL, NULL));
    HOLDS(memcmp(at_once, in_two, sizeof at_once) == 0);
    return NULL;
}

static const char *d13_scatter_of_a_list(pen_group *g)
{
    const float list[2] = {1.0f, 2.0f};
    float x             = 0.0f;
    DO(pen_scatter(g, pen_rank(g) == 0 ? list : NULL, NULL, &x, 1, PEN_F32, 0, NULL, NULL));
    FLOATS(&x, pen_rank(g) == 0 ? 1.0f : 2.0f);
    return NULL;
}

static const char *d14_scatter_reaches_the_root_too(pen_group *g)
{
    const int64_t list[4] = {1, 1, 5, 5};
    int64_t x[2]          = {0, 0};
    DO(pen_scatter(g, list, NULL, x, 2, PEN_I64, 0, NULL, NULL));
    if (pen_rank(g) == 0)
        LONGS(x, 1, 1);
    else
        LONGS(x, 5, 5);
    return NULL;
}

/* In a group of its own, because that group is not usable afterwards. */
static const char *d14_scatter_of_different_sizes_is_refused(pen_group *g)
{
    const int64_t list[6] = {1, 1, 5, 5};
    int64_t x[3]          = {0, 0, 0};
    const int ranks[]     = {0, 1};
    pen_group *own        = NULL;
    pen_error error       = {0};
    DO(pen_group_new(g, ranks, 2, &own));
    size_t n          = pen_rank(g) == 0 ? 2 : 3;
    const pen_opts o  = {.label = "labels"};
    pen_status status = pen_scatter(own, list, NULL, x, n, PEN_I64, 0, &o, NULL);
    (void)pen_last_error(&error);
    HOLDS(status == PEN_MISMATCH && error.status == PEN_MISMATCH);
    HOLDS(strstr(error.text, "scatter") && strstr(error.text, "labels"));
    HOLDS(strstr(error.text, "rank 0") && strstr(error.text, "rank 1"));
    HOLDS(list[0] == 1 && list[1] == 1 && list[2] == 5 && list[3] == 5);
    pen_group_free(own);
    char both[2][sizeof error.text];
    DO(pen_all_gather(g, error.text, sizeof error.text, both, NULL, PEN_U8, NULL, NULL));
    HOLDS(strcmp(both[0], both[1]) == 0);
    return NULL;
}

static const char *d15_reduce_scatter_of_floats(pen_group *g)
{
    const float list[2] = {0.0f, 1.0f};
    float x             = -1.0f;
    DO(pen_reduce_scatter(g, list, NULL, &x, 1, PEN_F32, PEN_SUM, NULL, NULL));
    FLOATS(&x, pen_rank(g) == 0 ? 0.0f : 2.0f);
    return NULL;
}

static const char *d16_reduce_scatter_of_integers(pen_group *g)
{
    const int64_t list[2] = {pen_rank(g) * 2 + 1, pen_rank(g) * 2 + 2};
    int64_t x             = -1;
    DO(pen_reduce_scatter(g, list, NULL, &x, 1, PEN_I64, PEN_SUM, NULL, NULL));
    LONGS(&x, pen_rank(g) == 0 ? 4 : 6);
    return NULL;
}

static const char *d17_reduce_scatter_is_a_sum_that_is_split(pen_group *g)
{
    const float list[4] = {0, 1, 2, 3};
    float x = -1.0f, all[4] = {0};
    DO(pen_reduce_scatter(g, list, NULL, &x, 1, PEN_F32, PEN_SUM, NULL, NULL));
    FLOATS(&x, 4.0f * (float)pen_rank(g));
    DO(pen_all_gather(g, &x, 1, all, NULL, PEN_F32, NULL, NULL));
    FLOATS(all, 0.0f, 4.0f, 8.0f, 12.0f);
    return NULL;
}

static const char *d18_all_to_all(pen_group *g)
{
    int64_t in[4], out[4];
    for (int to = 0; to < 4; to++) in[to] = 10 * pen_rank(g) + to;
    DO(pen_all_to_all(g, in, NULL, out, NULL, 1, PEN_I64, NULL, NULL));
    int64_t r = pen_rank(g);
    LONGS(out, r, 10 + r, 20 + r, 30 + r);
    return NULL;
}

/* Member i has i + j elements, of value 10 i + j, for member j. */
static const char *d18_all_to_all_of_different_counts(pen_group *g)
{
    int64_t in[18], out[18]; /* of member 3 */
    size_t in_counts[4], out_counts[4], n = 0;
    int r = pen_rank(g);
    for (int j = 0; j < 4; j++) {
        in_counts[j] = out_counts[j] = (size_t)(r + j);
        for (int k = 0; k < r + j; k++) in[n++] = 10 * r + j;
    }
    DO(pen_all_to_all(g, in, in_counts, out, out_counts, 0, PEN_I64, NULL, NULL));
    n = 0;
    for (int j = 0; j < 4; j++)
        for (int k = 0; k < r + j; k++) HOLDS(out[n++] == 10 * j + r);
    return NULL;
}

static const char *broadcast_one_object(pen_group *g, size_t size, int root)
{
    unsigned char *own = malloc(size + 1);
    HOLDS(own != NULL);
    for (size_t i = 0; i < size; i++) own[i] = (unsigned char)(i % 251 * (i % 3)); /* many are 0 */
    pen_bytes io = pen_rank(g) == root ? (pen_bytes){own, size} : (pen_bytes){NULL, 77};
    DO(pen_broadcast_bytes(g, &io, root, NULL));
    HOLDS(io.size == size && (size == 0 || memcmp(io.data, own, size) == 0));
    HOLDS(pen_rank(g) != root || io.data == own);
    if (pen_rank(g) != root) pen_free(io.data);
    free(own);
    return NULL;
}

static const char *d19_broadcast_of_objects(pen_group *g)
{
    static const size_t sizes[] = {0, 1, 17, 5 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const char *wrong = broadcast_one_object(g, sizes[i], (int)i % pen_size(g));
        if (wrong) return wrong;
    }
    return NULL;
}

/* D22. */
static const char *d22_gather_undoes_scatter(pen_group *g)
{
    enum { N = 55 };
    float whole[RANKS * N], part[N], again[RANKS * N] = {0};
    for (int i = 0; i < RANKS * N; i++) whole[i] = (float)i * 0.1f;
    DO(pen_scatter(g, whole, NULL, part, N, PEN_F32, 1, NULL, NULL));
    DO(pen_gather(g, part, N, again, NULL, PEN_F32, 1, NULL, NULL));
    if (pen_rank(g) == 1) HOLDS(memcmp(whole, again, sizeof whole) == 0);
    return NULL;
}

/* ---- all of them ----------------------------------------------------------------------------- */
typedef struct {
    const char *name;
    int ranks;
    const char *(*member)(pen_group *g);
} example;

#define EXAMPLE(ranks, function)                                                                   \
    {                                                                                              \
#function, ranks, function                                                                 \
    }

static const example examples[] = {
    EXAMPLE(2, c1_send_and_receive),
    EXAMPLE(2, c2_send_and_receive_without_waiting),
    EXAMPLE(2, c2_sixty_four_outstanding),
    EXAMPLE(2, c3_after_the_wait_the_buffer_is_the_callers),
    EXAMPLE(2, c4_messages_and_collectives_side_by_side),
    EXAMPLE(2, d1_broadcast_of_one),
    EXAMPLE(4, d2_broadcast_of_the_rank),
    EXAMPLE(2, d3_reduce_to_rank_1),
    EXAMPLE(4, d4_reduce_of_the_rank_leaves_the_others_as_they_were),
    EXAMPLE(2, d5_all_reduce_of_ones),
    EXAMPLE(4, d6_all_reduce_of_the_rank),
    EXAMPLE(4, d7_all_reduce_is_reduce_and_broadcast),
    EXAMPLE(2, d8_gather_to_rank_1),
    EXAMPLE(2, d9_gather_without_a_list_elsewhere),
    EXAMPLE(2, d10_all_gather_of_floats),
    EXAMPLE(2, d11_all_gather_of_integers),
    EXAMPLE(4, d12_all_gather_is_gather_and_broadcast),
    EXAMPLE(2, d13_scatter_of_a_list),
    EXAMPLE(2, d14_scatter_reaches_the_root_too),
    EXAMPLE(2, d14_scatter_of_different_sizes_is_refused),
    EXAMPLE(2, d15_reduce_scatter_of_floats),
    EXAMPLE(2, d16_reduce_scatter_of_integers),
    EXAMPLE(4, d17_reduce_scatter_is_a_sum_that_is_split),
    EXAMPLE(4, d18_all_to_all),
    EXAMPLE(4, d18_all_to_all_of_different_counts),
    EXAMPLE(4, d19_broadcast_of_objects),
    EXAMPLE(4, d22_gather_undoes_scatter),
};
enum { N_EXAMPLES = sizeof examples / sizeof *examples };
_Static_assert((int)N_EXAMPLES <= (int)EXAMPLES, "the board has room for all");

static int member(pen_ctx *ctx, void *arg)
{
    const coll_test_path *path = arg;
    pen_group *g               = pen_world(ctx);
    for (int i = 0; i < N_EXAMPLES; i++) {
        if (examples[i].ranks != pen_size(g)) continue;
        remark *r         = &board->remarks[path - coll_test_paths][i][pen_rank(g)];
        const char *wrong = examples[i].member(g);
        r->has_run        = true;
        if (wrong) snprintf(r->complaint, sizeof r->complaint, "%s", wrong);
    }
    return 0;
}

static int run_all(void **state)
{
    (void)state;
    board = shared_board(sizeof *board);
    if (!board) return -1;
    EACH_PATH(path)
    for (int n = 2; n <= RANKS; n += 2)
        if (n >= path->ranks_min)
            board->code[path - coll_test_paths][n] = spawn_on(path, n, member, (void *)path);
    return 0;
}

static void prints_the_values_of_the_article(void **state)
{
    const example *e = *state;
    EACH_PATH(path)
    for (int r = 0; r < e->ranks && e->ranks >= path->ranks_min; r++) {
        const remark *said = &board->remarks[path - coll_test_paths][e - examples][r];
        if (said->complaint[0]) fail_msg("%s, rank %d: %s", path->name, r, said->complaint);
        if (!said->has_run)
            fail_msg("%s, rank %d never came so far; pen_spawn said %d", path->name, r,
                     board->code[path - coll_test_paths][e->ranks]);
    }
}

static void every_job_ended_well(void **state)
{
    (void)state;
    EACH_PATH(path)
    for (int n = 2; n <= RANKS; n += 2) assert_int_equal(board->code[path - coll_test_paths][n], 0);
}

int main(void)
{
    struct CMUnitTest tests[N_EXAMPLES + 1] = {{0}};
    for (int i = 0; i < N_EXAMPLES; i++)
        tests[i] = (struct CMUnitTest){.name          = examples[i].name,
                                       .test_func     = prints_the_values_of_the_article,
                                       .initial_state = (void *)&examples[i]};
    tests[N_EXAMPLES] = (struct CMUnitTest)cmocka_unit_test(every_job_ended_well);
    alarm(LIMIT_S);
    return cmocka_run_group_tests(tests, run_all, NULL);
}
