/* message_copy.h - copies of decoded messages that outlive the message; freed together. */
#ifndef SCHEDULER_MESSAGE_COPY_H
#define SCHEDULER_MESSAGE_COPY_H

#include "proto/wire/wire.h"

typedef struct { /* zero is empty */
    struct message_copy_block *first;
    wire_arena *arena; /* of whole messages */
} message_copy;

void message_copy_clear(message_copy *self);

/* NULL: no memory.  bytes 0 and NULL text are fine. */
void *message_copy_bytes(message_copy *self, const void *data, size_t bytes);
char *message_copy_text(message_copy *self, const char *text);
const char *const *message_copy_texts(message_copy *self, const char *const *texts, uint32_t n);

/* A deep copy of a message.  False: it cannot be encoded, or no memory; *copy is unchanged. */
bool message_copy_control(message_copy *self, const wire_control *message, wire_control *copy);
bool message_copy_model(message_copy *self, const wire_model *model, wire_model *copy);

#endif
