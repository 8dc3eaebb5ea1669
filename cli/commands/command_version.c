/* command_version.c - `penstock version`. */
#include "cli/command.h"
#include "common/compute/device/device.h"

#include <stdio.h>
#include <string.h>

#ifndef PENSTOCK_GIT
#define PENSTOCK_GIT ""
#endif

int command_version(int argc, char **argv)
{
    if (argc > 1)
        return command_asks_help(argc, argv)
                   ? command_help("usage: penstock version\n\nPrints version, commit and the "
                                  "supported devices.\n",
                                  NULL)
                   : command_fail(EXIT_USAGE, "unexpected argument '%s'", argv[1]);
    printf("penstock %d.%d.%d%s%s\n", PEN_VERSION_MAJOR, PEN_VERSION_MINOR, PEN_VERSION_PATCH,
           PENSTOCK_GIT[0] == '\0' ? "" : "  commit ", PENSTOCK_GIT);
    char note[256];
    for (int i = 0; device_all[i] != NULL; i++) {
        device_all[i]->available(note, sizeof note);
        printf("%-9s%s\n", device_all[i]->name, note);
    }
    return 0;
}
