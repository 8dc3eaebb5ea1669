#include "scheduler/core/keep.h"
#include <stdlib.h>
#include <string.h>

enum { KEEP_BYTES_MAX = 64 << 20 };

struct keep_block {
    struct keep_block *next;
    max_align_t data[];
};

void keep_clear(keep *self)
{
    while (self->first) {
        struct keep_block *next = self->first->next;
        free(self->first);
        self->first = next;
    }
    wire_arena_destroy(self->arena);
    self->arena = NULL;
}

void *keep_bytes(keep *self, const void *data, size_t bytes)
{
    struct keep_block *block = malloc(sizeof *block + (bytes ? bytes : 1));
    if (!block) return NULL;

    block->next = self->first;
    self->first = block;
    if (bytes) memcpy(block->data, data, bytes);
    return block->data;
}

char *keep_text(keep *self, const char *text)
{
    if (!text) text = "";
    return keep_bytes(self, text, strlen(text) + 1);
}

const char *const *keep_texts(keep *self, const char *const *texts, uint32_t n)
{
    const char **copy = keep_bytes(self, texts, n * sizeof *texts);
    for (uint32_t i = 0; copy && i < n; i++)
        if (!(copy[i] = keep_text(self, texts[i]))) return NULL;
    return copy;
}

bool keep_message(keep *self, const wire_control *message, wire_control *copy)
{
    pen_error why;
    wire_control made;
    wire_out bytes = {0};
    if (!self->arena) self->arena = wire_arena_create(KEEP_BYTES_MAX);
    const bool done =
        self->arena && wire_control_encode(message, &bytes, &why) == PEN_OK &&
        wire_control_decode(bytes.data, bytes.size, self->arena, &made, &why) == PEN_OK;
    wire_out_free(&bytes);
    if (done) *copy = made;
    return done;
}

bool keep_model(keep *self, const wire_model *model, wire_model *copy)
{
    wire_control c = {.kind = WIRE_REGISTER, .u.register_ = *model};
    if (!keep_message(self, &c, &c)) return false;
    *copy = c.u.register_;
    return true;
}
