/* The worker's part of a job: JSON, model name, template, tokens, submission to the engine. Nothing here
 * touches a socket. */
#include <assert.h>
#include <string.h>

#include "base/base.h"
#include "base/clock.h"
#include "serve/internal.h"

/* A body holds at most one token a byte. */
#define MAX_PROMPT_TOKENS (17u << 20)

/* What the request adds to the template's variables. An effort means what the template can do with it: its
 * own variable, else the thinking switch, else nothing but "none". */
static bl_code template_variables(const bl_job *job, const bl_openai_request *q, json_t **ret,
                                  bl_openai_error *e) {
    const bl_chat_features *f = bl_chat_describe(job->s->model.chat);
    const bool none = q->reasoning_effort && strcmp(q->reasoning_effort, "none") == 0;
    json_t *extra = q->template_kwargs ? json_copy((json_t *)(uintptr_t)q->template_kwargs) : json_object();
    int rc = extra ? 0 : -1;
    /* chat_template_kwargs is the more exact word */
    if (q->reasoning_effort && f->thinking_switch && (none || !f->reasoning_effort)) {
        rc = rc == 0 && !json_object_get(extra, "enable_thinking")
                 ? json_object_set_new(extra, "enable_thinking", json_boolean(!none))
                 : rc;
    } else if (q->reasoning_effort && f->reasoning_effort) {
        rc = rc == 0 && !json_object_get(extra, "reasoning_effort")
                 ? json_object_set_new(extra, "reasoning_effort", json_string(q->reasoning_effort))
                 : rc;
    } else if (q->reasoning_effort && !none) {
        json_decref(extra);
        return bl_openai_refuse(
            e, 400, "unsupported_parameter", "reasoning_effort",
            "'reasoning_effort' is not supported; the chat template of '%.100s' has no such "
            "setting",
            job->s->model.model_id);
    }
    if (rc != 0) {
        json_decref(extra);
        return bl_openai_refuse(e, 503, "out_of_memory", NULL,
                                "the server is out of memory, try again later");
    }
    *ret = extra;
    return BL_OK;
}

static bl_code render(const bl_job *job, const bl_openai_request *q, bl_ids *ids, bl_openai_error *e) {
    const bl_chat *chat = job->s->model.chat;
    json_t *extra = NULL;
    bl_err err;
    if (bl_chat_template_source(chat) == BL_TEMPLATE_NONE) {
        return bl_openai_refuse(e, 400, "no_chat_template", "messages",
                                "model '%.100s' has no chat template; use /v1/completions",
                                job->s->model.model_id);
    }
    if (q->tools && !bl_chat_describe(chat)->tools) {
        return bl_openai_refuse(e, 400, "unsupported_parameter", "tools",
                                "'tools' is not supported; the chat template of '%.100s' takes none",
                                job->s->model.model_id);
    }
    BL_TRY(template_variables(job, q, &extra, e));
    bl_code rc = bl_chat_render(chat, q->messages, q->tools, extra, true, false, ids, &err);
    json_decref(extra);
    if (rc != BL_OK) {
        bl_openai_error_from(&err, e);
        return BL_EINVAL;
    }
    return BL_OK;
}

static bl_code encode_prompt(bl_job *job, const bl_openai_request *q, bl_ids *ids, bl_openai_error *e) {
    const bl_chat *chat = job->s->model.chat;
    bl_err err;
    bl_code rc = BL_OK;
    if (q->kind == BL_OPENAI_CHAT) {
        return render(job, q, ids, e);
    }
    if (q->prompt) {
        rc = bl_chat_encode_prompt(chat, q->prompt, q->n_prompt_bytes, ids, &err);
    } else {
        uint32_t n_vocab = bl_engine_info(job->s->model.engine)->n_vocab;
        for (size_t i = 0; i < q->prompt_ids.n; i++) {
            if ((uint32_t)q->prompt_ids.ids[i] >= n_vocab) {
                return bl_openai_refuse(e, 400, "invalid_value", "prompt",
                                        "token id %d at index %zu is not below %u, the vocabulary's size",
                                        (int)q->prompt_ids.ids[i], i, n_vocab);
            }
        }
        rc = bl_ids_append(ids, q->prompt_ids.ids, q->prompt_ids.n, &err);
    }
    if (rc != BL_OK) {
        bl_openai_error_from(&err, e);
        return BL_EINVAL;
    }
    return BL_OK;
}

static bl_code check_length(const bl_job *job, size_t n_prompt, bl_openai_error *e) {
    uint32_t n_context = bl_engine_info(job->s->model.engine)->n_context;
    const char *param = job->kind == BL_OPENAI_CHAT ? "messages" : "prompt";
    if (n_prompt == 0) {
        return bl_openai_refuse(e, 400, "invalid_value", param, "the prompt has no tokens");
    }
    if (n_prompt > n_context) {
        return bl_openai_refuse(e, 400, "context_length_exceeded", param,
                                "the prompt has %zu tokens, but the context of this model holds %u", n_prompt,
                                n_context);
    }
    return BL_OK;
}

static bl_sampling choose_sampling(const bl_job *job, const bl_openai_request *q) {
    bl_chat_defaults d = bl_chat_sampling_defaults(job->s->model.chat);
    bl_sampling r = {
        .temperature = q->has_temperature ? q->temperature : d.temperature,
        .top_k = q->has_top_k ? q->top_k : d.top_k,
        .top_p = q->has_top_p ? q->top_p : d.top_p,
        .min_p = q->has_min_p ? q->min_p : d.min_p,
        .seed = q->has_seed ? q->seed : job->seed,
        .presence_penalty = q->presence_penalty,
        .frequency_penalty = q->frequency_penalty,
        .repetition_penalty = q->repetition_penalty,
    };
    return r;
}

/* The client's deadline counts from the head of its request. *ret is what is left, 0 when there is none. */
static bl_code left_for_first(const bl_job *job, uint32_t *ret, bl_openai_error *e) {
    const uint64_t spent_ms = (bl_clock_mono_ns() - job->start_ns) / 1000000u;
    *ret = 0;
    if (job->first_content_ms == 0) {
        return BL_OK;
    }
    if (spent_ms >= job->first_content_ms) {
        return bl_openai_refuse(e, 429, "deadline_unreachable", NULL,
                                "the first token is wanted within %u ms, and %llu are spent",
                                job->first_content_ms, (unsigned long long)spent_ms);
    }
    *ret = job->first_content_ms - (uint32_t)spent_ms;
    return BL_OK;
}

static bl_code submit(bl_job *job, const bl_openai_request *q, const bl_ids *ids, bl_grammar_state *shape,
                      bl_openai_error *e) {
    const bl_serve_model *m = &job->s->model;
    bl_logit_bias bias[BL_OPENAI_MAX_BIAS];
    bl_err err;
    bl_request r;
    static_assert(BL_OPENAI_MAX_BIAS == BL_MAX_LOGIT_BIAS, "what a body may hold the engine takes");
    for (size_t i = 0; i < q->n_bias; i++) {
        bias[i] = (bl_logit_bias){q->bias[i].id, q->bias[i].bias};
        if ((uint32_t)bias[i].id >= bl_engine_info(m->engine)->n_vocab) {
            return bl_openai_refuse(e, 400, "invalid_value", "logit_bias",
                                    "'logit_bias' names token %d; the vocabulary has %u", (int)bias[i].id,
                                    bl_engine_info(m->engine)->n_vocab);
        }
    }
    bl_request_init(&r);
    r.prompt = ids->ids;
    r.n_prompt = ids->n;
    uint32_t room = bl_engine_info(m->engine)->n_context - (uint32_t)ids->n;
    r.max_tokens = q->has_max_tokens ? q->max_tokens : BL_MAX(room, 1u);
    r.stop_ids = bl_chat_stop_ids(m->chat, &r.n_stop_ids);
    r.sampling = choose_sampling(job, q);
    r.logit_bias = bias;
    r.n_logit_bias = q->n_bias;
    r.grammar = shape;
    r.logprobs = q->logprobs;
    r.n_top_logprobs = q->n_top_logprobs;
    r.priority = q->priority;
    r.no_draft = q->no_draft;
    r.tenant = bl_serve_tenant(job->s, q->prompt_cache_key, q->n_prompt_cache_key);
    BL_TRY(left_for_first(job, &r.first_content_ms, e));
    r.notify = bl_job_notify;
    r.notify_user = job;
    if (bl_session_submit(m->engine, &r, &job->session, &err) != BL_OK) {
        bl_serve_engine_error(job->s, &err, e);
        return BL_EINVAL;
    }
    job->n_prompt = (uint32_t)ids->n;
    return BL_OK;
}

/* How the answer begins and what is in it; a completion is one text. */
static bl_parser_options parser_options(const bl_job *job, const bl_openai_request *q, const bl_ids *ids) {
    if (q->kind != BL_OPENAI_CHAT) {
        return (bl_parser_options){.dialect = BL_DIALECT_PLAIN};
    }
    return bl_chat_parser_options(job->s->model.chat, ids->ids, ids->n, q->tools);
}

/* What comes out of the stream goes through it. */
static bl_code open_parser(bl_job *job, bl_parser_options o, bl_err *err) {
    if (job->kind == BL_OPENAI_CHAT) {
        size_t n = 0;
        const int32_t *markers = bl_chat_markers(job->s->model.chat, &n);
        bl_stream_show(job->stream, markers, n);
    }
    o.sink = bl_job_sink;
    o.user = job;
    return bl_parser_new(&o, &job->parser, err);
}

static bl_code prepare_request(bl_job *job, const bl_openai_request *q, bl_ids *ids, bl_openai_error *e) {
    const bl_tokenizer *t = bl_chat_tokenizer(job->s->model.chat);
    bl_err err;
    if (!bl_serve_knows_model(job->s, q->model)) {
        return bl_openai_refuse(e, 404, "model_not_found", "model",
                                "the model '%.100s' is not served here; '%.100s' is", q->model,
                                job->s->model.model_id);
    }
    BL_TRY(encode_prompt(job, q, ids, e));
    BL_TRY(check_length(job, ids->n, e));
    const bl_parser_options o = parser_options(job, q, ids);
    if (bl_stream_new(t, q->stops, q->n_stops, true, &job->stream, &err) != BL_OK ||
        open_parser(job, o, &err) != BL_OK) {
        bl_openai_error_from(&err, e);
        return BL_EINVAL;
    }
    if (atomic_load_explicit(&job->cancelled,
                             memory_order_relaxed)) { /* the loop frees the job in any case */
        return BL_OK;
    }
    bl_grammar_state *shape = NULL;
    BL_TRY(bl_serve_shape(job->s, q, &o, &shape, e));
    bl_code rc = submit(job, q, ids, shape, e);
    if (rc != BL_OK) {
        bl_grammar_state_free(shape);
    }
    return rc;
}

void bl_job_prepare(bl_job *job) {
    bl_openai_request q;
    bl_code rc = bl_openai_parse(job->kind, job->body, job->n_body, &q, &job->error);
    bl_free(job->body);
    job->body = NULL;
    if (rc != BL_OK) {
        return;
    }
    bl_ids ids;
    bl_ids_init(&ids, MAX_PROMPT_TOKENS);
    if (prepare_request(job, &q, &ids, &job->error) != BL_OK) {
        BL_DASSERT(job->error.status != 0);
    }
    bl_ids_done(&ids);
    job->req = q; /* the loop reads its flags; what they point to goes now */
    bl_openai_request_done(&q);
    job->req.root = NULL;
    job->req.model = NULL;
    job->req.messages = NULL;
    job->req.tools = NULL;
    job->req.template_kwargs = NULL;
    job->req.reasoning_effort = NULL;
    job->req.prompt = NULL;
    job->req.prompt_cache_key = NULL;
    job->req.n_stops = 0;
    job->req.schema = NULL;
    job->req.pattern = NULL;
    bl_ids_init(&job->req.prompt_ids, 0);
}
