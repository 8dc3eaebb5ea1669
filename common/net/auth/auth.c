/* auth.c - keys of endpoints, and admission by listeners.
 *
 * DESIGN The book.  A listener learns only a dialler's public key, so it looks it up in a book of all admissible
 * keys.  The book is filled on demand, ranks in ascending order and twice as many each time: a job of four costs
 * four derivations, an unknown key all of them, once. Proofs need no book: the dialler names its role and rank.
 *
 * Tokens.  The file is read again for each proof.  If it is gone, its last content still counts: a job may outlive
 * its scheduler's process for a while.  Several threads ask concurrently.
 */
#include "common/net/auth/auth.h"

#include "common/base/log.h"
#include "common/base/why.h"
#include "common/containers/vec.h"
#include "common/net/auth/secret.h"
#include "common/net/auth/token.h"
#include "common/net/transport/transport.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    LISTENS     = 1, /* uses of a key: of a role ...        */
    DIALS       = 2, /* ... and of a rank; plus 16 * role   */
    ANY_RANK    = 0, /* index of rank -1; rank r is r + 1   */
    WORKERS_MAX = 16384,
    SERVERS_MAX = 1024,
    FIRST_KEYS  = 16,
    LANES_MAX   = 4,
    LOG_CLEAR   = 0xc1ea4, /* of log_allowed() */
    PLACE_BYTES = 320
};

const char *const auth_choices[] = {"auto", "on", "clear", NULL};

typedef struct { /* keys of one role, by index; [n] of [capacity] are derived */
    uint8_t (*key)[TRANSPORT_KEY_BYTES];
    uint32_t n, max;
} page;

typedef struct { /* of proofs: one per kind of endpoint */
    transport_proof proof;
    auth *auth;
    auth_role listener;
} witness;

struct auth {
    secret secret;
    bool encrypts;
    transport_keys listens, dials[AUTH_ROLES]; /* dials: by the listener's role */
    page book[AUTH_ROLES];                     /* max 0: role not admitted */

    witness hears, speaks[AUTH_ROLES]; /* speaks: by the listener's role */
    pthread_mutex_t lock;              /* of the secret, if it is a token */
    bool has_secret, seeks_token, makes_token;
    /* a scheduler that admits every peer; its token tells this user's processes on this host */
    bool is_clear;
    char scheduler[PLACE_BYTES];
    token *token; /* published */
};

/* ---- the book: in one thread, see transport_keys ---------------------------------------------- */

static void derive(const auth *g, int use, auth_role role, uint32_t index, uint8_t own[32],
                   uint8_t own_public[32])
{
    secret_derive(&g->secret, (uint32_t)use + 16 * (uint32_t)role, index, own, own_public);
}

static bool fill(const auth *g, auth_role role, page *p)
{
    uint8_t own[TRANSPORT_KEY_BYTES];
    const uint32_t wanted = p->n == 0 ? FIRST_KEYS : 2 * p->n;
    const uint32_t n      = wanted < p->max ? wanted : p->max;
    size_t room           = p->n;
    if (n <= p->n || !VEC_ROOM(p->key, room, n)) return false;
    for (; p->n < n; p->n++) derive(g, DIALS, role, p->n, own, p->key[p->n]);
    return true;
}

static bool find_in(const auth *g, int role, uint32_t from,
                    const uint8_t public_key[TRANSPORT_KEY_BYTES], transport_identity *as)
{
    const page *p = &g->book[role];
    for (uint32_t i = from; i < p->n; i++) {
        if (memcmp(p->key[i], public_key, TRANSPORT_KEY_BYTES) != 0) continue;
        *as = (transport_identity){(uint32_t)role, i};
        return true;
    }
    return false;
}

static bool admits(void *user, const uint8_t public_key[TRANSPORT_KEY_BYTES],
                   transport_identity *as)
{
    auth *g = user;
    for (int role = 0; role < AUTH_ROLES; role++)
        if (find_in(g, role, 0, public_key, as)) return true;
    for (bool grows = true; grows;) {
        grows = false;
        for (int role = 0; role < AUTH_ROLES; role++) {
            const uint32_t from = g->book[role].n;
            if (!fill(g, (auth_role)role, &g->book[role])) continue;
            grows = true;
            if (find_in(g, role, from, public_key, as)) return true;
        }
    }
    return false;
}

/* ---- proofs: in any thread --------------------------------------------------------------------- */

/* Call with the lock. */
static bool has_secret(auth *g)
{
    secret found;
    if (g->seeks_token && token_find(g->scheduler, &found)) {
        g->secret     = found;
        g->has_secret = true;
        secret_wipe(&found);
    }
    return g->has_secret;
}

static bool proof_key(auth *g, int use, auth_role role, uint32_t index, uint8_t key[32])
{
    pthread_mutex_lock(&g->lock);
    const bool has = has_secret(g);
    if (has) secret_proof_key(&g->secret, (uint32_t)use + 16 * (uint32_t)role, index, key);
    pthread_mutex_unlock(&g->lock);
    return has;
}

static bool listener_key(void *user, uint8_t key[TRANSPORT_KEY_BYTES])
{
    const witness *w = user;
    return proof_key(w->auth, LISTENS, w->listener, 0, key);
}

static bool own_key(void *user, uint32_t who, uint32_t index, uint8_t key[TRANSPORT_KEY_BYTES])
{
    const witness *w = user;
    return proof_key(w->auth, DIALS, (auth_role)who, index, key);
}

/* Keys of diallers: only of roles with a page in the book. */
static bool observer_key(void *user, uint32_t who, uint32_t index, uint8_t key[TRANSPORT_KEY_BYTES])
{
    const witness *w = user;
    if (who >= AUTH_ROLES || index >= w->auth->book[who].max) return false;
    return proof_key(w->auth, DIALS, (auth_role)who, index, key);
}

/* Marks a scheduler that needs no proofs. */
static const secret nothing;

static bool is_open(void *user)
{
    auth *g = ((const witness *)user)->auth;
    if (!g->seeks_token) return false;
    pthread_mutex_lock(&g->lock);
    const bool is = has_secret(g) && memcmp(&g->secret, &nothing, sizeof nothing) == 0;
    pthread_mutex_unlock(&g->lock);
    if (is && log_allowed(LOG_CLEAR))
        log_notice(
            "traffic with %s is neither encrypted nor authenticated: the scheduler runs with "
            "encryption=clear",
            g->scheduler);
    return is;
}

static witness make_witness(auth *g, auth_role listener)
{
    return (witness){.auth     = g,
                     .listener = listener,
                     .proof    = {.listener_key = listener_key, .is_open = is_open}};
}

static void make_witnesses(auth *g, auth_role role, int32_t rank)
{
    g->hears                   = make_witness(g, role);
    g->hears.proof.dialler_key = observer_key;
    g->hears.proof.user        = &g->hears;
    for (int listener = 0; listener < AUTH_ROLES; listener++) {
        witness *w           = &g->speaks[listener];
        *w                   = make_witness(g, (auth_role)listener);
        w->proof.dialler_key = own_key;
        w->proof.user        = w;
        w->proof.who         = role;
        w->proof.index       = rank < 0 ? ANY_RANK : (uint32_t)rank + 1;
    }
}

static void open_book(auth *g, auth_role role)
{
    const bool serves_all = role == AUTH_SCHEDULER;
    if (role != AUTH_TOOL) g->book[AUTH_WORKER].max = WORKERS_MAX + 1;
    if (serves_all || role == AUTH_SERVER) g->book[AUTH_SERVER].max = SERVERS_MAX + 1;
    if (serves_all) g->book[AUTH_TOOL].max = 1;
}

/* ---- needed? ---------------------------------------------------------------------------------- */

static bool is_one_of(const char *host, size_t n, const char *const *names)
{
    for (; *names != NULL; names++)
        if (strlen(*names) == n && memcmp(host, *names, n) == 0) return true;
    return false;
}

bool auth_is_loopback(const char *address)
{
    static const char *const names[] = {"", "localhost", "::1", "[::1]", "ip6-localhost", NULL};
    const char *scheme               = strstr(address, "://");
    const char *host                 = address;
    if (scheme != NULL && strncmp(address, "tcp://", 6) != 0)
        return true; /* ipc, and those of tests */
    if (scheme != NULL) host = scheme + 3;
    const char *colon = strrchr(host, ':');
    const bool is_v6  = host[0] != '[' && colon != NULL && strchr(host, ':') != colon;
    const size_t n    = colon != NULL && !is_v6 && colon > host && strchr(colon, ']') == NULL
                            ? (size_t)(colon - host)
                            : strlen(host);
    return is_one_of(host, n, names) ||
           (strncmp(host, "127.", 4) == 0 && strspn(host, "0123456789.") >= n);
}

static const char *far_address(const auth_options *o)
{
    for (int i = 0; i < AUTH_ADDRESSES; i++)
        if (o->address[i] != NULL && !auth_is_loopback(o->address[i])) return o->address[i];
    return NULL;
}

static pen_status lacks_secret(const auth_options *o, pen_error *why)
{
    static const char remedy[] =
        "`penstock keygen FILE` makes one; set secret_file=FILE for every process "
        "(PENSTOCK_SECRET_FILE), or encryption=clear";
    if (o->encryption == AUTH_ON)
        return why_set(why, PEN_BAD_SETTING, "encryption=on needs the job's secret: %s", remedy);
    return why_set(why, PEN_BAD_SETTING,
                   "%.100s is not loopback, so traffic is encrypted, but the job's secret is "
                   "missing: %s",
                   far_address(o), remedy);
}

/* ---- life ------------------------------------------------------------------------------------- */

static void make_keys(auth *g, auth_role role, int32_t rank)
{
    uint8_t unused[TRANSPORT_KEY_BYTES];
    derive(g, LISTENS, role, 0, g->listens.own, g->listens.own_public);
    g->listens.admits = admits;
    g->listens.user   = g;
    for (int listener = 0; listener < AUTH_ROLES; listener++) {
        transport_keys *k    = &g->dials[listener];
        const uint32_t index = rank < 0 ? ANY_RANK : (uint32_t)rank + 1;
        derive(g, DIALS, role, index, k->own, k->own_public);
        derive(g, LISTENS, (auth_role)listener, 0, unused, k->peer);
    }
}

static auth *create(const auth_options *o, bool encrypts)
{
    auth *g = calloc(1, sizeof *g);
    if (g == NULL) return NULL;
    pthread_mutex_init(&g->lock, NULL);
    g->encrypts = encrypts;
    open_book(g, o->role);
    make_witnesses(g, o->role, o->rank);
    return g;
}

/* With a given secret. */
static pen_status open_with(const auth_options *o, bool encrypts, auth **out, pen_error *why)
{
    auth *g = create(o, encrypts);
    if (g == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for the keys of this process");
    const pen_status status = secret_read(o->secret_file, &g->secret, why);
    if (status != PEN_OK) {
        auth_close(g);
        return status;
    }
    g->has_secret = true;
    if (encrypts) make_keys(g, o->role, o->rank);
    *out = g;
    return PEN_OK;
}

/* With the job's token, made by the scheduler. */
static pen_status open_token(const auth_options *o, auth **out, pen_error *why)
{
    auth *g = create(o, false);
    if (g == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for the keys of this process");
    g->makes_token    = o->role == AUTH_SCHEDULER;
    g->seeks_token    = !g->makes_token;
    pen_status status = g->makes_token ? secret_make(&g->secret, why) : PEN_OK;
    g->has_secret     = g->makes_token;
    if (g->seeks_token) snprintf(g->scheduler, sizeof g->scheduler, "%s", o->scheduler);
    if (status != PEN_OK) {
        auth_close(g);
        return status;
    }
    *out = g;
    return PEN_OK;
}

/* A scheduler that admits every peer; its token says so. */
static pen_status open_clear(auth **out, pen_error *why)
{
    *out = create(&(auth_options){.role = AUTH_SCHEDULER}, false);
    if (*out == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for the keys of this process");
    (*out)->is_clear = true;
    return PEN_OK;
}

static bool stays_inside(const auth_options *o)
{
    const char *at           = o->scheduler != NULL ? o->scheduler : o->address[0];
    const transport_ops *ops = at != NULL ? transport_find(at) : NULL;
    return ops != NULL && ops->stays_inside;
}

pen_status auth_open(const auth_options *o, auth **out, pen_error *why)
{
    const bool was_given = o->secret_file != NULL && o->secret_file[0] != '\0';
    const char *far      = far_address(o);
    const bool encrypts =
        o->encryption == AUTH_ON || (o->encryption == AUTH_AUTO && (was_given || far != NULL));
    *out = NULL;
    if (encrypts && !was_given) return lacks_secret(o, why);
    if (was_given) return open_with(o, encrypts, out, why);
    if (far == NULL) return stays_inside(o) ? PEN_OK : open_token(o, out, why);
    if (log_allowed(LOG_CLEAR)) /* repeated dialling logs it once */
        log_notice("traffic with %s is neither encrypted nor authenticated (encryption=clear)",
                   far);
    return o->role == AUTH_SCHEDULER ? open_clear(out, why) : PEN_OK;
}

pen_status auth_publish(auth *g, const char *address, pen_error *why)
{
    pen_error unsaid; /* a process without a token is told the remedy */
    if (g != NULL && g->is_clear) (void)token_publish(address, &nothing, &g->token, &unsaid);
    if (g == NULL || !g->makes_token) return PEN_OK;
    return token_publish(address, &g->secret, &g->token, why);
}

bool auth_encrypts(const auth *g)
{
    return g != NULL && g->encrypts;
}

const char *auth_describe(const auth *g)
{
    if (g == NULL || g->is_clear) return "in clear text, unproven";
    if (g->encrypts) return "encrypted";
    return g->makes_token || g->seeks_token ? "loopback: proven" : "proven, not encrypted";
}

const char *auth_lack(auth *g)
{
    if (g == NULL) return NULL;
    pthread_mutex_lock(&g->lock);
    const bool has = has_secret(g);
    pthread_mutex_unlock(&g->lock);
    return has ? NULL
               : "(the job's token is not in this user's folder, where the scheduler's "
                 "process "
                 "puts it); if the scheduler belongs to another user or container, "
                 "set PENSTOCK_SECRET_FILE for all";
}

void auth_close(auth *g)
{
    if (g == NULL) return;
    token_withdraw(g->token);
    for (int role = 0; role < AUTH_ROLES; role++) free(g->book[role].key);
    pthread_mutex_destroy(&g->lock);
    explicit_bzero(g, sizeof *g);
    free(g);
}

/* ---- endpoints -------------------------------------------------------------------------------- */

static void use(const transport_keys *keys, const transport_proof *proof, const auth *g,
                transport_options *o)
{
    const uint32_t threads = auth_lanes(g);
    o->keys                = g->encrypts ? keys : NULL;
    o->proof               = g->encrypts || g->is_clear ? NULL : proof;
    if (o->io_threads < threads) o->io_threads = threads;
}

void auth_listen(const auth *g, transport_options *o)
{
    if (g != NULL) use(&g->listens, &g->hears.proof, g, o);
}

void auth_dial(const auth *g, auth_role listener, transport_options *o)
{
    if (g != NULL) use(&g->dials[listener], &g->speaks[listener].proof, g, o);
}

bool auth_is(const transport_identity *is, auth_role role, int32_t rank)
{
    if (is->who != (uint32_t)role) return false;
    return is->index == ANY_RANK || rank < 0 || is->index == (uint32_t)rank + 1;
}

uint32_t auth_lanes(const auth *g)
{
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    if (!auth_encrypts(g) || cores < 2) return 1;
    return cores < LANES_MAX ? (uint32_t)cores : LANES_MAX;
}
