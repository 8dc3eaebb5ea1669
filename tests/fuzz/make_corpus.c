/* make_corpus.c - writes the seeds of the wire fuzzers: one message of every kind.
 *   make_corpus tests/fuzz/corpus      (tests/fuzz/run.sh --corpus builds and runs it) */
#include "tests/support/wire_samples.h"

#include <stdio.h>
#include <stdlib.h>

static void save(const char *folder, const char *target, int kind, const wire_out *out)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s/%s", folder, target, wire_kind_name(kind));
    FILE *file = fopen(path, "we");
    if (file == NULL || fwrite(out->data, 1, out->size, file) != out->size || fclose(file) != 0) {
        perror(path);
        exit(1);
    }
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
        wire_data d = wire_sample_data((wire_kind)kind);
        check(wire_data_encode(&d, &out, &why), &why);
        save(argv[1], "wire_data", kind, &out);
    }
    for (int kind = WIRE_HELLO; kind < (int)WIRE_CONTROL_END; kind++) {
        wire_control c = wire_sample_control((wire_control_kind)kind);
        check(wire_control_encode(&c, &out, &why), &why);
        save(argv[1], "wire_control", kind, &out);
    }
    wire_out_free(&out);
    return 0;
}
