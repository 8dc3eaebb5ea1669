/* tickets.c - uses the key-value store like a program: addresses, tickets, and a key nobody sets.
 *
 *   tickets [N]      each rank draws N tickets (100)
 */
#include "penstock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int fail(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, pen_last_error(NULL));
    return 1;
}

int main(int argc, char **argv)
{
    const int n = argc > 1 ? atoi(argv[1]) : 100;
    pen_ctx *ctx;
    pen_info info;
    if (pen_init(NULL, &ctx) != PEN_OK) return fail("pen_init");
    if (pen_info_get(ctx, &info) != PEN_OK) return fail("pen_info_get");

    char key[64], value[64];
    const int next = (info.rank + 1) % info.world_size;
    snprintf(key, sizeof key, "address of %d", info.rank);
    snprintf(value, sizeof value, "host%d:%d", info.rank, 7000 + info.rank);
    if (pen_store_set(ctx, key, value, strlen(value)) != PEN_OK) return fail("pen_store_set");
    pen_bytes got;
    snprintf(key, sizeof key, "address of %d", next);
    if (pen_store_get(ctx, key, &got, NULL) != PEN_OK) return fail("pen_store_get");
    printf("rank %d: rank %d is at %.*s\n", info.rank, next, (int)got.size, (const char *)got.data);
    pen_free(got.data);

    int64_t ticket = 0, newest = 0;
    for (int i = 0; i < n; i++) {
        if (pen_store_add(ctx, "tickets", 1, &ticket) != PEN_OK) return fail("pen_store_add");
        if (ticket <= newest) return fail("a ticket was given twice");
        newest = ticket;
    }
    if (pen_barrier(pen_world(ctx), NULL, NULL) != PEN_OK) return fail("pen_barrier");
    if (pen_store_add(ctx, "tickets", 0, &ticket) != PEN_OK) return fail("pen_store_add");
    printf("rank %d: %lld tickets\n", info.rank, (long long)ticket);

    const pen_opts soon     = {.deadline_ms = 300};
    const pen_status status = pen_store_get(ctx, "nobody sets this", &got, &soon);
    printf("rank %d: %s\n", info.rank, status == PEN_TIMED_OUT ? "timed out" : "did not time out");
    char *large = calloc(1, 1 << 20);
    if (large == NULL || pen_store_set(ctx, key, large, 1 << 20) != PEN_OK) return fail("1 MiB");
    if (pen_store_set(ctx, key, large, (1 << 20) + 1) != PEN_UNSUPPORTED) return fail("1 MiB + 1");
    free(large);
    return pen_finalize(ctx) == PEN_OK ? 0 : fail("pen_finalize");
}
