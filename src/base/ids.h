/* Growable list of token ids (int32) with a mandatory maximum. Same rules as bl_buf. */
#ifndef BL_BASE_IDS_H
#define BL_BASE_IDS_H

#include <stddef.h>
#include <stdint.h>

#include "bl/bl_err.h"

typedef struct {
    int32_t *ids;
    size_t n;
    size_t cap;
    size_t max_n;
} bl_ids;

void bl_ids_init(bl_ids *v, size_t max_n);
void bl_ids_done(bl_ids *v);
void bl_ids_reset(bl_ids *v);
bl_code bl_ids_push(bl_ids *v, int32_t id, bl_err *err) BL_MUST_CHECK;
bl_code bl_ids_append(bl_ids *v, const int32_t *ids, size_t n, bl_err *err) BL_MUST_CHECK;

#endif
