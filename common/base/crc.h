/* crc.h - CRC32C (Castagnoli), as iSCSI, ext4 and safetensors tools compute it.
 * crc32c(0, "123456789", 9) == 0xe3069283.  Cost: memory speed (Intel ISA-L). */
#ifndef COMMON_CRC_H
#define COMMON_CRC_H

#include <stddef.h>
#include <stdint.h>

/* Continues `crc` (0 at the start) over `size` bytes. */
uint32_t crc32c(uint32_t crc, const void *data, size_t size);

#endif
