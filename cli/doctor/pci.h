/* pci.h - where a PCI device is, as /sys/bus/pci below the doctor's root shows it.  Files are checked: what is not a
 * number of a possible size counts as unknown. */
#ifndef CLI_DOCTOR_PCI_H
#define CLI_DOCTOR_PCI_H

#include "cli/doctor/doctor.h"

enum { PCI_ADDRESS_BYTES = 16, PCI_PATH_BYTES = 512 };

typedef struct {
    char address[PCI_ADDRESS_BYTES]; /* "0000:17:00.0" */
    int numa;                        /* -1: unknown, or the machine has no nodes */
    double speed, speed_max;         /* GT/s of one lane; 0: unknown */
    int width, width_max;            /* lanes; 0: unknown */
    char path[PCI_PATH_BYTES]; /* the bridges above it, from the root complex on; "": unknown */
} pci_place;

bool pci_is_address(const char *text);
/* `folder` below the root: /sys/bus/pci/devices/ADDRESS, or /sys/class/net/NAME/device.  false: it is not there. */
bool pci_look(const doctor *d, const char *folder, pci_place *place);

typedef enum { PCI_APART, PCI_SAME_NODE, PCI_SAME_ROOT, PCI_SAME_SWITCH } pci_distance;
pci_distance pci_between(const pci_place *a, const pci_place *b);
const char *pci_distance_name(pci_distance distance); /* "on the same PCIe switch" */

#endif
