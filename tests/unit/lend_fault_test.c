/* lend_fault_test.c - a reader of lent memory that dies or looks dead, and peers that lie about lending. */
#include "tests/unit/lend_pair.h"

#include "common/system/segment.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- tests ------------------------------------------------------------------------------------------------ */
/* Reads what its parent lends until it is killed. */
static void read_for_ever(const char *address)
{
    transport *t;
    const transport_options o = {.lends = true};
    if (transport_dial(address, &o, &t, NULL) != PEN_OK) _exit(1);
    transport_event event;
    for (bool has_spoken = false;;) {
        if (transport_recv(t, &event) != PEN_OK)
            nap(t);
        else if (event.kind == TRANSPORT_UP && !has_spoken)
            has_spoken =
                transport_send(t, 0, "hello", 5, NULL) == PEN_OK; /* bodies are never released */
    }
}

/* Sends it, and waits until the peer's copy replaces it; false: the peer still holds the body after a while. */
static bool is_taken_in_time(transport *l, uint32_t number, watched *w)
{
    transport_event event;
    assert_int_equal(transport_send(l, number, "x", 1, w->body), PEN_OK);
    for (int i = 0; i < 100 && atomic_load(&w->released) == 0; i++) {
        assert_int_not_equal(transport_recv(l, &event), PEN_OK);
        nap(l);
    }
    return atomic_load(&w->released) > 0;
}

static void bodies_of_a_killed_peer_are_taken_back_and_stay_lendable(void **state)
{
    (void)state;
    enum { SENT_MAX = 300 };
    transport *l;
    const transport_options o = {.lends = true};
    char *address             = NULL;
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    const pid_t child = fork(); /* before any endpoint is open */
    if (child == 0) {
        char text[128] = "";
        if (read(ends[0], text, sizeof text - 1) <= 0) _exit(1);
        read_for_ever(text);
    }
    assert_int_equal(transport_listen("tcp://127.0.0.1:0", &o, &l, NULL), PEN_OK);
    address = (char *)(uintptr_t)transport_address(l);
    assert_true(write(ends[1], address, strlen(address)) > 0);
    const uint32_t number = await_with(l, TRANSPORT_MESSAGE, NULL).peer;
    transport_trust(l, number);
    uint8_t *data = segment_alloc(BYTES, NULL);
    watched w[SENT_MAX];
    int last = -1;
    do watch(&w[++last], data, BYTES); /* nothing is lent before the peer said it can map */
    while (last < SENT_MAX - 1 && is_taken_in_time(l, number, &w[last]));
    assert_int_equal(atomic_load(&w[last].released), 0); /* lent, and held */
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    (void)await_with(l, TRANSPORT_DOWN, NULL);
    assert_int_equal(atomic_load(&w[last].released), 1);
    segment_ref place;
    assert_true(
        segment_find(data, BYTES, &place)); /* no reader is left: its pages need not be replaced */
    segment_free(data);
    transport_close(l, 0);
    close(ends[0]);
    close(ends[1]);
}

/* ---- a reader that is alive and looks dead ---------------------------------------------------------------- */
static int
    orders; /* of a child: a byte here ends its connection; the child lives on with its mappings */

static void *read_until_told(void *address)
{
    const transport_options o = {.lends = true};
    struct pollfd order       = {.fd = orders, .events = POLLIN};
    transport *t;
    transport_event event;
    bool has_spoken = false;
    if (transport_dial(address, &o, &t, NULL) != PEN_OK) _exit(1);
    while (poll(&order, 1, 0) == 0) {
        if (transport_recv(t, &event) != PEN_OK) nap(t);
        if (!has_spoken) has_spoken = transport_send(t, 0, "hello", 5, NULL) == PEN_OK;
    }
    transport_close(t, 0);
    for (;;) pause();
}

static pid_t start_reader(int ends[2], int leave[2])
{
    static char address[128];
    char byte;
    pthread_t thread;
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(pipe(leave), 0);
    const pid_t child = fork(); /* before any endpoint is open */
    if (child != 0) return child;
    if (read(ends[0], address, sizeof address - 1) <= 0) _exit(1);
    orders = ends[0];
    if (pthread_create(&thread, NULL, read_until_told, address) != 0) _exit(1);
    if (read(leave[0], &byte, 1) != 1) _exit(1);
    pthread_exit(NULL);
}

/* What the system shows of a process whose first thread has ended. */
static bool looks_dead(pid_t child)
{
    char path[64], state = '?';
    snprintf(path, sizeof path, "/proc/%d/stat", (int)child);
    FILE *f = fopen(path, "re");
    if (f == NULL) return true;
    const bool is = fscanf(f, "%*d (%*[^)]) %c", &state) == 1 && state == 'Z';
    fclose(f);
    return is;
}

/* The reader's view never changes, whatever this process writes there later. */
static void a_reader_that_lives_keeps_what_it_was_lent(bool first_thread_ends, bool files_are_short)
{
    enum { SENT_MAX = 300 };
    const transport_options o = {.lends = true};
    transport *l;
    int ends[2], leave[2];
    const pid_t child = start_reader(ends, leave);
    assert_int_equal(transport_listen("tcp://127.0.0.1:0", &o, &l, NULL), PEN_OK);
    const char *address = transport_address(l);
    assert_true(write(ends[1], address, strlen(address)) > 0);
    const uint32_t number = await_with(l, TRANSPORT_MESSAGE, NULL).peer;
    transport_trust(l, number);
    uint8_t *data = segment_alloc(BYTES, NULL);
    watched w[SENT_MAX];
    int last = -1;
    do watch(&w[++last], data, BYTES);
    while (last < SENT_MAX - 1 && is_taken_in_time(l, number, &w[last]));
    assert_int_equal(atomic_load(&w[last].released), 0); /* lent, and held */
    if (first_thread_ends) assert_int_equal(write(leave[1], "!", 1), 1);
    while (first_thread_ends && !looks_dead(child)) nap(l);
    struct rlimit files, none;
    getrlimit(RLIMIT_NOFILE, &files);
    none = (struct rlimit){.rlim_cur = 3, .rlim_max = files.rlim_max};
    if (files_are_short) assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    assert_int_equal(write(ends[1], "!", 1), 1);
    (void)await_with(l, TRANSPORT_DOWN, NULL);
    setrlimit(RLIMIT_NOFILE, &files);
    segment_ref place;
    assert_int_equal(atomic_load(&w[last].released), 1);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    assert_false(segment_find(data, BYTES, &place)); /* its pages were replaced */
    close(leave[0]);
    close(leave[1]);
    segment_free(data);
    transport_close(l, 0);
    close(ends[0]);
    close(ends[1]);
}

static void a_reader_whose_first_thread_has_ended_is_not_taken_for_dead(void **state)
{
    (void)state;
    a_reader_that_lives_keeps_what_it_was_lent(true, false);
}

static void a_reader_is_not_taken_for_dead_because_no_file_can_be_opened(void **state)
{
    (void)state;
    a_reader_that_lives_keeps_what_it_was_lent(false, true);
}

/* A segment of its own, which this process maps only by opening another file. */
static void a_body_that_cannot_be_mapped_is_refused_and_given_back(void **state)
{
    (void)state;
    enum { LARGE = 40 << 20 };
    pair p = open_pair(true, true);
    acquaint(&p);
    uint8_t *data = segment_alloc(LARGE, NULL);
    assert_non_null(data);
    watched w;
    watch(&w, data, LARGE);
    const int next = dup(STDERR_FILENO);
    struct rlimit as_it_was;
    assert_true(next >= 0 && close(next) == 0 && getrlimit(RLIMIT_NOFILE, &as_it_was) == 0);
    const struct rlimit none = {.rlim_cur = (rlim_t)next, .rlim_max = as_it_was.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    assert_int_equal(transport_send(p.dialler, 0, "large", 5, w.body), PEN_OK);
    const transport_event event = await_with(p.listener, TRANSPORT_REFUSED, p.dialler);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &as_it_was), 0);
    assert_string_equal(event.note, "cannot map a lent body");
    for (int i = 0; i < 1000 && atomic_load(&w.released) == 0; i++) {
        transport_event none_is_left;
        assert_int_not_equal(transport_recv(p.listener, &none_is_left), PEN_OK);
        assert_int_not_equal(transport_recv(p.dialler, &none_is_left), PEN_OK);
        nap(p.dialler);
    }
    assert_int_equal(atomic_load(&w.released), 1);
    segment_free(data);
    close_pair(&p);
}

/* Written by another process: refused, and the connection stays up. */
static void nonsense_about_lent_bodies_is_refused(void **state)
{
    (void)state;
    pair p                        = open_pair(true, true);
    const transport_options plain = {.lends = false};
    transport *liar;
    assert_int_equal(transport_dial(transport_address(p.listener), &plain, &liar, NULL), PEN_OK);
    (void)await_with(liar, TRANSPORT_UP, p.listener);
    char lent[96] = "\0PenLend\3";
    for (size_t size = 8; size <= sizeof lent; size += 8) {
        assert_int_equal(transport_send(liar, 0, lent, size, NULL), PEN_OK);
        assert_null(await_with(p.listener, TRANSPORT_REFUSED, NULL).body);
    }
    assert_int_equal(transport_send(p.dialler, 0, "on", 2, NULL), PEN_OK);
    assert_int_equal(await_with(p.listener, TRANSPORT_MESSAGE, p.dialler).head_size, 2);
    transport_close(liar, 0);
    close_pair(&p);
}

/* ---- liars ------------------------------------------------------------------------------------------------ */
/* The layer's heads, as written by an attacker that knows only the format. */
typedef struct {
    char mark[8];
    uint32_t kind, n;
    uint64_t shown; /* MAPPED: the secret */
    segment_ref place;
} question;

typedef struct {
    char mark[8];
    uint32_t kind, n;
    uint64_t token, bytes;
    segment_ref place;
    char head[8];
} lent_message;

enum { PROBE = 1, MAPPED, LENT, RETURN };
#define HEAD(which) .mark = "\0PenLend", .kind = which

static transport *dial_liar(pair *p, uint32_t *number)
{
    transport *liar;
    const transport_options plain = {.lends = false};
    assert_int_equal(transport_dial(transport_address(p->listener), &plain, &liar, NULL), PEN_OK);
    (void)await_with(liar, TRANSPORT_UP, p->listener);
    assert_int_equal(transport_send(liar, 0, "hello", 5, NULL), PEN_OK);
    *number = await_with(p->listener, TRANSPORT_MESSAGE, liar).peer;
    return liar;
}

/* Serves the listener meanwhile.  "next" is the first message to arrive only if the one before was dropped. */
static void say_and_pass(pair *p, transport *liar, const void *head, size_t size)
{
    assert_int_equal(transport_send(liar, 0, head, size, NULL), PEN_OK);
    assert_int_equal(transport_send(liar, 0, "next", 4, NULL), PEN_OK);
    const transport_event event = await_with(p->listener, TRANSPORT_MESSAGE, liar);
    assert_int_equal(event.head_size, 4);
    assert_null(event.body);
}

/* A segment that this process, which is also the listener's, has mapped already. */
static segment_ref mapped_place(const uint64_t *numbers, size_t bytes)
{
    segment_ref place;
    void *view;
    assert_true(segment_find(numbers, bytes, &place));
    assert_int_equal(segment_map(&place, bytes, &view, NULL), PEN_OK);
    segment_unmap(&place);
    return place;
}

static void a_stranger_proves_nothing_and_lends_nothing(void **state)
{
    (void)state;
    pair p = open_pair(true, true);
    uint32_t number;
    transport *liar   = dial_liar(&p, &number);
    uint64_t *numbers = segment_alloc_apart(70000, NULL);
    question probe    = {HEAD(PROBE), .shown = 5, .place = mapped_place(numbers, 70000)};
    lent_message lent = {HEAD(LENT), .bytes = 70000, .place = probe.place, .head = "gradient"};
    numbers[0]        = 5;
    numbers[1]        = 6;
    say_and_pass(&p, liar, &probe, sizeof probe);
    assert_int_equal(transport_send(liar, 0, &lent, sizeof lent, NULL), PEN_OK);
    const transport_event event = await_with(p.listener, TRANSPORT_REFUSED, liar);
    assert_null(event.body);
    assert_string_equal(event.note, "a lent body of a peer without a proof");
    transport_close(liar, 0);
    close_pair(&p);
    segment_free(numbers);
}

/* A member gets no byte of foreign memory either: what it lends must lie in its own process and within bounds. */
static void a_member_that_lies_about_places_is_refused(void **state)
{
    (void)state;
    pair p = open_pair(true, true);
    uint32_t number;
    transport *liar   = dial_liar(&p, &number);
    uint64_t *numbers = segment_alloc_apart(70000, NULL);
    numbers[0]        = 5;
    question probe    = {HEAD(PROBE), .shown = 5, .place = mapped_place(numbers, 70000)};
    lent_message lent = {HEAD(LENT), .bytes = 70000, .place = probe.place, .head = "gradient"};
    transport_trust(p.listener, number);
    question lies[]      = {probe, probe, probe, probe, probe, probe};
    lies[0].shown        = 4;
    lies[1].place.size   = (uint64_t)1 << 40;
    lies[1].place.offset = (uint64_t)1 << 39;
    lies[2].place.offset = probe.place.size - 8;
    lies[3].place.fd++;
    lies[4].place.pid = getppid();
    lies[5].place.id  = 0;
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++)
        say_and_pass(&p, liar, &lies[i], sizeof lies[i]);
    assert_int_equal(transport_send(liar, 0, &lent, sizeof lent, NULL), PEN_OK);
    assert_null(await_with(p.listener, TRANSPORT_REFUSED, liar).body); /* it has proven nothing */

    say_and_pass(&p, liar, &probe, sizeof probe);
    lent_message wrong[] = {lent, lent, lent, lent, lent};
    wrong[0].bytes       = UINT64_MAX;
    wrong[1].place.size = wrong[1].place.offset = (uint64_t)1 << 40;
    wrong[2].place.offset                       = 4096; /* and therefore ends some bytes too far */
    wrong[3].place.pid                          = getppid();
    wrong[4].place.id++;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        assert_int_equal(transport_send(liar, 0, &wrong[i], sizeof wrong[i], NULL), PEN_OK);
        assert_null(await_with(p.listener, TRANSPORT_REFUSED, liar).body);
    }
    assert_int_equal(transport_send(liar, 0, &lent, sizeof lent, NULL), PEN_OK);
    const transport_event event = await_with(p.listener, TRANSPORT_MESSAGE, liar);
    assert_int_equal(event.body->size, 70000);
    assert_memory_equal(event.body->data, numbers, 70000);
    buf_release(event.body);
    transport_close(liar, 0);
    close_pair(&p);
    segment_free(numbers);
}

/* A peer that has not read the number is lent nothing, and cannot return what it does not hold. */
static void a_guessed_answer_is_rejected(void **state)
{
    (void)state;
    pair p = open_pair(true, true);
    uint32_t number;
    transport *liar = dial_liar(&p, &number);
    transport_trust(p.listener, number);
    watched w;
    uint8_t *data = segment_alloc(BYTES, NULL);
    for (int i = 0; i < 3; i++) {
        const question guess = {HEAD(MAPPED), .shown = (uint64_t)i, .place = {.pid = getpid()}};
        watch(&w, data, BYTES);
        assert_int_equal(transport_send(p.listener, number, "v", 1, w.body), PEN_OK);
        const transport_event event = await_with(liar, TRANSPORT_MESSAGE, p.listener);
        ((uint8_t *)event.body->data)[3] ^= 0xff; /* a copy: sent over the socket */
        assert_int_equal(data[3], 0);
        buf_release(event.body);
        say_and_pass(&p, liar, &guess, sizeof guess);
    }
    acquaint(&p);
    watch(&w, data, BYTES);
    assert_int_equal(transport_send(p.listener, p.number, "v", 1, w.body), PEN_OK);
    const transport_event event = await_with(p.dialler, TRANSPORT_MESSAGE, p.listener);
    struct {
        char mark[8];
        uint32_t kind, n;
        uint64_t token[64];
    } back = {HEAD(RETURN), .n = 64};
    for (uint64_t i = 0; i < 64; i++) back.token[i] = (uint64_t)1 << 32 | i;
    say_and_pass(&p, liar, &back, sizeof back);
    assert_int_equal(atomic_load(&w.released), 0); /* it does not belong to the liar */
    buf_release(event.body);
    transport_close(liar, 0);
    close_pair(&p);
    segment_free(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bodies_of_a_killed_peer_are_taken_back_and_stay_lendable),
        cmocka_unit_test(a_reader_whose_first_thread_has_ended_is_not_taken_for_dead),
        cmocka_unit_test(a_reader_is_not_taken_for_dead_because_no_file_can_be_opened),
        cmocka_unit_test(a_body_that_cannot_be_mapped_is_refused_and_given_back),
        cmocka_unit_test(nonsense_about_lent_bodies_is_refused),
        cmocka_unit_test(a_stranger_proves_nothing_and_lends_nothing),
        cmocka_unit_test(a_member_that_lies_about_places_is_refused),
        cmocka_unit_test(a_guessed_answer_is_rejected),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
