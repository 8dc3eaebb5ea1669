/* gpu.c - GPUs: where each is, how they are linked, and which network adapter is nearest. */
#include "common/compute/device/gpu.h"

#include "cli/doctor/doctor.h"
#include "cli/doctor/pci.h"
#include "common/compute/device/device.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GPUS_MAX = 32, NICS_MAX = 32 };

typedef struct {
    gpu_about about;
    pci_place place;
} gpu;

typedef struct {
    char name[32];
    pci_place place;
} nic;

/* As the driver numbers them. */
static int find_gpus(const doctor *d, gpu *gpus)
{
    char folder[128];
    int n = 0;
    for (; n < GPUS_MAX && gpu_about_device(n, &gpus[n].about); n++) {
        gpu *g = &gpus[n];
        snprintf(folder, sizeof folder, "/sys/bus/pci/devices/%s", g->about.pci);
        g->place = (pci_place){.numa = -1};
        if (pci_is_address(g->about.pci)) pci_look(d, folder, &g->place);
    }
    return n;
}

/* ---- each ------------------------------------------------------------------------------------------ */

static void uuid_text(const uint8_t uuid[16], char text[48])
{
    size_t at = (size_t)snprintf(text, 48, "GPU-");
    for (int i = 0; i < 16; i++)
        at += (size_t)snprintf(text + at, 48 - at, "%s%02x",
                               i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
}

static void place_text(const gpu *g, char *text, size_t size)
{
    size_t at = (size_t)snprintf(text, size, "PCIe %s", g->about.pci[0] ? g->about.pci : "unknown");
    if (g->place.width > 0 && at < size)
        at += (size_t)snprintf(text + at, size - at, " (%g GT/s x%d)", g->place.speed,
                               g->place.width);
    if (g->place.numa >= 0 && at < size)
        snprintf(text + at, size - at, ", NUMA node %d", g->place.numa);
}

static void look_at_gpus(doctor *d)
{
    static gpu gpus[GPUS_MAX];
    const int n = find_gpus(d, gpus);
    for (int i = 0; i < n; i++) {
        char uuid[48], place[96];
        uuid_text(gpus[i].about.uuid, uuid);
        place_text(&gpus[i], place, sizeof place);
        finding_add(d, FINDING_OK, NULL, "%d: %s, %.1f GiB, %s, %s", i, gpus[i].about.name,
                    (double)gpus[i].about.bytes / (double)(1 << 30), place, uuid);
        /* An idle GPU slows its link down, but keeps its lanes. */
        const pci_place *p = &gpus[i].place;
        if (p->width > 0 && p->width < p->width_max)
            finding_add(
                d, FINDING_LOOK,
                "seat the card anew, or move it to a slot that has all lanes; see its slot in "
                "the board's manual",
                "%d: PCIe link of %d lanes; the card has %d", i, p->width, p->width_max);
        if (p->speed > 0 && p->speed < p->speed_max)
            finding_add(
                d, FINDING_NOTE,
                "look again while a job runs: an idle GPU lowers it; else choose the speed in "
                "the BIOS",
                "%d: PCIe link at %g GT/s; the card has %g", i, p->speed, p->speed_max);
    }
}

/* ---- links ----------------------------------------------------------------------------------------- */

static int count_pairs(int n, gpu_link link, char *list, size_t size)
{
    int pairs = 0;
    size_t at = 0;
    list[0]   = '\0';
    for (int i = 0; i < n; i++)
        for (int j = i + 1; j < n; j++) {
            if (gpu_link_between(i, j) != link) continue;
            pairs++;
            if (at + 12 < size)
                at += (size_t)snprintf(list + at, size - at, "%s%d-%d", at > 0 ? " " : "", i, j);
            else if (list[at - 1] != '.')
                at += (size_t)snprintf(list + at, size - at, " ...");
        }
    return pairs;
}

static void look_at_links(doctor *d)
{
    static gpu gpus[GPUS_MAX];
    static const struct {
        gpu_link link;
        finding_level level;
        const char *text, *remedy;
    } kinds[] = {
        {GPU_LINK_NVLINK, FINDING_OK, "by NVLink", NULL},
        {GPU_LINK_PCIE, FINDING_OK, "by PCIe, without the host's memory", NULL},
        {GPU_LINK_HOST, FINDING_LOOK, "through host memory: peer access is off",
         "turn ACS off (BIOS, setpci) and the IOMMU to passthrough (iommu=pt); see nvidia-smi topo "
         "-p2p r"},
    };
    char list[200];
    const int n = find_gpus(d, gpus);
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        const int pairs = count_pairs(n, kinds[k].link, list, sizeof list);
        if (pairs > 0)
            finding_add(d, kinds[k].level, kinds[k].remedy, "%d pair%s %s: %s", pairs,
                        pairs == 1 ? "" : "s", kinds[k].text, list);
    }
}

/* ---- network adapters ------------------------------------------------------------------------------ */

static int by_name(const void *a, const void *b)
{
    return strcmp(((const nic *)a)->name, ((const nic *)b)->name);
}

/* Adapters with a place: no loopback, bridges or tunnels. */
static int find_nics(const doctor *d, nic *nics)
{
    char path[1024], folder[128], state[32];
    int n = 0;
    snprintf(path, sizeof path, "%s/sys/class/net", d->root);
    DIR *all = opendir(path);
    for (struct dirent *e; all != NULL && n < NICS_MAX && (e = readdir(all)) != NULL;) {
        if (e->d_name[0] == '.' || strlen(e->d_name) >= sizeof nics[n].name) continue;
        snprintf(folder, sizeof folder, "/sys/class/net/%.31s/operstate", e->d_name);
        if (doctor_line(d, folder, state, sizeof state) && strcmp(state, "down") == 0) continue;
        snprintf(folder, sizeof folder, "/sys/class/net/%.31s/device", e->d_name);
        if (!pci_look(d, folder, &nics[n].place)) continue;
        memcpy(nics[n++].name, e->d_name, strlen(e->d_name) + 1);
    }
    if (all != NULL) closedir(all);
    qsort(nics, (size_t)n, sizeof *nics, by_name);
    return n;
}

static const nic *nearest(const gpu *g, const nic *nics, int n, pci_distance *distance)
{
    const nic *best = &nics[0];
    *distance       = PCI_APART;
    for (int i = 0; i < n; i++) {
        const pci_distance its = pci_between(&g->place, &nics[i].place);
        if (its > *distance) best = &nics[i];
        if (its > *distance) *distance = its;
    }
    return best;
}

static void look_at_nics(doctor *d)
{
    static gpu gpus[GPUS_MAX];
    static nic nics[NICS_MAX];
    const int n = find_gpus(d, gpus), adapters = n > 0 ? find_nics(d, nics) : 0;
    for (int i = 0; i < adapters && n > 0; i++)
        if (nics[i].place.numa >= 0)
            finding_add(d, FINDING_OK, NULL, "%s is on NUMA node %d", nics[i].name,
                        nics[i].place.numa);
    for (int i = 0; i < n && adapters > 0; i++) {
        pci_distance distance;
        const nic *its = nearest(&gpus[i], nics, adapters, &distance);
        if (distance > PCI_APART) {
            finding_add(d, FINDING_OK, NULL, "nearest to gpu %d is %s, %s", i, its->name,
                        pci_distance_name(distance));
        } else if (gpus[i].place.numa >= 0 && its->place.numa >= 0) {
            char remedy[160];
            snprintf(remedy, sizeof remedy,
                     "move an adapter to a slot of NUMA node %d, or give jobs of several machines "
                     "other GPUs first (CUDA_VISIBLE_DEVICES)",
                     gpus[i].place.numa);
            finding_add(d, FINDING_LOOK, remedy,
                        "gpu %d is on NUMA node %d, but no network adapter is; the nearest, %s, is "
                        "on node %d",
                        i, gpus[i].place.numa, its->name, its->place.numa);
        }
    }
}

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

const doctor_check doctor_gpu[] = {
    {"device", "driver", look_at_devices, "devices this build can use"},
    {"device", "gpu", look_at_gpus, "name, memory, place and PCIe link of each GPU"},
    {"device", "gpu links", look_at_links, "how GPUs reach each other's memory"},
    {"device", "gpu network", look_at_nics, "which network adapter is nearest to each GPU"},
    {0},
};
