/* data.h - Fashion-MNIST in memory: 28 x 28 grey images and their labels. */
#ifndef FASHION_MNIST_DATA_H
#define FASHION_MNIST_DATA_H

#include <stdbool.h>
#include <stdint.h>

#define DATA_DIR "/usr/share/datasets/fashion-mnist" /* Debian's package dataset-fashion-mnist */

enum { DATA_SIDE = 28, DATA_PIXELS = DATA_SIDE * DATA_SIDE, DATA_CLASSES = 10 };
enum { DATA_SAMPLES_MAX = 100000, DATA_WHY_BYTES = 512 };

typedef struct {
    int n;
    uint8_t *images; /* [n][DATA_PIXELS] */
    uint8_t *labels; /* [n], each below DATA_CLASSES */
} data_set;

/* Reads DIR/<part>-images-idx3-ubyte and DIR/<part>-labels-idx1-ubyte, each plain or with ".gz"; part is "train" or
 * "t10k".  Checks every byte of the header.  On false *set is empty and why holds a sentence. */
bool data_load(data_set *set, const char *dir, const char *part, char why[DATA_WHY_BYTES]);
void data_free(data_set *set); /* an empty set is fine */

/* The order of n samples in an epoch: a pure function of (seed, epoch). */
void data_shuffle(uint32_t *order, int n, uint64_t seed, int64_t epoch);

/* Copies samples index[0 .. n-1]; pixels have mean 0 and variance 1 over the training set. */
void data_gather(const data_set *set, const uint32_t *index, int n, float *images, uint8_t *labels);

#endif
