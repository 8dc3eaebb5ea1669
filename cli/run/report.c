/* report.c - the report of a failed job: the cause, then other processes, then the remedy. */
#include "cli/run/report.h"

#include "common/snapshot/store.h"

#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool failed(const process *p)
{
    return p->ended && !p->lost && (p->exit_code != 0 || p->exit_signal != 0);
}

static bool is_verdicts_culprit(const process *p, const pen_error *verdict)
{
    return verdict != NULL && verdict->status == PEN_PEER_LOST && p->role == verdict->role &&
           p->rank == verdict->rank;
}

/* The verdict itself is the cause, not a process. */
static bool is_cause_itself(const pen_error *verdict)
{
    return verdict != NULL && verdict->status != PEN_PEER_LOST;
}

/* The last line of a child's stderr. */
static const char *last_line(const process *p)
{
    return p->err.lines == 0 ? "" : p->err.tail[(p->err.lines - 1) % PROCESS_TAIL_LINES];
}

/* Its last word is the verdict. */
static bool repeats(const process *p, const pen_error *verdict)
{
    return verdict != NULL && strstr(last_line(p), verdict->text) != NULL;
}

/* It ended because of the verdict: it says so, or it was stopped after it. */
static bool follows(const process *p, const pen_error *verdict)
{
    return verdict != NULL && (p->reported || repeats(p, verdict));
}

process *report_cause(const report_input *in)
{
    process *first = NULL;
    for (size_t i = 0; i < in->n; i++) {
        process *p = &in->all[i];
        if (in->scheduler_hung && p->role == PEN_SCHEDULER) return p;
        if (is_verdicts_culprit(p, in->verdict)) return p; /* it may hang, and exit last */
        if (!is_cause_itself(in->verdict) && failed(p) && !follows(p, in->verdict) &&
            (first == NULL || p->order < first->order))
            first = p;
    }
    return first;
}

static const char *signal_name(int number)
{
    static char name[32];
    const char *abbreviation = sigabbrev_np(number);
    if (abbreviation == NULL)
        snprintf(name, sizeof name, "signal %d", number);
    else
        snprintf(name, sizeof name, "SIG%s", abbreviation);
    return name;
}

/* "was killed by SIGKILL" */
static void describe_end(const process *p, bool hung, char *text, size_t size)
{
    if (hung)
        snprintf(text, size, "stopped answering and was killed");
    else if (p->exit_signal != 0)
        snprintf(text, size, "was killed by %s", signal_name(p->exit_signal));
    else
        snprintf(text, size, "ended with exit code %d", p->exit_code);
}

/* OOM kills in this process's memory cgroup; "" if unknown. */
static void describe_memory(char *text, size_t size)
{
    char line[128], limit[64] = "";
    unsigned long long kills = 0;
    text[0]                  = '\0';
    FILE *f                  = fopen("/sys/fs/cgroup/memory.events", "r");
    if (f == NULL) return;
    while (fgets(line, sizeof line, f) != NULL) sscanf(line, "oom_kill %llu", &kills);
    fclose(f);
    f = fopen("/sys/fs/cgroup/memory.max", "r");
    if (f != NULL) {
        if (fscanf(f, "%63s", limit) != 1) limit[0] = '\0';
        fclose(f);
    }
    if (kills > 0)
        snprintf(text, size, "   (probably out of memory: cgroup limit %s bytes, oom_kill %llu)",
                 limit, kills);
}

static void print_tail(const process *p)
{
    const process_stream *s = &p->err;
    uint64_t n              = s->lines < PROCESS_TAIL_LINES ? s->lines : PROCESS_TAIL_LINES;
    if (n == 0) return;
    fprintf(stderr, "           last %" PRIu64 " line%s of its stderr%s%s%s\n", n,
            n == 1 ? "" : "s", p->err_path[0] != '\0' ? " (all: " : "", p->err_path,
            p->err_path[0] != '\0' ? ")" : "");
    for (uint64_t i = s->lines - n; i < s->lines; i++)
        fprintf(stderr, "             | %s\n", s->tail[i % PROCESS_TAIL_LINES]);
}

static void print_others(const report_input *in, const process *cause)
{
    bool first = true;
    for (size_t i = 0; i < in->n; i++) {
        const process *p = &in->all[i];
        char end[96];
        if (p == cause || !p->ended || p->role != PEN_WORKER) continue;
        describe_end(p, false, end, sizeof end);
        const bool is_known = p->err.lines == 0 || repeats(p, in->verdict);
        if (failed(p))
            fprintf(stderr, "%s   %s   %s%s%s\n", first ? "  others" : "        ", p->name, end,
                    is_known ? "" : ": ", is_known ? "" : last_line(p));
        else
            fprintf(stderr, "%s   %s   ended normally\n", first ? "  others" : "        ", p->name);
        first = false;
    }
}

/* The step of the newest complete snapshot; -1: none. */
static int64_t newest_in(const char *dir)
{
    store_reader *reader;
    if (dir == NULL || store_reader_open(dir, &reader, NULL) != PEN_OK) return -1;
    const size_t n = store_reader_steps(reader, NULL, 0);
    int64_t *steps = calloc(n + 1, sizeof *steps);
    int64_t newest = -1;
    if (steps != NULL && n > 0 && store_reader_steps(reader, steps, n) >= n) newest = steps[n - 1];
    free(steps);
    store_reader_close(reader);
    return newest;
}

static void print_kept(const run_options *o)
{
    const int64_t newest = newest_in(o->store);
    if (o->store == NULL)
        fprintf(stderr,
                "  kept     nothing (no --store); with --store DIR --snapshot-every 100 a job "
                "can --resume\n");
    else if (newest < 0)
        fprintf(stderr, "  kept     nothing: %s has no complete snapshot\n", o->store);
    else
        fprintf(stderr, "  kept     the snapshot of step %lld in %s; continue with --resume\n",
                (long long)newest, o->store);
}

static int exit_code_of(const process *p, bool hung)
{
    if (hung) return 128 + SIGKILL;
    if (p->exit_signal != 0) return 128 + p->exit_signal;
    return p->exit_code != 0 ? p->exit_code : 1;
}

static int write_verdict(const report_input *in)
{
    if (!in->is_told) fprintf(stderr, "penstock: %s\n", in->verdict->text);
    fprintf(stderr, "\n");
    print_others(in, NULL);
    if (!in->restarting) print_kept(in->options);
    fprintf(stderr, "  exit     1\n");
    return 1;
}

int report_write(const report_input *in, const process *cause)
{
    char end[96], memory[160] = "", host[256] = "", where[64] = "";
    if (in->interrupted != 0) {
        fprintf(stderr, "penstock: interrupted by %s; %s\n", signal_name(in->interrupted),
                in->options->store == NULL ? "nothing kept (no --store)"
                                           : "the snapshots in the store are kept");
        return 128 + in->interrupted;
    }
    if (cause == NULL && in->verdict == NULL) return 0;
    if (cause == NULL) return write_verdict(in);
    bool hung = in->scheduler_hung ||
                (is_verdicts_culprit(cause, in->verdict) && (!cause->ended || cause->reported));
    describe_end(cause, hung, end, sizeof end);
    if (cause->exit_signal == SIGKILL && !hung) describe_memory(memory, sizeof memory);
    gethostname(host, sizeof host - 1);
    if (in->verdict != NULL && in->verdict->step >= 0)
        snprintf(where, sizeof where, " at step %" PRId64, in->verdict->step);

    fprintf(stderr, "penstock: %s %s%s%s\n\n", cause->name, end, where, memory);
    fprintf(stderr, "  cause    %s  host %s", cause->name, host);
    if (cause->role == PEN_WORKER) fprintf(stderr, "  local rank %d", cause->local_rank);
    if (cause->ended) fprintf(stderr, "  after %.1f s", cause->ended_s - cause->started_s);
    fprintf(stderr, "\n");
    print_tail(cause);
    if (in->verdict != NULL && !in->is_told) fprintf(stderr, "  verdict  %s\n", in->verdict->text);
    print_others(in, cause);
    if (in->verdict != NULL && in->verdict->status == PEN_PEER_LOST && cause->role == PEN_WORKER)
        fprintf(stderr, "  rule     on_worker_loss=%s%s\n", settings_loss_rules[in->options->loss],
                in->options->loss == LOSS_FAIL ? " (default)" : "");
    if (!in->restarting && !process_cannot_run(cause)) print_kept(in->options);
    int code = exit_code_of(cause, hung);
    fprintf(stderr, "  exit     %d\n", code);
    return code;
}
