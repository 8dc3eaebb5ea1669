/* machine.c - boot id and host name. */
#include "common/system/machine.h"

#include <stdio.h>
#include <unistd.h>

enum { BOOT_ID_BYTES = 40, NAME_BYTES = 256 };

void machine_identity(const char *id, char text[MACHINE_BYTES])
{
    char boot[BOOT_ID_BYTES], name[NAME_BYTES] = "";
    if (id[0] != '\0') {
        snprintf(text, MACHINE_BYTES, "id:%s", id);
        return;
    }
    FILE *file       = fopen("/proc/sys/kernel/random/boot_id", "re");
    const int n_read = file != NULL ? fscanf(file, "%39[0-9a-f-]", boot) : 0;
    if (n_read != 1) snprintf(boot, BOOT_ID_BYTES, "unknown");
    if (file != NULL) fclose(file);
    if (gethostname(name, sizeof name - 1) != 0) snprintf(name, sizeof name, "unknown");
    snprintf(text, MACHINE_BYTES, "boot:%s:%s", boot, name);
}
