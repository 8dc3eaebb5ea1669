/* describe.h - a model as snapshots describe it: alike for servers and for workers that write them. */
#ifndef PROTO_DESCRIBE_H
#define PROTO_DESCRIBE_H

#include "common/snapshot/store.h"
#include "proto/wire.h"

/* rows has room for all tensors of the model; names in them are BORROWED from it. */
void describe_model(const wire_model *model, store_tensor *rows);

/* The blob in which a snapshot keeps how many updates each chunk has had: rows of these, in any order. */
#define DESCRIBE_VERSIONS_BLOB "versions"
typedef struct {
    uint32_t chunk, zero; /* number in the plan */
    uint64_t version;
} describe_version;

/* The blob of bytes that are no tensors: bundles (common/snapshot/bundle.h). */
#define DESCRIBE_STATES_BLOB "states"

#endif
