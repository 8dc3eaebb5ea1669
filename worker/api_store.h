/* api_store.h - the values of a worker that is alone. */
#ifndef WORKER_API_STORE_H
#define WORKER_API_STORE_H

#include "worker/api.h"
#include "worker/requests.h"

typedef struct api_values api_values;
void api_values_destroy(api_values *values); /* NULL is fine */

#endif
