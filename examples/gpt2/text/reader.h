/* reader.h - tokens for training and held-out tokens, and which of them a worker reads when.
 *
 * A sequence is T tokens and the next one.  Sequence number s of the whole job is a pure function of s.  So a rank's
 * data is a pure function of (step, micro-batch, rank, number of ranks), and the G sequences of a step are the same for
 * one rank or eight.
 */
#ifndef GPT2_READER_H
#define GPT2_READER_H

#include "text.h"
#include "tokenizer.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { READER_WHY_BYTES = 512 };

typedef struct {
    const uint16_t *token;
    size_t n;
    uint16_t *own; /* memory of its own, or NULL */
    void *map;     /* a file, or NULL */
    size_t map_bytes;
} reader_tokens;

typedef struct {
    reader_tokens train, held;
    double held_bytes; /* bytes of text behind the held-out tokens; 0: unknown */
    char from[64];     /* their source, for people */
} reader_data;

/* The first nine tenths of the text are for training, the rest is held out. */
bool reader_encode(reader_data *d, const text *t, const tokenizer *by, char why[READER_WHY_BYTES]);

/* Token files of llm.c: 256 numbers of 32 bits (20240520, version 1, number of tokens, zeros), then 16 bits a token,
 * all little-endian; the file is mapped, not read.
 * Shape      held NULL: the last tenth of train's tokens is held out.
 * Source     github.com/karpathy/llm.c, llmc/dataloader.h and dev/data/data_common.py. */
bool reader_map(reader_data *d, const char *train, const char *held, char why[READER_WHY_BYTES]);

void reader_free(reader_data *d);

/* ---- order of sequences ---------------------------------------------------------------------- */
typedef struct {
    size_t tokens;
    int length;         /* T */
    bool is_shuffled;   /* else in order, as llm.c reads */
    uint64_t seed;      /* of the shuffle */
    int64_t sequences;  /* of one pass over the tokens */
    uint32_t *shuffled; /* [sequences] of pass number `pass` */
    int64_t pass;
} reader_order;

/* False: fewer tokens than one sequence, too many to shuffle, or no memory. */
bool reader_order_init(reader_order *o, size_t tokens, int length, bool is_shuffled, uint64_t seed);
void reader_order_fini(reader_order *o);

/* The start of sequence number s of the job. */
size_t reader_start(reader_order *o, int64_t s);

/* Number of the first sequence of one rank's micro-batch of `batch` sequences. */
static inline int64_t reader_first(int64_t step, int micro, int accum, int rank, int ranks,
                                   int batch)
{
    return ((step * accum + micro) * ranks + rank) * batch;
}

/* Copies the tokens from `at` on to in[length] and target[length].  -1, or the place of a token not below vocab. */
int64_t reader_copy(const reader_tokens *t, size_t at, int length, int vocab, int32_t *in,
                    int32_t *target);

#endif
