/* `darkbloom benchmark`: how fast a model runs here, and how near that is to what the machine can do. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/rng.h"
#include "cli/answer.h"
#include "cli/commands.h"
#include "cli/common.h"
#include "cli/config_args.h"

#define MAX_REPEAT 100

typedef struct {
    bl_cli_store_args store;
    bl_cli_config_args config;
    bl_cli_engine_args engine;
    uint32_t n_prompt, n_decode, repeat;
    bool json, quiet;
} benchmark_args;

static const bl_opt options[] = {
    BL_CLI_MODEL_OPTION(benchmark_args),
    {BL_OPT_U32_AT(benchmark_args, n_prompt), .name = "prompt-tokens", .arg = "N", .def = "512", .min = 1,
     .max = 1u << 20, .group = "Load", .doc = "Length of the prompt, made of random tokens."},
    {BL_OPT_U32_AT(benchmark_args, n_decode), .name = "decode-tokens", .arg = "N", .def = "64", .min = 1,
     .max = 1u << 20, .doc = "Tokens to generate after it; stop tokens are ignored."},
    {BL_OPT_U32_AT(benchmark_args, repeat), .name = "repeat", .letter = 'r', .arg = "N", .def = "3", .min = 1,
     .max = MAX_REPEAT, .doc = "Rounds; medians are reported. One unmeasured round comes before."},
    {BL_OPT_FLAG_AT(benchmark_args, json), .name = "json", .group = "Output",
     .doc = "Print one JSON object and nothing else on standard output; the table goes to standard error."},
    {BL_OPT_FLAG_AT(benchmark_args, quiet), .name = "quiet", .letter = 'q', .doc = "No progress."},
    BL_CLI_ENGINE_OPTIONS(benchmark_args),
    BL_CLI_CONFIG_OPTIONS(benchmark_args),
    BL_CLI_STORE_OPTIONS(benchmark_args),
};

/* Milliseconds of each round. */
typedef struct {
    double prefill[MAX_REPEAT], ttft[MAX_REPEAT], decode[MAX_REPEAT];
    uint32_t n, n_steps; /* decode steps a round */
} rounds;

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

typedef struct {
    double min, median, max;
} spread;

static spread spread_of(double *v, uint32_t n) {
    qsort(v, n, sizeof(*v), by_value);
    double mid = n % 2 == 1 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
    return (spread){.min = v[0], .median = mid, .max = v[n - 1]};
}

static bl_code one_round(const benchmark_args *a, const bl_cli_model *m, int32_t *ids, uint64_t *rng,
                         rounds *r, bl_err *err) {
    /* Other tokens each time, the first included: what the engine still holds of the last round must not
     * help. */
    uint32_t n_vocab = bl_engine_info(m->engine)->n_vocab;
    for (uint32_t i = 0; i < a->n_prompt; i++) {
        ids[i] = (int32_t)(bl_rng_next(rng) % n_vocab);
    }
    bl_cli_answer ans;
    bl_cli_answer_init(&ans);
    ans.engine = m->engine;
    ans.request.prompt = ids;
    ans.request.n_prompt = a->n_prompt;
    ans.request.max_tokens = a->n_decode;
    ans.request.sampling.temperature = 0;
    bl_code rc = bl_cli_answer_run(&ans, err);
    if (rc == BL_OK && strcmp(ans.finish_reason, "cancelled") == 0) {
        rc = bl_err_set(err, BL_ECANCEL, __FILE__, __LINE__, "interrupted");
    } else if (rc == BL_OK) {
        r->prefill[r->n] = (double)ans.end.prefill_ns * 1e-6;
        r->ttft[r->n] = (double)ans.end.ttft_ns * 1e-6;
        r->decode[r->n] = (double)ans.end.decode_ns * 1e-6;
        r->n_steps = ans.end.n_output - 1;
        r->n++;
    }
    bl_cli_answer_done(&ans);
    return rc;
}

static bl_code all_rounds(const benchmark_args *a, const bl_cli_model *m, rounds *r, bl_err *err) {
    const bl_model_info *info = bl_engine_info(m->engine);
    if ((uint64_t)a->n_prompt + a->n_decode > (uint64_t)info->n_context + 1) {
        BL_FAIL(err, BL_EINVAL, "--prompt-tokens %u and --decode-tokens %u do not fit the context of %u",
                a->n_prompt, a->n_decode, info->n_context);
    }
    int32_t *ids = bl_alloc_array(a->n_prompt, sizeof(*ids));
    if (ids == NULL) {
        BL_FAIL(err, BL_ENOMEM, "no memory for a prompt of %u tokens", a->n_prompt);
    }
    uint64_t rng = 1;
    bl_code rc = one_round(a, m, ids, &rng, r, err);
    r->n = 0; /* the warm-up round is not counted */
    for (uint32_t i = 0; i < a->repeat && rc == BL_OK; i++) {
        rc = one_round(a, m, ids, &rng, r, err);
        if (rc == BL_OK && !a->quiet) {
            fprintf(stderr, "round %u of %u: prefill %.1f ms, decode %.1f ms\n", i + 1, a->repeat,
                    r->prefill[i], r->decode[i]);
        }
    }
    bl_free(ids);
    return rc;
}

static json_t *spread_json(spread s) {
    return json_pack("{s:f, s:f, s:f}", "min", s.min, "median", s.median, "max", s.max);
}

/* What the run used of a ceiling of the machine; 0 where the ceiling is unknown. */
static double share(double used, double ceiling) {
    return ceiling > 0 ? used / ceiling : 0;
}

/* Of all rounds, the unmeasured one included. */
static void count_drafts(const bl_cli_model *m, uint64_t *ret_proposed, uint64_t *ret_accepted) {
    bl_engine_stats st;
    bl_engine_get_stats(m->engine, &st);
    *ret_proposed = *ret_accepted = 0;
    for (size_t i = 0; i < BL_MAX_DRAFT; i++) {
        *ret_proposed += st.draft.n_proposed[i];
        *ret_accepted += st.draft.n_accepted[i];
    }
}

static void print_drafting(const bl_cli_model *m, FILE *f) {
    char line[BL_MTP_LINE_BYTES];
    uint64_t proposed, accepted;
    if (m->mtp.enabled) {
        bl_mtp_status_line(&m->mtp, line);
        count_drafts(m, &proposed, &accepted);
        fprintf(f, "mtp      %s: %llu of %llu drafted tokens right\n", line, (unsigned long long)accepted,
                (unsigned long long)proposed);
    }
}

static json_t *drafting_json(const bl_cli_model *m) {
    char line[BL_MTP_LINE_BYTES];
    uint64_t proposed, accepted;
    bl_mtp_status_line(&m->mtp, line);
    count_drafts(m, &proposed, &accepted);
    return json_pack("{s:s, s:I, s:I}", "mtp", line, "proposed", (json_int_t)proposed, "accepted",
                     (json_int_t)accepted);
}

static bl_code report(const benchmark_args *a, const bl_cli_model *m, rounds *r, bl_err *err) {
    const bl_model_info *info = bl_engine_info(m->engine);
    double read_gbps = bl_engine_measure_read_gbps(m->engine);
    double int8_gops = bl_engine_measure_int8_gops(m->engine);
    spread prefill = spread_of(r->prefill, r->n), ttft = spread_of(r->ttft, r->n),
           decode = spread_of(r->decode, r->n);
    double prefill_tps = prefill.median > 0 ? a->n_prompt / prefill.median * 1000 : 0;
    double decode_tps = decode.median > 0 ? r->n_steps / decode.median * 1000 : 0;
    double used_gbps = decode_tps * (double)info->read_bytes_per_token * 1e-9;
    double used_gops = prefill_tps * (double)info->flops_per_token * 1e-9;
    /* stderr, or stdout when it is the result itself */
    FILE *f = a->json ? stderr : stdout;
    char size[24];
    fprintf(f, "%s (%s, %s), %s\n", m->name, info->family, info->quant, bl_engine_device(m->engine));
    fprintf(f, "load     %8.2f s\n", m->load_ms / 1000);
    fprintf(f,
            "prefill  %8.1f tokens/s  (%u tokens in %.1f ms, %.1f to %.1f)  %.1f Gop/s, %.0f%% of int8 peak "
            "%.0f\n",
            prefill_tps, a->n_prompt, prefill.median, prefill.min, prefill.max, used_gops,
            100 * share(used_gops, int8_gops), int8_gops);
    fprintf(f, "ttft     %8.1f ms\n", ttft.median);
    fprintf(f,
            "decode   %8.1f tokens/s  (%u steps in %.1f ms, %.1f to %.1f)  %s a token, %.2f GB/s, %.0f%% of "
            "read bandwidth %.2f\n",
            decode_tps, r->n_steps, decode.median, decode.min, decode.max,
            bl_cli_size(info->read_bytes_per_token, size), used_gbps, 100 * share(used_gbps, read_gbps),
            read_gbps);
    print_drafting(m, f);
    if (!a->json) {
        return BL_OK;
    }
    json_t *j = json_pack("{s:s, s:s, s:s, s:s, s:i, s:i, s:i, s:f}", "model", m->name, "family",
                          info->family, "quant", info->quant, "device", bl_engine_device(m->engine),
                          "prompt_tokens", (int)a->n_prompt, "decode_tokens", (int)a->n_decode, "repeat",
                          (int)a->repeat, "load_ms", m->load_ms);
    json_t *speed =
        json_pack("{s:f, s:f, s:f, s:o, s:o, s:o, s:I, s:f, s:f, s:f, s:I, s:f, s:f, s:f}", "prefill_tps",
                  prefill_tps, "ttft_ms", ttft.median, "decode_tps", decode_tps, "prefill_ms",
                  spread_json(prefill), "ttft_spread_ms", spread_json(ttft), "decode_ms", spread_json(decode),
                  "read_bytes_per_token", (json_int_t)info->read_bytes_per_token, "read_gbps", used_gbps,
                  "machine_read_gbps", read_gbps, "read_bandwidth_share", share(used_gbps, read_gbps),
                  "flops_per_token", (json_int_t)info->flops_per_token, "prefill_gops", used_gops,
                  "machine_int8_gops", int8_gops, "int8_peak_share", share(used_gops, int8_gops));
    (void)json_object_update(j, speed);
    (void)json_object_set_new(j, "draft", drafting_json(m));
    json_decref(speed);
    return bl_cli_print_json(j, err);
}

static int run_benchmark(int argc, char **argv) {
    benchmark_args a = {0};
    bl_opts o;
    bl_err err;
    int status =
        bl_cli_begin(&bl_command_benchmark, argc, argv, &a, &a.config, &a.store, &a.engine.model, &o);
    if (status >= 0) {
        return status;
    }
    bl_cli_model m = {0};
    rounds *r = bl_alloc(sizeof(*r));
    bl_code rc = r != NULL
                     ? bl_cli_model_open(&a.engine, &a.store, a.quiet, false, &m, &err)
                     : bl_err_set(&err, BL_ENOMEM, __FILE__, __LINE__, "no memory for the measurements");
    if (rc == BL_OK) {
        bl_cli_catch_interrupt();
        rc = all_rounds(&a, &m, r, &err);
    }
    if (rc == BL_OK) {
        rc = report(&a, &m, r, &err);
    }
    bl_cli_model_close(&m);
    bl_free(r);
    return rc == BL_OK ? BL_EXIT_OK : bl_cli_fail(&err);
}

const bl_command bl_command_benchmark = {
    .name = "benchmark",
    .summary = "Measure a model's speed on this machine",
    .usage = "--model MODEL [--prompt-tokens N] [--decode-tokens N] [--json]",
    .about = "Runs random prompts and reports medians: prompt tokens per second (prefill), time to the first "
             "token, generated tokens "
             "per second (decode). Beside them stand this machine's measured ceilings: decode reads all "
             "weights for every token, so "
             "its ceiling is memory read bandwidth; prefill computes, so its ceiling is the int8 peak.",
    .examples = "  darkbloom benchmark --model gemma-3-270m\n"
                "  darkbloom benchmark --model gemma-3-270m --prompt-tokens 512 "
                "--threads 2 --json\n",
    .opts = options,
    .n_opts = BL_COUNTOF(options),
    .run = run_benchmark,
};
