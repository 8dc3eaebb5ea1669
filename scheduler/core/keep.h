/* keep.h - copies of decoded messages that outlive the message; a keep is freed as a whole. */
#ifndef SCHEDULER_KEEP_H
#define SCHEDULER_KEEP_H

#include "proto/wire/wire.h"

typedef struct { /* zero is an empty keep */
    struct keep_block *first;
    wire_arena *arena; /* of whole messages */
} keep;

void keep_clear(keep *self);

/* NULL: no memory.  bytes 0 and NULL text are fine. */
void *keep_bytes(keep *self, const void *data, size_t bytes);
char *keep_text(keep *self, const char *text);
const char *const *keep_texts(keep *self, const char *const *texts, uint32_t n);

/* A deep copy of a message.  False: it cannot be encoded, or no memory; *copy is unchanged. */
bool keep_message(keep *self, const wire_control *message, wire_control *copy);
bool keep_model(keep *self, const wire_model *model, wire_model *copy);

#endif
