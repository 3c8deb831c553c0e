/* Dictionaries of a render: insertion-ordered, keys compared as Python does (1 == 1.0 == True). */
#include <math.h>
#include <string.h>

#include "formats/jinja_private.h"

#define SMALL 8u /* up to here a scan beats the index */

static uint64_t mix(uint64_t h, uint64_t v) {
    h = (h ^ v) * 0x9E3779B97F4A7C15u;
    return h ^ (h >> 29);
}

static uint64_t hash_bytes(uint64_t seed, const char *p, size_t n) {
    uint64_t h = mix(seed, n);
    while (n >= 8) {
        uint64_t v;
        memcpy(&v, p, 8);
        h = mix(h, v);
        p += 8;
        n -= 8;
    }
    uint64_t tail = 0;
    if (n > 0) {
        memcpy(&tail, p, n);
    }
    return mix(h, tail);
}

bool bl_jn_hashable(bl_jn_val v) {
    switch (v.t) {
    case BL_JN_LIST:
    case BL_JN_DICT:
    case BL_JN_VIEW:
        return false;
    case BL_JN_TUPLE:
        for (size_t i = 0; i < v.l->n; i++) {
            if (v.l->v[i].t == BL_JN_TUPLE || !bl_jn_hashable(v.l->v[i])) {
                return false; /* tuples in tuples as keys are not supported: refused like a list */
            }
        }
        return true;
    default:
        return true;
    }
}

static uint64_t hash_val(uint64_t seed, bl_jn_val v) {
    switch (v.t) {
    case BL_JN_BOOL:
        return mix(seed, v.b ? 1 : 0);
    case BL_JN_INT:
        return mix(seed, (uint64_t)v.i);
    case BL_JN_FLOAT:
        if (v.f == floor(v.f) && v.f >= -9.2e18 && v.f <= 9.2e18) {
            return mix(seed, (uint64_t)(int64_t)v.f);
        }
        return hash_bytes(seed, (const char *)&v.f, sizeof v.f);
    case BL_JN_STR:
        return hash_bytes(seed, v.s->p, v.s->n);
    case BL_JN_TUPLE: {
        uint64_t h = mix(seed, v.l->n);
        for (size_t i = 0; i < v.l->n; i++) { /* hashable elements only: no nesting */
            bl_jn_val x = v.l->v[i];
            h = mix(h, x.t == BL_JN_STR   ? hash_bytes(seed, x.s->p, x.s->n)
                       : x.t == BL_JN_INT ? (uint64_t)x.i
                                          : 7u);
        }
        return h;
    }
    default:
        return mix(seed, (uint64_t)v.t);
    }
}

bl_code bl_jn_new_dict(bl_jn_ctx *c, size_t cap, bl_jn_type t, bl_jn_val *ret) {
    void *m, *e = NULL;
    BL_TRY(bl_jn_alloc(c, sizeof(bl_jn_dict), &m));
    if (cap > 0) {
        BL_TRY(bl_jn_alloc_array(c, cap, sizeof(bl_jn_entry), &e));
    }
    bl_jn_dict *d = m;
    *d = (bl_jn_dict){.e = e, .cap = cap, .seed = c->seed};
    *ret = (bl_jn_val){.t = t, .d = d};
    return BL_OK;
}

static void index_put(bl_jn_dict *d, size_t entry) {
    size_t mask = d->index_cap - 1;
    size_t at = (size_t)d->e[entry].hash & mask;
    while (d->index[at]) {
        at = (at + 1) & mask;
    }
    d->index[at] = (uint32_t)entry + 1;
}

static bl_code grow(bl_jn_ctx *c, bl_jn_dict *d) {
    if (d->n == d->cap) {
        size_t cap = BL_MAX(d->cap * 2, (size_t)4);
        if (cap > UINT32_MAX / 4) {
            BL_FAIL(c->err, BL_ELIMIT, "chat template line %u: dictionary of %zu entries", c->line, cap);
        }
        void *m;
        BL_TRY(bl_jn_alloc_array(c, cap, sizeof(bl_jn_entry), &m));
        if (d->n > 0) {
            memcpy(m, d->e, d->n * sizeof *d->e);
        }
        d->e = m;
        d->cap = cap;
    }
    if (d->n >= SMALL && (d->n + 1) * 2 > d->index_cap) {
        size_t cap = 32;
        while (cap < (d->n + 1) * 4) {
            cap *= 2;
        }
        void *m;
        BL_TRY(bl_jn_alloc_array(c, cap, sizeof(uint32_t), &m));
        d->index = m;
        d->index_cap = cap;
        for (size_t i = 0; i < d->n; i++) {
            index_put(d, i);
        }
    }
    return BL_OK;
}

/* Keys of one hash: equal? Tuples compare element by element; their elements are plain. */
static bl_code key_eq(bl_jn_ctx *c, const bl_jn_entry *e, uint64_t hash, bl_jn_val key, bool *ret) {
    *ret = false;
    if (e->hash != hash) {
        return BL_OK;
    }
    return bl_jn_eq(c, e->key, key, ret);
}

static bl_code find(bl_jn_ctx *c, const bl_jn_dict *d, uint64_t hash, bl_jn_val key, size_t *ret) {
    *ret = SIZE_MAX;
    bool eq;
    if (!d->index) {
        for (size_t i = 0; i < d->n; i++) {
            BL_TRY(key_eq(c, &d->e[i], hash, key, &eq));
            if (eq) {
                *ret = i;
                return BL_OK;
            }
        }
        return BL_OK;
    }
    size_t mask = d->index_cap - 1;
    for (size_t at = (size_t)hash & mask; d->index[at]; at = (at + 1) & mask) {
        BL_TRY(key_eq(c, &d->e[d->index[at] - 1], hash, key, &eq));
        if (eq) {
            *ret = d->index[at] - 1;
            return BL_OK;
        }
    }
    return BL_OK;
}

bl_code bl_jn_dict_set(bl_jn_ctx *c, bl_jn_dict *d, bl_jn_val key, bl_jn_val v) {
    if (!bl_jn_hashable(key)) {
        return BL_JN_FAIL(c, "unhashable type: '%s'", bl_jn_type_name(key));
    }
    uint64_t hash = hash_val(d->seed, key);
    size_t at;
    BL_TRY(bl_jn_charge(c, 0));
    BL_TRY(find(c, d, hash, key, &at));
    if (at != SIZE_MAX) {
        d->e[at].val = v;
        return BL_OK;
    }
    BL_TRY(grow(c, d));
    d->e[d->n] = (bl_jn_entry){.key = key, .val = v, .hash = hash};
    if (d->index) {
        index_put(d, d->n);
    }
    d->n++;
    return BL_OK;
}

bl_code bl_jn_dict_get(bl_jn_ctx *c, const bl_jn_dict *d, bl_jn_val key, const bl_jn_val **ret) {
    if (!bl_jn_hashable(key)) {
        return BL_JN_FAIL(c, "unhashable type: '%s'", bl_jn_type_name(key));
    }
    size_t at;
    BL_TRY(find(c, d, hash_val(d->seed, key), key, &at));
    *ret = at != SIZE_MAX ? &d->e[at].val : NULL;
    return BL_OK;
}

const bl_jn_val *bl_jn_dict_get_str(const bl_jn_dict *d, const bl_jn_str *key) {
    uint64_t hash = hash_bytes(d->seed, key->p, key->n);
    size_t mask = d->index_cap - 1;
    for (size_t i = d->index ? (size_t)hash & mask : 0; d->index ? d->index[i] != 0 : i < d->n;
         i = d->index ? (i + 1) & mask : i + 1) {
        const bl_jn_entry *e = &d->e[d->index ? d->index[i] - 1 : i];
        if (e->hash == hash && e->key.t == BL_JN_STR && bl_jn_str_eq(e->key.s, key)) {
            return &e->val;
        }
    }
    return NULL;
}
