/* Vocabulary and merge tables: a blob of contents, arrays by id, and one open-addressing table each. */
#include <string.h>

#include "formats/tokenizer_impl.h"

/* Not for adversaries: a table made to collide is refused by BL_TOKENIZER_MAX_PROBES at load, and text only
 * looks up. */
static uint64_t mix(uint64_t h, uint64_t w) {
    h = (h ^ w) * 0x9E3779B97F4A7C15u;
    return h ^ (h >> 29);
}

/* A product carries upwards only: without a second one, strings that differ in their last bytes share a slot.
 */
static uint32_t fold(uint64_t h) {
    return (uint32_t)(((h ^ (h >> 32)) * 0xD6E8FEB86659FD93u) >> 32);
}

static uint32_t hash_bytes(const char *s, size_t n) {
    uint64_t h = 0x243F6A8885A308D3u ^ n;
    uint64_t w;
    for (; n >= 8; s += 8, n -= 8) {
        memcpy(&w, s, 8);
        h = mix(h, w);
    }
    w = 0;
    memcpy(&w, s, n);
    h = mix(h, w);
    return fold(h);
}

void bl_tokenizer_vocab_done(bl_tokenizer_vocab *v) {
    bl_free(v->blob);
    bl_free(v->pieces);
    bl_free(v->slots);
    *v = (bl_tokenizer_vocab){0};
}

/* NULL and an error when there is no memory; p stays valid then. */
static void *grow(void *p, size_t n, size_t size, bl_err *err) {
    void *grown = bl_realloc(p, n * size);
    if (!grown) {
        bl_err_set(err, BL_ENOMEM, __FILE__, __LINE__, "tokenizer: out of memory for %zu entries", n);
    }
    return grown;
}

static bl_code grow_ids(bl_tokenizer_vocab *v, size_t n, bl_err *err) {
    if (n <= v->cap_ids) {
        return BL_OK;
    }
    size_t cap = BL_MIN(BL_MAX(n, (size_t)v->cap_ids * 2 + 256), (size_t)BL_TOKENIZER_MAX_IDS);
    bl_tokenizer_piece_info *pieces = grow(v->pieces, cap, sizeof *pieces, err);
    if (!pieces) {
        return BL_ENOMEM;
    }
    v->pieces = pieces;
    v->cap_ids = (uint32_t)cap;
    return BL_OK;
}

static bl_code resize_slots(bl_tokenizer_vocab *v, uint32_t n_slots, bl_err *err) {
    bl_tokenizer_slot *slots = bl_alloc_array(n_slots, sizeof *slots);
    if (!slots) {
        BL_FAIL(err, BL_ENOMEM, "tokenizer: out of memory for a table of %u", n_slots);
    }
    for (uint32_t i = 0; i < v->n_slots; i++) {
        if (v->slots[i].id1 != 0) {
            uint32_t at = v->slots[i].hash & (n_slots - 1);
            while (slots[at].id1 != 0) {
                at = (at + 1) & (n_slots - 1);
            }
            slots[at] = v->slots[i];
        }
    }
    bl_free(v->slots);
    v->slots = slots;
    v->n_slots = n_slots;
    return BL_OK;
}

bl_code bl_tokenizer_vocab_reserve(bl_tokenizer_vocab *v, size_t n_ids, bl_err *err) {
    if (n_ids > BL_TOKENIZER_MAX_IDS) {
        BL_FAIL(err, BL_ELIMIT, "tokenizer: %zu tokens, at most %u allowed", n_ids, BL_TOKENIZER_MAX_IDS);
    }
    BL_TRY(grow_ids(v, n_ids, err));
    uint32_t n_slots = 512;
    while (2 * n_slots < 3 * n_ids) {
        n_slots *= 2;
    }
    return n_slots > v->n_slots ? resize_slots(v, n_slots, err) : BL_OK;
}

/* The slot that holds s, or the free one where it belongs. NULL after too many probes. */
static bl_tokenizer_slot *slot_of(const bl_tokenizer_vocab *v, const char *s, size_t n, uint32_t hash) {
    uint32_t at = hash & (v->n_slots - 1);
    for (uint32_t probe = 0; probe < BL_TOKENIZER_MAX_PROBES; probe++, at = (at + 1) & (v->n_slots - 1)) {
        bl_tokenizer_slot *slot = &v->slots[at];
        if (slot->id1 == 0) {
            return slot;
        }
        if (slot->hash == hash) {
            uint32_t id = slot->id1 - 1;
            if (v->pieces[id].len == n && memcmp(v->blob + v->pieces[id].off, s, n) == 0) {
                return slot;
            }
        }
    }
    return NULL;
}

static bl_code append_content(bl_tokenizer_vocab *v, const char *s, size_t n, bl_err *err) {
    size_t need = v->blob_len + n + 1;
    if (need > BL_TOKENIZER_MAX_BLOB) {
        BL_FAIL(err, BL_ELIMIT, "tokenizer: contents of more than %zu bytes", BL_TOKENIZER_MAX_BLOB);
    }
    if (need > v->blob_cap) {
        size_t cap = BL_MIN(need + need / 2 + 4096, BL_TOKENIZER_MAX_BLOB);
        char *blob = grow(v->blob, cap, 1, err);
        if (!blob) {
            return BL_ENOMEM;
        }
        v->blob = blob;
        v->blob_cap = cap;
    }
    if (n > 0) {
        memcpy(v->blob + v->blob_len, s, n);
    }
    v->blob[v->blob_len + n] = '\0';
    v->blob_len = need;
    return BL_OK;
}

bl_code bl_tokenizer_vocab_add(bl_tokenizer_vocab *v, const char *s, size_t n, uint64_t id, unsigned flags,
                               bl_err *err) {
    if (id >= BL_TOKENIZER_MAX_IDS) {
        BL_FAIL(err, BL_ELIMIT, "tokenizer: token id %llu, at most %u allowed", (unsigned long long)id,
                BL_TOKENIZER_MAX_IDS - 1);
    }
    if (n > BL_TOKENIZER_MAX_PIECE) {
        BL_FAIL(err, BL_ELIMIT, "tokenizer: token %llu has %zu bytes, at most %u allowed",
                (unsigned long long)id, n, BL_TOKENIZER_MAX_PIECE);
    }
    if (bl_tokenizer_vocab_has(v, (int64_t)id)) {
        BL_FAIL(err, BL_EFORMAT, "tokenizer: two tokens have id %llu", (unsigned long long)id);
    }
    if (3 * (v->n_used + 1) > 2 * v->n_slots) {
        BL_TRY(resize_slots(v, v->n_slots > 0 ? v->n_slots * 2 : 512, err));
    }
    uint32_t hash = hash_bytes(s, n);
    bl_tokenizer_slot *slot = n > 0 ? slot_of(v, s, n, hash) : NULL;
    if (n > 0 && !slot) {
        BL_FAIL(err, BL_ELIMIT, "tokenizer: contents collide in the table more than %u times",
                BL_TOKENIZER_MAX_PROBES);
    }
    if (slot && slot->id1 != 0) {
        BL_FAIL(err, BL_EFORMAT, "tokenizer: tokens %u and %llu have the same content", slot->id1 - 1,
                (unsigned long long)id);
    }
    BL_TRY(grow_ids(v, (size_t)id + 1, err));
    size_t off = v->blob_len;
    BL_TRY(append_content(v, s, n, err));
    for (uint32_t i = v->n_ids; i < id; i++) {
        v->pieces[i] = (bl_tokenizer_piece_info){.off = UINT32_MAX};
    }
    v->n_ids = BL_MAX(v->n_ids, (uint32_t)id + 1);
    v->pieces[id] =
        (bl_tokenizer_piece_info){.off = (uint32_t)off, .len = (uint16_t)n, .flags = (uint8_t)flags};
    v->longest = BL_MAX(v->longest, (uint32_t)n);
    if (slot) {
        *slot = (bl_tokenizer_slot){.hash = hash, .id1 = (uint32_t)id + 1};
        v->n_used++;
    }
    return BL_OK;
}

void bl_tokenizer_vocab_trim(bl_tokenizer_vocab *v) {
    /* A refusal to shrink costs nothing but the memory. */
    char *blob = bl_realloc(v->blob, BL_MAX(v->blob_len, (size_t)1));
    v->blob = blob ? blob : v->blob;
    bl_tokenizer_piece_info *pieces = bl_realloc(v->pieces, BL_MAX(v->n_ids, 1u) * sizeof *pieces);
    v->pieces = pieces ? pieces : v->pieces;
    v->blob_cap = v->blob_len;
    v->cap_ids = v->n_ids;
}

int32_t bl_tokenizer_vocab_find(const bl_tokenizer_vocab *v, const char *s, size_t n) {
    if (n == 0 || n > v->longest) {
        return -1;
    }
    const bl_tokenizer_slot *slot = slot_of(v, s, n, hash_bytes(s, n));
    return slot ? (int32_t)slot->id1 - 1 : -1;
}

int32_t bl_tokenizer_vocab_find_model(const bl_tokenizer_vocab *v, const char *s, size_t n) {
    int32_t id = bl_tokenizer_vocab_find(v, s, n);
    return id >= 0 && (v->pieces[id].flags & BL_TOKEN_MODEL) ? id : -1;
}

/* ---- merges ------------------------------------------------------------------------------------------ */

void bl_tokenizer_merges_done(bl_tokenizer_merges *m) {
    bl_free(m->m);
    bl_free(m->slots);
    *m = (bl_tokenizer_merges){0};
}

bl_code bl_tokenizer_merges_add(bl_tokenizer_merges *m, int32_t left, int32_t right, int32_t id,
                                bl_err *err) {
    if (m->n == BL_TOKENIZER_MAX_MERGES) {
        BL_FAIL(err, BL_ELIMIT, "tokenizer: more than %u merges", BL_TOKENIZER_MAX_MERGES);
    }
    if (m->n == m->cap) {
        uint32_t cap = BL_MIN(m->cap * 2 + 1024, BL_TOKENIZER_MAX_MERGES);
        bl_tokenizer_merge *grown = grow(m->m, cap, sizeof *grown, err);
        if (!grown) {
            return BL_ENOMEM;
        }
        m->m = grown;
        m->cap = cap;
    }
    m->m[m->n++] = (bl_tokenizer_merge){.left = left, .right = right, .id = id};
    return BL_OK;
}

static uint32_t hash_pair(int32_t left, int32_t right) {
    return fold(mix(0, (uint64_t)(uint32_t)left << 32 | (uint32_t)right));
}

/* The slot of the pair or the free one where it belongs; NULL after too many probes. */
static uint32_t *merge_slot(const bl_tokenizer_merges *m, int32_t left, int32_t right) {
    uint32_t at = hash_pair(left, right) & (m->n_slots - 1);
    for (uint32_t probe = 0; probe < BL_TOKENIZER_MAX_PROBES; probe++, at = (at + 1) & (m->n_slots - 1)) {
        uint32_t *slot = &m->slots[at];
        if (*slot == 0 || (m->m[*slot - 1].left == left && m->m[*slot - 1].right == right)) {
            return slot;
        }
    }
    return NULL;
}

bl_code bl_tokenizer_merges_index(bl_tokenizer_merges *m, bl_err *err) {
    bl_tokenizer_merge *fitted = bl_realloc(m->m, BL_MAX(m->n, 1u) * sizeof *fitted);
    m->m = fitted ? fitted : m->m;
    m->cap = fitted ? BL_MAX(m->n, 1u) : m->cap;
    m->n_slots = 16;
    while (m->n_slots < 3 * (uint64_t)m->n / 2) {
        m->n_slots *= 2;
    }
    m->slots = bl_alloc_array(m->n_slots, sizeof *m->slots);
    if (!m->slots) {
        BL_FAIL(err, BL_ENOMEM, "tokenizer: out of memory for %u merges", m->n);
    }
    for (uint32_t i = 0; i < m->n; i++) {
        uint32_t *slot = merge_slot(m, m->m[i].left, m->m[i].right);
        if (!slot) {
            BL_FAIL(err, BL_ELIMIT, "tokenizer: merges collide in the table more than %u times",
                    BL_TOKENIZER_MAX_PROBES);
        }
        *slot = i + 1;
    }
    return BL_OK;
}

const bl_tokenizer_merge *bl_tokenizer_merges_find(const bl_tokenizer_merges *m, int32_t left,
                                                   int32_t right) {
    const uint32_t *slot = merge_slot(m, left, right);
    return slot && *slot != 0 ? &m->m[*slot - 1] : NULL;
}
