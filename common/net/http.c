/* http.c - the front over libmicrohttpd and its only door.
 *
 * DESIGN.  The library parses and bounds the bytes of a request.  Ours are the listening socket (so that a taken
 * port is a sentence), the thread, the time limits of connections (http_places.h; the library only limits silence
 * and refuses the newest, so a few slow senders would keep a probe out), the gate (http_gate.h), the table of
 * routes, the pace of an address, and the headers of answers.  Nothing is stored between requests.  A request's body is
 * never read.  The kernel's buffers of a connection are small: unread bytes stay in the
 * answer, which is counted.
 */
#include "common/net/http.h"

#include "common/base/clock.h"
#include "common/base/rate.h"
#include "common/base/why.h"
#include "common/containers/hash.h"
#include "common/net/http_gate.h"
#include "common/net/http_places.h"
#include "common/system/library.h"
#include "common/system/own_files.h"

#include <errno.h>
#include <fcntl.h>
#include <microhttpd.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    SILENCE_S     = 10,       /* silence of a connection */
    HEADER_BYTES  = 16 << 10, /* of one request */
    SOCKET_BYTES  = 64 << 10, /* of one connection in the kernel, each way */
    BACKLOG       = 64,
    ASKS_BURST    = 100, /* per address, without health checks */
    ASKS_A_SECOND = 50,
    ASKS_PLACES   = 61,
    ASKS_WAIT_MAX = 12, /* per address: fewer than its connections, so that others find a place */
    ASKS_WAIT_MS  = 10
};

struct http {
    struct MHD_Daemon *daemon;
    int listener; /* -1 once the daemon owns it */
    int wake;     /* -1: none */
    pthread_t thread;
    bool has_thread;
    atomic_bool must_end;
    const http_route *routes;
    void *user;
    http_gate gate;
    http_places places;     /* owned by the thread, like the next fields */
    rate asks[ASKS_PLACES]; /* by address */
    uint64_t turns;
    char address[HTTP_HOST_BYTES + 8], cookie[32];
};

struct http_request {
    struct MHD_Connection *connection;
    const char *path;
    http_place *place; /* of its connection */
};

/* ---- the library, loaded by the first server of the process -------------------------------------- */
/* clang-format off */
#define FUNCTIONS(X) \
    X(add_response_header) X(create_response_from_buffer) X(destroy_response) X(get_connection_info) \
    X(get_daemon_info) X(get_timeout) X(lookup_connection_value) X(lookup_connection_value_n) X(queue_response) \
    X(resume_connection) X(run) X(start_daemon) X(stop_daemon) X(suspend_connection)
/* clang-format on */
#define MEMBER(name) __typeof__(MHD_##name) *name;
#define NAME(name)   "MHD_" #name,

static struct {
    FUNCTIONS(MEMBER)
} mhd;

static pen_status load(pen_error *why)
{
    static const char *const names[] = {FUNCTIONS(NAME)};
    return library_load(PENSTOCK_MICROHTTPD, names, sizeof names / sizeof *names, &mhd, why);
}

/* ---- for handlers ---------------------------------------------------------------------------- */
const char *http_path(const http_request *request)
{
    return request->path;
}

static const char *query_of(const http_request *request, const char *name)
{
    const char *text = NULL;
    if (mhd.lookup_connection_value_n(request->connection, MHD_GET_ARGUMENT_KIND, name,
                                      strlen(name), &text, NULL) == MHD_NO)
        return NULL;
    return text != NULL ? text : "";
}

const char *http_header(const http_request *request, const char *name)
{
    return mhd.lookup_connection_value(request->connection, MHD_HEADER_KIND, name);
}

void http_say(http_reply *reply, int status, const char *text)
{
    reply->status = status;
    reply->size   = 0;
    if (asprintf(&reply->text, "%s\n", text) < 0)
        reply->text = NULL;
    else
        reply->size = strlen(reply->text);
}

/* ---- answering ------------------------------------------------------------------------------- */
static void add(struct MHD_Response *answer, const char *name, const char *value)
{
    (void)mhd.add_response_header(answer, name, value);
}

static struct MHD_Response *make_answer(const http_reply *reply)
{
    const void *data            = reply->fixed != NULL ? reply->fixed : reply->text;
    struct MHD_Response *answer = mhd.create_response_from_buffer(
        data != NULL ? reply->size : 0, (void *)(uintptr_t)data,
        reply->fixed == NULL && data != NULL ? MHD_RESPMEM_MUST_FREE : MHD_RESPMEM_PERSISTENT);
    if (answer == NULL) {
        free(reply->text);
        return NULL;
    }
    add(answer, "Content-Type", reply->type != NULL ? reply->type : "text/plain; charset=utf-8");
    add(answer, "Content-Security-Policy",
        reply->policy != NULL ? reply->policy : "default-src 'none'; frame-ancestors 'none'");
    add(answer, "Cache-Control", "no-store");
    add(answer, "X-Content-Type-Options", "nosniff");
    add(answer, "Referrer-Policy", "no-referrer");
    add(answer, "Cross-Origin-Resource-Policy", "same-origin");
    return answer;
}

static enum MHD_Result send_reply(const http *h, struct MHD_Connection *connection,
                                  const http_reply *reply, bool keeps_token)
{
    char cookie[HTTP_TOKEN_BYTES + 96];
    struct MHD_Response *answer = make_answer(reply);
    if (answer == NULL) return MHD_NO;
    if (reply->status == MHD_HTTP_METHOD_NOT_ALLOWED) add(answer, "Allow", "GET, HEAD");
    if (reply->status == MHD_HTTP_UNAUTHORIZED) add(answer, "WWW-Authenticate", "Bearer");
    snprintf(cookie, sizeof cookie, "%s=%s; Path=/; HttpOnly; SameSite=Strict", h->cookie,
             h->gate.token);
    if (keeps_token) add(answer, "Set-Cookie", cookie);
    const enum MHD_Result result = mhd.queue_response(connection, (unsigned)reply->status, answer);
    mhd.destroy_response(answer);
    return result;
}

static void refuse(http_verdict verdict, http_reply *reply)
{
    if (verdict == HTTP_CLOSED)
        http_say(reply, MHD_HTTP_FORBIDDEN,
                 "this address is reachable from other machines, but there is no token: set "
                 "http_token_file");
    else if (verdict == HTTP_WRONG_TOKEN)
        http_say(reply, MHD_HTTP_UNAUTHORIZED,
                 "the token is wrong or missing: send 'Authorization: Bearer TOKEN', or add "
                 "?token=TOKEN");
    else
        http_say(reply, MHD_HTTP_MISDIRECTED_REQUEST,
                 "unknown host name: use localhost, or set http_token_file");
}

static const http_route *find_route(const http *h, const char *path)
{
    const http_route *route = h->routes;
    while (route->path != NULL && strcmp(route->path, path) != 0) route++;
    return route->path != NULL ? route : NULL;
}

/* ---- the pace of an address ------------------------------------------------------------------------ */
static bool may_ask(http *h, uint64_t address)
{
    return rate_take(&h->asks[address % ASKS_PLACES], ASKS_BURST, ASKS_A_SECOND,
                     clock_ms(&clock_real));
}

/* Every page takes loop time, so an address has an allowance.  Beyond it requests wait, first
 * come, first served, and no newcomer passes them: each connection has one at most, so a noisy one
 * takes nothing from the others.  False: not to be answered now; an empty reply means that it
 * waits. */
static bool pace(http *h, const http_request *request, const http_route *route, http_reply *reply)
{
    http_place *place    = request->place;
    const size_t waiting = http_places_count_waiting(&h->places, place->address);
    if (route->is_open || place->had_turn || (waiting == 0 && may_ask(h, place->address)))
        return true;
    if (waiting >= ASKS_WAIT_MAX) {
        http_say(reply, MHD_HTTP_TOO_MANY_REQUESTS,
                 "too many requests from this address: at most 50 a second");
        return false;
    }
    place->turn = ++h->turns;
    place->user = request->connection;
    mhd.suspend_connection(request->connection);
    return false;
}

static void let_go(http_place *p)
{
    p->turn     = 0;
    p->had_turn = true;
    mhd.resume_connection(p->user); /* the library asks for its answer again */
}

static void serve_waiting(http *h)
{
    uint64_t turn = 0;
    for (http_place *p; (p = http_places_next_waiting(&h->places, turn)) != NULL;) {
        turn = p->turn;
        if (may_ask(h, p->address)) let_go(p);
    }
}

static void make_reply(http *h, const http_request *request, const char *method, http_reply *reply,
                       bool *keeps_token)
{
    const http_route *route            = find_route(h, request->path);
    const http_credentials credentials = {
        .host          = http_header(request, MHD_HTTP_HEADER_HOST),
        .authorization = http_header(request, MHD_HTTP_HEADER_AUTHORIZATION),
        .query         = query_of(request, "token"),
        .cookie = mhd.lookup_connection_value(request->connection, MHD_COOKIE_KIND, h->cookie)};
    const http_verdict verdict =
        route != NULL && route->is_open ? HTTP_IN : http_gate_ask(&h->gate, &credentials);
    *keeps_token = verdict == HTTP_IN_KEEP;
    if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0)
        http_say(reply, MHD_HTTP_METHOD_NOT_ALLOWED, "only GET and HEAD are allowed");
    else if (verdict != HTTP_IN && verdict != HTTP_IN_KEEP)
        refuse(verdict, reply);
    else if (route == NULL)
        http_say(reply, MHD_HTTP_NOT_FOUND, "not found");
    else if (pace(h, request, route, reply))
        route->handler(h->user, request, reply);
}

/* ---- connections ----------------------------------------------------------------------------- */
/* The library finds it closed and removes it, with its bytes in the kernel. */
static void end_place(const http_place *p)
{
    const struct linger none = {.l_onoff = 1};
    if (p == NULL) return;
    setsockopt(p->fd, SOL_SOCKET, SO_LINGER, &none, sizeof none);
    shutdown(p->fd, SHUT_RDWR);
}

/* An address without its port as one number; 0: it has none. */
static uint64_t address_of(const struct sockaddr *a)
{
    const void *at = a;
    if (a != NULL && a->sa_family == AF_INET)
        return hash_bytes(&((const struct sockaddr_in *)at)->sin_addr, sizeof(struct in_addr));
    if (a != NULL && a->sa_family == AF_INET6)
        return hash_bytes(&((const struct sockaddr_in6 *)at)->sin6_addr, sizeof(struct in6_addr));
    return 0;
}

static void on_connection(void *user, struct MHD_Connection *connection, void **place,
                          enum MHD_ConnectionNotificationCode what)
{
    http *h = user;
    http_place *goes;
    if (what == MHD_CONNECTION_NOTIFY_CLOSED) {
        if (*place != NULL) http_place_leave(*place);
        *place = NULL;
        return;
    }
    const union MHD_ConnectionInfo *fd =
        mhd.get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);
    const union MHD_ConnectionInfo *client =
        mhd.get_connection_info(connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    const uint64_t now = clock_ms(&clock_real);
    *place =
        http_places_take(&h->places, fd->connect_fd, address_of(client->client_addr), now, &goes);
    if (*place == NULL) end_place(&(http_place){.fd = fd->connect_fd});
    end_place(goes);
}

static http_place *place_of(struct MHD_Connection *connection)
{
    const union MHD_ConnectionInfo *info =
        mhd.get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info != NULL ? info->socket_context : NULL;
}

static void on_sent(void *user, struct MHD_Connection *connection, void **state,
                    enum MHD_RequestTerminationCode how)
{
    http_place *place = place_of(connection);
    (void)user, (void)state, (void)how;
    if (place != NULL) http_place_wait(place, clock_ms(&clock_real));
}

/* Unread answers must not pile up: then this reader has to come again. */
static void bound_answers(http *h, http_reply *reply)
{
    http_place *goes;
    if (http_places_has_room(&h->places, reply->fixed != NULL ? 0 : reply->size, &goes)) return;
    end_place(goes);
    free(reply->text);
    *reply = (http_reply){0};
    http_say(reply, MHD_HTTP_SERVICE_UNAVAILABLE, "too many unread answers: try again in a second");
}

static enum MHD_Result answer_request(void *user, struct MHD_Connection *connection,
                                      const char *path, const char *method, const char *version,
                                      const char *data, size_t *size, void **state)
{
    http *h           = user;
    http_reply reply  = {.status = MHD_HTTP_OK};
    http_place *place = place_of(connection);
    bool keeps_token;
    (void)version, (void)data;
    if (place == NULL || place->is_ended || *size > 0) return MHD_NO; /* no body is read */
    const bool is_get =
        strcmp(method, MHD_HTTP_METHOD_GET) == 0 || strcmp(method, MHD_HTTP_METHOD_HEAD) == 0;
    const bool is_new = *state == NULL;
    *state            = h;
    if (is_new && is_get)
        return MHD_YES; /* an answer before the end of a request would end its connection */
    const http_request request = {connection, path, place};
    make_reply(h, &request, method, &reply, &keeps_token);
    if (place->turn > 0) return MHD_YES;
    place->had_turn = false;
    bound_answers(h, &reply);
    http_place_answer(place, reply.fixed != NULL ? 0 : reply.size, clock_ms(&clock_real));
    return send_reply(h, connection, &reply, keeps_token);
}

/* ---- life ------------------------------------------------------------------------------------ */
static pen_status read_token(const char *path, http_gate *gate, pen_error *why)
{
    char text[HTTP_TOKEN_BYTES + 16];
    if (path == NULL || path[0] == '\0') return PEN_OK;
    pen_status status = own_secret_read("http_token_file", path, text, sizeof text, why);
    if (status == PEN_OK) status = http_token_take(text, strlen(text), path, gate->token, why);
    explicit_bzero(text, sizeof text);
    return status;
}

static bool is_loopback(const struct sockaddr *a)
{
    if (a->sa_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr) >> 24 == 127;
    return a->sa_family == AF_INET6 &&
           IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr);
}

/* SO_REUSEADDR: the port may have been ours a moment ago. */
static int listen_at(const struct addrinfo *a)
{
    const int one = 1, bytes = SOCKET_BYTES;
    const int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes); /* its connections inherit them */
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
    if (bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0) return fd;
    const int error = errno;
    close(fd);
    errno = error;
    return -1;
}

static void name_address(http *h, const char *host)
{
    struct sockaddr_storage a;
    socklen_t size = sizeof a;
    char port[8]   = "0";
    if (getsockname(h->listener, (struct sockaddr *)&a, &size) == 0) {
        getnameinfo((struct sockaddr *)&a, size, NULL, 0, port, sizeof port, NI_NUMERICSERV);
        h->gate.is_loopback = is_loopback((struct sockaddr *)&a);
    }
    snprintf(h->address, sizeof h->address, strchr(host, ':') ? "[%s]:%s" : "%s:%s", host, port);
    snprintf(h->cookie, sizeof h->cookie, "penstock-%s", port);
}

static pen_status open_listener(http *h, const char *address, pen_error *why)
{
    char host[HTTP_HOST_BYTES], port[8];
    const struct addrinfo hints = {.ai_flags = AI_PASSIVE, .ai_socktype = SOCK_STREAM};
    struct addrinfo *found;
    pen_status status = http_address_cut(address, host, port, why);
    if (status != PEN_OK) return status;
    const int error = getaddrinfo(strcmp(host, "*") == 0 ? NULL : host, port, &hints, &found);
    if (error != 0)
        return why_set(why, PEN_BAD_SETTING, "http %.200s: %s", address, gai_strerror(error));
    h->listener = listen_at(found);
    freeaddrinfo(found);
    if (h->listener < 0)
        return why_set(why, PEN_UNREACHABLE,
                       "cannot listen at http %.200s: %m; use port 0 for a free one", address);
    name_address(h, host);
    return PEN_OK;
}

/* How long the thread may sleep; -1: until something happens. */
static int sleep_ms(http *h)
{
    MHD_UNSIGNED_LONG_LONG library = 0;
    const bool has_any             = mhd.get_timeout(h->daemon, &library) == MHD_YES;
    const uint64_t next = http_places_next_ms(&h->places), now = clock_ms(&clock_real);
    uint64_t ms = next == UINT64_MAX ? UINT64_MAX : next > now ? next - now : 0;
    if (has_any && library < ms) ms = library;
    return ms > HTTP_ANSWER_MS ? -1 : (int)ms;
}

static void *serve(void *user)
{
    http *h              = user;
    struct pollfd fds[2] = {
        {.fd     = mhd.get_daemon_info(h->daemon, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd,
         .events = POLLIN},
        {.fd = h->wake, .events = POLLIN}};
    while (!atomic_load(&h->must_end)) {
        const bool is_any_waiting = http_places_next_waiting(&h->places, 0) != NULL;
        poll(fds, 2, is_any_waiting ? ASKS_WAIT_MS : sleep_ms(h));
        serve_waiting(h);
        mhd.run(h->daemon);
        const uint64_t now = clock_ms(&clock_real);
        for (http_place *p; (p = http_places_overdue(&h->places, now)) != NULL;) end_place(p);
    }
    for (http_place *p; (p = http_places_next_waiting(&h->places, 0)) != NULL;) let_go(p);
    return NULL;
}

/* Signals belong to the program's threads. */
static bool start_thread(http *h)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    h->has_thread = pthread_create(&h->thread, NULL, serve, h) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (h->has_thread) pthread_setname_np(h->thread, "pen-http");
    return h->has_thread;
}

static pen_status start(http *h, pen_error *why)
{
    h->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    h->daemon =
        mhd.start_daemon(MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME, 0, NULL, NULL, answer_request, h,
                         MHD_OPTION_LISTEN_SOCKET, h->listener, MHD_OPTION_CONNECTION_LIMIT,
                         (unsigned)(HTTP_PLACES + HTTP_PLACES_SPARE), MHD_OPTION_CONNECTION_TIMEOUT,
                         (unsigned)SILENCE_S, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
                         (size_t)HEADER_BYTES, MHD_OPTION_NOTIFY_CONNECTION, on_connection, h,
                         MHD_OPTION_NOTIFY_COMPLETED, on_sent, h, MHD_OPTION_END);
    if (h->daemon != NULL) h->listener = -1;
    if (h->wake < 0 || h->daemon == NULL || !start_thread(h))
        return why_set(why, PEN_NO_MEMORY, "no thread for http at %s: %m", h->address);
    return PEN_OK;
}

pen_status http_open(const http_options *options, http **out, pen_error *why)
{
    http *h = calloc(1, sizeof *h);
    if (h == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for http");
    h->listener = h->wake = -1;
    h->routes             = options->routes;
    h->user               = options->user;
    pen_status status     = load(why);
    if (status == PEN_OK) status = read_token(options->token_file, &h->gate, why);
    if (status == PEN_OK) status = open_listener(h, options->address, why);
    if (status == PEN_OK) status = start(h, why);
    if (status != PEN_OK) {
        http_close(h);
        return status;
    }
    *out = h;
    return PEN_OK;
}

void http_close(http *h)
{
    if (h == NULL) return;
    atomic_store(&h->must_end, true);
    if (h->has_thread) {
        eventfd_write(h->wake, 1);
        pthread_join(h->thread, NULL);
    }
    if (h->daemon != NULL) mhd.stop_daemon(h->daemon);
    if (h->listener >= 0) close(h->listener);
    if (h->wake >= 0) close(h->wake);
    free(h);
}

const char *http_address(const http *h)
{
    return h->address;
}
