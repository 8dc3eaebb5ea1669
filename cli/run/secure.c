/* secure.c - whether a job is encrypted, where its secret comes from, and who is told.
 *
 * DESIGN.  The launcher decides once, and says so to all its children (PENSTOCK_ENCRYPTION), so that a scheduler which
 * listens everywhere and a worker that dials loopback agree.  Where nothing is encrypted and no secret was given there
 * is nothing to do: the scheduler leaves a token for the others (common/net/auth/token.h).  A secret that nobody gave is made here and thrown away
 * with the job: a file of mode 0600 in the folder of notes, which only this user may enter; children and `penstock
 * status` get its path, never its content.  Other machines get it by the join line, which this command prints and the
 * user carries; it is overwritten in their command line as soon as it was read.
 *
 * A launcher that is killed cannot remove its file.  It holds a lock on it as long as it lives, on whatever number of
 * process; the next launcher of this user removes files whose lock is free.
 */
#include "cli/run/launcher.h"
#include "common/base/config.h"
#include "common/net/auth/guard.h"
#include "common/base/user_folder.h"
#include "common/base/why.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static pen_status parse_choice(int *choice, pen_error *why)
{
    const char *text = config_env("PENSTOCK_ENCRYPTION");
    for (*choice = GUARD_AUTO; text != NULL && guard_choices[*choice] != NULL; ++*choice)
        if (strcmp(text, guard_choices[*choice]) == 0) return PEN_OK;
    if (text == NULL) return PEN_OK;
    return why_set(why, PEN_BAD_SETTING, "encryption is '%.64s', but must be auto, on or clear",
                   text);
}

/* Whether anything of this job is listened at, or dialled, beyond this host. */
static bool leaves_host(const run_options *o)
{
    const char *host = config_env("PENSTOCK_HOST");
    return !guard_is_loopback(o->master_addr) || (host != NULL && !guard_is_loopback(host));
}

static void say_clear(bool is_far)
{
    setenv("PENSTOCK_ENCRYPTION", "clear", 1);
    if (is_far)
        fprintf(stderr, "penstock: traffic is neither encrypted nor authenticated "
                        "(encryption=clear)\n");
}

/* A file that is as young as this may be about to be locked. */
enum { SWEEP_AFTER_S = 10 };

static bool is_left_over(int folder, const char *name)
{
    struct stat st;
    const size_t n = strlen(name);
    if (n < 5 || strcmp(name + n - 4, ".key") != 0) return false;
    const int fd = openat(folder, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) return false;
    const bool is_it = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == getuid() &&
                       time(NULL) - st.st_mtime > SWEEP_AFTER_S &&
                       flock(fd, LOCK_EX | LOCK_NB) == 0;
    close(fd);
    return is_it;
}

static void sweep_keys(const char *folder)
{
    DIR *dir = opendir(folder);
    if (dir == NULL) return;
    for (struct dirent *e; (e = readdir(dir)) != NULL;)
        if (is_left_over(dirfd(dir), e->d_name)) unlinkat(dirfd(dir), e->d_name, 0);
    closedir(dir);
}

static pen_status keep_secret(launcher *l, const secret *s, pen_error *why)
{
    char folder[USER_FOLDER_BYTES];
    pen_status status = user_folder(folder, why);
    if (status != PEN_OK) return status;
    snprintf(l->secret_path, sizeof l->secret_path, "%s/%s-%d.key", folder, l->job, (int)getpid());
    unlink(l->secret_path); /* of a launcher that was killed and had our number */
    sweep_keys(folder);
    status = secret_write(l->secret_path, s, why);
    if (status != PEN_OK) {
        l->secret_path[0] = '\0';
        return status;
    }
    l->secret_lock = open(l->secret_path, O_RDONLY | O_CLOEXEC);
    if (l->secret_lock < 0 || flock(l->secret_lock, LOCK_SH | LOCK_NB) != 0)
        return why_set(why, PEN_STORE, "cannot lock %s: %m", l->secret_path);
    return PEN_OK;
}

static void print_join(const launcher *l, const secret *s)
{
    char line[SECRET_JOIN_BYTES];
    const run_options *o = &l->options;
    if (o->nnodes_max < 2) return;
    secret_join_format(s, o->master_addr, (uint32_t)o->master_port, line);
    fprintf(stderr, "penstock: on each other machine, with its --node-rank:  --join %s\n", line);
    explicit_bzero(line, sizeof line);
}

/* A secret that is given can be read, and a machine that cannot make one has one. */
static pen_status check_given(const run_options *o, bool *is_file, pen_error *why)
{
    const char *given = config_env("PENSTOCK_SECRET_FILE");
    secret s;
    *is_file = given != NULL && given[0] != '\0' && !o->has_join;
    if (*is_file) {
        const pen_status status =
            secret_read(given, &s, why); /* rather one sentence now than one of each child */
        secret_wipe(&s);
        return status;
    }
    if (o->has_join || o->node_rank == 0) return PEN_OK;
    return why_set(why, PEN_BAD_SETTING,
                   "machine %d needs the job's secret: say --join and what machine 0 printed, "
                   "or --secret-file FILE on all machines, or --encryption clear on all",
                   o->node_rank);
}

static pen_status find_secret(launcher *l, pen_error *why)
{
    run_options *o = &l->options;
    bool is_file;
    secret s;
    pen_status status = check_given(o, &is_file, why);
    if (status != PEN_OK || is_file) return status;
    status = o->has_join ? PEN_OK : secret_make(&s, why);
    if (o->has_join) s = o->join;
    if (status == PEN_OK) status = keep_secret(l, &s, why);
    if (status == PEN_OK) setenv("PENSTOCK_SECRET_FILE", l->secret_path, 1);
    if (status == PEN_OK && !o->has_join) print_join(l, &s);
    secret_wipe(&s);
    secret_wipe(&o->join);
    return status;
}

/* The job has a secret that was given to this command. */
static bool has_given(const run_options *o)
{
    const char *given = config_env("PENSTOCK_SECRET_FILE");
    return o->has_join || (given != NULL && given[0] != '\0');
}

static bool is_clear(const run_options *o, int choice)
{
    return choice == GUARD_CLEAR || (choice == GUARD_AUTO && !has_given(o) && !leaves_host(o));
}

pen_status launcher_check_secret(const launcher *l, pen_error *why)
{
    int choice;
    bool is_file;
    const run_options *o = &l->options;
    if (parse_choice(&choice, why) != PEN_OK) return why->status;
    return is_clear(o, choice) && !has_given(o) ? PEN_OK : check_given(o, &is_file, why);
}

pen_status launcher_secure(launcher *l, pen_error *why)
{
    int choice;
    const bool has_secret   = has_given(&l->options);
    const bool is_far       = leaves_host(&l->options);
    const pen_status status = parse_choice(&choice, why);
    if (status != PEN_OK) return status;
    if (is_clear(&l->options, choice)) {
        say_clear(is_far && !has_secret);
        return has_secret ? find_secret(l, why) : PEN_OK; /* then it is proven, if not encrypted */
    }
    setenv("PENSTOCK_ENCRYPTION", "on", 1);
    return find_secret(l, why);
}

void launcher_forget_secret(launcher *l)
{
    if (l->secret_path[0] != '\0') unlink(l->secret_path);
    if (l->secret_lock > 0) close(l->secret_lock);
    l->secret_path[0] = '\0';
    l->secret_lock    = 0;
}
