/* pci.c - where a PCI device is: NUMA node, link, and the bridges above it. */
#include "cli/doctor/pci.h"

#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NODES_MAX = 1024, LANES_MAX = 32 };
static const double speed_limit = 1024;

bool pci_is_address(const char *text)
{
    static const char shape[] = "0000:00:00.0"; /* 0: any hexadecimal digit */
    if (strlen(text) != sizeof shape - 1) return false;
    for (size_t i = 0; shape[i] != '\0'; i++)
        if (shape[i] == '0' ? !isxdigit((unsigned char)text[i]) : text[i] != shape[i]) return false;
    return true;
}

/* A number at the start of a small file, in [least, most]; else `otherwise`. */
static double number(const doctor *d, const char *folder, const char *name, double least,
                     double most, double otherwise)
{
    char path[PCI_PATH_BYTES], line[64], *end;
    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path) return otherwise;
    if (!doctor_line(d, path, line, sizeof line)) return otherwise;
    const double n = strtod(line, &end);
    return end != line && n >= least && n <= most ? n : otherwise;
}

/* "/sys/devices/pci0000:16/0000:16:01.0/0000:17:00.0": all between "/devices" and the device itself. */
static void find_bridges(const doctor *d, const char *folder, pci_place *place)
{
    char path[PATH_MAX], real[PATH_MAX];
    if (snprintf(path, sizeof path, "%s%s", d->root, folder) >= (int)sizeof path) return;
    if (realpath(path, real) == NULL) return;
    char *last = strrchr(real, '/'), *begin = strstr(real, "/devices/pci");
    if (last == NULL) return;
    if (pci_is_address(last + 1)) memcpy(place->address, last + 1, strlen(last + 1) + 1);
    if (begin == NULL || begin >= last) return;
    *last = '\0';
    if (strlen(begin) < sizeof place->path) memcpy(place->path, begin, strlen(begin) + 1);
}

bool pci_look(const doctor *d, const char *folder, pci_place *place)
{
    *place = (pci_place){.numa = -1};
    find_bridges(d, folder, place);
    place->numa      = (int)number(d, folder, "numa_node", 0, NODES_MAX - 1, -1);
    place->speed     = number(d, folder, "current_link_speed", 0, speed_limit, 0);
    place->speed_max = number(d, folder, "max_link_speed", 0, speed_limit, 0);
    place->width     = (int)number(d, folder, "current_link_width", 1, LANES_MAX, 0);
    place->width_max = (int)number(d, folder, "max_link_width", 1, LANES_MAX, 0);
    return place->path[0] != '\0' || place->numa >= 0 || place->width_max > 0;
}

/* The names that both paths begin with. */
static int shared_names(const char *a, const char *b)
{
    int n = 0;
    for (size_t i = 0;; i++) {
        const bool ends_a = a[i] == '/' || a[i] == '\0', ends_b = b[i] == '/' || b[i] == '\0';
        if (ends_a && ends_b && i > 0) n++;
        if (a[i] != b[i] || a[i] == '\0') return n;
    }
}

/* Shared names: "devices", the root complex, then bridges. */
pci_distance pci_between(const pci_place *a, const pci_place *b)
{
    const int n = a->path[0] != '\0' && b->path[0] != '\0' ? shared_names(a->path, b->path) : 0;
    if (n >= 3) return PCI_SAME_SWITCH;
    if (n == 2) return PCI_SAME_ROOT;
    return a->numa >= 0 && a->numa == b->numa ? PCI_SAME_NODE : PCI_APART;
}

const char *pci_distance_name(pci_distance distance)
{
    switch (distance) {
    case PCI_SAME_SWITCH: return "on the same PCIe switch";
    case PCI_SAME_ROOT: return "on the same root complex";
    case PCI_SAME_NODE: return "on the same NUMA node";
    default: return "on another NUMA node";
    }
}
