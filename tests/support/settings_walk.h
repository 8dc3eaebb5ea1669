/* settings_walk.h - checks every row of a settings table without naming one. */
#ifndef TESTS_SUPPORT_SETTINGS_WALK_H
#define TESTS_SUPPORT_SETTINGS_WALK_H

#include "common/base/config.h"

/* Fails the running cmocka test, with the row's name, unless for every row: the name is snake_case
 * and unique, the field lies inside the struct and overlaps no other, the doc is a sentence, the
 * default is accepted, smallest and largest value are accepted, one beyond each is refused with the
 * row's name in the sentence, and a refusal leaves every byte of the struct unchanged. */
void settings_walk(const config_row *rows, size_t struct_size);

#endif
