/* handlers.c - handlers for tests: as a plugin (pen_plugin), and linked into programs/serve.c.
 *
 *   add      keeps float32 values by key and adds what is pushed.  Command 1: number of keys, as 8 bytes; 2: the same, from
 *            another thread; 3: refused; 4: never answered.  cmd 9 is refused.
 *   tight    the same, without save and load
 *   heavy    the same, with 18 MiB more in what it saves
 *   gather   answers `cmd` requests together with the sum of all: a barrier
 *   late     adds, and answers from another thread; all rows are equally long
 *   broken   cmd 1: writes to NULL; 2: does not return; 3: abort(); 4: no end to its recursion.  broken_save: save() fails
 */
#include "penstock.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROOM = 1 << 13, LENGTH_MAX = 64, WAIT_MAX = 64, HEAVY_BYTES = 18 << 20 };

typedef struct {
    uint64_t key;
    uint32_t length;
    float value[LENGTH_MAX];
} row;

typedef struct {
    uint64_t n;
    row *row; /* [n] ascending keys */
    pen_call *waiting[WAIT_MAX];
    size_t keys[WAIT_MAX];
    int n_waiting;
    float sum[LENGTH_MAX];
    pthread_mutex_t lock; /* late: of all above; a change and its answer are one */
    pthread_cond_t done;
    int threads;
} state;

static void *open_state(int part, int parts, void *user)
{
    state *s = calloc(1, sizeof *s);
    (void)part, (void)parts, (void)user;
    if (s == NULL) return NULL;
    s->row = calloc(ROOM, sizeof *s->row);
    if (s->row == NULL) {
        free(s);
        return NULL;
    }
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->done, NULL);
    return s;
}

static void close_state(void *of)
{
    state *s = of;
    pthread_mutex_lock(&s->lock);
    while (s->threads > 0) pthread_cond_wait(&s->done, &s->lock);
    pthread_mutex_unlock(&s->lock);
    free(s->row);
    free(s);
}

static row *find(state *s, uint64_t key, int make)
{
    uint64_t low = 0, high = s->n;
    while (low < high) {
        const uint64_t middle = (low + high) / 2;
        if (s->row[middle].key < key)
            low = middle + 1;
        else
            high = middle;
    }
    if (low < s->n && s->row[low].key == key) return &s->row[low];
    if (!make || s->n == ROOM) return NULL;
    memmove(&s->row[low + 1], &s->row[low], (s->n++ - low) * sizeof *s->row);
    s->row[low] = (row){.key = key};
    return &s->row[low];
}

static void add_up(state *s, const pen_kv_msg *m)
{
    const float *value = m->vals;
    for (size_t i = 0; i < m->n && m->push; i++) {
        const uint32_t length = m->lens != NULL ? m->lens[i] : (uint32_t)(m->vals_n / m->n);
        row *r                = find(s, m->keys[i], 1);
        for (uint32_t e = 0; r != NULL && e < length; e++) r->value[e] += value[e];
        if (r != NULL) r->length = length;
        value += length;
    }
}

/* dim says itself: the answer of a key that is not there is as long as that of any other, or 0 long. */
static pen_status answer(state *s, pen_call *call, const pen_kv_msg *m)
{
    float *out     = malloc((m->n * LENGTH_MAX + 1) * sizeof *out);
    uint32_t *lens = malloc((m->n + 1) * sizeof *lens);
    size_t n       = 0;
    for (size_t i = 0; i < m->n && out != NULL && lens != NULL; i++) {
        const row *r = find(s, m->keys[i], 0);
        lens[i]      = r != NULL ? r->length : s->n > 0 && m->cmd == 5 ? s->row[0].length : 0;
        if (r != NULL)
            memcpy(out + n, r->value, lens[i] * sizeof *out);
        else
            memset(out + n, 0, lens[i] * sizeof *out);
        n += lens[i];
    }
    const pen_status status = out == NULL || lens == NULL
                                  ? PEN_NO_MEMORY
                                  : pen_reply(call, PEN_OK, m->pull ? out : NULL,
                                              m->pull ? n * sizeof *out : 0, m->pull ? lens : NULL);
    free(out);
    free(lens);
    return status;
}

static void add(void *of, pen_call *call, const pen_kv_msg *m)
{
    if (m->cmd == 9) {
        (void)pen_reply(call, PEN_INVALID_ARGUMENT, NULL, 0, NULL);
        return;
    }
    add_up(of, m);
    /* An answer that does not fit, or that there is no memory for, leaves the call open. */
    const pen_status status = answer(of, call, m);
    if (status != PEN_OK)
        (void)pen_reply(call, status == PEN_NO_MEMORY ? status : PEN_TOO_SMALL, NULL, 0, NULL);
}

/* ---- later ----------------------------------------------------------------------------------- */
typedef struct {
    state *of;
    pen_call *call;
    pen_kv_msg msg; /* keys NULL: a command, answered with 8 bytes */
    uint64_t keys[ROOM / 16];
    float vals[ROOM];
} job;

/* Without memory for the answer, the sender is told. */
static void reply(pen_call *call, const void *data, size_t size)
{
    if (pen_reply(call, PEN_OK, data, size, NULL) == PEN_NO_MEMORY)
        (void)pen_reply(call, PEN_NO_MEMORY, NULL, 0, NULL);
}

static void answer_late(state *s, pen_call *call, const pen_kv_msg *m)
{
    float out[ROOM];
    size_t n = 0;
    add_up(s, m);
    const uint32_t length = s->n > 0 ? s->row[0].length : 0; /* the same for all */
    for (size_t i = 0; i < m->n && m->pull; i++) {
        const row *r = find(s, m->keys[i], 0);
        for (uint32_t e = 0; e < length && n < ROOM; e++) out[n++] = r != NULL ? r->value[e] : 0;
    }
    reply(call, n > 0 ? out : NULL, n * sizeof *out);
}

static void *work(void *user)
{
    job *j   = user;
    state *s = j->of;
    nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    pthread_mutex_lock(&s->lock);
    if (j->msg.keys != NULL)
        answer_late(s, j->call, &j->msg);
    else
        reply(j->call, &s->n, sizeof s->n);
    s->threads--;
    pthread_cond_broadcast(&s->done);
    pthread_mutex_unlock(&s->lock);
    free(j);
    return NULL;
}

static void start_thread(state *s, pen_call *call, const pen_kv_msg *m)
{
    pthread_t thread;
    pthread_attr_t detached;
    job *j = calloc(1, sizeof *j);
    if (j == NULL) {
        (void)pen_reply(call, PEN_NO_MEMORY, NULL, 0, NULL);
        return;
    }
    *j = (job){.of = s, .call = call};
    if (m != NULL) {
        j->msg = *m;
        memcpy(j->keys, m->keys, m->n * sizeof *m->keys);
        if (m->push) memcpy(j->vals, m->vals, m->vals_n * sizeof(float));
        j->msg.keys = j->keys;
        j->msg.vals = m->push ? j->vals : NULL;
    }
    pthread_mutex_lock(&s->lock);
    s->threads++;
    pthread_mutex_unlock(&s->lock);
    /* Detached from its start: pthread_detach() of glibc 2.36 reads the thread once more after it has let it go. */
    pthread_attr_init(&detached);
    pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    (void)pthread_create(&thread, &detached, work, j);
    pthread_attr_destroy(&detached);
}

static void late(void *of, pen_call *call, const pen_kv_msg *m)
{
    start_thread(of, call, m);
}

static void gather(void *of, pen_call *call, const pen_kv_msg *m)
{
    state *s           = of;
    const float *value = m->vals;
    for (size_t i = 0; i < m->vals_n && i < LENGTH_MAX; i++) s->sum[i] += value[i];
    s->waiting[s->n_waiting++] = call;
    if (s->n_waiting < m->cmd) return;
    for (int i = 0; i < s->n_waiting; i++) reply(s->waiting[i], s->sum, m->vals_n * sizeof *s->sum);
    s->n_waiting = 0;
    memset(s->sum, 0, sizeof s->sum);
}

static void command(void *of, pen_call *call, int head, const void *body, size_t size)
{
    state *s = of;
    (void)body, (void)size;
    if (head == 1) reply(call, &s->n, sizeof s->n);
    if (head == 2) start_thread(s, call, NULL);
    if (head == 3) (void)pen_reply(call, PEN_UNSUPPORTED, NULL, 0, NULL);
}

/* ---- saved ----------------------------------------------------------------------------------- */
static pen_status save_with(state *s, pen_bytes *out, size_t more)
{
    pthread_mutex_lock(&s->lock);
    out->size = s->n * sizeof *s->row + more;
    out->data = calloc(1, out->size + 1);
    if (out->data != NULL) memcpy(out->data, s->row, s->n * sizeof *s->row);
    pthread_mutex_unlock(&s->lock);
    return out->data != NULL ? PEN_OK : PEN_NO_MEMORY;
}

static pen_status save(void *of, pen_bytes *out)
{
    return save_with(of, out, 0);
}

static pen_status load(void *of, const void *data, size_t size)
{
    state *s = of;
    if (size % sizeof *s->row != 0 || size / sizeof *s->row > ROOM) return PEN_CORRUPT;
    s->n = size / sizeof *s->row;
    memcpy(s->row, data, size);
    return PEN_OK;
}

static pen_status save_heavy(void *of, pen_bytes *out)
{
    return save_with(of, out, HEAVY_BYTES);
}

static pen_status load_heavy(void *of, const void *data, size_t size)
{
    return size < HEAVY_BYTES ? PEN_CORRUPT : load(of, data, size - HEAVY_BYTES);
}

static pen_status fail(void *of, pen_bytes *out)
{
    (void)of, (void)out;
    return PEN_STORE;
}

/* ---- broken ---------------------------------------------------------------------------------- */
static volatile int depth;

__attribute__((noinline)) static int fall(int n)
{
    volatile char room[4096];
    room[n % 4096] = (char)n;
    depth++;
    return n < 1 << 30 ? fall(n + 1) + room[(n + 1) % 4096] : 0;
}

static void broken(void *of, pen_call *call, const pen_kv_msg *m)
{
    static volatile int *nothing;
    if (m->cmd == 1) *nothing = 1;
    while (m->cmd == 2) nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    if (m->cmd == 3) abort();
    if (m->cmd == 4) depth = fall(1);
    add(of, call, m);
}

const pen_handler *pen_plugin(int *n)
{
    static const pen_handler all[] = {
        {"add", open_state, close_state, add, command, save, load, 1, 0, NULL, {0}},
        {"tight", open_state, close_state, add, command, NULL, NULL, 1, 0, NULL, {0}},
        {"heavy", open_state, close_state, add, command, save_heavy, load_heavy, 1, 0, NULL, {0}},
        {"gather", open_state, close_state, gather, NULL, save, load, 0, 0, NULL, {0}},
        {"late", open_state, close_state, late, NULL, save, load, 0, 0, NULL, {0}},
        {"broken", open_state, close_state, broken, NULL, save, load, 0, 0, NULL, {0}},
        {"broken_save", open_state, close_state, add, NULL, fail, load, 0, 0, NULL, {0}}};
    *n = sizeof all / sizeof *all;
    return all;
}
