/* machine.h - the identity of the machine that this process runs on: what fails together. */
#ifndef COMMON_MACHINE_H
#define COMMON_MACHINE_H

#include <stddef.h>

enum { MACHINE_BYTES = 384 }; /* a setting's text fits, whole */

/* "boot:BOOTID:NAME": the boot id and the host name, so that machines of one name differ; containers of one machine
 * with names of their own count as several.  With an `id` that is not empty "id:ID" instead: what people say wins.
 * It tells nothing about whose memory can be mapped. */
void machine_identity(const char *id, char text[MACHINE_BYTES]);

#endif
