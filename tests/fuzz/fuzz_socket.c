/* fuzz_socket.c - whatever a stranger sends to a plain socket, in whatever pieces: the messages and refusals are those
 * that a reader of the whole text finds, and no byte is read that is not there.
 *
 * Some bodies have a place, which is exactly as large; some places are withdrawn while a body arrives.
 *
 * The first bytes of an input say how long the pieces are, how often the rest is sent, whether a greeting precedes, and
 * whether places are withdrawn. */
#include "common/net/transport/transport_socket.h"
#include "tests/fuzz/fuzz.h"

#include <sys/socket.h>
#include <unistd.h>

enum { HEAD_MAX = 64, BODY_MAX = 300, SETTINGS = 3, REPEATS = 64, FOUND_MAX = 1 << 16 };

static const char hello[8] = "PENSOCK\1";

/* ---- a reader of the whole text ------------------------------------------------------------------- */
typedef struct {
    const char *note, *other; /* NULL: a message; the other one if its first bytes came together */
    const uint8_t *head, *body;
    size_t head_size, body_size;
    bool has_body;
} found;

static found expected[FOUND_MAX];
static void *place_now; /* of the body that is being received; NULL: none */

static uint64_t number_at(const uint8_t *at, int bytes)
{
    uint64_t n = 0;
    while (bytes-- > 0) n = n << 8 | at[bytes];
    return n;
}

static size_t read_whole(const uint8_t *text, size_t size)
{
    size_t n = 0, at = sizeof hello;
    if (memcmp(text, hello, size < at ? size : at) != 0) {
        const bool is_tls = size >= 2 && (text[0] == 21 || text[0] == 22) && text[1] == 3;
        expected[0] =
            (found){.note  = text[0] == TRANSPORT_ZMQ_FIRST
                                 ? TRANSPORT_DIFFERS
                                 : "a connection that does not speak the workers' protocol",
                    .other = is_tls ? "the other end encrypts, but this side does not" : NULL};
        return 1;
    }
    while (at <= size && size - at >= 16 && n < FOUND_MAX) {
        const uint64_t coded = number_at(text + at, 8), body = coded > 0 ? coded - 1 : 0;
        const uint64_t head = number_at(text + at + 8, 4), zero = number_at(text + at + 12, 4);
        at += 16;
        if (zero != 0 || head == 0 || head > HEAD_MAX || body > BODY_MAX) {
            expected[n++] = (found){.note = zero != 0         ? "a frame that is no frame"
                                            : head == 0       ? "a message with an empty head"
                                            : head > HEAD_MAX ? "a head that is too large"
                                                              : "a body that is too large"};
            if (zero != 0 || head == 0 || head > 2 * HEAD_MAX + 1 || body > 2 * BODY_MAX + 1) break;
            at += head + body;
            continue;
        }
        if (size - at < head + body) break;
        expected[n++] = (found){.head      = text + at,
                                .head_size = head,
                                .body      = text + at + head,
                                .body_size = body,
                                .has_body  = coded > 0};
        at += head + body;
    }
    return n;
}

/* ---- the same in pieces --------------------------------------------------------------------------- */
static void check_one(const found *f, line_found kind, const transport_event *event)
{
    FUZZ_CHECK((kind == LINE_REFUSED) == (f->note != NULL));
    if (f->note != NULL) {
        FUZZ_CHECK(strcmp(event->note, f->note) == 0 ||
                   (f->other != NULL && strcmp(event->note, f->other) == 0));
        return;
    }
    FUZZ_CHECK(event->head_size == f->head_size);
    FUZZ_CHECK(memcmp(event->head, f->head, f->head_size) == 0);
    FUZZ_CHECK((event->body != NULL) == f->has_body);
    if (event->body == NULL) return;
    FUZZ_CHECK(event->body->size == f->body_size);
    FUZZ_CHECK(memcmp(event->body->data, f->body, f->body_size) == 0);
    FUZZ_CHECK(event->is_placed == (event->body->data == place_now));
    buf_release(event->body);
}

static void *place(void *user, uint32_t peer, const void *head, size_t head_size, uint64_t bytes,
                   const void **owner)
{
    (void)user, (void)peer, (void)head_size;
    if (*(const uint8_t *)head % 2 == 1) return NULL;
    FUZZ_CHECK(place_now == NULL);
    *owner           = &place_now;
    return place_now = malloc(bytes);
}

static void free_place(void)
{
    free(place_now);
    place_now = NULL;
}

static void check_pieces(const uint8_t *text, size_t size, size_t piece, bool withdraws)
{
    const transport_options o = {
        .head_bytes_max = HEAD_MAX, .body_bytes_max = BODY_MAX, .place = place};
    const size_t n = read_whole(text, size);
    size_t seen    = 0;
    int fd[2];
    FUZZ_CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd) == 0);
    line *l = line_create(fd[0], &o);
    FUZZ_CHECK(l != NULL);
    l->number = 1;
    for (size_t at = 0; at < size && !l->is_over; at += piece) {
        const size_t here = size - at < piece ? size - at : piece;
        FUZZ_CHECK(send(fd[1], text + at, here, MSG_NOSIGNAL) == (ssize_t)here);
        line_read(l);
        transport_event event = {0};
        for (line_found kind; (kind = line_take(l, &o, &event)) != LINE_NONE;
             event = (transport_event){0}) {
            FUZZ_CHECK(seen < n);
            check_one(&expected[seen++], kind, &event);
            if (event.is_placed) free_place();
        }
        if (!withdraws || place_now == NULL) continue;
        line_unplace(l, &place_now);
        free_place();
        if (seen < n) seen++;
    }
    FUZZ_CHECK(seen == n);
    line_free(l);
    free_place();
    close(fd[1]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size <= SETTINGS) return 0;
    const size_t piece = 1 + (size_t)data[0] * 8, repeats = 1 + data[1] % REPEATS;
    const size_t greets = data[2] % 2 == 0 ? sizeof hello : 0, each = size - SETTINGS;
    uint8_t *text = malloc(greets + repeats * each);
    FUZZ_CHECK(text != NULL);
    memcpy(text, hello, greets);
    for (size_t i = 0; i < repeats; i++) memcpy(text + greets + i * each, data + SETTINGS, each);
    check_pieces(text, greets + repeats * each, piece, data[2] % 4 >= 2);
    free(text);
    return 0;
}
