/* timeline.c - `penstock run --trace FILE`: creates the folder of trace parts, and merges them after the job.
 *
 * Killed and restarted processes have parts too: each process writes its own continuously.  With several machines each
 * machine has its own parts; `penstock trace merge` merges all of them.
 */
#include "cli/run/launcher.h"
#include "cli/trace/timeline.h"
#include "common/base/why.h"
#include "common/system/own_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void folder_of(const char *file, char *folder, size_t size)
{
    snprintf(folder, size, "%.255s" TRACE_PARTS_SUFFIX, file);
}

/* Programs may change their working directory before pen_init(). */
static const char *make_absolute(const char *file, pen_error *why)
{
    char here[CONFIG_TEXT_BYTES], whole[2 * CONFIG_TEXT_BYTES + 2];
    if (file[0] == '/') return file;
    if (getcwd(here, sizeof here) == NULL) return file;
    snprintf(whole, sizeof whole, "%s/%s", here, file);
    if (strlen(whole) >= CONFIG_TEXT_BYTES) {
        why_set(why, PEN_BAD_SETTING, "the timeline's file name is too long: %.300s", whole);
        return NULL;
    }
    setenv("PENSTOCK_TRACE", whole, 1);
    return config_env("PENSTOCK_TRACE");
}

/* Parts of an earlier job. */
static void remove_parts(const char *folder)
{
    DIR *d = opendir(folder);
    if (d == NULL) return;
    for (struct dirent *entry = readdir(d); entry != NULL; entry = readdir(d)) {
        const size_t n = strlen(entry->d_name), suffix = strlen(TRACE_PART_SUFFIX);
        if (n > suffix && strcmp(entry->d_name + n - suffix, TRACE_PART_SUFFIX) == 0)
            unlinkat(dirfd(d), entry->d_name, 0);
    }
    closedir(d);
}

/* folder: "" without a timeline.  *is_new: it was created here. */
static pen_status make_folder(char folder[CONFIG_TEXT_BYTES + 16], bool *is_new, pen_error *why)
{
    const char *file = config_env("PENSTOCK_TRACE");
    pen_error inner;
    folder[0] = '\0';
    *is_new   = false;
    if (file == NULL || file[0] == '\0') return PEN_OK;
    file = make_absolute(file, why);
    if (file == NULL) return PEN_BAD_SETTING;
    folder_of(file, folder, CONFIG_TEXT_BYTES + 16);
    *is_new      = mkdir(folder, 0700) == 0;
    const int fd = own_folder_open(AT_FDCWD, folder, folder, OWN_FOLDER, &inner);
    if (fd >= 0) close(fd);
    return fd >= 0
               ? PEN_OK
               : why_set(
                     why, PEN_STORE,
                     "no folder for the timeline: %s; --trace needs a file in a folder that exists",
                     inner.text);
}

pen_status timeline_check(pen_error *why)
{
    char folder[CONFIG_TEXT_BYTES + 16];
    bool is_new;
    const pen_status status = make_folder(folder, &is_new, why);
    if (status == PEN_OK && is_new) rmdir(folder);
    return status;
}

pen_status timeline_begin(const launcher *l, pen_error *why)
{
    char folder[CONFIG_TEXT_BYTES + 16];
    bool is_new;
    const pen_status status = make_folder(folder, &is_new, why);
    if (status != PEN_OK || folder[0] == '\0') return status;
    if (l->options.nnodes_max == 1) remove_parts(folder);
    return PEN_OK;
}

void timeline_end(const launcher *l)
{
    char folder[CONFIG_TEXT_BYTES + 16], text[400];
    char *from[]     = {folder};
    const char *file = config_env("PENSTOCK_TRACE");
    pen_error why;
    if (file == NULL || file[0] == '\0') return;
    folder_of(file, folder, sizeof folder);
    if (l->options.nnodes_max > 1) {
        fprintf(
            stderr,
            "penstock: the timeline's parts are in %s; merge those of all machines with:  penstock "
            "trace merge %s PARTS...\n",
            folder, file);
    } else if (timeline_merge(file, from, 1, text, sizeof text, &why) != PEN_OK) {
        fprintf(stderr, "penstock: cannot merge the timeline: %s; its parts stay in %s\n", why.text,
                folder);
    } else {
        fprintf(stderr, "penstock: timeline %s: %s\n", file, text);
        remove_parts(folder);
        rmdir(folder);
    }
}
