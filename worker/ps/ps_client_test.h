/* ps_client_test.h - functions of the ps client that only tests call. */
#ifndef WORKER_PS_CLIENT_TEST_H
#define WORKER_PS_CLIENT_TEST_H

#include "worker/ps/ps_client.h"

uint64_t ps_client_pending(const ps_client *self); /* requests that have not completed */

#endif
