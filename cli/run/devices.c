/* devices.c - asks the driver for its devices, and compares the answer with the environment. */
#include "cli/run/devices.h"
#include "common/base/config.h"
#include "common/base/why.h"
#include "common/compute/device/device.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ANSWER_MS = 60000 }; /* a driver without persistence mode starts its devices one by one */

typedef struct {
    int n;
    char note[256];
} answer;

static void answer_and_exit(int fd)
{
    answer a              = {.n = 0};
    const device_ops *ops = device_beside_host(a.note, sizeof a.note);
    a.n                   = ops != NULL ? ops->count() : 0;
    _exit(write(fd, &a, sizeof a) == sizeof a ? 0 : 1);
}

/* A driver that hangs or crashes has no devices: jobs that need none still run. */
static void read_answer(int fd, answer *a)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    const int ready = poll(&p, 1, ANSWER_MS);
    if (ready > 0 && read(fd, a, sizeof *a) == sizeof *a && a->n >= 0) return;
    *a = (answer){.n = 0};
    if (ready == 0)
        snprintf(a->note, sizeof a->note,
                 "the driver has not counted them for %d s; see nvidia-smi", ANSWER_MS / 1000);
    else
        snprintf(a->note, sizeof a->note, "the driver crashed when asked for them; see nvidia-smi");
}

static pen_status ask_driver(answer *a, pen_error *why)
{
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) != 0) return why_set(why, PEN_STORE, "cannot make a pipe: %m");
    fflush(NULL);
    const pid_t pid = fork();
    if (pid == 0) answer_and_exit(fds[1]);
    if (pid < 0) why_set(why, PEN_NO_MEMORY, "cannot start a process to count devices: %m");
    close(fds[1]);
    if (pid > 0) read_answer(fds[0], a);
    close(fds[0]);
    if (pid < 0) return PEN_NO_MEMORY;
    kill(pid, SIGKILL);
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR) {}
    return PEN_OK;
}

/* A cluster that assigns devices without hiding the others must name them: else jobs would share them unknowingly. */
static pen_status check_slurm(int n, bool is_listed, pen_error *why)
{
    const char *text = config_env("SLURM_GPUS_ON_NODE");
    char *end;
    if (text == NULL || config_env("SLURMD_NODENAME") == NULL) return PEN_OK;
    const long assigned = strtol(text, &end, 10);
    if (end == text || *end != '\0' || assigned < 0 || assigned > DEVICE_LIST_MAX)
        return why_set(why, PEN_BAD_SETTING,
                       "SLURM_GPUS_ON_NODE is '%.64s', but must be a number from 0 to %d", text,
                       DEVICE_LIST_MAX);
    if (is_listed || n <= assigned) return PEN_OK;
    return why_set(why, PEN_BAD_SETTING,
                   "Slurm assigned %ld of %d devices, but CUDA_VISIBLE_DEVICES does not list them; "
                   "list them there",
                   assigned, n);
}

pen_status run_devices_find(run_devices *d, pen_error *why)
{
    answer a         = {.n = 0};
    const char *text = config_env("CUDA_VISIBLE_DEVICES");
    *d               = (run_devices){.note = "CUDA_VISIBLE_DEVICES lists none"};
    pen_status status =
        text != NULL ? device_list_parse(text, &d->list, why) : check_slurm(0, false, why);
    if (status != PEN_OK || (text != NULL && d->list.n == 0)) return status;
    status = ask_driver(&a, why);
    if (status == PEN_OK) status = check_slurm(a.n, text != NULL, why);
    if (status != PEN_OK) return status;
    snprintf(d->note, sizeof d->note, "%.255s", a.note);
    if (a.n > DEVICE_LIST_MAX) a.n = DEVICE_LIST_MAX;
    if (text != NULL) {
        /* MIG: the driver shows a process one part, but each worker gets its own.  Without a device the list means
         * nothing. */
        if (a.n == 0) d->list.n = 0;
        if (a.n >= d->list.n || d->list.has_parts) return PEN_OK;
        return why_set(why, PEN_BAD_SETTING,
                       "CUDA_VISIBLE_DEVICES lists %d device%s, but the driver finds %d (%.100s); "
                       "remove '%s'",
                       d->list.n, d->list.n == 1 ? "" : "s", a.n, a.note, d->list.word[a.n]);
    }
    for (d->list.n = 0; d->list.n < a.n; d->list.n++)
        snprintf(d->list.word[d->list.n], DEVICE_WORD_BYTES, "%d", d->list.n);
    return PEN_OK;
}

const char *run_devices_of(const run_devices *d, int local_rank)
{
    return d->list.n > 0 ? d->list.word[local_rank % d->list.n] : NULL;
}
