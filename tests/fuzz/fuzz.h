/* fuzz.h - shared by the fuzz targets. */
#ifndef TESTS_FUZZ_FUZZ_H
#define TESTS_FUZZ_FUZZ_H

#include "common/base/crc.h"
#include "proto/wire/wire.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A broken promise ends the run; libFuzzer keeps the input. */
#define FUZZ_CHECK(promise)                                                                        \
    do {                                                                                           \
        if (promise) break;                                                                        \
        fprintf(stderr, "%s:%d: broken: %s\n", __FILE__, __LINE__, #promise);                      \
        abort();                                                                                   \
    } while (0)

static volatile uint64_t fuzz_sink; /* the result of a read must not be optimised away */

/* The same head in a block of its own, behind a valid prefix; NULL: too short for one. */
static inline uint8_t *fuzz_seal(const uint8_t *data, size_t size, uint16_t plane)
{
    if (size < WIRE_PREFIX_BYTES) return NULL;
    uint8_t *head = malloc(size);
    FUZZ_CHECK(head != NULL);
    const uint16_t version = WIRE_VERSION;
    const uint64_t length  = size - WIRE_PREFIX_BYTES;
    const uint32_t crc     = crc32c(0, data + WIRE_PREFIX_BYTES, length);
    memcpy(head, "PNSK", 4);
    memcpy(head + 4, &version, sizeof version);
    memcpy(head + 6, &plane, sizeof plane);
    memcpy(head + 8, &length, sizeof length);
    memcpy(head + 16, &crc, sizeof crc);
    memcpy(head + WIRE_PREFIX_BYTES, data + WIRE_PREFIX_BYTES, length);
    return head;
}

#endif
