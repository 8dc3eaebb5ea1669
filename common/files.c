#include "common/files.h"

#include "common/why.h"

#include <sys/resource.h>

pen_status files_check(pen_error *why)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur >= FILES_MIN) return PEN_OK;
    return why_set(why, PEN_BAD_SETTING,
                   "the limit of open files is %llu, and a process of a job needs at least %d, for "
                   "connections are files; raise it: ulimit -n 1024, or LimitNOFILE= of a systemd "
                   "unit",
                   (unsigned long long)files.rlim_cur, FILES_MIN);
}
