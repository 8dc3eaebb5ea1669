/* tier_member.h - the members of the family, for its front alone. */
#ifndef COMMON_TIER_TIER_MEMBER_H
#define COMMON_TIER_TIER_MEMBER_H

#include "common/offload/tier.h"

extern const tier_ops tier_file, tier_memory;

#endif
