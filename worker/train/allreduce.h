/* allreduce.h - training without servers: every worker holds the whole model, and gradients are
 * summed over all of them. */
#ifndef WORKER_TRAIN_ALLREDUCE_H
#define WORKER_TRAIN_ALLREDUCE_H

#include "worker/engine.h" /* engine_allreduce */

#endif
