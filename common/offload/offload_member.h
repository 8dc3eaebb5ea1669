/* offload_member.h - the members of the family, for offload.c only. */
#ifndef COMMON_OFFLOAD_MEMBER_H
#define COMMON_OFFLOAD_MEMBER_H

#include "common/offload/offload.h"

extern const offload_ops offload_file, offload_memory;

#endif
