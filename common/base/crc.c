/* crc.c - CRC32C by ISA-L. */
#include "common/base/crc.h"

#include <isa-l/crc.h>

/* ISA-L takes an int length and leaves both inversions of the standard to its caller. */
enum { PIECE_BYTES = 1 << 30 };

uint32_t crc32c(uint32_t crc, const void *data, size_t size)
{
    unsigned char *at = (unsigned char *)data; /* read only, despite the prototype */
    uint32_t raw      = ~crc;
    while (size > 0) {
        size_t piece = size < PIECE_BYTES ? size : PIECE_BYTES;
        raw          = crc32_iscsi(at, (int)piece, raw);
        at += piece;
        size -= piece;
    }
    return ~raw;
}
