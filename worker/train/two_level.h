/* two_level.h - training with servers, reduced inside each node first. */
#ifndef WORKER_TRAIN_TWO_LEVEL_H
#define WORKER_TRAIN_TWO_LEVEL_H

#include "worker/engine.h" /* engine_two_level */

#endif
