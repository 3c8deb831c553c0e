/* Compares a checkpoint's evaluation with a reference's, layer by layer.
 *
 *     golden [options] DIR…      each DIR holds a checkpoint and expected.safetensors
 * (tests/fixtures/README.md) golden --generate N --tokens 1,2,3 [options] MODEL      greedy ids with the gap
 * between the two best logits
 *     golden --quality expected.json [options] MODEL...   negative log likelihood and divergence from the
 * first golden --hash [--generate N] --tokens 1,2,3 [options] MODEL...      one hash of all rows' logits
 *
 * Prints one line per quantity: largest absolute error, what is allowed, normalised mean squared error. Exit
 * 1 beyond tolerance, 2 when something could not be read. Allowed: 2e-4 of the reference's standard
 * deviation; greedy tokens must be equal wherever the reference's margin is above 1e-3.
 */
#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "base/base.h"
#include "bl/bl.h"
#include "formats/safetensors.h"
#include "runtime/exec.h"
#include "runtime/kv.h"
#include "runtime/loader.h"
#include "runtime/logit_hash.h"
#include "runtime/sampler.h"

#define TOLERANCE    2e-4
#define TIE_MARGIN   1e-3f
#define MAX_TOKENS   8192u
#define MAX_GENERATE 4096u

typedef struct {
    bl_engine_options engine;
    uint32_t n_generate;
    int32_t tokens[MAX_TOKENS], follow[MAX_TOKENS];
    uint32_t n_tokens, n_follow;
    bool hash;
    const char *quality; /* expected.json */
} options;

typedef struct {
    bl_loaded l;
    bl_exec *exec;
    bl_kv_pool *pool;
    bl_kv_seq *seq;
    bl_sampler *sampler;
} machine;

typedef struct {
    double max_abs, err2, ref2, sum;
    uint64_t n;
} stats;

static void machine_close(machine *m) {
    bl_sampler_free(m->sampler);
    bl_kv_seq_free(m->seq);
    bl_kv_pool_close(m->pool);
    bl_exec_close(m->exec);
    bl_loader_done(&m->l);
    *m = (machine){0};
}

static bl_code machine_open(machine *m, const bl_engine_options *o, bl_err *err) {
    BL_TRY(bl_loader_inspect(o, &m->l, err));
    BL_TRY(bl_loader_load(o, &m->l, err));
    m->l.size.max_seqs = 1;
    BL_TRY(bl_exec_open(m->l.model, m->l.backend, &m->l.size, &m->exec, err));
    BL_TRY(bl_kv_pool_open(&m->l.kv, &m->pool, err));
    BL_TRY(bl_kv_seq_new(m->pool, &m->seq, err));
    return bl_sampler_new(m->l.info.n_vocab, &m->sampler, err);
}

/* ---- numbers ----------------------------------------------------------------------------------------- */

static void add_row(stats *s, const float *got, const float *ref, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        double d = (double)got[i] - (double)ref[i], a = fabs(d);
        s->max_abs = a > s->max_abs || isnan(a) ? a : s->max_abs;
        s->err2 += d * d;
        s->ref2 += (double)ref[i] * (double)ref[i];
        s->sum += (double)ref[i];
    }
    s->n += n;
}

/* Prints the line; false beyond tolerance. */
static bool report(const char *name, const stats *s) {
    double mean = s->sum / (double)s->n;
    double std = sqrt(s->ref2 / (double)s->n - mean * mean);
    double allowed = TOLERANCE * std;
    bool ok = s->max_abs <= allowed; /* false for NaN too */
    printf("  %-18s max abs error %.3e  allowed %.3e  nmse %.3e  %s\n", name, s->max_abs, allowed,
           s->err2 / s->ref2, ok ? "ok" : "BEYOND");
    return ok;
}

static bl_code get(const bl_safetensors *st, const char *name, bl_dtype dtype, uint32_t n_dims,
                   const bl_tensor_view **ret, bl_err *err) {
    const bl_tensor_view *t = bl_safetensors_find(st, name);
    if (!t || t->dtype != dtype || t->n_dims != n_dims) {
        BL_FAIL(err, BL_EFORMAT, "expected.safetensors: '%s' of %u dimensions and type %s is missing", name,
                n_dims, bl_dtype_get(dtype)->name);
    }
    *ret = t;
    return BL_OK;
}

static bl_code get_ids(const bl_safetensors *st, const char *name, int32_t *dst, uint32_t *ret_n,
                       bl_err *err) {
    const bl_tensor_view *t = NULL;
    BL_TRY(get(st, name, BL_DTYPE_I32, 1, &t, err));
    if (t->dims[0] == 0 || t->dims[0] > MAX_TOKENS) {
        BL_FAIL(err, BL_ELIMIT, "expected.safetensors: '%s' has %llu ids, 1 to %u are allowed", name,
                (unsigned long long)t->dims[0], MAX_TOKENS);
    }
    *ret_n = (uint32_t)t->dims[0];
    memcpy(dst, t->data, *ret_n * sizeof *dst);
    return BL_OK;
}

/* ---- evaluation -------------------------------------------------------------------------------------- */

static bl_code start_rows(machine *m, const int32_t *ids, uint32_t n, bl_err *err) {
    uint32_t pos = bl_kv_seq_len(m->seq);
    BL_TRY(bl_kv_seq_reserve(m->seq, n, err));
    bl_kv_seq_commit(m->seq, n);
    bl_exec_begin(m->exec);
    bl_exec_add(m->exec, m->seq, ids, n, pos);
    return BL_OK;
}

/* Adds rows of a slot to s, reference rows from `ref` (unaligned, row-major). */
static void add_slot(stats *s, const machine *m, uint32_t slot, uint32_t n_rows, uint32_t width,
                     const uint8_t *ref, float *tmp) {
    for (uint32_t r = 0; r < n_rows; r++) {
        memcpy(tmp, ref + (size_t)r * width * sizeof(float), width * sizeof(float));
        add_row(s, bl_exec_slot_row(m->exec, slot, r), tmp, width);
    }
}

/* All rows at once through each layer, then the head in groups. */
static bl_code compare_forward(machine *m, const bl_safetensors *st, bool *ok, bl_err *err) {
    const bl_model *model = m->l.model;
    uint32_t n_layers = model->cfg.n_layers, hidden = model->cfg.hidden, n_vocab = model->cfg.n_vocab, n;
    const bl_tensor_view *h = NULL, *logits = NULL;
    static int32_t ids[MAX_TOKENS];
    BL_TRY(get_ids(st, "input_ids", ids, &n, err));
    BL_TRY(get(st, "hidden_states", BL_DTYPE_F32, 3, &h, err));
    BL_TRY(get(st, "logits", BL_DTYPE_F32, 2, &logits, err));
    if (h->dims[0] != n_layers + 1 || h->dims[1] != n || h->dims[2] != hidden || logits->dims[0] != n ||
        logits->dims[1] != n_vocab) {
        BL_FAIL(err, BL_EFORMAT, "expected.safetensors: shapes do not belong to this model");
    }
    float *tmp = bl_alloc_array(BL_MAX(hidden, n_vocab), sizeof *tmp);
    if (!tmp) {
        BL_FAIL(err, BL_ENOMEM, "out of memory for a row");
    }
    size_t entry = (size_t)n * hidden * sizeof(float), from = 0;
    bl_code rc = start_rows(m, ids, n, err);
    for (uint32_t i = 0; i < n_layers && rc == BL_OK; i++) {
        size_t to = from;
        while (model->ops[to].layer <
               (int32_t)i) { /* up to the first op of layer i: the output of what comes before */
            to++;
        }
        rc = bl_exec_run(m->exec, from, to, err);
        from = to;
        if (rc == BL_OK) {
            char name[32];
            stats s = {0};
            add_slot(&s, m, BL_SLOT_X, n, hidden, h->data + i * entry, tmp);
            snprintf(name, sizeof name, i == 0 ? "embedding" : "layer %u", i - 1);
            *ok = report(name, &s) && *ok;
        }
    }
    rc = rc == BL_OK ? bl_exec_run(m->exec, from, model->select_op, err) : rc;
    stats last = {0}, out = {0};
    for (uint32_t r = 0; r < n && rc == BL_OK; r += BL_EXEC_MAX_OUT) {
        uint32_t k = BL_MIN(n - r, BL_EXEC_MAX_OUT), rows[BL_EXEC_MAX_OUT];
        for (uint32_t i = 0; i < k; i++) {
            rows[i] = r + i;
        }
        rc = bl_exec_head(m->exec, rows, k, err);
        add_slot(&last, m, BL_SLOT_OUT_X, k, hidden,
                 h->data + n_layers * entry + (size_t)r * hidden * sizeof(float), tmp);
        add_slot(&out, m, BL_SLOT_LOGITS, k, n_vocab, logits->data + (size_t)r * n_vocab * sizeof(float),
                 tmp);
    }
    bl_free(tmp);
    BL_TRY(rc);
    *ok = report("final norm", &last) && *ok;
    *ok = report("logits", &out) && *ok;
    return BL_OK;
}

/* One step of the draft head over rows t = 0 ... n - 1: hidden t (in BL_SLOT_HIDDEN) and token t + shift,
 * against mtp_hidden_<shift> and mtp_logits_<shift>. */
static bl_code compare_draft_step(machine *m, const bl_safetensors *st, const int32_t *ids, uint32_t n_ids,
                                  uint32_t shift, bool *ok, bl_err *err) {
    uint32_t n = n_ids - shift, hidden = m->l.model->cfg.hidden, n_vocab = m->l.model->cfg.n_vocab;
    const bl_tensor_view *h = NULL, *logits = NULL;
    char name[32];
    snprintf(name, sizeof name, "mtp_hidden_%u", shift);
    BL_TRY(get(st, name, BL_DTYPE_F32, 2, &h, err));
    snprintf(name, sizeof name, "mtp_logits_%u", shift);
    BL_TRY(get(st, name, BL_DTYPE_F32, 2, &logits, err));
    if (h->dims[0] != n || h->dims[1] != hidden || logits->dims[0] != n || logits->dims[1] != n_vocab) {
        BL_FAIL(err, BL_EFORMAT,
                "expected.safetensors: shapes of the draft head do not belong to this model");
    }
    bl_exec_begin(m->exec);
    bl_exec_add(m->exec, m->seq, ids + shift, n, 0);
    BL_TRY(bl_exec_draft(m->exec, err));
    float *tmp = bl_alloc_array(BL_MAX(hidden, n_vocab), sizeof *tmp);
    if (!tmp) {
        BL_FAIL(err, BL_ENOMEM, "out of memory for a row");
    }
    stats hs = {0}, ls = {0};
    add_slot(&hs, m, BL_SLOT_HIDDEN, n, hidden, h->data, tmp);
    bl_code rc = BL_OK;
    for (uint32_t r = 0; r < n && rc == BL_OK; r += BL_EXEC_MAX_OUT) {
        uint32_t k = BL_MIN(n - r, BL_EXEC_MAX_OUT), rows[BL_EXEC_MAX_OUT];
        for (uint32_t i = 0; i < k; i++) {
            rows[i] = r + i;
        }
        rc = bl_exec_draft_head(m->exec, rows, k, err);
        add_slot(&ls, m, BL_SLOT_LOGITS, k, n_vocab, logits->data + (size_t)r * n_vocab * sizeof(float), tmp);
    }
    bl_free(tmp);
    BL_TRY(rc);
    snprintf(name, sizeof name, "draft %u hidden", shift);
    *ok = report(name, &hs) && *ok;
    snprintf(name, sizeof name, "draft %u logits", shift);
    *ok = report(name, &ls) && *ok;
    return BL_OK;
}

/* Both steps of an embedded head, where the file holds expectations; all rows at once. */
static bl_code compare_draft(machine *m, const bl_safetensors *st, bool *ok, bl_err *err) {
    static int32_t ids[MAX_TOKENS];
    uint32_t n;
    if (!bl_safetensors_find(st, "mtp_logits_1")) {
        return BL_OK;
    }
    if (!bl_model_has_draft(m->l.model)) {
        printf("  %-18s not usable: %s  BEYOND\n", "draft head", m->l.model->cfg.draft_refused);
        *ok = false;
        return BL_OK;
    }
    BL_TRY(get_ids(st, "input_ids", ids, &n, err));
    bl_kv_seq_cut(m->seq, 0);
    BL_TRY(start_rows(m, ids, n, err));
    BL_TRY(bl_exec_run(m->exec, 0, m->l.model->select_op, err));
    BL_TRY(bl_exec_hidden(m->exec, err));
    for (uint32_t shift = 1; shift <= 2; shift++) {
        BL_TRY(compare_draft_step(m, st, ids, n, shift, ok, err));
    }
    return BL_OK;
}

/* Evaluates the prompt in chunks; logits of the last row. */
static bl_code prefill(machine *m, const int32_t *ids, uint32_t n, const float **ret, bl_err *err) {
    for (uint32_t at = 0; at < n;) {
        uint32_t k = BL_MIN(n - at, m->l.size.max_rows);
        BL_TRY(start_rows(m, ids + at, k, err));
        BL_TRY(bl_exec_run(m->exec, 0, m->l.model->stored_op, err));
        at += k;
    }
    BL_TRY(bl_exec_finish(m->exec, &(uint32_t){bl_exec_rows(m->exec) - 1}, 1, err));
    *ret = bl_exec_logits(m->exec, 0);
    return BL_OK;
}

static bl_code decode(machine *m, int32_t id, const float **ret, bl_err *err) {
    BL_TRY(start_rows(m, &id, 1, err));
    BL_TRY(bl_exec_run(m->exec, 0, m->l.model->stored_op, err));
    BL_TRY(bl_exec_finish(m->exec, &(uint32_t){0}, 1, err));
    *ret = bl_exec_logits(m->exec, 0);
    return BL_OK;
}

static void top_two(machine *m, const float *logits, int32_t ids[2], float *ret_margin) {
    float lp, top[2] = {0};
    bl_sampler_logprobs(m->sampler, logits, 0, 2, &lp, ids, top);
    *ret_margin = logits[ids[0]] - logits[ids[1]];
}

static bl_code compare_greedy(machine *m, const bl_safetensors *st, bool *ok, bl_err *err) {
    static int32_t prompt[MAX_TOKENS], want[MAX_TOKENS];
    uint32_t n_prompt, n, n_equal = 0, n_ties = 0;
    const bl_tensor_view *margins = NULL;
    BL_TRY(get_ids(st, "greedy_prompt", prompt, &n_prompt, err));
    BL_TRY(get_ids(st, "greedy_tokens", want, &n, err));
    BL_TRY(get(st, "greedy_margins", BL_DTYPE_F32, 1, &margins, err));
    if (margins->dims[0] != n) {
        BL_FAIL(err, BL_EFORMAT, "expected.safetensors: greedy_margins and greedy_tokens differ in length");
    }
    const float *logits = NULL;
    bl_kv_seq_cut(m->seq, 0);
    BL_TRY(prefill(m, prompt, n_prompt, &logits, err));
    for (uint32_t i = 0; i < n; i++) {
        float margin, gap;
        int32_t best[2];
        memcpy(&margin, margins->data + i * sizeof margin, sizeof margin);
        top_two(m, logits, best, &gap);
        if (best[0] == want[i]) {
            n_equal++;
        } else if (margin <= TIE_MARGIN) {
            n_ties++;
        } else {
            printf("  greedy token %u is %d, the reference has %d with margin %g\n", i, best[0], want[i],
                   (double)margin);
        }
        if (i + 1 < n) {
            BL_TRY(decode(m, want[i], &logits,
                          err)); /* the reference's token, so that what follows stays comparable */
        }
    }
    bool good = n_equal + n_ties == n;
    printf("  %-18s %u of %u equal, %u ties  %s\n", "greedy", n_equal, n, n_ties, good ? "ok" : "BEYOND");
    *ok = *ok && good;
    return BL_OK;
}

static bl_code golden(const char *dir, const options *o, bool *ok, bl_err *err) {
    machine m = {0};
    bl_safetensors *st = NULL;
    char path[4096];
    bl_engine_options eo = o->engine;
    eo.model_path = dir;
    snprintf(path, sizeof path, "%s/expected.safetensors", dir);
    printf("%s (activations %s)\n", dir, eo.activations_f32 ? "f32" : "int8");
    bl_code rc = machine_open(&m, &eo, err);
    rc = rc == BL_OK ? bl_safetensors_open(path, true, &st, err) : rc;
    rc = rc == BL_OK ? compare_forward(&m, st, ok, err) : rc;
    rc = rc == BL_OK ? compare_draft(&m, st, ok, err) : rc;
    rc = rc == BL_OK ? compare_greedy(&m, st, ok, err) : rc;
    bl_safetensors_free(st);
    machine_close(&m);
    return rc;
}

/* One line per token: id, margin to the second best, the second best's id. */
static bl_code generate(const char *path, const options *o, bl_err *err) {
    machine m = {0};
    bl_engine_options eo = o->engine;
    eo.model_path = path;
    const float *logits = NULL;
    bl_code rc = machine_open(&m, &eo, err);
    rc = rc == BL_OK ? prefill(&m, o->tokens, o->n_tokens, &logits, err) : rc;
    for (uint32_t i = 0; i < o->n_generate && rc == BL_OK; i++) {
        int32_t best[2];
        float margin;
        top_two(&m, logits, best, &margin);
        printf("%d %.6f %d\n", best[0], (double)margin, best[1]);
        if (i + 1 < o->n_generate) {
            rc = decode(&m, o->n_follow > 0 ? o->follow[i] : best[0], &logits, err);
        }
    }
    machine_close(&m);
    return rc;
}

/* One number for the logits of every row of the tokens, evaluated in chunks, and of the greedy tokens after
 * them (NUMERICS §8.3). */
static bl_code hash(const char *path, const options *o, bl_err *err) {
    machine m = {0};
    bl_engine_options eo = o->engine;
    eo.model_path = path;
    uint64_t h = 0;
    bl_code rc = machine_open(&m, &eo, err);
    const uint32_t n_vocab = rc == BL_OK ? m.l.model->cfg.n_vocab : 0;
    const float *logits = NULL;
    for (uint32_t at = 0; at < o->n_tokens && rc == BL_OK;) {
        uint32_t k = BL_MIN(o->n_tokens - at, m.l.size.max_rows);
        rc = start_rows(&m, o->tokens + at, k, err);
        rc = rc == BL_OK ? bl_exec_run(m.exec, 0, m.l.model->select_op, err) : rc;
        for (uint32_t r = 0; r < k && rc == BL_OK; r++) {
            rc = bl_exec_head(m.exec, &r, 1, err);
            logits = bl_exec_logits(m.exec, 0);
            h = rc == BL_OK ? bl_logit_hash_row(h, logits, n_vocab) : h;
        }
        at += k;
    }
    for (uint32_t i = 0; i < o->n_generate && rc == BL_OK; i++) {
        int32_t best[2];
        float margin;
        top_two(&m, logits, best, &margin);
        rc = decode(&m, best[0], &logits, err);
        h = rc == BL_OK ? bl_logit_hash_row(h, logits, n_vocab) : h;
    }
    if (rc == BL_OK) {
        printf("%016llx %s\n", (unsigned long long)h, path);
    }
    machine_close(&m);
    return rc;
}

/* ---- quality ----------------------------------------------------------------------------------------- */

static double log_sum_exp(const float *x, uint32_t n) {
    double max = (double)x[0], sum = 0.0;
    for (uint32_t i = 1; i < n; i++) {
        max = (double)x[i] > max ? (double)x[i] : max;
    }
    for (uint32_t i = 0; i < n; i++) {
        sum += exp((double)x[i] - max);
    }
    return max + log(sum);
}

static bl_code read_expected(const char *path, int32_t ids[MAX_TOKENS], uint32_t *ret_n, double *ret_nll,
                             bl_err *err) {
    json_error_t e;
    json_t *o = json_load_file(path, 0, &e);
    const json_t *list = json_object_get(o, "valid_ids");
    size_t n = json_array_size(list);
    *ret_nll = json_number_value(json_object_get(o, "valid_nll"));
    for (size_t i = 0; i < n && i < MAX_TOKENS; i++) {
        ids[i] = (int32_t)json_integer_value(json_array_get(list, i));
    }
    json_decref(o);
    if (n < 2 || n > MAX_TOKENS) {
        BL_FAIL(err, BL_EFORMAT, "%s: valid_ids has %zu ids, 2 to %u are allowed", path, n, MAX_TOKENS);
    }
    *ret_n = (uint32_t)n;
    return BL_OK;
}

/* Logits of rows [0, n) one after the other; fn gets each. */
static bl_code each_row(machine *m, const int32_t *ids, uint32_t n,
                        void (*fn)(void *user, uint32_t row, const float *logits), void *user, bl_err *err) {
    bl_kv_seq_cut(m->seq, 0);
    for (uint32_t at = 0; at < n;) {
        uint32_t k = BL_MIN(n - at, m->l.size.max_rows);
        BL_TRY(start_rows(m, ids + at, k, err));
        BL_TRY(bl_exec_run(m->exec, 0, m->l.model->select_op, err));
        for (uint32_t r = 0; r < k; r++) {
            BL_TRY(bl_exec_head(m->exec, &r, 1, err));
            fn(user, at + r, bl_exec_logits(m->exec, 0));
        }
        at += k;
    }
    return BL_OK;
}

typedef struct {
    const int32_t *ids;
    uint32_t n, n_vocab;
    float *reference; /* [n][n_vocab] log-probabilities of the first model, filled by it */
    bool fill;
    double nll, kl;
    uint32_t n_same; /* rows whose best token is the reference's */
} quality;

static uint32_t best_of(const float *x, uint32_t n) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++) {
        best = x[i] > x[best] ? i : best;
    }
    return best;
}

static void quality_row(void *user, uint32_t row, const float *logits) {
    quality *q = user;
    float *ref = q->reference + (size_t)row * q->n_vocab;
    double total = log_sum_exp(logits, q->n_vocab);
    if (row + 1 < q->n) {
        q->nll += total - (double)logits[q->ids[row + 1]];
    }
    for (uint32_t i = 0; i < q->n_vocab; i++) {
        double lp = (double)logits[i] - total;
        if (q->fill) {
            ref[i] = (float)lp;
        } else {
            q->kl += exp((double)ref[i]) * ((double)ref[i] - lp);
        }
    }
    q->n_same += best_of(logits, q->n_vocab) == best_of(ref, q->n_vocab);
}

/* Negative log likelihood of expected.json's valid_ids under each model, and the divergence of the others'
 * rows from the first one's in f32. One line per model and kind of activations. */
static bl_code compare_quality(const char *expected, char *const *paths, uint32_t n_paths, const options *o,
                               bl_err *err) {
    static int32_t ids[MAX_TOKENS];
    uint32_t n = 0;
    double want = 0.0, first = 0.0;
    float *reference = NULL;
    bl_code rc = read_expected(expected, ids, &n, &want, err);
    printf("%-10s %-6s %10s %9s %11s %8s  %s\n", "", "act", "nll", "drift %", "KL", "top-1 %", "model");
    for (uint32_t i = 0; i < 2 * n_paths && rc == BL_OK; i++) {
        machine m = {0};
        bl_engine_options eo = o->engine;
        eo.model_path = paths[i / 2];
        eo.activations_f32 = i % 2 == 0;
        rc = machine_open(&m, &eo, err);
        quality q = {.ids = ids, .n = n, .fill = i == 0};
        if (rc == BL_OK) {
            q.n_vocab = m.l.model->cfg.n_vocab;
            reference = reference ? reference : bl_alloc_array((size_t)n * q.n_vocab, sizeof *reference);
            q.reference = reference;
            rc = reference ? each_row(&m, ids, n, quality_row, &q, err) : BL_ENOMEM;
        }
        if (rc == BL_OK) {
            double nll = q.nll / (double)(n - 1);
            first = i == 0 ? nll : first;
            printf("%-10s %-6s %10.5f %9.3f %11.3e %8.2f  %s (%s)\n", i == 0 ? "reference" : "",
                   eo.activations_f32 ? "f32" : "int8", nll, 100.0 * (nll / first - 1.0), q.kl / (double)n,
                   100.0 * (double)q.n_same / (double)n, paths[i / 2], m.l.info.quant);
        }
        machine_close(&m);
    }
    bl_free(reference);
    if (rc == BL_OK) {
        printf("expected nll %.5f, the reference's is %.1e away\n", want, fabs(first - want));
    }
    return rc;
}

/* ---- command line ------------------------------------------------------------------------------------ */

static bool parse_u32(const char *s, uint32_t max, uint32_t *ret) {
    char *end;
    errno = 0;
    unsigned long v = strtoul(s, &end, 10);
    if (*s < '0' || *s > '9' || *end != '\0' || errno != 0 || v > max) {
        return false;
    }
    *ret = (uint32_t)v;
    return true;
}

static bool parse_tokens(char *s, int32_t ids[MAX_TOKENS], uint32_t *ret_n) {
    char *save = NULL;
    uint32_t n = 0, v;
    for (char *t = strtok_r(s, ",", &save); t; t = strtok_r(NULL, ",", &save)) {
        if (n == MAX_TOKENS || !parse_u32(t, INT32_MAX, &v)) {
            return false;
        }
        ids[n++] = (int32_t)v;
    }
    *ret_n = n;
    return n > 0;
}

static bool parse(int argc, char **argv, options *o) {
    static const struct option longs[] = {{"activations", required_argument, NULL, 'a'},
                                          {"cpu-mask", required_argument, NULL, 'm'},
                                          {"threads", required_argument, NULL, 't'},
                                          {"generate", required_argument, NULL, 'g'},
                                          {"tokens", required_argument, NULL, 'k'},
                                          {"follow", required_argument, NULL, 'f'},
                                          {"chunk", required_argument, NULL, 'c'},
                                          {"context", required_argument, NULL, 'n'},
                                          {"hash", no_argument, NULL, 'h'},
                                          {"quality", required_argument, NULL, 'q'},
                                          {NULL, 0, NULL, 0}};
    bl_err err;
    bool ok = true;
    int c;
    while (ok && (c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
        switch (c) {
        case 'a':
            o->engine.activations_f32 = strcmp(optarg, "f32") == 0;
            ok = o->engine.activations_f32 || strcmp(optarg, "int8") == 0;
            break;
        case 'm':
            ok = bl_cpu_parse_mask(optarg, &o->engine.cpu_mask, &err) == BL_OK;
            break;
        case 't':
            ok = parse_u32(optarg, 1024, &o->engine.n_threads);
            break;
        case 'c':
            ok = parse_u32(optarg, BL_MAX_CHUNK, &o->engine.prefill_chunk);
            break;
        case 'n':
            ok = parse_u32(optarg, INT32_MAX, &o->engine.n_context);
            break;
        case 'g':
            ok = parse_u32(optarg, MAX_GENERATE, &o->n_generate);
            break;
        case 'f':
            ok = parse_tokens(optarg, o->follow, &o->n_follow);
            o->n_generate = o->n_follow;
            break;
        case 'h':
            o->hash = true;
            break;
        case 'k':
            ok = parse_tokens(optarg, o->tokens, &o->n_tokens);
            break;
        case 'q':
            o->quality = optarg;
            break;
        default:
            ok = false;
        }
    }
    return ok && optind < argc && ((o->n_generate == 0 && !o->hash) || o->n_tokens > 0);
}

int main(int argc, char **argv) {
    static options o;
    bl_engine_options_init(&o.engine);
    o.engine.draft_depth = 2; /* the head is compared too */
    o.engine.activations_f32 = true;
    if (!parse(argc, argv, &o)) {
        fprintf(stderr, "usage: golden [--activations f32|int8] [--cpu-mask M] [--threads N] [--chunk N] "
                        "[--context N] DIR...\n"
                        "       golden --generate N|--follow 7,8,9 --tokens 1,2,3 [options] MODEL\n"
                        "       golden --quality expected.json [options] MODEL...\n"
                        "       golden --hash [--generate N] --tokens 1,2,3 [options] MODEL...\n");
        return 2;
    }
    bool ok = true;
    if (o.quality) {
        bl_err err = {0};
        if (compare_quality(o.quality, argv + optind, (uint32_t)(argc - optind), &o, &err) != BL_OK) {
            fprintf(stderr, "golden: %s\n", err.msg);
            return 2;
        }
        return 0;
    }
    for (int i = optind; i < argc; i++) {
        bl_err err = {0};
        bl_code rc = o.hash             ? hash(argv[i], &o, &err)
                     : o.n_generate > 0 ? generate(argv[i], &o, &err)
                                        : golden(argv[i], &o, &ok, &err);
        if (rc != BL_OK) {
            fprintf(stderr, "golden: %s: %s\n", argv[i], err.msg);
            return 2;
        }
    }
    return ok ? 0 : 1;
}
