#include "common/system/files.h"

#include "common/base/log.h"
#include "common/base/why.h"

#include <errno.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

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
