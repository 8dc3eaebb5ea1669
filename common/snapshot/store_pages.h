/* store_pages.h - whether a file can be handed to LMDB without harm.
 *
 * LMDB trusts what is in its pages: a page number with a flipped bit makes it read outside its map, and the process
 * ends.  What comes from a disk may not do that, so every page of the two trees is looked at first: numbers, types,
 * sizes and offsets.  Values are not looked at; they have checksums of their own.
 */
#ifndef COMMON_STORE_PAGES_H
#define COMMON_STORE_PAGES_H

#include "penstock.h"

/* Reads the trees of `file`, which nobody changes meanwhile.
 * Errors     CORRUPT: truncated, damaged, or no file of LMDB's: which page, and what to do.  STORE: cannot be read.
 * Thread     any.
 * Cost       one read per page of the trees and per large value's head: little, as values of chunks are large. */
pen_status store_pages_check(const char *file, pen_error *why);

#endif
