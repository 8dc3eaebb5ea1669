/* list.h - lists of structs that have the fields `next` and `prev` of their own type.
 *
 * A list is a pointer to its first element, NULL while it is empty; first->prev is the last one.  An element is in one
 * list at most.  `first` and `x` are evaluated several times.
 */
#ifndef COMMON_LIST_H
#define COMMON_LIST_H

#include <stdbool.h>
#include <stddef.h>

#define LIST_APPEND(first, x)                                                                      \
    do {                                                                                           \
        (x)->next = NULL;                                                                          \
        (x)->prev = (first) != NULL ? (first)->prev : (x);                                         \
        if ((first) != NULL) (first)->prev->next = (x);                                            \
        if ((first) == NULL) (first) = (x);                                                        \
        (first)->prev = (x);                                                                       \
    } while (0)

#define LIST_PREPEND(first, x)                                                                     \
    do {                                                                                           \
        (x)->next = (first);                                                                       \
        (x)->prev = (first) != NULL ? (first)->prev : (x);                                         \
        if ((first) != NULL) (first)->prev = (x);                                                  \
        (first) = (x);                                                                             \
    } while (0)

/* Afterwards x->next and x->prev are NULL. */
#define LIST_REMOVE(first, x)                                                                      \
    do {                                                                                           \
        if ((x)->next != NULL) (x)->next->prev = (x)->prev;                                        \
        if ((x)->next == NULL) (first)->prev = (x)->prev;                                          \
        if ((first) == (x))                                                                        \
            (first) = (x)->next;                                                                   \
        else                                                                                       \
            (x)->prev->next = (x)->next;                                                           \
        (x)->next = (x)->prev = NULL;                                                              \
    } while (0)

/* for each element, declared here as x; x may be removed or freed meanwhile, its successor may not. */
#define LIST_EACH(x, first)                                                                        \
    for (__typeof__(&*(first)) x = (first), x##_next; x != NULL && (x##_next = x->next, true);     \
         x                       = x##_next)

#endif
