/* store_pages.h - whether a file is safe to hand to LMDB.
 *
 * LMDB trusts its pages: a page number with a flipped bit makes it read outside its map, and the process dies.  So
 * every page of the two trees is checked first: numbers, types, sizes and offsets.  Values are not checked here;
 * they have their own checksums.
 */
#ifndef COMMON_STORE_PAGES_H
#define COMMON_STORE_PAGES_H

#include "penstock.h"

/* Reads the trees of `file`, which must not change meanwhile.
 * Errors     CORRUPT: truncated, damaged, or not an LMDB file: page and remedy.  STORE: cannot be read.
 * Thread     any.
 * Cost       one read per tree page and per large value's head: cheap, since chunk values are large. */
pen_status store_pages_check(const char *file, pen_error *why);

#endif
