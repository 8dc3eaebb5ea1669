/* http_test.c - which HTTP clients may query a process, and its answers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "common/net/http_gate.h"
#include "common/net/http_places.h"
#include "common/net/monitor.h"
#include "tests/support/resident.h"

#include <netdb.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#define TOKEN "0123456789abcdef"

static http_verdict asked(bool is_loopback, const char *token, http_credentials c)
{
    http_gate gate = {.is_loopback = is_loopback};
    snprintf(gate.token, sizeof gate.token, "%s", token);
    return http_gate_ask(&gate, &c);
}

static void test_http_gate_wants_the_token_wherever_there_is_one(void **state)
{
    (void)state;
    for (int local = 0; local < 2; local++) {
        assert_int_equal(asked(local, TOKEN, (http_credentials){.host = "localhost"}),
                         HTTP_WRONG_TOKEN);
        assert_int_equal(asked(local, TOKEN, (http_credentials){.authorization = "Bearer " TOKEN}),
                         HTTP_IN);
        assert_int_equal(asked(local, TOKEN, (http_credentials){.query = TOKEN}), HTTP_IN_KEEP);
        assert_int_equal(asked(local, TOKEN, (http_credentials){.cookie = TOKEN}), HTTP_IN);
        const char *wrong[] = {"", "0", TOKEN "0", "0123456789abcdee", "1123456789abcdef"};
        for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
            assert_int_equal(
                asked(local, TOKEN, (http_credentials){.query = wrong[i], .cookie = wrong[i]}),
                HTTP_WRONG_TOKEN);
        assert_int_equal(asked(local, TOKEN, (http_credentials){.authorization = TOKEN}),
                         HTTP_WRONG_TOKEN);
    }
}

static void test_http_gate_without_a_token_admits_this_machine_under_its_own_name_only(void **state)
{
    (void)state;
    const char *good[] = {NULL,        "localhost", "LOCALHOST:80", "127.0.0.1:9400",
                          "127.1.2.3", "[::1]:9400"};
    const char *bad[]  = {
         "",       "evil.example", "127.evil.example", "localhost.evil.example:80", "[::2]",
         "[::1]x", ":80"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_int_equal(asked(true, "", (http_credentials){.host = good[i]}), HTTP_IN);
        assert_int_equal(asked(false, "", (http_credentials){.host = good[i]}), HTTP_CLOSED);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(asked(true, "", (http_credentials){.host = bad[i]}), HTTP_WRONG_HOST);
}

static void test_http_address_is_host_and_port(void **state)
{
    (void)state;
    char host[HTTP_HOST_BYTES], port[8];
    pen_error why;
    assert_int_equal(http_address_cut("0.0.0.0:9464", host, port, &why), PEN_OK);
    assert_string_equal(host, "0.0.0.0");
    assert_string_equal(port, "9464");
    assert_int_equal(http_address_cut("[::1]:0", host, port, &why), PEN_OK);
    assert_string_equal(host, "::1");
    const char *bad[] = {"",        ":",       ":80",    "host",        "host:", "host:65536",
                         "host:-1", "host:8x", "::1:80", "host:000080", "[]:80", "[::1:80"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(http_address_cut(bad[i], host, port, &why), PEN_BAD_SETTING);
        assert_non_null(strstr(why.text, "HOST:PORT"));
    }
}

static void test_http_token_is_long_and_plain_and_never_repeated(void **state)
{
    (void)state;
    char token[HTTP_TOKEN_BYTES];
    pen_error why;
    assert_int_equal(http_token_take(TOKEN "\n", strlen(TOKEN) + 1, "f", token, &why), PEN_OK);
    assert_string_equal(token, TOKEN);
    const char *bad[] = {"", "short", "0123456789 abcdef", "0123456789abcde;",
                         "0123456789abcdef\nmore"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(http_token_take(bad[i], strlen(bad[i]), "f", token, &why),
                         PEN_BAD_SETTING);
        assert_null(strstr(why.text, "0123456789"));
    }
}

/* ---- a monitored process ----------------------------------------------------------------------- */
typedef struct {
    loop *loop;
    pthread_t thread;
    monitor *monitor;
    atomic_bool is_ready, is_quiet;
    atomic_int failures; /* requests of other threads than the test's */
} process;

static void *turn(void *user)
{
    loop_run(((process *)user)->loop);
    return NULL;
}

static void write_metrics(void *user, FILE *out, bool is_open)
{
    (void)user;
    fprintf(out, "open %d\n", is_open);
}

static void write_page(void *user, FILE *out)
{
    assert_ptr_equal(pthread_self(), ((process *)user)->thread);
    fputs("a page", out);
}

static bool is_ready(void *user, char *why, size_t size)
{
    snprintf(why, size, "not yet");
    return atomic_load(&((process *)user)->is_ready);
}

enum { LARGE_BYTES = 8 << 20 };

static void write_large(void *user, FILE *out)
{
    (void)user;
    for (size_t i = 0; i < LARGE_BYTES / 16; i++) fputs("0123456789abcdef", out);
}

static const monitor_page pages[] = {
    {"/page", "text/plain", .write = write_page},
    {"/large", "text/plain", .write = write_large},
    {"/", "text/html; charset=utf-8", .fixed = "<p>fixed", .policy = "default-src 'self'"},
    {0},
};

static void begin(process *p, const char *token_file)
{
    pen_error why = {0};
    *p            = (process){.loop = loop_create(&why)};
    assert_non_null(p->loop);
    assert_int_equal(pthread_create(&p->thread, NULL, turn, p), 0);
    const pen_status status = monitor_open(&(monitor_options){.address    = "127.0.0.1:0",
                                                              .token_file = token_file,
                                                              .loop       = p->loop,
                                                              .pages      = pages,
                                                              .metrics    = write_metrics,
                                                              .is_ready   = is_ready,
                                                              .user       = p},
                                           &p->monitor, &why);
    if (status != PEN_OK) fail_msg("%s", why.text);
    assert_true(monitor_port(p->monitor) > 0);
}

static void end(process *p)
{
    loop_stop(p->loop);
    pthread_join(p->thread, NULL);
    monitor_stop(p->monitor);
    loop_destroy(p->loop);
    monitor_close(p->monitor);
}

/* A connection whose reads and writes give up after 5 s. */
static int dial(const process *p)
{
    const struct addrinfo hints   = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM};
    const struct timeval patience = {.tv_sec = 5};
    struct addrinfo *a;
    char port[8];
    snprintf(port, sizeof port, "%u", monitor_port(p->monitor));
    assert_int_equal(getaddrinfo("127.0.0.1", port, &hints, &a), 0);
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    assert_int_equal(connect(fd, a->ai_addr, a->ai_addrlen), 0);
    freeaddrinfo(a);
    return fd;
}

static void say(int fd, const char *text)
{
    assert_int_equal(send(fd, text, strlen(text), MSG_NOSIGNAL), (ssize_t)strlen(text));
}

/* Sends these bytes and reads the whole answer, "" if there is none. */
static void talk(const process *p, const char *request, char *answer, size_t size)
{
    size_t n     = 0;
    const int fd = dial(p);
    say(fd, request);
    ssize_t got;
    while (n + 1 < size && (got = read(fd, answer + n, size - 1 - n)) > 0) n += (size_t)got;
    answer[n] = '\0';
    close(fd);
}

static void expect(const process *p, const char *request, const char *status, const char *part)
{
    char text[1024], answer[4096];
    snprintf(text, sizeof text, "%s\r\nConnection: close\r\n\r\n", request);
    talk(p, text, answer, sizeof answer);
    if (strncmp(answer + 9, status, 3) != 0 || strstr(answer, part) == NULL)
        fail_msg("wanted %s with '%s', got: %s", status, part, answer);
}

#define HOST " HTTP/1.1\r\nHost: localhost"

static void test_monitor_answers_from_the_loop_and_is_read_only(void **state)
{
    (void)state;
    process p;
    begin(&p, NULL);
    expect(&p, "GET /healthz" HOST, "200", "ok");
    expect(&p, "GET /readyz" HOST, "503", "not yet");
    atomic_store(&p.is_ready, true);
    expect(&p, "GET /readyz" HOST, "200", "ready");
    expect(&p, "GET /metrics" HOST, "200", "open 0");
    expect(&p, "GET /metrics" HOST "\r\nAccept: application/openmetrics-text", "200", "open 1");
    expect(&p, "GET /page" HOST, "200", "a page");
    expect(&p, "GET /page" HOST, "200", "Content-Security-Policy: default-src 'none'");
    expect(&p, "GET /" HOST, "200", "<p>fixed");
    expect(&p, "HEAD /" HOST, "200", "Content-Length: 8");
    expect(&p, "GET /" HOST, "200", "Content-Security-Policy: default-src 'self'");
    expect(&p, "GET /none" HOST, "404", "not found");
    expect(&p, "POST /metrics" HOST "\r\nContent-Length: 5", "405", "Allow: GET, HEAD");
    expect(&p, "GET /metrics HTTP/1.1\r\nHost: evil.example", "421", "unknown host name");
    expect(&p, "GET /healthz HTTP/1.1\r\nHost: evil.example", "200", "ok");
    end(&p);
}

static void test_monitor_with_a_token_shows_nothing_without_it_but_health(void **state)
{
    (void)state;
    process p;
    char path[]  = "/tmp/http-token-XXXXXX";
    const int fd = mkstemp(path);
    assert_int_equal(write(fd, TOKEN "\n", strlen(TOKEN) + 1), (ssize_t)strlen(TOKEN) + 1);
    close(fd);
    begin(&p, path);
    unlink(path);
    expect(&p, "GET /healthz" HOST, "200", "ok");
    expect(&p, "GET /metrics" HOST, "401", "WWW-Authenticate: Bearer");
    expect(&p, "GET /none" HOST, "401", "token");
    expect(&p, "GET /metrics" HOST "\r\nAuthorization: Bearer " TOKEN, "200", "open");
    expect(&p, "GET /metrics?token=" TOKEN HOST, "200", "HttpOnly; SameSite=Strict");
    char request[200];
    snprintf(request, sizeof request, "GET /metrics" HOST "\r\nCookie: penstock-%u=" TOKEN,
             monitor_port(p.monitor));
    expect(&p, request, "200", "open");
    end(&p);
}

static void test_monitor_refuses_a_token_that_others_can_read(void **state)
{
    (void)state;
    process p   = {0};
    char path[] = "/tmp/http-token-XXXXXX";
    pen_error why;
    const int fd = mkstemp(path);
    assert_int_equal(write(fd, TOKEN, strlen(TOKEN)), (ssize_t)strlen(TOKEN));
    assert_int_equal(fchmod(fd, 0644), 0);
    close(fd);
    p.loop                  = loop_create(&why);
    const monitor_options o = {.address    = "127.0.0.1:0",
                               .token_file = path,
                               .loop       = p.loop,
                               .pages      = pages,
                               .metrics    = write_metrics,
                               .is_ready   = is_ready,
                               .user       = &p};
    assert_int_equal(monitor_open(&o, &p.monitor, &why), PEN_BAD_SETTING);
    assert_non_null(strstr(why.text, "is open to others (mode 0644): chmod 600 it"));
    assert_null(strstr(why.text, TOKEN));
    unlink(path);
    loop_destroy(p.loop);
}

static void test_monitor_reports_a_loop_that_is_stuck(void **state)
{
    (void)state;
    process p;
    begin(&p, NULL);
    loop_stop(p.loop);
    pthread_join(p.thread, NULL);
    expect(&p, "GET /healthz" HOST, "503", "has been stuck");
    monitor_stop(p.monitor);
    loop_destroy(p.loop);
    monitor_close(p.monitor);
}

static void test_monitor_goes_on_after_garbage(void **state)
{
    (void)state;
    process p;
    char answer[4096];
    begin(&p, NULL);
    const char *garbage[] = {
        "GET\r\n\r\n", "\x16\x03\x01garbage\r\n\r\n", "GET / HTTP/9.9\r\n\r\n",
        "GET /%00%ff?a=%zz&&=& HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"};
    for (size_t i = 0; i < sizeof garbage / sizeof *garbage; i++) {
        talk(&p, garbage[i], answer, sizeof answer);
        if (answer[0] != '\0') assert_memory_equal(answer, "HTTP/1.", 7);
    }
    expect(&p, "GET /healthz" HOST, "200", "ok");
    end(&p);
}

static void test_monitor_is_skipped_for_a_taken_port_and_fails_for_a_bad_address(void **state)
{
    (void)state;
    process p;
    pen_error why = {0};
    monitor *second;
    begin(&p, NULL);
    monitor_options o = {
        .address = monitor_address(p.monitor), .loop = p.loop, .metrics = write_metrics};
    assert_int_equal(monitor_open(&o, &second, &why), PEN_OK);
    assert_null(second);
    o.address = "nowhere";
    assert_int_equal(monitor_open(&o, &second, &why), PEN_BAD_SETTING);
    o.address    = "127.0.0.1:0";
    o.token_file = "/nonexistent/token";
    assert_int_equal(monitor_open(&o, &second, &why), PEN_BAD_SETTING);
    assert_non_null(strstr(why.text, "cannot read http_token_file /nonexistent/token"));
    end(&p);
}

/* ---- how long clients may stay ----------------------------------------------------------------- */
static void test_http_a_connection_has_so_long_for_a_request_however_steadily_it_drips(void **state)
{
    (void)state;
    http_places all = {0};
    http_place *goes, *p = http_places_take(&all, 7, 1, 1000, &goes);
    assert_null(goes);
    assert_int_equal(http_places_next_ms(&all), 1000 + HTTP_REQUEST_MS);
    assert_null(http_places_overdue(&all, 999 + HTTP_REQUEST_MS));
    http_place_answer(p, 100, 2000);
    assert_null(http_places_overdue(&all, 1999 + HTTP_ANSWER_MS));
    http_place_wait(p, 3000); /* it may send another request */
    assert_ptr_equal(http_places_overdue(&all, 3000 + HTTP_REQUEST_MS), p);
    assert_null(http_places_overdue(&all, 3000 + HTTP_REQUEST_MS)); /* once */
    assert_int_equal(http_places_next_ms(&all), UINT64_MAX);
    http_place_leave(p);
}

static void test_http_the_oldest_of_an_address_makes_room_and_no_other_address_suffers(void **state)
{
    (void)state;
    http_places all = {0};
    http_place *goes, *first = NULL, *probe;
    for (int i = 0; i < HTTP_PLACES_EACH; i++) {
        http_place *p = http_places_take(&all, i, 1, (uint64_t)i, &goes);
        if (i == 0) first = p;
        assert_null(goes);
    }
    probe = http_places_take(&all, 50, 2, 0, &goes);
    assert_null(goes);
    assert_non_null(http_places_take(&all, 51, 1, 100, &goes));
    assert_ptr_equal(goes, first);
    assert_false(probe->is_ended);
}

static void test_http_closes_idle_connections_before_reading_ones(void **state)
{
    (void)state;
    http_places all = {0};
    http_place *goes, *p[HTTP_PLACES];
    for (int i = 0; i < HTTP_PLACES; i++) {
        p[i] = http_places_take(&all, i, (uint64_t)i + 1, (uint64_t)i, &goes);
        assert_null(goes);
    }
    http_place_answer(p[0], 10, 0);
    assert_non_null(http_places_take(&all, 64, 1000, 100, &goes));
    assert_ptr_equal(goes, p[1]);
    for (int i = 0; i < HTTP_PLACES_SPARE - 1; i++) {
        assert_non_null(http_places_take(&all, 65 + i, 2000 + (uint64_t)i, 100, &goes));
        assert_non_null(goes);
    }
    assert_null(http_places_take(&all, 999, 3000, 100, &goes)); /* none of them is closed yet */
}

static void test_http_answers_that_nobody_reads_are_bounded_together(void **state)
{
    (void)state;
    http_places all = {0};
    http_place *goes;
    const size_t half = HTTP_ANSWERS_BYTES / 2;
    assert_true(http_places_has_room(&all, 3 * half, &goes)); /* alone, of any size */
    http_place *a = http_places_take(&all, 1, 1, 0, &goes);
    http_place_answer(a, half, 0);
    http_place *b = http_places_take(&all, 2, 2, 1, &goes);
    assert_true(http_places_has_room(&all, half, &goes));
    http_place_answer(b, half, 1);
    assert_true(http_places_has_room(&all, HTTP_SMALL_BYTES, &goes));
    assert_false(http_places_has_room(&all, HTTP_SMALL_BYTES + 1, &goes));
    assert_ptr_equal(goes, a);
    assert_false(http_places_has_room(&all, half, &goes)); /* it is not closed yet */
    assert_ptr_equal(goes, b);
    http_place_leave(a);
    assert_true(http_places_has_room(&all, half, &goes));
}

static void test_monitor_answers_a_probe_while_64_others_drip(void **state)
{
    (void)state;
    process p;
    int fd[64];
    begin(&p, NULL);
    for (int i = 0; i < 64; i++) say(fd[i] = dial(&p), "GET /healthz HTTP/1.1\r\nHost: l");
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 64; i++) send(fd[i], "x", 1, MSG_NOSIGNAL);
        const uint64_t before = clock_ms(&clock_real);
        expect(&p, "GET /healthz" HOST, "200", "ok");
        assert_true(clock_ms(&clock_real) - before < 2000);
    }
    for (int i = 0; i < 64; i++) close(fd[i]);
    end(&p);
}

/* The status of the next answer of a connection that stays; 0: there was none. */
static int status_of_next(int fd)
{
    static const char request[] = "HEAD /page" HOST "\r\n\r\n"; /* an answer without a body */
    char answer[4096];
    size_t n = 0;
    if (send(fd, request, strlen(request), MSG_NOSIGNAL) < 0) return 0;
    for (const char *body = NULL; body == NULL;) {
        const ssize_t got = read(fd, answer + n, sizeof answer - 1 - n);
        if (got <= 0) return 0;
        n += (size_t)got;
        answer[n] = '\0';
        body      = strstr(answer, "\r\n\r\n");
    }
    return atoi(answer + 9);
}

static void *make_noise(void *user)
{
    process *p = user;
    while (!atomic_load(&p->is_quiet)) {
        const int fd = dial(p);
        for (int k = 0; k < 10 && !atomic_load(&p->is_quiet); k++)
            if (status_of_next(fd) != 200) atomic_fetch_add(&p->failures, 1);
        close(fd);
    }
    return NULL;
}

static void test_monitor_a_noisy_client_makes_others_of_its_address_wait_but_not_fail(void **state)
{
    (void)state;
    process p;
    pthread_t noise[2];
    begin(&p, NULL);
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&noise[i], NULL, make_noise, &p), 0);
    const uint64_t before = clock_ms(&clock_real);
    for (int i = 0; i < 100; i++) expect(&p, "GET /page" HOST, "200", "a page");
    const uint64_t took = clock_ms(&clock_real) - before;
    atomic_store(&p.is_quiet, true);
    for (int i = 0; i < 2; i++) pthread_join(noise[i], NULL);
    assert_int_equal(atomic_load(&p.failures), 0);
    assert_true(took > 1000 &&
                took < 30000); /* 100 of 300 requests, at 50 a second after the first 100 */
    end(&p);
}

static void
test_monitor_memory_for_20_clients_that_never_read_is_bounded_and_others_are_answered(void **state)
{
    (void)state;
    process p;
    int fd[20];
    begin(&p, NULL);
    expect(&p, "HEAD /large" HOST, "200", "Content-Length");
    const long before = resident_mib();
    for (int i = 0; i < 20; i++) say(fd[i] = dial(&p), "GET /large" HOST "\r\n\r\n");
    expect(&p, "GET /healthz" HOST, "200", "ok"); /* all of them were answered before */
    if (resident_is_meant())
        assert_true(resident_mib() - before < (HTTP_ANSWERS_BYTES + 2 * LARGE_BYTES) >> 20);
    char answer[64];
    talk(&p, "GET /large" HOST "\r\nConnection: close\r\n\r\n", answer, sizeof answer);
    talk(&p, "GET /large" HOST "\r\nConnection: close\r\n\r\n", answer, sizeof answer);
    assert_memory_equal(answer + 9, "200", 3); /* by the second attempt: the oldest is closed */
    for (int i = 0; i < 20; i++) close(fd[i]);
    end(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_http_gate_wants_the_token_wherever_there_is_one),
        cmocka_unit_test(
            test_http_gate_without_a_token_admits_this_machine_under_its_own_name_only),
        cmocka_unit_test(test_http_address_is_host_and_port),
        cmocka_unit_test(test_http_token_is_long_and_plain_and_never_repeated),
        cmocka_unit_test(
            test_http_a_connection_has_so_long_for_a_request_however_steadily_it_drips),
        cmocka_unit_test(
            test_http_the_oldest_of_an_address_makes_room_and_no_other_address_suffers),
        cmocka_unit_test(test_http_closes_idle_connections_before_reading_ones),
        cmocka_unit_test(test_http_answers_that_nobody_reads_are_bounded_together),
        cmocka_unit_test(test_monitor_answers_a_probe_while_64_others_drip),
        cmocka_unit_test(test_monitor_a_noisy_client_makes_others_of_its_address_wait_but_not_fail),
        cmocka_unit_test(
            test_monitor_memory_for_20_clients_that_never_read_is_bounded_and_others_are_answered),
        cmocka_unit_test(test_monitor_answers_from_the_loop_and_is_read_only),
        cmocka_unit_test(test_monitor_with_a_token_shows_nothing_without_it_but_health),
        cmocka_unit_test(test_monitor_refuses_a_token_that_others_can_read),
        cmocka_unit_test(test_monitor_reports_a_loop_that_is_stuck),
        cmocka_unit_test(test_monitor_goes_on_after_garbage),
        cmocka_unit_test(test_monitor_is_skipped_for_a_taken_port_and_fails_for_a_bad_address),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
