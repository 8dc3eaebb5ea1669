/* text.h - the training text: any file, plain or packed (gzip, xz, zstd, ...); by default a book of Debian's. */
#ifndef GPT2_TEXT_H
#define GPT2_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TEXT_WHY_BYTES = 512 };

/* The King James Bible of Debian's package bible-kjv-text: 4.2 million bytes of English prose, out of copyright. */
#define TEXT_DEFAULT "/usr/lib/bible.data"

#define TEXT_BYTES_MAX ((size_t)1 << 30) /* use token files for larger ones */

typedef struct {
    uint8_t *bytes;
    size_t n;
} text;

/* Shape      path NULL: the default text.  The file of bible-kjv-text is recognised by its first bytes; the text
 *            is then its verses, one on a line, without their numbers.
 * Ownership  t->bytes is t's, until text_free().
 * Errors     false: why is a sentence. */
bool text_load(text *t, const char *path, char why[TEXT_WHY_BYTES]);
void text_free(text *t);

/* Bytes of the training part; the last tenth is held out. */
static inline size_t text_train_bytes(const text *t)
{
    return t->n - t->n / 10;
}

#endif
