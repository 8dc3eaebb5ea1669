/* emit.h - `penstock run --emit k8s`: the command line as Kubernetes manifests. */
#ifndef CLI_EMIT_EMIT_H
#define CLI_EMIT_EMIT_H

#include "cli/run/options.h"
#include <stdio.h>

/* Prints the manifests of this job, and required preparations to stderr.  Returns the exit code. */
int emit_k8s(const run_options *o, FILE *out);

#endif
