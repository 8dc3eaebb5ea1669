/* self_message.h - point to point in a group of one: a member sends to itself.
 *
 * A send is copied and ends at once; a receive takes the first message with its tag, or waits for it.  All groups of
 * one in a context share a queue.
 */
#ifndef WORKER_COLL_SELF_MESSAGE_H
#define WORKER_COLL_SELF_MESSAGE_H

#include "worker/collective/engine/engine_internal.h"

pen_status self_transfer_begin(coll_engine *e, const engine_transfer *t,
                               void (*done)(void *user, const mesh_result *result), void *user,
                               pen_error *why);
pen_status self_transfer_run(coll_engine *e, const engine_transfer *t, uint64_t deadline_ms,
                             mesh_result *result, pen_error *why);
void self_messages_end(coll_engine *e);

#endif
