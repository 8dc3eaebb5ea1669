/* emit.h - `penstock run --emit k8s`: the command line as manifests of Kubernetes. */
#ifndef CLI_EMIT_EMIT_H
#define CLI_EMIT_EMIT_H

#include "cli/run/options.h"
#include <stdio.h>

/* Prints what starts this job in a cluster, and to stderr what has to be done before.  The exit code. */
int emit_k8s(const run_options *o, FILE *out);

#endif
