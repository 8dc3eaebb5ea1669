/* pieces.h - splits text into the pieces of GPT-2's tokenizer: about a word each. */
#ifndef GPT2_PIECES_H
#define GPT2_PIECES_H

#include <stddef.h>
#include <stdint.h>

/* Bytes of the piece that begins at text[at]; at < n.
 * Shape      the pattern of GPT-2's encoder.py, written out by hand:
 *                's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 *            Letters and numbers are those of the Unicode categories L and N, white space is the property White_Space.
 *            A byte that is not UTF-8 counts as a character of no class. */
size_t pieces_next(const uint8_t *text, size_t at, size_t n);

#endif
