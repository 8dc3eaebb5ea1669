/* file_limit.c - limits of a process: the size of its files, and how many it has open. */
#include "common/system/file_limit.h"

#include "common/base/log.h"
#include "common/base/why.h"

#include <errno.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

static sigset_t the_signal(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGXFSZ);
    return set;
}

file_limit file_limit_block(void)
{
    const sigset_t set = the_signal();
    sigset_t before;
    if (pthread_sigmask(SIG_BLOCK, &set, &before) != 0) return (file_limit){.was_blocked = true};
    return (file_limit){.was_blocked = sigismember(&before, SIGXFSZ) == 1};
}

void file_limit_restore(const file_limit *before)
{
    const struct timespec now = {0};
    const sigset_t set        = the_signal();
    if (before->was_blocked) return;
    while (sigtimedwait(&set, NULL, &now) == SIGXFSZ) continue;
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
}

/* ---- open files ------------------------------------------------------------------------------ */
enum { LOG_EXHAUSTED = 0xf11e5 }; /* of log_allowed() */

pen_status files_check(pen_error *why)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur >= FILES_MIN) return PEN_OK;
    return why_set(
        why, PEN_BAD_SETTING,
        "the limit of open files is %llu, but a process of a job needs at least %d "
        "(connections are files); raise it: ulimit -n 1024, or LimitNOFILE= of a systemd "
        "unit",
        (unsigned long long)files.rlim_cur, FILES_MIN);
}

void files_tell_exhausted(void)
{
    struct rlimit files;
    char who[64];
    const int another = eventfd(0, EFD_CLOEXEC);
    if (another >= 0) close(another);
    if (another >= 0 || errno != EMFILE) return;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0 || !log_allowed(LOG_EXHAUSTED)) return;
    log_own_name(who, sizeof who);
    log_error("%s has reached its limit of open files (%llu) and accepts no connections; raise the "
              "limit: ulimit "
              "-n %llu, or LimitNOFILE= of a systemd unit",
              who, (unsigned long long)files.rlim_cur, 4 * (unsigned long long)files.rlim_cur);
}
