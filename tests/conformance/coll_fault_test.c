/* coll_fault_test.c - a member dies, stops, calls something else or sends a damaged frame, in every
 * collective, before it, between its steps and after it: every survivor returns in time, names the
 * culprit in the same words, still has its inputs, and continues without the culprit with the right
 * bits.
 *
 * Each case is a job of RANKS members, of which CULPRIT has the fault; several jobs run
 * at a time, because they mostly wait.  Faults strike inside a call through coll_fault_point.
 * A frame is damaged by one wrong checksum: this file's crc32c() replaces the
 * library's.
 */
#include "coll_paths.h"
#include "common/base/crc.h"
#include "worker/collective/coll.h"
#include "worker/collective/fault_point.h"

#include <setjmp.h>
#include <stddef.h>
#include <cmocka.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    RANKS       = 3,
    CULPRIT     = 1,
    N           = 40000,
    END         = 1000, /* the point after the call */
    LIMIT_S     = 400,
    JOB_LIMIT_S = 60,
    SLACK_MS    = 2500 /* extra time of a loaded machine beyond a deadline */
};

/* JOBS at a time, of every EVERYth case: a sanitizer makes it several times slower. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { JOBS = 3, EVERY = 5, LEASE_MS = 4000, DEADLINE_MS = 8000 };
#else
enum { JOBS = 8, EVERY = 1, LEASE_MS = 2000, DEADLINE_MS = 4000 };
#endif

typedef enum { KILLED, STOPPED, DIFFERS, DAMAGED } fault;

/* Where an all_reduce has its buffers.  GIVEN_UP: in place with PEN_OVERWRITE. */
typedef enum { APART, IN_PLACE, GIVEN_UP } placing;

typedef struct {
    const coll_test_path *path;
    fault fault;
    coll_kind kind;
    int point; /* the step before which it strikes, or END */
    size_t n;
    placing placing;
    bool is_registered;
} fault_case;

/* Shared by all members of one job. */
typedef struct {
    pid_t culprit;
    bool has_ended[RANKS];
    char complaint[RANKS][COMPLAINT_BYTES];
    char sentence[RANKS][640];
    int code;
} job_board;

/* ---- striking -------------------------------------------------------------------------------- */
static const fault_case *now; /* in this process, if it is a culprit whose call goes on */
static job_board *board;
enum { ALL = RANKS * (N + 1) }; /* a different call is one longer */
static float foreign[ALL], output[ALL];
static float *input = foreign;
static placing placed; /* of all_reduce in this process */
static _Thread_local bool damage_next;

static void strike(void)
{
    fault f = now->fault;
    now     = NULL; /* once */
    if (f == DAMAGED)
        damage_next = true;
    else
        (void)raise(f == KILLED ? SIGKILL : SIGSTOP);
}

static void at_step(const char *path, uint64_t seq, int step)
{
    (void)path, (void)seq;
    if (now && step == now->point && now->fault != DIFFERS) strike();
}

static bool is_ours(const void *data)
{
    uintptr_t at = (uintptr_t)data;
    return (at >= (uintptr_t)input && at < (uintptr_t)(input + ALL)) ||
           (at >= (uintptr_t)output && at < (uintptr_t)output + sizeof output);
}

static uint32_t table[256]; /* CRC-32C of one byte */

static void fill_table(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int k = 0; k < 8; k++) c = c & 1 ? c >> 1 ^ 0x82f63b78u : c >> 1;
        table[i] = c;
    }
}

/* Wrong once, for a frame that this process sends after the fault has struck. */
uint32_t crc32c(uint32_t crc, const void *data, size_t size)
{
    const unsigned char *at = data;
    uint32_t c              = ~crc;
    for (size_t i = 0; i < size; i++) c = table[(c ^ at[i]) & 255] ^ c >> 8;
    if (damage_next && size > 0 && is_ours(data)) {
        damage_next = false;
        return c;
    }
    return ~c;
}

/* ---- one call -------------------------------------------------------------------------------- */
static float value(int rank, size_t i)
{
    return 1.0f / (float)(1 + i % 977 + 13 * (size_t)rank);
}

/* Broadcast and scatter: the culprit is the sender. */
static int root_of(coll_kind kind)
{
    return kind == COLL_BROADCAST || kind == COLL_SCATTER ? CULPRIT : 0;
}

static pen_status call(pen_group *g, coll_kind kind, size_t n)
{
    const pen_opts o = {.label = "grad", .flags = placed == GIVEN_UP ? PEN_OVERWRITE : 0};
    float *sum       = placed == APART ? output : input;
    int root         = root_of(kind);
    switch (kind) {
    case COLL_BARRIER: return pen_barrier(g, &o, NULL);
    case COLL_BROADCAST:
        return pen_broadcast(g, pen_rank(g) == root ? input : output, n, PEN_F32, root, &o, NULL);
    case COLL_REDUCE: return pen_reduce(g, input, output, n, PEN_F32, PEN_SUM, root, &o, NULL);
    case COLL_ALL_REDUCE: return pen_all_reduce(g, input, sum, n, PEN_F32, PEN_SUM, &o, NULL);
    case COLL_GATHER: return pen_gather(g, input, n, output, NULL, PEN_F32, root, &o, NULL);
    case COLL_ALL_GATHER: return pen_all_gather(g, input, n, output, NULL, PEN_F32, &o, NULL);
    case COLL_SCATTER: return pen_scatter(g, input, NULL, output, n, PEN_F32, root, &o, NULL);
    case COLL_REDUCE_SCATTER:
        return pen_reduce_scatter(g, input, NULL, output, n, PEN_F32, PEN_SUM, &o, NULL);
    default: return pen_all_to_all(g, input, NULL, output, NULL, n, PEN_F32, &o, NULL);
    }
}

/* A call that differs from the others'. */
static pen_status other_call(pen_group *g, coll_kind kind, size_t n)
{
    return kind == COLL_BARRIER ? call(g, COLL_ALL_REDUCE, n) : call(g, kind, n + 1);
}

static uint64_t now_ms(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static void write_input(int rank)
{
    for (size_t i = 0; i < RANKS * (size_t)(N + 1); i++) input[i] = value(rank, i);
}

static const char *inputs_are_intact(int rank)
{
    for (size_t i = 0; i < RANKS * (size_t)(N + 1); i++)
        if (input[i] != value(rank, i)) return complaint("input %zu changed", i);
    return NULL;
}

/* ---- a member -------------------------------------------------------------------------------- */
static const char *is_blamed(const fault_case *c, const pen_error *e)
{
    pen_status s = e->status;
    bool is_fit  = c->fault == DIFFERS   ? s == PEN_MISMATCH
                   : c->fault == DAMAGED ? s == PEN_CORRUPT
                                         : s == PEN_PEER_LOST || s == PEN_TIMED_OUT;
    if (!is_fit) return complaint("%s: %s", pen_status_info(s)->name, e->text);
    if (e->rank != CULPRIT) return complaint("names rank %d: %s", e->rank, e->text);
    if (!strstr(e->text, "rank 1") && !strstr(e->text, "worker 1"))
        return complaint("does not name rank 1: %s", e->text);
    return NULL;
}

/* Also in place, unless the promise was given up, or the call has ended well: then the input is the result. */
static const char *inputs_are_kept(const fault_case *c, int rank, bool is_done)
{
    if (c->placing == GIVEN_UP || (c->placing == IN_PLACE && is_done)) return NULL;
    return inputs_are_intact(rank);
}

/* The call, and if it succeeds before the fault shows, barriers until it shows.  It may show in
 * the barrier before, if the culprit's last message is in its socket but not sent. */
static const char *fails_in_time(const fault_case *c, pen_group *g, pen_status status, pen_error *e,
                                 bool *has_failed, bool *is_done)
{
    for (int i = 0; i < 3 && status == PEN_OK; i++) {
        uint64_t begun = now_ms();
        status         = i == 0 ? call(g, c->kind, c->n) : pen_barrier(g, NULL, NULL);
        *is_done       = *is_done || (i == 0 && status == PEN_OK);
        if (now_ms() - begun > DEADLINE_MS + SLACK_MS)
            return complaint("came back after %llu ms", (unsigned long long)(now_ms() - begun));
    }
    *has_failed = status != PEN_OK;
    if (status == PEN_OK) return c->fault == DAMAGED ? NULL : "everything went well";
    (void)pen_last_error(e);
    return is_blamed(c, e);
}

static const char *goes_on(const fault_case *c, pen_group *g)
{
    pen_group *rest = NULL;
    int ranks[RANKS], n = c->fault <= STOPPED ? RANKS - 1 : RANKS;
    DO(pen_group_shrink(g, &rest));
    if (pen_size(rest) != n) return complaint("%d have survived, not %d", pen_size(rest), n);
    HOLDS(pen_group_ranks(rest, ranks, RANKS) == n);
    write_input(pen_rank(g));
    DO(call(rest, COLL_ALL_REDUCE, c->n));
    const float *result = c->placing == APART ? output : input;
    for (size_t i = 0; i < c->n; i++) {
        float sum = value(ranks[0], i);
        for (int r = 1; r < n; r++) sum += value(ranks[r], i);
        if (result[i] != sum) return complaint("element %zu is wrong afterwards", i);
    }
    pen_group_free(rest);
    return NULL;
}

static const char *survive(const fault_case *c, pen_group *g, int rank, pen_status begun)
{
    pen_error e     = {0};
    bool has_failed = false, is_done = false;
    const char *wrong = fails_in_time(c, g, begun, &e, &has_failed, &is_done);
    if (!wrong) wrong = inputs_are_kept(c, rank, is_done);
    if (wrong || !has_failed) return wrong;
    snprintf(board->sentence[rank], sizeof board->sentence[rank], "%s", e.text);
    return goes_on(c, g);
}

/* Does not return from a fault that ends the process. */
static const char *be_the_culprit(const fault_case *c, pen_group *g)
{
    pen_error e = {0};
    if (c->fault == DIFFERS) {
        if (other_call(g, c->kind, c->n) == PEN_OK) return "its own call went well";
        (void)pen_last_error(&e);
        const char *wrong = is_blamed(c, &e);
        if (!wrong) wrong = inputs_are_kept(c, CULPRIT, false);
        snprintf(board->sentence[CULPRIT], sizeof board->sentence[CULPRIT], "%s", e.text);
        return wrong ? wrong : goes_on(c, g);
    }
    now              = c;
    coll_fault_point = at_step;
    if (c->fault == DAMAGED) return survive(c, g, CULPRIT, PEN_OK);
    (void)call(g, c->kind, c->n);
    strike(); /* at the end, or there was no such step */
    return "outlived its end";
}

static int member(pen_ctx *ctx, void *arg)
{
    const fault_case *c = arg;
    pen_group *g        = pen_world(ctx);
    int rank            = pen_rank(g);
    placed              = c->placing;
    if (c->is_registered) input = pen_alloc(ctx, sizeof foreign, PEN_HOST);
    if (input == NULL) return 1;
    if (rank == CULPRIT) board->culprit = getpid();
    write_input(rank);
    pen_status status = call(g, COLL_BARRIER, 0);
    const char *wrong = rank == CULPRIT ? be_the_culprit(c, g) : survive(c, g, rank, status);
    if (wrong) snprintf(board->complaint[rank], COMPLAINT_BYTES, "%s", wrong);
    board->has_ended[rank] = true;
    /* The last survivor ends a stopped member. */
    bool all_ended = true;
    for (int r = 0; r < RANKS; r++) all_ended = all_ended && (r == CULPRIT || board->has_ended[r]);
    if (all_ended && c->fault == STOPPED && board->culprit > 0) (void)kill(board->culprit, SIGKILL);
    if (c->is_registered) pen_free(input);
    return 0;
}

/* ---- jobs ------------------------------------------------------------------------------------ */
static pid_t start(const fault_case *c, job_board *its)
{
    pid_t pid = fork();
    if (pid != 0) return pid;
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) _exit(1);
    static const int plain[] = {SIGSEGV, SIGFPE, SIGILL, SIGBUS}; /* cmocka has taken them */
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++) (void)signal(plain[i], SIG_DFL);
    setenv("PENSTOCK_ON_WORKER_LOSS", "continue", 1);
    set_number("PENSTOCK_LEASE_MS", LEASE_MS);
    set_number("PENSTOCK_DEADLINE_MS", DEADLINE_MS);
    setenv("PENSTOCK_LOG_LEVEL", "silent", 1);
    alarm(JOB_LIMIT_S);
    board     = its;
    its->code = spawn_on(c->path, RANKS, member, (void *)(uintptr_t)c);
    _exit(0);
}

/* Survivors that were in different calls when it showed report that at the end; the words before are
 * equal. */
static bool say_the_same(const char *a, const char *b)
{
    const char *in_a = strstr(a, "; in "), *in_b = strstr(b, "; in ");
    if (!in_a || !in_b) return strcmp(a, b) == 0;
    return in_a - a == in_b - b && memcmp(a, b, (size_t)(in_a - a)) == 0;
}

/* A member that gives up makes others fail, so all are told. */
static const char *all_complaints(const job_board *b)
{
    static char text[RANKS * (COMPLAINT_BYTES + 16)];
    size_t at = 0;
    for (int r = 0; r < RANKS; r++)
        if (b->complaint[r][0])
            at += (size_t)snprintf(text + at, sizeof text - at, "%srank %d: %s", at > 0 ? "; " : "",
                                   r, b->complaint[r]);
    return text;
}

static const char *judge(const fault_case *c, const job_board *b)
{
    const char *first = NULL;
    for (int r = 0; r < RANKS; r++) {
        if (b->complaint[r][0]) return all_complaints(b);
        if (r == CULPRIT && c->fault <= STOPPED) continue;
        if (!b->has_ended[r]) return complaint("rank %d did not end; code %d", r, b->code);
        if (!b->sentence[r][0]) continue;
        if (first && !say_the_same(first, b->sentence[r]))
            return complaint("different words: \"%s\" and \"%s\"", first, b->sentence[r]);
        first = b->sentence[r];
    }
    return NULL;
}

static const char *what(const fault_case *c)
{
    static const char *const faults[]   = {"SIGKILL", "SIGSTOP", "another call", "a damaged frame"};
    static const char *const placings[] = {"", " in place", " in place, overwritten"};
    static char text[160];
    snprintf(text, sizeof text, "%s, %s%s%s n=%zu, %s at step %d", c->path->name,
             coll_kind_name(c->kind), placings[c->placing], c->is_registered ? " registered" : "",
             c->n, faults[c->fault], c->point);
    return text;
}

enum { CASES_MAX = 256 };

/* Runs all, JOBS at a time; reports each failure. */
static void run_cases(const fault_case *cases, int n)
{
    job_board *boards = shared_board(sizeof *boards * (size_t)n);
    pid_t pids[CASES_MAX];
    int begun = 0, running = 0, wrong = 0;
    assert_non_null(boards);
    fflush(NULL);
    for (int ended = 0; ended < n; ended++) {
        while (begun < n && running < JOBS) {
            pids[begun] = start(&cases[begun], &boards[begun]);
            assert_true(pids[begun] > 0);
            begun++;
            running++;
        }
        (void)wait(NULL);
        running--;
    }
    for (int i = 0; i < n; i++) {
        const char *text = judge(&cases[i], &boards[i]);
        if (!text) continue;
        print_error("%s: %s\n", what(&cases[i]), text);
        wrong++;
    }
    (void)munmap(boards, sizeof *boards * (size_t)n);
    if (wrong) fail_msg("%d of %d cases", wrong, n);
}

/* ---- tests ----------------------------------------------------------------------------------- */
static int add(fault_case *cases, int n, fault_case c)
{
    static int calls;
    if (calls++ % EVERY != 0) return n;
    assert_true(n < CASES_MAX);
    cases[n] = c;
    return n + 1;
}

/* Before the first step, between the steps, and after the call; also small calls, which have fewer
 * steps.  A stopped member is missed only after a lease, so those cases are fewer. */
static int at_every_point(fault_case *cases, int n, const coll_test_path *path, fault f)
{
    static const int points[] = {0, 1, END, 2};
    for (int kind = 0; kind < COLL_KINDS; kind++) {
        for (int p = 0; p < (f == STOPPED ? 3 : 4); p++)
            n = add(cases, n, (fault_case){path, f, (coll_kind)kind, points[p], N});
        if (kind != COLL_BARRIER && f != STOPPED)
            n = add(cases, n, (fault_case){path, f, (coll_kind)kind, 1, 7});
    }
    return n;
}

/* All_reduce in place, between its steps: where inputs and results share memory, registered and not. */
static int in_place(fault_case *cases, int n, const coll_test_path *path, fault f)
{
    for (int i = 0; i < 4; i++)
        for (int point = 1; point < (f == STOPPED ? 4 : 6); point++)
            n = add(cases, n,
                    (fault_case){.path          = path,
                                 .fault         = f,
                                 .kind          = COLL_ALL_REDUCE,
                                 .point         = point,
                                 .n             = N,
                                 .placing       = i < 2 ? IN_PLACE : GIVEN_UP,
                                 .is_registered = i % 2});
    return n;
}

static void run_everywhere(fault f)
{
    fault_case cases[CASES_MAX];
    int n = 0;
    EACH_PATH(path)
    {
        n = at_every_point(cases, n, path, f);
        n = in_place(cases, n, path, f);
    }
    run_cases(cases, n);
}

static void a_member_that_is_killed_is_named_and_left_out(void **state)
{
    (void)state;
    run_everywhere(KILLED);
}

static void a_member_that_stops_is_named_and_left_out(void **state)
{
    (void)state;
    run_everywhere(STOPPED);
}

static void a_member_that_makes_another_call_is_named(void **state)
{
    (void)state;
    fault_case cases[CASES_MAX];
    int n = 0;
    EACH_PATH(path)
    for (int kind = 0; kind < COLL_KINDS; kind++) {
        n = add(cases, n, (fault_case){path, DIFFERS, (coll_kind)kind, 0, N});
        n = add(cases, n, (fault_case){path, DIFFERS, (coll_kind)kind, 0, 7});
    }
    run_cases(cases, n);
}

/* Only where there are frames; a barrier's are empty. */
static void a_damaged_frame_is_refused_and_its_sender_named(void **state)
{
    (void)state;
    fault_case cases[CASES_MAX];
    int n = 0;
    EACH_PATH(path)
    for (int kind = COLL_BARRIER + 1; kind < COLL_KINDS; kind++)
        for (int point = 0; point < 3 && strcmp(path->carrier, "wire") == 0; point++)
            n = add(cases, n, (fault_case){path, DAMAGED, (coll_kind)kind, point, N});
    run_cases(cases, n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_member_that_makes_another_call_is_named),
        cmocka_unit_test(a_damaged_frame_is_refused_and_its_sender_named),
        cmocka_unit_test(a_member_that_is_killed_is_named_and_left_out),
        cmocka_unit_test(a_member_that_stops_is_named_and_left_out),
    };
    alarm(LIMIT_S);
    fill_table();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
