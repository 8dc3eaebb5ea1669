/* device.c - GPUs: whether the driver works, and which devices reach each other's memory. */
#include "cli/doctor/doctor.h"
#include "common/compute/device/device.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>

static void look_at_devices(doctor *d)
{
    char note[256];
    for (int i = 0; device_all[i] != NULL; i++) {
        const bool there = device_all[i]->available(note, sizeof note);
        if (!device_is_host(device_all[i]))
            finding_add(d, there ? FINDING_OK : FINDING_NOTE, NULL, "%s: %s", device_all[i]->name,
                        note);
    }
}

/* Without peer access copies between GPUs go through host memory.  /sys shows whether they share a root complex; the
 * driver is not asked. */
static void look_at_peers(doctor *d)
{
    char path[1024], root[64] = "", line[32];
    int gpus = 0, roots = 0;
    snprintf(path, sizeof path, "%s/proc/driver/nvidia/gpus", d->root);
    DIR *folder = opendir(path);
    if (folder == NULL) return;
    for (struct dirent *e; (e = readdir(folder)) != NULL;) {
        char file[512];
        if (e->d_name[0] == '.') continue;
        snprintf(file, sizeof file, "/sys/bus/pci/devices/%.200s/numa_node", e->d_name);
        if (!doctor_line(d, file, line, sizeof line)) snprintf(line, sizeof line, "?");
        roots += gpus == 0 || strcmp(line, root) != 0;
        gpus++;
        snprintf(root, sizeof root, "%s", line);
    }
    closedir(folder);
    if (gpus < 2) return;
    finding_add(
        d, roots > 1 ? FINDING_LOOK : FINDING_OK,
        roots > 1
            ? "see the pairs with nvidia-smi topo -p2p r; start one worker per GPU on the GPU's "
              "node"
            : NULL,
        roots > 1 ? "%d GPUs are on several NUMA nodes: pairs across them copy through host memory"
                  : "%d GPUs are on one NUMA node",
        gpus);
}

const doctor_check doctor_device[] = {
    {"device", "gpu", look_at_devices, "devices this build can use"},
    {"device", "gpu peers", look_at_peers, "whether GPUs are on the same node"},
    {0},
};
