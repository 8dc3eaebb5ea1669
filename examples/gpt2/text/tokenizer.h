/* tokenizer.h - converts between text and numbers: one token per byte, or GPT-2's byte pair encoding. */
#ifndef GPT2_TOKENIZER_H
#define GPT2_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TOKENIZER_WHY_BYTES = 512, TOKENIZER_SIZE_MAX = 65536 };

typedef struct tokenizer tokenizer;

/* Shape      vocab and merges are GPT-2's vocab.json and merges.txt, or both NULL: 256 tokens, one per byte.
 * Ownership  *t is the caller's, for tokenizer_free().
 * Errors     false: why is a sentence that names the file.
 * Source     Radford et al., "Language Models are Unsupervised Multitask Learners", 2019, section 2.2, and encoder.py of
 *            github.com/openai/gpt-2. */
bool tokenizer_open(tokenizer **t, const char *vocab, const char *merges,
                    char why[TOKENIZER_WHY_BYTES]);
void tokenizer_free(tokenizer *t);

int tokenizer_size(const tokenizer *t); /* tokens are 0 .. size-1 */

/* Any bytes can be encoded, and decode to themselves.
 * Ownership  *tokens is the caller's, for free(); at most n of them.
 * Errors     false: no memory. */
bool tokenizer_encode(const tokenizer *t, const uint8_t *bytes, size_t n, uint16_t **tokens,
                      size_t *count);

/* The bytes of one token.
 * Ownership  t's.  An invalid number has none. */
const uint8_t *tokenizer_bytes(const tokenizer *t, int token, size_t *n);

#endif
