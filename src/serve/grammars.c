/* What an answer has to look like: from the request's words to the state of a compiled grammar. Compiling is
 * the worker's; what was compiled is kept by the hash of its source, for clients ask the same again. */
#include <sodium.h>
#include <string.h>

#include "base/base.h"
#include "serve/internal.h"

void bl_serve_grammars_init(bl_serve_grammars *g) {
    pthread_mutex_init(&g->mu, NULL);
}

void bl_serve_grammars_done(bl_serve_grammars *g) {
    for (size_t i = 0; i < BL_SERVE_GRAMMARS; i++) {
        bl_grammar_unref(g->entries[i].grammar);
    }
    bl_grammar_vocab_unref(g->vocab);
    pthread_mutex_destroy(&g->mu);
}

/* ---- kept ones --------------------------------------------------------------------------------------- */

/* A reference, or NULL. */
static bl_grammar *find(bl_serve_grammars *g, const uint8_t hash[32]) {
    bl_grammar *found = NULL;
    pthread_mutex_lock(&g->mu);
    for (size_t i = 0; i < BL_SERVE_GRAMMARS && !found; i++) {
        bl_serve_grammar *e = &g->entries[i];
        if (e->grammar && memcmp(e->hash, hash, sizeof e->hash) == 0) {
            e->used = ++g->tick;
            found = bl_grammar_ref(e->grammar);
        }
    }
    pthread_mutex_unlock(&g->mu);
    return found;
}

static void drop_locked(bl_serve_grammar *e) {
    bl_grammar_unref(e->grammar);
    *e = (bl_serve_grammar){0};
}

/* Keeps a grammar; what was not used for longest goes until it fits. */
static void keep(bl_serve_grammars *g, const uint8_t hash[32], bl_grammar *grammar) {
    size_t bytes = bl_grammar_bytes(grammar);
    pthread_mutex_lock(&g->mu);
    for (;;) {
        bl_serve_grammar *oldest = NULL, *empty = NULL;
        size_t total = bytes;
        for (size_t i = 0; i < BL_SERVE_GRAMMARS; i++) {
            bl_serve_grammar *e = &g->entries[i];
            total += e->bytes;
            empty = e->grammar ? empty : e;
            oldest = e->grammar && (!oldest || e->used < oldest->used) ? e : oldest;
        }
        if (empty && (total <= BL_SERVE_GRAMMARS_BYTES || !oldest)) {
            memcpy(empty->hash, hash, sizeof empty->hash);
            empty->grammar = bl_grammar_ref(grammar);
            empty->bytes = bytes;
            empty->used = ++g->tick;
            break;
        }
        drop_locked(oldest);
    }
    pthread_mutex_unlock(&g->mu);
}

static bl_code get_vocab(bl_serve *s, bl_grammar_vocab **ret, bl_err *err) {
    bl_serve_grammars *g = &s->grammars;
    bl_code rc = BL_OK;
    pthread_mutex_lock(&g->mu); /* others wait for the same thing */
    if (!g->vocab) {
        rc = bl_grammar_vocab_new(bl_chat_tokenizer(s->model.chat), bl_engine_info(s->model.engine)->n_vocab,
                                  &g->vocab, err);
    }
    *ret = g->vocab;
    pthread_mutex_unlock(&g->mu);
    return rc;
}

/* ---- compiling --------------------------------------------------------------------------------------- */

#define CALL_BEGIN "<tool_call>"
#define CALL_END   "</tool_call>"

/* What the grammar is made from. */
typedef struct {
    const bl_openai_request *q;
    bool calls;           /* the tools' calls, not the answer */
    const char *call_end; /* "" where it is a control token: that has no text */
} source;

static bl_code compile_calls(const source *x, bl_grammar **ret, bl_err *err) {
    size_t n = json_array_size(x->q->tools);
    bl_grammar_call *calls = bl_alloc_array(n, sizeof *calls);
    if (!calls) {
        BL_FAIL(err, BL_ENOMEM, "out of memory for %zu tools", n);
    }
    for (size_t i = 0; i < n; i++) {
        const json_t *f = json_object_get(json_array_get(x->q->tools, i), "function");
        const json_t *p = json_object_get(f, "parameters");
        bool strict = json_is_true(json_object_get(f, "strict"));
        calls[i] = (bl_grammar_call){json_string_value(json_object_get(f, "name")),
                                     strict && json_is_object(p) ? p : NULL, strict};
    }
    bl_code rc = bl_grammar_from_calls(calls, n, x->call_end, ret, err);
    bl_free(calls);
    return rc;
}

static bl_code compile(const source *x, bl_grammar **ret, bl_err *err) {
    const bl_openai_request *q = x->q;
    if (x->calls) {
        return compile_calls(x, ret, err);
    }
    switch (q->format) {
    case BL_OPENAI_JSON_SCHEMA:
        return bl_grammar_from_json_schema(q->schema, q->strict_schema, ret, err);
    case BL_OPENAI_REGEX:
        return bl_grammar_from_regex(q->pattern, q->n_pattern, ret, err);
    default:
        return bl_grammar_any_json(ret, err);
    }
}

/* The source's hash, with all that the grammar depends on beside it. */
static bl_code hash_source(const source *x, uint8_t hash[32], bl_err *err) {
    const bl_openai_request *q = x->q;
    const json_t *v = x->calls ? q->tools : q->format == BL_OPENAI_JSON_SCHEMA ? q->schema : NULL;
    crypto_generichash_state h;
    uint8_t head[4] = {(uint8_t)q->format, q->strict_schema, x->calls, x->call_end[0] != '\0'};
    char *text = NULL;
    size_t n = 0;
    if (v) {
        n = json_dumpb(v, NULL, 0, JSON_COMPACT);
        text = bl_alloc(n);
        if (!text || json_dumpb(v, text, n, JSON_COMPACT) != n) {
            bl_free(text);
            BL_FAIL(err, BL_ENOMEM, "out of memory for a schema of %zu bytes", n);
        }
    }
    (void)crypto_generichash_init(&h, NULL, 0, 32);
    (void)crypto_generichash_update(&h, head, sizeof head);
    if (text) {
        (void)crypto_generichash_update(&h, (const unsigned char *)text, n);
    } else if (q->format == BL_OPENAI_REGEX) {
        (void)crypto_generichash_update(&h, (const unsigned char *)q->pattern, q->n_pattern);
    }
    (void)crypto_generichash_final(&h, hash, 32);
    bl_free(text);
    return BL_OK;
}

static bl_code get_grammar(bl_serve *s, const source *x, bl_grammar **ret, bl_err *err) {
    uint8_t hash[32];
    BL_TRY(hash_source(x, hash, err));
    *ret = find(&s->grammars, hash);
    if (*ret) {
        return BL_OK;
    }
    BL_TRY(compile(x, ret, err));
    keep(&s->grammars, hash, *ret);
    return BL_OK;
}

/* ---- where it begins --------------------------------------------------------------------------------- */

/* The answer's text begins with the answer, or behind the reasoning that the prompt left open. Calls begin
 * behind their marker, as often as the model writes one. */
static bl_code place(const bl_serve *s, const source *x, const bl_parser_options *p, bl_grammar_state *state,
                     bl_err *err) {
    if (!x->calls && p->start != BL_START_REASONING) {
        return BL_OK;
    }
    const bl_tokenizer *t = bl_chat_tokenizer(s->model.chat);
    const char *marker = x->calls ? CALL_BEGIN : p->dialect == BL_DIALECT_GEMMA4 ? "<channel|>" : "</think>";
    int32_t id = bl_tokenizer_id(t, marker, strlen(marker));
    return bl_grammar_state_begin_after(state, marker, strlen(marker), id, x->calls, err);
}

static bl_code refuse(const bl_err *err, const char *param, bl_openai_error *e) {
    if (err->code == BL_ENOTSUP || err->code == BL_EINVAL || err->code == BL_ELIMIT) {
        return bl_openai_refuse(e, 400, err->code == BL_ENOTSUP ? "unsupported_parameter" : "invalid_value",
                                param, "%s", err->msg);
    }
    bl_openai_error_from(err, e);
    return BL_EINVAL;
}

/* What this model's dialect cannot do. */
static bl_code check_dialect(const bl_serve *s, const bl_openai_request *q, const bl_parser_options *p,
                             bl_openai_error *e) {
    if (q->format != BL_OPENAI_TEXT && p->dialect == BL_DIALECT_HARMONY) {
        return bl_openai_refuse(
            e, 400, "unsupported_parameter", "response_format",
            "'response_format' is not supported; the answers of '%.100s' come in channels",
            s->model.model_id);
    }
    if (q->format != BL_OPENAI_TEXT && q->tools) {
        return bl_openai_refuse(e, 400, "unsupported_parameter", "response_format",
                                "'response_format' is not supported beside tools that may be called");
    }
    if (q->tools && q->strict_tools && p->dialect != BL_DIALECT_QWEN_JSON) {
        return bl_openai_refuse(
            e, 400, "unsupported_parameter", "tools",
            "a function's 'strict' is not supported; '%.100s' does not write calls as JSON",
            s->model.model_id);
    }
    return BL_OK;
}

bl_code bl_serve_shape(bl_serve *s, const bl_openai_request *q, const bl_parser_options *p,
                       bl_grammar_state **ret, bl_openai_error *e) {
    bl_err err = {0};
    bl_grammar *g = NULL;
    bl_grammar_vocab *v = NULL;
    bl_grammar_state *state = NULL;
    source x = {.q = q, .calls = q->tools && q->strict_tools, .call_end = CALL_END};
    BL_TRY(check_dialect(s, q, p, e));
    if (q->format == BL_OPENAI_TEXT && !x.calls) {
        return BL_OK;
    }
    const bl_tokenizer *t = bl_chat_tokenizer(s->model.chat);
    int32_t end = bl_tokenizer_id(t, CALL_END, strlen(CALL_END));
    if (end >= 0 && bl_tokenizer_is_special(t, end)) {
        x.call_end = "";
    }
    bl_code rc = get_grammar(s, &x, &g, &err);
    rc = rc == BL_OK ? get_vocab(s, &v, &err) : rc;
    rc = rc == BL_OK ? bl_grammar_state_new(g, v, &state, &err) : rc;
    rc = rc == BL_OK ? place(s, &x, p, state, &err) : rc;
    bl_grammar_unref(g);
    if (rc != BL_OK) {
        bl_grammar_state_free(state);
        return refuse(&err, x.calls ? "tools" : "response_format", e);
    }
    *ret = state;
    return BL_OK;
}
