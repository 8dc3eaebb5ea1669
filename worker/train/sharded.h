/* sharded.h - training whose state is sharded over the workers: ZeRO-1, -2 and -3, FSDP, hybrid. */
#ifndef WORKER_TRAIN_SHARDED_H
#define WORKER_TRAIN_SHARDED_H

#include "worker/engine.h" /* engine_sharded */

#endif
