/* local.h - training alone: the engine of a program that nobody started as part of a job. */
#ifndef WORKER_TRAIN_LOCAL_H
#define WORKER_TRAIN_LOCAL_H

#include "worker/engine.h" /* engine_local */

#endif
