/* Where the tables of the reference tokenizers differ from the Unicode version that our libraries happen to
 * have. With them the ids of a text do not depend on the version of PCRE2 or utf8proc that is installed.
 */
#ifndef BL_FORMATS_UNICODE_DATA_H
#define BL_FORMATS_UNICODE_DATA_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    uint32_t first, last;
    char category[3];
} bl_unicode_range;

/* Ascending. Known to the reference's regular expressions (Unicode 16), not to Unicode 14. */
extern const bl_unicode_range bl_unicode_newer[];
extern const size_t bl_unicode_n_newer;
/* Ascending. Left alone by the reference's normalizer, whose tables are older: no decomposition, combining
 * class 0. */
extern const bl_unicode_range bl_unicode_frozen[];
extern const size_t bl_unicode_n_frozen;

#endif
