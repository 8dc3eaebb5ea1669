/* device.c - devices: whether this build and this machine have them. */
#include "cli/doctor/doctor.h"
#include "common/compute/device/device.h"

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

const doctor_check doctor_device[] = {
    {"device", "driver", look_at_devices, "devices this build can use"},
    {0},
};
