/* Words as operators write them in settings: in any case, with white space around. The locale has no say. */
#ifndef BL_BASE_WORDS_H
#define BL_BASE_WORDS_H

#include <stdbool.h>
#include <stddef.h>

/* NULL, empty, or white space only. */
bool bl_word_is_blank(const char *s);
/* s is one of the n words, which are lower-case. False for NULL. */
bool bl_word_is_one_of(const char *s, const char *const *words, size_t n);
/* A kill switch speaks only one way: 0, false, no and off. NULL and anything else leave it alone. */
bool bl_word_is_off(const char *s);

#endif
