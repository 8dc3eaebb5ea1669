/* machine.h - the identity of this machine: a failure domain. */
#ifndef COMMON_MACHINE_H
#define COMMON_MACHINE_H

#include <stddef.h>

enum { MACHINE_BYTES = 384 }; /* a setting's text fits, whole */

/* "boot:BOOTID:NAME": the boot id and the host name, so that machines of one name differ; containers of one machine
 * with names of their own count as several.  A non-empty `id` gives "id:ID" instead. Says nothing about whose
 * memory can be mapped. */
void machine_identity(const char *id, char text[MACHINE_BYTES]);

#endif
