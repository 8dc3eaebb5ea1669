#include "scheduler/core/message_copy.h"
#include <stdlib.h>
#include <string.h>

enum { MESSAGE_COPY_BYTES_MAX = 64 << 20 };

struct message_copy_block {
    struct message_copy_block *next;
    max_align_t data[];
};

void message_copy_clear(message_copy *self)
{
    while (self->first) {
        struct message_copy_block *next = self->first->next;
        free(self->first);
        self->first = next;
    }
    wire_arena_destroy(self->arena);
    self->arena = NULL;
}

void *message_copy_bytes(message_copy *self, const void *data, size_t bytes)
{
    struct message_copy_block *block = malloc(sizeof *block + (bytes ? bytes : 1));
    if (!block) return NULL;

    block->next = self->first;
    self->first = block;
    if (bytes) memcpy(block->data, data, bytes);
    return block->data;
}

char *message_copy_text(message_copy *self, const char *text)
{
    if (!text) text = "";
    return message_copy_bytes(self, text, strlen(text) + 1);
}

const char *const *message_copy_texts(message_copy *self, const char *const *texts, uint32_t n)
{
    const char **copy = message_copy_bytes(self, texts, n * sizeof *texts);
    for (uint32_t i = 0; copy && i < n; i++)
        if (!(copy[i] = message_copy_text(self, texts[i]))) return NULL;
    return copy;
}

bool message_copy_control(message_copy *self, const wire_control *message, wire_control *copy)
{
    pen_error why;
    wire_control made;
    wire_out bytes = {0};
    if (!self->arena) self->arena = wire_arena_create(MESSAGE_COPY_BYTES_MAX);
    const bool done =
        self->arena && wire_control_encode(message, &bytes, &why) == PEN_OK &&
        wire_control_decode(bytes.data, bytes.size, self->arena, &made, &why) == PEN_OK;
    wire_out_free(&bytes);
    if (done) *copy = made;
    return done;
}

bool message_copy_model(message_copy *self, const wire_model *model, wire_model *copy)
{
    wire_control c = {.kind = WIRE_REGISTER, .u.register_ = *model};
    if (!message_copy_control(self, &c, &c)) return false;
    *copy = c.u.register_;
    return true;
}
