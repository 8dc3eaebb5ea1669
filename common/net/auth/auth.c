/* auth.c - keys of endpoints, and admission by listeners.
 *
 * DESIGN The book.  A listener learns only a dialler's public key, so it looks it up in a book of all admissible
 * keys.  The book is filled on demand, ranks in ascending order and twice as many each time: a job of four costs
 * four derivations, an unknown key all of them, once.
 */
#include "common/net/auth/auth.h"

#include "common/base/log.h"
#include "common/base/why.h"
#include "common/containers/arrays.h"
#include "common/net/auth/secret.h"
#include "common/net/local_socket.h"
#include "common/net/transport/transport.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    LISTENS     = 1, /* uses of a key: of a role ... */
    DIALS       = 2, /* ... and of a rank; plus 16 * role */
    SHARES      = 3, /* both: of a rank that dials a role; plus 256 * that role */
    ANY_RANK    = 0, /* index of rank -1; rank r is r + 1 */
    WORKERS_MAX = 16384,
    SERVERS_MAX = 1024,
    FIRST_KEYS  = 16,
    LANES_MAX   = 4
};

const char *const auth_choices[]    = {"auto", "on", "clear", NULL};
const char *const auth_transports[] = {"tcp", "zmq", NULL};

typedef struct { /* keys of one role, by index; [n] of [capacity] are derived */
    uint8_t (*key)[TRANSPORT_KEY_BYTES];
    uint32_t n, max;
} page;

struct auth {
    secret secret;
    auth_role role;
    auth_transport transport;
    bool encrypts;
    transport_sockets sockets;
    transport_keys listens, dials[AUTH_ROLES]; /* dials: by the listener's role */
    page book[AUTH_ROLES];                     /* max 0: role not admitted */
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

/* ---- keys of both ends ------------------------------------------------------------------------ */

static void share(const auth *g, auth_role dialler, uint32_t index, auth_role listener,
                  uint8_t key[32])
{
    secret_subkey(&g->secret, SHARES + 16 * (uint32_t)dialler + 256 * (uint32_t)listener, index,
                  key);
}

static bool shares(void *user, transport_identity with, uint8_t key[TRANSPORT_KEY_BYTES])
{
    const auth *g = user;
    if (with.who >= AUTH_ROLES || with.index >= g->book[with.who].max) return false;
    share(g, (auth_role)with.who, with.index, g->role, key);
    return true;
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
    if (far_address(o) == NULL)
        return why_set(
            why, PEN_BAD_SETTING,
            "with local_sockets=no traffic is encrypted, but the job's secret is missing: "
            "%s",
            remedy);
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
    g->listens.shares = shares;
    g->listens.user   = g;
    for (int listener = 0; listener < AUTH_ROLES; listener++) {
        transport_keys *k    = &g->dials[listener];
        const uint32_t index = rank < 0 ? ANY_RANK : (uint32_t)rank + 1;
        derive(g, DIALS, role, index, k->own, k->own_public);
        derive(g, LISTENS, (auth_role)listener, 0, unused, k->peer);
        k->self = (transport_identity){(uint32_t)role, index};
        share(g, role, index, (auth_role)listener, k->shared);
    }
}

static bool stays_inside(const auth_options *o)
{
    const char *at           = o->scheduler != NULL ? o->scheduler : o->address[0];
    const transport_ops *ops = at != NULL ? transport_find(at) : NULL;
    return ops != NULL && ops->stays_inside;
}

static pen_status set_up(auth *g, const auth_options *o, bool was_given, pen_error *why)
{
    const bool meets_locally = o->local_sockets;
    const bool is_exposed    = far_address(o) != NULL || !meets_locally;
    g->encrypts              = was_given && o->encryption != AUTH_CLEAR;
    g->role                  = o->role;
    g->transport             = (auth_transport)o->transport;
    g->sockets               = meets_locally ? TRANSPORT_LOCAL_TOO : TRANSPORT_TCP;
    const bool serves_all    = o->role == AUTH_SCHEDULER;
    if (o->role != AUTH_TOOL) g->book[AUTH_WORKER].max = WORKERS_MAX + 1;
    if (serves_all || o->role == AUTH_SERVER) g->book[AUTH_SERVER].max = SERVERS_MAX + 1;
    if (serves_all) g->book[AUTH_TOOL].max = 1;
    if (!g->encrypts && (o->encryption == AUTH_ON || (is_exposed && o->encryption == AUTH_AUTO)))
        return lacks_secret(o, why);
    if (!g->encrypts && is_exposed) {
        /* By the process with the scheduler, so that a job says it once. */
        const char *far = far_address(o);
        if (o->role == AUTH_SCHEDULER)
            log_warning(
                "WARNING: traffic over TCP (%s) is neither encrypted nor authenticated "
                "(encryption=clear): whoever reaches the job's ports can read it, and control or "
                "end the job",
                far != NULL ? far : "this host");
    }
    if (!g->encrypts && !is_exposed) g->sockets = TRANSPORT_LOCAL_ONLY;
    if (!g->encrypts) return PEN_OK;
    const pen_status status = secret_read(o->secret_file, &g->secret, why);
    if (status == PEN_OK) make_keys(g, o->role, o->rank);
    return status;
}

pen_status auth_open(const auth_options *o, auth **out, pen_error *why)
{
    *out = NULL;
    if (stays_inside(o)) return PEN_OK;
    auth *g = calloc(1, sizeof *g);
    if (g == NULL) return why_set(why, PEN_NO_MEMORY, "no memory for the keys of this process");
    const bool was_given    = o->secret_file != NULL && o->secret_file[0] != '\0';
    const pen_status status = set_up(g, o, was_given, why);
    if (status == PEN_OK)
        *out = g;
    else
        auth_close(g);
    return status;
}

bool auth_encrypts(const auth *g)
{
    return g != NULL && g->encrypts;
}

const char *auth_describe(const auth *g)
{
    if (g == NULL) return "inside one process";
    if (g->sockets == TRANSPORT_LOCAL_ONLY) return "this user on this host";
    return g->encrypts ? "encrypted" : "in clear text, unproven";
}

const char *auth_hint(const auth *g, const char *address)
{
    char path[LOCAL_SOCKET_PATH_BYTES];
    if (g == NULL || g->sockets != TRANSPORT_LOCAL_ONLY || local_socket_find(address, path) ||
        !local_socket_is_taken(address))
        return NULL;
    return "some process has that port, but no socket in this user's folder; if it belongs to "
           "another user or container, "
           "set PENSTOCK_SECRET_FILE for all";
}

void auth_close(auth *g)
{
    if (g == NULL) return;
    for (int role = 0; role < AUTH_ROLES; role++) free(g->book[role].key);
    explicit_bzero(g, sizeof *g);
    free(g);
}

/* ---- endpoints -------------------------------------------------------------------------------- */

static void use(const transport_keys *keys, const auth *g, transport_options *o)
{
    const uint32_t threads = auth_lanes(g);
    o->keys                = g->encrypts ? keys : NULL;
    o->sockets             = g->sockets;
    o->carrier             = g->transport == AUTH_TRANSPORT_ZMQ ? TRANSPORT_ZMQ : TRANSPORT_SOCKET;
    if (o->io_threads < threads) o->io_threads = threads;
}

void auth_listen(const auth *g, transport_options *o)
{
    if (g != NULL) use(&g->listens, g, o);
}

void auth_dial(const auth *g, auth_role listener, transport_options *o)
{
    if (g != NULL) use(&g->dials[listener], g, o);
}

bool auth_is(const transport_identity *is, auth_role role, int32_t rank)
{
    if (is->who != (uint32_t)role) return false;
    return is->index == ANY_RANK || rank < 0 || is->index == (uint32_t)rank + 1;
}

uint32_t auth_lanes(const auth *g)
{
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    if (!auth_encrypts(g) || g->transport != AUTH_TRANSPORT_ZMQ || cores < 2) return 1;
    return cores < LANES_MAX ? (uint32_t)cores : LANES_MAX;
}
