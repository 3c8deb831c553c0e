/* A request's place in a grammar. A reading is a node of the automaton and a frame of the stack (where the
 * ends of the rules under way lead); a state is the set of readings of the bytes so far, only those that some
 * byte can go on from, and whether the text may end. Frames and readings of a walk are taken from two arrays
 * that grow with the depth of the walk and shrink when it turns back, so nothing is ever allocated.
 *
 * What no longer fits (readings, frames) is dropped in an order that depends on the bytes alone; every
 * reading that is kept can be ended. So masks and accept agree, and texts are always right.
 */
#include <string.h>

#include "base/base.h"
#include "grammar/internal.h"
#include "grammar/limits.h"

#define MAX_MARKER 64u
#define LEAD_MAX   8u /* spaces and newlines behind the end of reasoning */

typedef struct {
    uint32_t node, frame;
} reading;

typedef struct {
    uint32_t back, below; /* node behind the call; frame under this one */
    uint32_t depth;
} frame;

/* A set of readings: in s->readings. */
typedef struct {
    uint32_t first, n, n_frames; /* frames in use when it was made */
    bool may_end;
} level;

struct bl_grammar_state {
    bl_grammar *g;
    bl_grammar_vocab *v;
    frame *frames;     /* [MAX_FRAMES]; 0: no rule is under way */
    reading *readings; /* [cap_readings] */
    level *levels;     /* [max_depth + 1]: along the path of a walk; 0: where the state is */
    reading *kept;     /* [MAX_READINGS]: while a state is packed */
    frame *packed;     /* [MAX_READINGS * MAX_DEPTH + 1] */
    uint32_t n_frames, cap_readings;
    /* one step */
    reading seen[BL_GRAMMAR_MAX_SEEN];
    uint32_t n_seen, step_frames; /* frames that are older than the step */
    uint32_t key[BL_GRAMMAR_CACHE_KEY];
    /* before the grammar begins */
    char marker[MAX_MARKER];
    uint32_t n_marker, n_matched;
    int32_t marker_id;
    bool waits, waits_at_start, repeats;
    uint32_t n_lead; /* blanks that may still come between the marker and the text */
};

/* ---- one byte ---------------------------------------------------------------------------------------- */

static bool was_seen(bl_grammar_state *s, uint32_t node, uint32_t f) {
    for (uint32_t i = 0; i < s->n_seen; i++) {
        if (s->seen[i].node == node && s->seen[i].frame == f) {
            return true;
        }
    }
    return false;
}

/* The frame {back, below}; UINT32_MAX when there is no room. One step makes no frame twice. */
static uint32_t push_frame(bl_grammar_state *s, uint32_t back, uint32_t below) {
    for (uint32_t i = s->step_frames; i < s->n_frames; i++) {
        if (s->frames[i].back == back && s->frames[i].below == below) {
            return i;
        }
    }
    if (s->n_frames >= BL_GRAMMAR_MAX_FRAMES) {
        return UINT32_MAX;
    }
    s->frames[s->n_frames] = (frame){back, below, s->frames[below].depth + 1};
    return s->n_frames++;
}

/* Adds a reading and all that it is without a further byte. Depth first, so that the first way through is
 * complete before room runs out; recursion is bounded by `seen`. */
static void add_reading(bl_grammar_state *s, level *l, uint32_t node, uint32_t f) {
    const bl_gnode *x = &s->g->nodes[node];
    if (s->frames[f].depth + x->need > BL_GRAMMAR_MAX_DEPTH || s->n_seen >= BL_GRAMMAR_MAX_SEEN ||
        was_seen(s, node, f)) {
        return;
    }
    s->seen[s->n_seen++] = (reading){node, f};
    if (x->row > 0 && l->n < BL_GRAMMAR_MAX_READINGS && l->first + l->n < s->cap_readings) {
        s->readings[l->first + l->n++] = (reading){node, f};
    }
    if (x->end && f == 0) {
        l->may_end = true;
    } else if (x->end) {
        add_reading(s, l, s->frames[f].back, s->frames[f].below);
    }
    for (uint32_t k = 0; k < x->n_calls; k++) {
        const bl_gcall *c = &s->g->calls[x->calls + k];
        if (s->frames[f].depth + BL_MAX(s->g->nodes[c->start].need + 1u, s->g->nodes[c->back].need) >
            BL_GRAMMAR_MAX_DEPTH) {
            continue;
        }
        uint32_t inner = push_frame(s, c->back, f);
        if (inner != UINT32_MAX) {
            add_reading(s, l, c->start, inner);
        }
    }
}

/* *to = *from after one byte; readings go behind those of *from. False: nothing is left. */
static bool step(bl_grammar_state *s, const level *from, uint8_t byte, level *to) {
    const bl_grammar *g = s->g;
    uint32_t c = g->cls[byte];
    *to = (level){.first = from->first + from->n, .n_frames = from->n_frames};
    s->n_frames = from->n_frames;
    if (from->n == 1) { /* most of all steps: inside a string */
        reading r = s->readings[from->first];
        uint32_t next = g->table[g->nodes[r.node].row + c];
        if (next == 0) {
            return false;
        }
        if (g->nodes[next].plain && to->first < s->cap_readings) {
            s->readings[to->first] = (reading){next, r.frame};
            to->n = 1;
            return true;
        }
    }
    s->n_seen = 0;
    s->step_frames = s->n_frames;
    for (uint32_t i = 0; i < from->n; i++) {
        reading r = s->readings[from->first + i];
        uint32_t next = g->table[g->nodes[r.node].row + c];
        if (next != 0) {
            add_reading(s, to, next, r.frame);
        }
    }
    to->n_frames = s->n_frames;
    return to->n > 0 || to->may_end;
}

/* Makes *l the state: level 0, with only the frames that it needs. Equal stacks become one. */
static void settle(bl_grammar_state *s, const level *l) {
    uint32_t n = 1;
    s->packed[0] = s->frames[0];
    for (uint32_t i = 0; i < l->n; i++) {
        uint32_t path[BL_GRAMMAR_MAX_DEPTH + 1], depth = 0, below = 0;
        for (uint32_t f = s->readings[l->first + i].frame; f != 0; f = s->frames[f].below) {
            path[depth++] = s->frames[f].back;
        }
        while (depth-- > 0) {
            uint32_t at = 1;
            while (at < n && (s->packed[at].back != path[depth] || s->packed[at].below != below)) {
                at++;
            }
            if (at == n) {
                s->packed[n++] = (frame){path[depth], below, s->packed[below].depth + 1};
            }
            below = at;
        }
        s->kept[i] = (reading){s->readings[l->first + i].node, below};
    }
    uint32_t m = 0;
    for (uint32_t i = 0; i < l->n; i++) {
        bool known = false;
        for (uint32_t k = 0; k < m && !known; k++) {
            known = s->readings[k].node == s->kept[i].node && s->readings[k].frame == s->kept[i].frame;
        }
        if (!known) {
            s->readings[m++] = s->kept[i];
        }
    }
    memcpy(s->frames, s->packed, n * sizeof *s->frames);
    s->n_frames = n;
    s->levels[0] = (level){.n = m, .n_frames = n, .may_end = l->may_end};
}

/* ---- lifecycle --------------------------------------------------------------------------------------- */

static bl_code open_cache(bl_grammar *g, uint32_t n_vocab, bl_err *err) {
    size_t words = ((size_t)n_vocab + 31) / 32, bytes = words * sizeof(uint32_t) + sizeof(bl_gcached);
    uint32_t n = (uint32_t)BL_MIN(BL_MAX(BL_GRAMMAR_CACHE_BYTES / bytes, 8u), BL_GRAMMAR_CACHE_ENTRIES);
    bl_code rc = BL_OK;
    pthread_mutex_lock(&g->mu);
    if (!g->cache) {
        bl_gcached *cache = bl_alloc_array(n, sizeof *cache);
        uint32_t made = 0;
        while (cache && made < n && (cache[made].mask = bl_alloc_array(words, sizeof(uint32_t)))) {
            made++;
        }
        if (made == n) {
            g->cache = cache;
            g->n_cache = n;
            g->cache_vocab = n_vocab;
        } else {
            for (uint32_t i = 0; i < made; i++) {
                bl_free(cache[i].mask);
            }
            bl_free(cache);
            rc = BL_ENOMEM;
        }
    }
    pthread_mutex_unlock(&g->mu);
    if (rc != BL_OK) {
        BL_FAIL(err, rc, "out of memory for the masks of a grammar");
    }
    return BL_OK;
}

bl_code bl_grammar_state_new(bl_grammar *g, bl_grammar_vocab *v, bl_grammar_state **ret, bl_err *err) {
    BL_TRY(open_cache(g, v->n_vocab, err));
    bl_grammar_state *s = bl_alloc(sizeof *s);
    if (s) {
        s->g = bl_grammar_ref(g);
        s->v = bl_grammar_vocab_ref(v);
        s->marker_id = -1;
        s->cap_readings = (BL_MAX(v->max_depth, BL_GRAMMAR_MAX_TOKEN) + 2) * BL_GRAMMAR_MAX_READINGS;
        s->frames = bl_alloc_array(BL_GRAMMAR_MAX_FRAMES, sizeof *s->frames);
        s->readings = bl_alloc_array(s->cap_readings, sizeof *s->readings);
        s->levels = bl_alloc_array((size_t)v->max_depth + 2, sizeof *s->levels);
        s->kept = bl_alloc_array(BL_GRAMMAR_MAX_READINGS, sizeof *s->kept);
        s->packed = bl_alloc_array(BL_GRAMMAR_MAX_READINGS * BL_GRAMMAR_MAX_DEPTH + 1, sizeof *s->packed);
    }
    if (!s || !s->frames || !s->readings || !s->levels || !s->kept || !s->packed) {
        bl_grammar_state_free(s);
        BL_FAIL(err, BL_ENOMEM, "out of memory for the state of a grammar");
    }
    bl_grammar_state_reset(s);
    *ret = s;
    return BL_OK;
}

void bl_grammar_state_free(bl_grammar_state *s) {
    if (s) {
        bl_grammar_unref(s->g);
        bl_grammar_vocab_unref(s->v);
        bl_free(s->frames);
        bl_free(s->readings);
        bl_free(s->levels);
        bl_free(s->kept);
        bl_free(s->packed);
        bl_free(s);
    }
}

void bl_grammar_state_reset(bl_grammar_state *s) {
    level l = {.n_frames = 1};
    s->frames[0] = (frame){0};
    s->n_frames = s->step_frames = 1;
    s->n_seen = 0;
    add_reading(s, &l, s->g->start, 0);
    settle(s, &l);
    s->waits = s->waits_at_start;
    s->n_matched = s->n_lead = 0;
}

bool bl_grammar_state_may_end(const bl_grammar_state *s) {
    return !s->waits && s->levels[0].may_end;
}

bool bl_grammar_state_is_complete(const bl_grammar_state *s) {
    return bl_grammar_state_may_end(s) && s->levels[0].n == 0;
}

uint32_t bl_grammar_state_n_vocab(const bl_grammar_state *s) {
    return s->v->n_vocab;
}

/* ---- before it begins -------------------------------------------------------------------------------- */

/* The longest proper end of the first m bytes of the marker that is a beginning of it too. */
static uint32_t border(const bl_grammar_state *s, uint32_t m) {
    uint32_t b = m - 1;
    while (b > 0 && memcmp(s->marker, s->marker + m - b, b) != 0) {
        b--;
    }
    return b;
}

/* Looks for the marker, *m bytes of which are matched; returns how many bytes are used up: n, unless it is
 * complete before (*m is n_marker then). */
static size_t look_for_marker(const bl_grammar_state *s, const char *bytes, size_t n, uint32_t *m) {
    size_t at = 0;
    while (at < n && *m < s->n_marker) {
        char c = bytes[at++];
        while (*m > 0 && s->marker[*m] != c) {
            *m = border(s, *m);
        }
        *m += s->marker[*m] == c;
    }
    return at;
}

static size_t skip_lead(const char *bytes, size_t n, uint32_t *n_lead) {
    size_t at = 0;
    while (at<n && * n_lead> 0 && (bytes[at] == '\n' || bytes[at] == ' ')) {
        (*n_lead)--;
        at++;
    }
    return at;
}

/* Would this token complete the marker and go on with what the grammar does not allow? [the grammar is at its
 * start] */
static bool oversteps(bl_grammar_state *s, uint32_t n_matched, const char *bytes, size_t n) {
    uint32_t m = n_matched, n_lead = LEAD_MAX;
    size_t at = look_for_marker(s, bytes, n, &m);
    if (m < s->n_marker) {
        return false;
    }
    at += skip_lead(bytes + at, n - at, &n_lead);
    level l = s->levels[0], next;
    bool ok = true;
    for (; at < n && ok; at++, l = next) {
        ok = step(s, &l, (uint8_t)bytes[at], &next);
    }
    s->n_frames = s->levels[0].n_frames;
    return !ok;
}

/* Anything may come but what oversteps. True when nothing does: mask is not written then. Part of the marker
 * is there already; a token that holds all of it and more is refused when the state is made. */
static bool mask_marker(bl_grammar_state *s, uint32_t *mask, size_t bytes) {
    const bl_grammar_vocab *v = s->v;
    bool goes_on[256] = {0}, is_free = true;
    for (uint32_t m = s->n_matched; m > 0; m = border(s, m)) {
        goes_on[(uint8_t)s->marker[m]] = true;
    }
    for (uint32_t i = 0; i < v->n_ids; i++) {
        int32_t id = v->ids[i];
        const char *text = v->bytes + v->off[id];
        if (goes_on[(uint8_t)*text] && oversteps(s, s->n_matched, text, v->off[id + 1] - v->off[id])) {
            if (is_free) {
                memset(mask, 0xff, bytes);
            }
            is_free = false;
            mask[(uint32_t)id / 32] &= ~(1u << ((uint32_t)id % 32));
        }
    }
    return is_free;
}

/* ---- masks ------------------------------------------------------------------------------------------- */

/* The configuration as words; 0 when it is too large to be kept. */
static uint32_t make_key(bl_grammar_state *s) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->levels[0].n; i++) {
        if (n + s->frames[s->readings[i].frame].depth + 2 > BL_GRAMMAR_CACHE_KEY) {
            return 0;
        }
        s->key[n++] = s->readings[i].node;
        for (uint32_t f = s->readings[i].frame; f != 0; f = s->frames[f].below) {
            s->key[n++] = s->frames[f].back;
        }
        s->key[n++] = UINT32_MAX;
    }
    return n;
}

static uint64_t hash_key(const uint32_t *key, uint32_t n) {
    uint64_t h = 0xCBF29CE484222325u;
    for (uint32_t i = 0; i < n; i++) {
        h = (h ^ key[i]) * 0x9E3779B97F4A7C15u;
        h ^= h >> 32;
    }
    return h;
}

/* The kept mask of the key, or NULL. [mu held] */
static bl_gcached *find_cached(bl_grammar_state *s, uint32_t n, uint64_t hash) {
    for (uint32_t i = 0; i < s->g->n_cache; i++) {
        bl_gcached *c = &s->g->cache[i];
        if (c->used > 0 && c->hash == hash && c->n_key == n && c->vocab == s->v->digest &&
            memcmp(c->key, s->key, n * sizeof *s->key) == 0) {
            return c;
        }
    }
    return NULL;
}

static uint64_t label_of(const bl_grammar *g, uint32_t k, uint32_t node) {
    return node == UINT32_MAX ? 0 : g->labels[(size_t)k * g->n_nodes + node];
}

static uint64_t hash_labels(const bl_grammar *g, uint32_t k, const uint32_t *key, uint32_t n) {
    uint64_t h = 0xCBF29CE484222325u;
    for (uint32_t i = 0; i < n; i++) {
        h = (h ^ label_of(g, k, key[i])) * 0x9E3779B97F4A7C15u;
        h ^= h >> 32;
    }
    return h;
}

static bool labels_equal(const bl_grammar *g, uint32_t k, const uint32_t *a, const uint32_t *b, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        if (label_of(g, k, a[i]) != label_of(g, k, b[i])) {
            return false;
        }
    }
    return true;
}

/* The kept mask of a configuration that allows the same tokens up to *ret_known bytes, the most that is to be
 * had; NULL: none. [mu held] */
static bl_gcached *find_alike(bl_grammar_state *s, uint32_t n, const uint64_t alike[BL_GRAMMAR_LEVELS],
                              uint32_t *ret_known) {
    const bl_grammar *g = s->g;
    for (uint32_t k = 0; k < g->n_levels; k++) {
        for (uint32_t i = 0; i < g->n_cache; i++) {
            bl_gcached *c = &g->cache[i];
            if (c->used > 0 && c->alike[k] == alike[k] && c->n_key == n && c->vocab == s->v->digest &&
                labels_equal(g, k, c->key, s->key, n)) {
                *ret_known = g->level_bytes[k];
                return c;
            }
        }
    }
    return NULL;
}

/* Puts a mask where it was not used for longest. */
static void keep_mask(bl_grammar_state *s, uint32_t n, uint64_t hash, const uint64_t alike[BL_GRAMMAR_LEVELS],
                      const uint32_t *mask, size_t bytes) {
    bl_grammar *g = s->g;
    pthread_mutex_lock(&g->mu);
    bl_gcached *c = find_cached(s, n, hash); /* another thread may have been here */
    for (uint32_t i = 0; i < g->n_cache && !c; i++) {
        c = g->cache[i].used == 0 ? &g->cache[i] : NULL;
    }
    for (uint32_t i = 0; i < g->n_cache && (!c || c->used > 0); i++) {
        c = !c || g->cache[i].used < c->used ? &g->cache[i] : c;
    }
    memcpy(c->mask, mask, bytes);
    memcpy(c->key, s->key, n * sizeof *s->key);
    memcpy(c->alike, alike, sizeof c->alike);
    c->hash = hash;
    c->n_key = n;
    c->vocab = s->v->digest;
    c->used = ++g->tick;
    pthread_mutex_unlock(&g->mu);
}

/* Sets the bits of the allowed tokens of more than `known` bytes. */
static void walk(bl_grammar_state *s, uint32_t known, uint32_t *mask) {
    const bl_grammar_vocab *v = s->v;
    const bl_gtrie *t = v->trie;
    for (uint32_t i = 0; i < v->n_trie;) {
        uint32_t d = t[i].depth;
        if (t[i].deepest <= known || !step(s, &s->levels[d - 1], t[i].byte, &s->levels[d])) {
            i = t[i].skip;
            continue;
        }
        for (uint32_t k = t[i].first_token; d > known && k < t[i].first_token + t[i].n_tokens; k++) {
            mask[(uint32_t)v->ids[k] / 32] |= 1u << ((uint32_t)v->ids[k] % 32);
        }
        i++;
    }
    s->n_frames = s->levels[0].n_frames;
}

/* Clears the bits of tokens of more than `known` bytes. */
static void forget_long(const bl_grammar_vocab *v, uint32_t known, uint32_t *mask) {
    for (uint32_t i = 0; i < v->n_trie;) {
        if (v->trie[i].deepest <= known) {
            i = v->trie[i].skip;
            continue;
        }
        for (uint32_t k = v->trie[i].first_token;
             v->trie[i].depth > known && k < v->trie[i].first_token + v->trie[i].n_tokens; k++) {
            mask[(uint32_t)v->ids[k] / 32] &= ~(1u << ((uint32_t)v->ids[k] % 32));
        }
        i++;
    }
}

/* Blanks before the text, where reasoning came before it. */
static void allow_lead(const bl_grammar_state *s, uint32_t *mask) {
    const bl_grammar_vocab *v = s->v;
    for (uint32_t i = 0; i < v->n_trie;) {
        if (v->trie[i].depth > s->n_lead || (v->trie[i].byte != '\n' && v->trie[i].byte != ' ')) {
            i = v->trie[i].skip;
            continue;
        }
        for (uint32_t k = v->trie[i].first_token; k < v->trie[i].first_token + v->trie[i].n_tokens; k++) {
            mask[(uint32_t)v->ids[k] / 32] |= 1u << ((uint32_t)v->ids[k] % 32);
        }
        i++;
    }
}

/* The mask by way of the kept ones; n words of key. */
static void mask_by_key(bl_grammar_state *s, uint32_t n, uint32_t *mask, size_t bytes) {
    bl_grammar *g = s->g;
    uint64_t hash = hash_key(s->key, n), alike[BL_GRAMMAR_LEVELS] = {0};
    uint32_t known = 0;
    pthread_mutex_lock(&g->mu);
    bl_gcached *c = find_cached(s, n, hash);
    const bool exact = c;
    for (uint32_t k = 0; k < g->n_levels && !c; k++) {
        alike[k] = hash_labels(g, k, s->key, n);
    }
    c = c ? c : find_alike(s, n, alike, &known);
    if (c) {
        c->used = ++g->tick;
        memcpy(mask, c->mask, bytes);
    }
    pthread_mutex_unlock(&g->mu);
    if (exact) {
        return;
    }
    if (c) {
        forget_long(s->v, known, mask);
    } else {
        memset(mask, 0, bytes);
    }
    walk(s, known, mask);
    keep_mask(s, n, hash, alike, mask, bytes);
}

bl_code bl_grammar_state_mask(bl_grammar_state *s, uint32_t *mask, bool *ret_may_end, bool *ret_free,
                              bl_err *err) {
    (void)err; /* nothing fails today */
    size_t bytes = ((size_t)s->v->n_vocab + 31) / 32 * sizeof *mask;
    *ret_may_end = s->waits || bl_grammar_state_may_end(s);
    *ret_free = s->waits && (s->n_matched == 0 || mask_marker(s, mask, bytes));
    if (s->waits) {
        return BL_OK;
    }
    uint32_t n = make_key(s);
    if (n > 0 && s->g->cache_vocab == s->v->n_vocab) {
        mask_by_key(s, n, mask, bytes);
    } else {
        memset(mask, 0, bytes);
        walk(s, 0, mask);
    }
    if (s->n_lead > 0) {
        allow_lead(s, mask);
    }
    return BL_OK;
}

/* ---- going on ---------------------------------------------------------------------------------------- */

/* Bytes through the automaton; the state changes only when all of them are allowed. */
static bool take(bl_grammar_state *s, const char *bytes, size_t n) {
    level l = s->levels[0];
    for (size_t i = 0; i < n; i++) {
        level next;
        if (!step(s, &l, (uint8_t)bytes[i], &next)) {
            s->n_frames = s->levels[0].n_frames;
            return false;
        }
        l = next;
    }
    settle(s, &l);
    return true;
}

static bl_code accept(bl_grammar_state *s, const char *bytes, size_t n, bl_err *err) {
    const uint32_t n_matched = s->n_matched, n_lead = s->n_lead;
    const bool waits = s->waits;
    size_t at = 0;
    if (s->waits) {
        at = look_for_marker(s, bytes, n, &s->n_matched);
        if (s->n_matched < s->n_marker) {
            return BL_OK;
        }
        s->waits = false;
        s->n_lead = LEAD_MAX;
    }
    at += skip_lead(bytes + at, n - at, &s->n_lead);
    for (uint32_t done = 0; at + done < n;) { /* longer texts in pieces that the walk has room for */
        uint32_t part = (uint32_t)BL_MIN(n - at - done, (size_t)BL_GRAMMAR_MAX_TOKEN);
        if (!take(s, bytes + at + done, part)) {
            s->n_matched = n_matched;
            s->n_lead = n_lead;
            s->waits = waits;
            BL_FAIL(err, BL_EINVAL, "a token of %zu bytes is not allowed by the grammar at its byte %zu", n,
                    at + done);
        }
        done += part;
        s->n_lead = 0;
    }
    if (s->repeats && bl_grammar_state_is_complete(s)) {
        bl_grammar_state_reset(s);
    }
    return BL_OK;
}

bl_code bl_grammar_state_accept(bl_grammar_state *s, int32_t id, bl_err *err) {
    const bl_grammar_vocab *v = s->v;
    if (id < 0 || (uint32_t)id >= v->n_vocab) {
        BL_FAIL(err, BL_EINVAL, "token %d is outside the grammar's vocabulary of %u", (int)id, v->n_vocab);
    }
    uint32_t n = v->off[id + 1] - v->off[id];
    if (s->waits) {
        if (id == s->marker_id) {
            s->waits = false;
            s->n_lead = LEAD_MAX;
            return BL_OK;
        }
        return accept(s, v->bytes + v->off[id], n, err);
    }
    if (n == 0 || n > BL_GRAMMAR_MAX_TOKEN) {
        BL_FAIL(err, BL_EINVAL, "token %d is never allowed inside a grammar", (int)id);
    }
    return accept(s, v->bytes + v->off[id], n, err);
}

bl_code bl_grammar_state_accept_bytes(bl_grammar_state *s, const char *bytes, size_t n, bl_err *err) {
    return accept(s, bytes, n, err);
}

bl_code bl_grammar_state_begin_after(bl_grammar_state *s, const char *marker, size_t n, int32_t marker_id,
                                     bool repeats, bl_err *err) {
    if (n < 1 || n > MAX_MARKER) {
        BL_FAIL(err, BL_EINVAL, "the marker has %zu bytes, 1 to %u are allowed", n, MAX_MARKER);
    }
    memcpy(s->marker, marker, n);
    s->n_marker = (uint32_t)n;
    s->marker_id = marker_id;
    s->waits_at_start = true;
    s->repeats = repeats;
    bl_grammar_state_reset(s);
    for (uint32_t i = 0; i < s->v->n_ids; i++) {
        const uint32_t *off = &s->v->off[s->v->ids[i]];
        if (off[1] - off[0] > n && oversteps(s, 0, s->v->bytes + off[0], off[1] - off[0])) {
            BL_FAIL(err, BL_ENOTSUP, "a token of the vocabulary holds the marker of %zu bytes and more", n);
        }
    }
    return BL_OK;
}
