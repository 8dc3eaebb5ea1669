/* bench.h - what `penstock bench WHAT` can measure; one file per benchmark.
 *
 * Each takes its own flags (argv[0] is its name), prints one line for people or, with --json, one
 * JSON object per line, and returns the exit code.  Limits are measured by separate programs in the
 * folder limits/ beside the running one, in the same run: they share no code with what they judge.
 */
#ifndef CLI_BENCH_H
#define CLI_BENCH_H

int bench_push_pull(int argc, char **argv);
int bench_push_pull_rank(int argc, char **argv); /* one rank of it; started by the former */
int bench_optim(int argc, char **argv);

int bench_snapshot(int argc, char **argv);
int bench_snapshot_rank(int argc, char **argv); /* one rank of it; started by the former */

int bench_coll(int argc, char **argv);      /* argv[0] is the collective: "all-reduce" and so on */
int bench_coll_rank(int argc, char **argv); /* one rank of it; started by the former */
int bench_tune(int argc, char **argv);

#endif
