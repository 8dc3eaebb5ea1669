/* lend.c - the note of a lent body, and reading or mapping it in another process. */
#include "common/net/transport/lend.h"

#include "common/containers/hash.h"
#include "common/containers/arrays.h"
#include "common/system/own_pid.h"
#include "common/system/segment.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/types.h>
#include <unistd.h>

enum {
    RETURNS_MAX = 1024,
    BOOKS_MAX   = 1 << 20,
    PRIVATE_MAX = 1024, /* messages of this layer in a row before the owner's turn */
    NO_SLOT     = -1
};

typedef enum { PROBE = 1, MAPPED, LENT, RETURN } kind;

typedef struct { /* prefix of every internal head */
    char mark[8];
    uint32_t kind;
    uint32_t n; /* RETURN: number of tokens */
} preface;

#define MARK "\0PenLend"

/* A process's proof for one peer, in a segment, that it is on this host, and which process it is.  Its messages
 * contain `shown`, so the prover reveals nothing to a peer that cannot map it; the mapper answers with `secret`,
 * and repeats it as `echo` in its own proof. */
typedef struct {
    uint64_t shown, secret, echo; /* none is 0 */
} proof;

typedef struct {
    preface p;
    uint64_t shown;
    segment_ref place; /* of a proof */
} probe_head;

typedef struct {
    preface p;
    uint64_t secret;   /* 0: cannot be mapped */
    segment_ref place; /* of a proof, whose echo is the secret */
} mapped_head;

typedef struct { /* the head of the message follows */
    preface p;
    uint64_t token, bytes;
    segment_ref place;
} lent_head;

/* ---- borrowed bodies ------------------------------------------------------------------------- */
typedef struct {
    uint32_t peer, generation;
    uint64_t token;
} returned;

/* Outlives its layer while borrowed bodies remain. */
typedef struct {
    pthread_mutex_t lock;
    size_t users; /* the layer and each borrowed body; under the lock like the rest */
    returned *at;
    size_t n, capacity;
    bool is_closed;
} book;

typedef struct {
    buf base;
    segment_ref place;
    book *book;
    returned what;
} borrowed;

/* ---- peers and lent bodies ------------------------------------------------------------------- */
typedef enum { UNKNOWN, ASKED, MAPS, MAPS_NOT } standing;

typedef struct {
    uint32_t number, generation;
    standing standing; /* whether it maps our memory */
    uint32_t unlent;   /* bodies sent meanwhile */
    pid_t reader;      /* its pid once it MAPS: proven */
    pid_t lender;      /* its pid once its memory was mapped here: proven; 0: it lends nothing */
    proof *proof;      /* in a segment; NULL until needed */
    UT_hash_handle hh;
} peer_row;

typedef struct {
    buf *body; /* NULL: free */
    uint32_t peer, serial;
    int next_free;
} slot;

struct lend {
    const transport_ops *ops;
    void *state;
    uint64_t body_bytes_max;
    pid_t owner; /* a forked child returns nothing */
    bool admits_all;
    peer_row *peers;
    uint32_t generations;
    slot *slot;
    size_t n_slots;
    int free_slot;
    book *book;
    uint8_t *scratch; /* an internal head */
    size_t scratch_size;
    returned *due; /* tokens to return, not sent yet */
    size_t n_due, due_capacity;
};

/* ---- the book --------------------------------------------------------------------------------------------- */
static book *book_create(void)
{
    book *b = calloc(1, sizeof *b);
    if (b == NULL) return NULL;
    b->users = 1;
    pthread_mutex_init(&b->lock, NULL);
    return b;
}

/* Call with the lock held; releases it. */
static void book_leave(book *b)
{
    const bool is_last = --b->users == 0;
    pthread_mutex_unlock(&b->lock);
    if (!is_last) return;
    pthread_mutex_destroy(&b->lock);
    free(b->at);
    free(b);
}

/* Cannot fail: the room was reserved with the body. */
static void give_back(buf *self)
{
    borrowed *mine = (borrowed *)self;
    book *b        = mine->book;
    segment_unmap(&mine->place);
    pthread_mutex_lock(&b->lock);
    if (!b->is_closed) b->at[b->n++] = mine->what;
    book_leave(b);
    free(mine);
}

/* Reserves a place for the return of each borrowed body. */
static bool book_enter(book *b)
{
    pthread_mutex_lock(&b->lock);
    const size_t n      = b->users + b->n;
    const bool has_room = n <= BOOKS_MAX && VEC_ROOM(b->at, b->capacity, n);
    b->users += has_room;
    pthread_mutex_unlock(&b->lock);
    return has_room;
}

/* ---- life ------------------------------------------------------------------------------------------------- */
lend *lend_create(const transport_ops *ops, void *state, bool listens, uint64_t body_bytes_max)
{
    lend *self = calloc(1, sizeof *self);
    if (self == NULL) return NULL;
    *self = (lend){.ops            = ops,
                   .state          = state,
                   .admits_all     = !listens,
                   .body_bytes_max = body_bytes_max,
                   .free_slot      = NO_SLOT,
                   .book           = book_create(),
                   .owner          = own_pid()};
    if (self->book != NULL) return self;
    free(self);
    return NULL;
}

/* Number of threads, from the fields after the name in /proc/PID/stat; 0 for a dead process. */
static long threads_of(const char *after_name)
{
    long n          = 0;
    const char *at  = after_name;
    const int field = 18; /* the name is field 2, the count field 20 */
    for (int i = 0; i < field && at != NULL; i++) at = strchr(at + 1, ' ');
    return at != NULL && sscanf(at, "%ld", &n) == 1 ? n : 0;
}

/* Whether the process reads no memory any more.  Unknown means false: then pages are only copied.  A process whose
 * first thread has ended looks dead but is not while it has others. */
static bool is_gone(pid_t pid)
{
    char path[64], text[512];
    if (pid <= 0) return false;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *f = fopen(path, "re");
    if (f == NULL) return errno == ENOENT;
    const size_t n      = fread(text, 1, sizeof text - 1, f);
    const bool was_read = !ferror(f) || errno == ESRCH;
    fclose(f);
    text[n]           = '\0';
    const char *state = strrchr(text, ')');
    if (state == NULL || state[1] == '\0') return was_read;
    return (state[2] == 'Z' || state[2] == 'X') && threads_of(state) < 2;
}

static void release_slot(lend *self, size_t i)
{
    slot *s = &self->slot[i];
    buf_release(s->body);
    s->body         = NULL;
    s->next_free    = self->free_slot;
    self->free_slot = (int)i;
}

static void free_row(lend *self, peer_row *row)
{
    if (self->owner == own_pid()) {
        /* The connection has ended. */
        bool has_looked = false, has_gone = false;
        for (size_t i = 0; i < self->n_slots; i++) {
            slot *s = &self->slot[i];
            if (s->body == NULL || s->peer != row->number) continue;
            if (!has_looked) has_gone = is_gone(row->reader);
            has_looked = true;
            if (!has_gone) (void)segment_detach(s->body->data);
            release_slot(self, i);
        }
        segment_free(row->proof);
    }
    HASH_DEL(self->peers, row);
    free(row);
}

void lend_destroy(lend *self)
{
    peer_row *row, *next;
    if (self == NULL) return;
    HASH_ITER(hh, self->peers, row, next) free_row(self, row);
    pthread_mutex_lock(&self->book->lock);
    self->book->is_closed = true;
    book_leave(self->book);
    free(self->slot);
    free(self->scratch);
    free(self->due);
    free(self);
}

/* ---- peers ------------------------------------------------------------------------------------------------ */
static peer_row *find_peer(const lend *self, uint32_t number)
{
    peer_row *row;
    HASH_FIND(hh, self->peers, &number, sizeof number, row);
    return row;
}

/* NULL: no memory. */
static peer_row *add_peer(lend *self, uint32_t number)
{
    peer_row *row = calloc(1, sizeof *row);
    if (row == NULL) return NULL;
    *row = (peer_row){.number = number, .generation = ++self->generations};
    HASH_ADD(hh, self->peers, number, sizeof row->number, row);
    if (row->hh.tbl != NULL) return row;
    free(row);
    return NULL;
}

/* NULL: no member, or no memory. */
static peer_row *member(lend *self, uint32_t number)
{
    peer_row *row = find_peer(self, number);
    return row == NULL && self->admits_all ? add_peer(self, number) : row;
}

void lend_admit(lend *self, uint32_t peer)
{
    if (find_peer(self, peer) == NULL) (void)add_peer(self, peer);
}

/* ---- internal heads --------------------------------------------------------------------------------------- */
static pen_status send_head(lend *self, uint32_t peer, const void *head, size_t size)
{
    return self->ops->send(self->state, peer, head, size, NULL);
}

/* ---- proofs ----------------------------------------------------------------------------------------------- */
static uint64_t draw(void)
{
    uint64_t number = 0;
    if (getrandom(&number, sizeof number, 0) != sizeof number) return 0;
    return number | 1;
}

/* Where this process's proof for a peer lies. */
static bool show_proof(peer_row *row, segment_ref *place)
{
    if (row->proof == NULL) {
        const proof fresh = {.shown = draw(), .secret = draw()};
        if (fresh.shown == 0 || fresh.secret == 0) return false;
        row->proof = segment_alloc(sizeof *row->proof, NULL);
        if (row->proof == NULL) return false;
        *row->proof = fresh;
    }
    return segment_find(row->proof, sizeof *row->proof, place);
}

static bool read_proof(const segment_ref *place, proof *read)
{
    void *at;
    if (segment_map(place, sizeof *read, &at, NULL) != PEN_OK) return false;
    memcpy(read, at, sizeof *read);
    segment_unmap(place);
    return true;
}

static void ask(lend *self, peer_row *row)
{
    probe_head head = {.p = {.mark = MARK, .kind = PROBE}};
    if (!show_proof(row, &head.place)) {
        row->standing = MAPS_NOT;
        return;
    }
    head.shown = row->proof->shown;
    if (send_head(self, row->number, &head, sizeof head) == PEN_OK) row->standing = ASKED;
}

/* A PROBE before its sender is admitted is ignored; so it is repeated, less and less often. */
static void ask_in_time(lend *self, peer_row *row)
{
    if (row->standing != UNKNOWN && row->standing != ASKED) return;
    if (row->standing == UNKNOWN || (row->unlent & (row->unlent - 1)) == 0) ask(self, row);
    row->unlent++;
}

static void on_probe(lend *self, uint32_t peer, const void *data, size_t size)
{
    probe_head head;
    proof its;
    mapped_head answer = {.p = {.mark = MARK, .kind = MAPPED}};
    peer_row *row      = member(self, peer);
    if (size != sizeof head || row == NULL) return;
    memcpy(&head, data, sizeof head);
    row->lender = 0;
    if (read_proof(&head.place, &its) && its.shown == head.shown && its.shown != 0 &&
        show_proof(row, &answer.place)) {
        answer.secret    = its.secret;
        row->proof->echo = its.secret;
        row->lender      = head.place.pid;
    }
    (void)send_head(self, peer, &answer, sizeof answer); /* if lost, it is asked again */
}

static void on_mapped(lend *self, uint32_t peer, const void *data, size_t size)
{
    mapped_head head;
    proof its;
    peer_row *row = find_peer(self, peer);
    if (size != sizeof head || row == NULL || row->proof == NULL) return;
    memcpy(&head, data, sizeof head);
    if (head.secret == 0) {
        row->standing = MAPS_NOT;
        return;
    }
    if (row->standing != ASKED) return;
    row->standing = MAPS_NOT;
    if (head.secret != row->proof->secret || !read_proof(&head.place, &its) ||
        its.echo != head.secret)
        return;
    row->standing = MAPS;
    row->reader   = head.place.pid;
}

/* ---- returning -------------------------------------------------------------------------------------------- */
/* Sends the tokens of the first due peer in one message.  False: its queue is full; they stay. */
static bool return_some(lend *self)
{
    struct {
        preface p;
        uint64_t token[RETURNS_MAX];
    } message;
    const returned first = self->due[0];
    const peer_row *row  = find_peer(self, first.peer);
    const bool is_here   = row != NULL && row->generation == first.generation;
    size_t kept = 0, n = 0;
    for (size_t i = 0; i < self->n_due; i++) {
        const returned *r  = &self->due[i];
        const bool belongs = r->peer == first.peer && r->generation == first.generation;
        if (belongs && n < RETURNS_MAX)
            message.token[n++] = r->token;
        else
            self->due[kept++] = *r;
    }
    message.p         = (preface){.mark = MARK, .kind = RETURN, .n = (uint32_t)n};
    const size_t size = sizeof message.p + n * sizeof message.token[0];
    if (is_here && send_head(self, first.peer, &message, size) == PEN_AGAIN) {
        for (size_t i = 0; i < n; i++)
            self->due[kept + i] = (returned){first.peer, first.generation, message.token[i]};
        return false; /* reordering is harmless */
    }
    self->n_due = kept;
    return true;
}

/* The lender keeps a body that could not be borrowed until it gets this. */
static void give_back_unread(lend *self, const peer_row *row, uint64_t token)
{
    const struct {
        preface p;
        uint64_t token;
    } message = {{.mark = MARK, .kind = RETURN, .n = 1}, token};
    if (VEC_ROOM(self->due, self->due_capacity, self->n_due + 1))
        self->due[self->n_due++] = (returned){row->number, row->generation, token};
    else
        (void)send_head(self, row->number, &message, sizeof message);
}

static void settle(lend *self)
{
    /* Appends newly released tokens to the unsent ones. */
    book *b = self->book;
    pthread_mutex_lock(&b->lock);
    if (b->n > 0 && VEC_ROOM(self->due, self->due_capacity, self->n_due + b->n)) {
        memcpy(self->due + self->n_due, b->at, b->n * sizeof *b->at);
        self->n_due += b->n;
        b->n = 0;
    }
    pthread_mutex_unlock(&b->lock);
    while (self->n_due > 0 && return_some(self)) continue;
}

static void on_return(lend *self, uint32_t peer, const uint8_t *data, size_t size)
{
    preface p;
    memcpy(&p, data, sizeof p);
    if (size != sizeof p + (size_t)p.n * sizeof(uint64_t)) return;
    for (uint32_t i = 0; i < p.n; i++) {
        uint64_t token;
        memcpy(&token, data + sizeof p + i * sizeof token, sizeof token);
        const size_t at = token & UINT32_MAX;
        if (at >= self->n_slots) continue;
        slot *s = &self->slot[at];
        if (s->body != NULL && s->peer == peer && s->serial == token >> 32) release_slot(self, at);
    }
}

/* ---- lending ---------------------------------------------------------------------------------------------- */
static int take_slot(lend *self)
{
    if (self->free_slot == NO_SLOT) {
        const size_t n = self->n_slots;
        if (!VEC_ROOM(self->slot, self->n_slots, n + 1)) return NO_SLOT;
        for (size_t i = self->n_slots; i-- > n;) {
            self->slot[i].next_free = self->free_slot;
            self->free_slot         = (int)i;
        }
    }
    const int i     = self->free_slot;
    self->free_slot = self->slot[i].next_free;
    return i;
}

/* UNSUPPORTED: send this body normally. */
static pen_status send_lent(lend *self, uint32_t peer, const void *head, size_t head_size,
                            buf *body, const segment_ref *place)
{
    const int i       = take_slot(self);
    const size_t size = sizeof(lent_head) + head_size;
    if (i == NO_SLOT || !VEC_ROOM(self->scratch, self->scratch_size, size)) return PEN_UNSUPPORTED;
    slot *s              = &self->slot[i];
    const lent_head lent = {.p     = {.mark = MARK, .kind = LENT},
                            .token = (uint64_t)++s->serial << 32 | (uint32_t)i,
                            .bytes = body->size,
                            .place = *place};
    memcpy(self->scratch, &lent, sizeof lent);
    memcpy(self->scratch + sizeof lent, head, head_size);
    const pen_status status = send_head(self, peer, self->scratch, size);
    s->peer                 = peer;
    s->body                 = status == PEN_OK ? body : NULL;
    if (status != PEN_OK) {
        s->next_free    = self->free_slot;
        self->free_slot = i;
    }
    return status;
}

pen_status lend_send(lend *self, uint32_t peer, const void *head, size_t head_size, buf *body)
{
    segment_ref place;
    settle(self);
    const bool may_be_lent = body != NULL && body->size >= LEND_BYTES_MIN &&
                             segment_find(body->data, body->size, &place);
    peer_row *row = may_be_lent ? member(self, peer) : NULL;
    if (row != NULL && row->standing == MAPS) {
        const pen_status status = send_lent(self, peer, head, head_size, body, &place);
        if (status != PEN_UNSUPPORTED) return status;
    }
    const pen_status status = self->ops->send(self->state, peer, head, head_size, body);
    if (status == PEN_OK && row != NULL) ask_in_time(self, row);
    return status;
}

/* ---- borrowing -------------------------------------------------------------------------------------------- */
static const char NO_MEMORY[] = "no memory for a lent body";

static void refuse(lend *self, transport_event *event, const char *note)
{
    event->lacks_memory = note == NO_MEMORY;
    if (self->ops->blame != NULL && !event->lacks_memory)
        self->ops->blame(self->state, event->peer);
    event->kind      = TRANSPORT_REFUSED;
    event->head      = NULL;
    event->head_size = 0;
    event->body      = NULL;
    snprintf(event->note, sizeof event->note, "%s", note);
}

/* Maps a lent body; NULL, or the reason.  On failure the sender should stop lending. */
static const char *borrow(lend *self, const peer_row *row, const lent_head *lent, borrowed **made)
{
    void *at       = NULL;
    borrowed *mine = malloc(sizeof *mine);
    *made          = mine;
    if (mine == NULL || !book_enter(self->book)) {
        give_back_unread(self, row, lent->token);
        return NO_MEMORY;
    }
    if (segment_map(&lent->place, lent->bytes, &at, NULL) != PEN_OK) {
        const mapped_head no = {.p = {.mark = MARK, .kind = MAPPED}};
        (void)send_head(self, row->number, &no, sizeof no);
        give_back_unread(self, row, lent->token);
        pthread_mutex_lock(&self->book->lock);
        book_leave(self->book);
        return "cannot map a lent body";
    }
    *mine = (borrowed){.place = lent->place,
                       .book  = self->book,
                       .what  = {row->number, row->generation, lent->token}};
    buf_init(&mine->base, at, lent->bytes, give_back);
    return NULL;
}

static void on_lent(lend *self, transport_event *event)
{
    lent_head lent;
    borrowed *mine    = NULL;
    const char *wrong = NULL;
    if (event->head_size <= sizeof lent) {
        refuse(self, event, "a lent message without a head");
        return;
    }
    memcpy(&lent, event->head, sizeof lent);
    const peer_row *row = find_peer(self, event->peer);
    if (row == NULL || row->lender == 0)
        wrong = "a lent body of a peer without a proof";
    else if (lent.place.pid != row->lender)
        wrong = "a lent body in another process's memory";
    else if (lent.bytes > self->body_bytes_max)
        wrong = "a lent body over the size limit";
    else
        wrong = borrow(self, row, &lent, &mine);
    if (wrong != NULL) {
        free(mine);
        refuse(self, event, wrong);
        return;
    }
    event->body = &mine->base;
    event->head = (const uint8_t *)event->head + sizeof lent;
    event->head_size -= sizeof lent;
}

bool lend_is_private(const transport_event *event)
{
    preface p = {.kind = 0};
    return event->kind == TRANSPORT_MESSAGE && event->head_size >= sizeof p.mark &&
           memcmp(event->head, MARK, sizeof p.mark) == 0;
}

/* True: the event is for the owner. */
static bool is_for_owner(lend *self, transport_event *event)
{
    if (event->kind == TRANSPORT_DOWN) {
        peer_row *row = find_peer(self, event->peer);
        if (row != NULL) free_row(self, row);
    }
    if (!lend_is_private(event)) return true;
    preface p;
    if (event->body != NULL || event->head_size < sizeof p) {
        buf_release(event->body);
        refuse(self, event, "a message about lent bodies that makes no sense");
        return true;
    }
    memcpy(&p, event->head, sizeof p);
    switch (p.kind) {
    case PROBE: on_probe(self, event->peer, event->head, event->head_size); return false;
    case MAPPED: on_mapped(self, event->peer, event->head, event->head_size); return false;
    case RETURN: on_return(self, event->peer, event->head, event->head_size); return false;
    case LENT: on_lent(self, event); return true;
    default: refuse(self, event, "a message about lent bodies that makes no sense"); return true;
    }
}

pen_status lend_recv(lend *self, transport_event *event)
{
    settle(self);
    for (int n = 0; n < PRIVATE_MAX; n++) {
        *event                  = (transport_event){0};
        const pen_status status = self->ops->recv(self->state, event);
        if (status != PEN_OK || is_for_owner(self, event)) return status;
    }
    refuse(self, event, "messages about lent bodies without an end");
    return PEN_OK;
}

/* ---- buffers ---------------------------------------------------------------------------------------------- */
static void free_segment(buf *self)
{
    segment_free(self->data);
    free(self);
}

buf *lend_buf_new(size_t size)
{
    if (size < LEND_BYTES_MIN) return buf_new(size);
    void *data = segment_alloc(size, NULL);
    buf *self  = data != NULL ? malloc(sizeof *self) : NULL;
    if (self == NULL) {
        segment_free(data);
        return buf_new(size);
    }
    buf_init(self, data, size, free_segment);
    return self;
}
