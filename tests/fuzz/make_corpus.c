/* make_corpus.c - writes the seeds of the wire fuzzers: one message of every kind.
 *   make_corpus tests/fuzz/corpus      (tests/fuzz/run.sh --corpus builds and runs it) */
#include "proto/wire/wire_peer.h"
#include "tests/support/wire_samples.h"

#include <stdio.h>
#include <stdlib.h>

static void save_as(const char *folder, const char *target, const char *name, const wire_out *out)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s/%s", folder, target, name);
    FILE *file = fopen(path, "we");
    if (file == NULL || fwrite(out->data, 1, out->size, file) != out->size || fclose(file) != 0) {
        perror(path);
        exit(1);
    }
}

static void save(const char *folder, const char *target, int kind, const wire_out *out)
{
    save_as(folder, target, wire_kind_name(kind), out);
}

static void check(pen_status status, const pen_error *why)
{
    if (status == PEN_OK) return;
    fprintf(stderr, "%s\n", why->text);
    exit(1);
}

int main(int argc, char **argv)
{
    if (argc != 2) return 2;
    wire_out out = {0};
    pen_error why;
    for (int kind = WIRE_PUSH; kind < WIRE_KIND_END; kind++) {
        if (!wire_is_data_kind(kind)) continue;
        wire_data d = wire_sample_data((wire_kind)kind);
        check(wire_data_encode(&d, &out, &why), &why);
        save(argv[1], "wire_data", kind, &out);
    }
    for (int kind = WIRE_HELLO; kind < (int)WIRE_CONTROL_END; kind++) {
        if (!wire_is_control_kind(kind)) continue;
        wire_control c = wire_sample_control((wire_control_kind)kind);
        check(wire_control_encode(&c, &out, &why), &why);
        save(argv[1], "wire_control", kind, &out);
    }
    for (int kind = WIRE_SHOW; kind < (int)WIRE_PEER_END; kind++) {
        const wire_peer p = {.kind          = (wire_peer_kind)kind,
                             .job           = 1,
                             .from          = 2,
                             .to            = 3,
                             .rank          = 1,
                             .group         = 77,
                             .seq           = 5,
                             .payload_bytes = 64,
                             .crc           = 6,
                             .slot          = 2,
                             .offset        = 64,
                             .total         = 128,
                             .flags         = WIRE_SCALED,
                             .scale         = 0.5,
                             .tag           = -1,
                             .dtype         = PEN_F32,
                             .id            = 8,
                             .credit        = 9,
                             .label         = "mail",
                             .has_show      = kind <= WIRE_PART,
                             .show          = {.kind = 3, .dtype = PEN_F32, .n = 16, .label = "x"}};
        check(wire_peer_encode(&p, &out, &why), &why);
        save(argv[1], "wire_peer", kind, &out);
    }
    const wire_peer goodbye = {
        .kind = WIRE_WITHDRAWN, .job = 1, .from = 2, .to = 3, .rank = 1, .label = ""};
    check(wire_peer_encode(&goodbye, &out, &why), &why);
    save_as(argv[1], "wire_peer", "GOODBYE", &out);
    wire_out_free(&out);
    return 0;
}
