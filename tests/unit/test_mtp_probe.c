/* provider/mtp_probe: what config.json declares, the strict inspection rule by rule, and that config.json is
 * read once. Each test has a folder of its own. */
#include "cmocka_all.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/base.h"
#include "base/buf.h"
#include "base/file.h"
#include "base/os.h"
#include "provider/mtp_policy.h"
#include "scratch_folder.h"

#define CONFIG_FILE "m/config.json"
#define INDEX_FILE  "m/model.safetensors.index.json"
#define SHARD_FILE  "m/mtp-1.safetensors"

#define CONFIG(head, quantization)                                                                           \
    "{\"model_type\":\"qwen3_5\",\"mtplx_mtp\":" head ",\"mtplx_mtp_quantization\":" quantization "}"
#define INDEX(map)       "{\"metadata\":{\"total_size\":6},\"weight_map\":{" map "}}"
#define IN_SHARD(tensor) "\"" tensor "\":\"mtp-1.safetensors\""

/* A head of two tensors. The target's own shard is listed and does not exist: nothing may touch it. */
static const char good_config[] = CONFIG("{\"included\":true}", "{}");
static const char good_index[] =
    INDEX("\"a.weight\":\"model.safetensors\"," IN_SHARD("mtp.fc.weight") "," IN_SHARD("mtp.norm.weight"));
static const char good_shard[] = "mtp.fc.weight:BF16:6,mtp.norm.weight:BF16:1";

/* ---- folder ---- */

/* text and as many spaces as make n bytes. */
static void write_padded(const char *file, const char *text, size_t n) {
    char *data = bl_alloc(n);
    assert_non_null(data);
    memset(data, ' ', n);
    memcpy(data, text, strlen(text));
    write_bytes(file, data, n);
    bl_free(data);
}

static size_t elem_bytes(const char *dtype) {
    return strstr(dtype, "16") ? 2 : strstr(dtype, "32") ? 4 : strstr(dtype, "64") ? 8 : 1;
}

/* Tensors as "NAME:DTYPE:ELEMENTS", comma-separated. */
static void write_shard(const char *file, const char *spec) {
    bl_buf b;
    size_t off = 0;
    bl_buf_init(&b, 1 << 20);
    assert_int_equal(bl_buf_append(&b, "\0\0\0\0\0\0\0\0{", 9, NULL), BL_OK);
    for (const char *s = spec; *s;) {
        char name[64], dtype[16];
        unsigned n = 0;
        assert_int_equal(sscanf(s, "%63[^:]:%15[^:]:%u", name, dtype, &n), 3);
        size_t end = off + n * elem_bytes(dtype);
        assert_int_equal(
            bl_buf_printf(&b, NULL, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%u],\"data_offsets\":[%zu,%zu]}",
                          s == spec ? "" : ",", name, dtype, n, off, end),
            BL_OK);
        off = end;
        s += strcspn(s, ",");
        s += *s == ',';
    }
    assert_int_equal(bl_buf_append_char(&b, '}', NULL), BL_OK);
    for (int i = 0; i < 8; i++) {
        b.data[i] = (char)((b.len - 8) >> 8 * i);
    }
    while (off-- > 0) {
        assert_int_equal(bl_buf_append_char(&b, 'd', NULL), BL_OK);
    }
    write_bytes(file, b.data, b.len);
    bl_buf_done(&b);
}

static void write_good(void) {
    write_text(CONFIG_FILE, good_config);
    write_text(INDEX_FILE, good_index);
    write_shard(SHARD_FILE, good_shard);
}

static int begin(void **state) {
    int rc = make_root(state);
    if (rc == 0) {
        write_good();
    }
    return rc;
}

static int end(void **state) {
    bl_os_reset();
    return remove_root(state);
}

/* ---- steps ---- */

static bl_mtp_declaration declared_now(void) {
    bl_mtp_probe p;
    bl_mtp_probe_read(at("m"), &p);
    bl_mtp_declaration d = p.declaration;
    bl_mtp_probe_done(&p);
    return d;
}

static bl_mtp_inspection inspect_dir(const char *dir) {
    bl_mtp_probe p;
    bl_mtp_inspection i;
    bl_mtp_probe_read(at(dir), &p);
    bl_mtp_inspect(at(dir), &p, &i);
    bl_mtp_probe_done(&p);
    return i;
}

/* The finding, and that its sentence says `part`; accepted heads have none. */
static void finds(const char *name, bl_mtp_finding want, const char *part) {
    bl_mtp_inspection i = inspect_dir("m");
    if (i.finding != want || (want == BL_MTP_FOUND_OK) != (i.detail[0] == '\0') || !strstr(i.detail, part)) {
        fail_msg("%s: %s, not %s: %s", name, bl_mtp_finding_name(i.finding), bl_mtp_finding_name(want),
                 i.detail);
    }
    if (want != BL_MTP_FOUND_OK) {
        assert_int_equal(i.artifact_bytes + i.resident_bytes + i.n_tensors, 0);
        assert_string_equal(i.revision, "");
    }
}

static bl_mtp_decision decide_auto(const bl_mtp_probe *p, bl_mtp_inspection *i) {
    bl_mtp_decision d;
    bl_mtp_request r = {.model_type = "qwen3_5", .dir = at("m"), .probe = p};
    bl_mtp_prepare(&r, i, &d);
    return d;
}

/* ---- probe ---- */

static const struct {
    const char *text;
    bl_mtp_declaration want;
} texts[] = {
    {"{\"mtplx_mtp\":{\"included\":true}}", BL_MTP_DECLARED},
    {"{\"mtplx_mtp\":{\"included\":true,\"prefix\":5}}", BL_MTP_DECLARED},
    {"{\"mtplx_mtp\":{\"included\":false}}", BL_MTP_ABSENT},
    {"{\"mtplx_mtp\":{\"included\":1}}", BL_MTP_ABSENT},
    {"{\"mtplx_mtp\":{\"included\":\"true\"}}", BL_MTP_ABSENT},
    {"{\"mtplx_mtp\":{\"included\":null}}", BL_MTP_ABSENT},
    {"{\"mtplx_mtp\":{}}", BL_MTP_ABSENT},
    {"{\"mtplx_mtp\":true}", BL_MTP_ABSENT},
    {"{\"mtplx_mtp\":[{\"included\":true}]}", BL_MTP_ABSENT},
    {"{\"mtplx_mtp\":null}", BL_MTP_ABSENT},
    {"{\"text_config\":{\"mtplx_mtp\":{\"included\":true}}}", BL_MTP_ABSENT},
    {"{}", BL_MTP_ABSENT},
    {"", BL_MTP_UNDETERMINABLE},
    {"[]", BL_MTP_UNDETERMINABLE},
    {"null", BL_MTP_UNDETERMINABLE},
    {"{\"mtplx_mtp\":{\"included\":true}", BL_MTP_UNDETERMINABLE},
    {"{\"mtplx_mtp\":{\"included\":true}} x", BL_MTP_UNDETERMINABLE},
    {"{\"mtplx_mtp\":{\"included\":true},\"mtplx_mtp\":{}}", BL_MTP_UNDETERMINABLE},
    {"{\"a\":\"\xff\"}", BL_MTP_UNDETERMINABLE},
};

static void test_probe_texts(void **state) {
    (void)state;
    for (size_t i = 0; i < BL_COUNTOF(texts); i++) {
        write_text(CONFIG_FILE, texts[i].text);
        bl_mtp_declaration got = declared_now();
        if (got != texts[i].want) {
            fail_msg("'%s': %s, not %s", texts[i].text, bl_mtp_declaration_name(got),
                     bl_mtp_declaration_name(texts[i].want));
        }
    }
}

static void test_probe_carries(void **state) {
    (void)state;
    static const uint8_t sha256_of_braces[4] = {0x44, 0x13, 0x6f, 0xa3};
    bl_mtp_probe p;
    bl_mtp_probe_read(NULL, &p);
    assert_int_equal(p.declaration, BL_MTP_ABSENT);
    bl_mtp_probe_done(&p);
    bl_mtp_probe_read(at("m"), &p);
    assert_string_equal(p.model_type, "qwen3_5");
    assert_int_equal(p.config_bytes, strlen(good_config));
    bl_mtp_probe_done(&p);
    write_text(CONFIG_FILE, "{}");
    bl_mtp_probe_read(at("m"), &p);
    assert_string_equal(p.model_type, "");
    assert_memory_equal(p.config_sha256, sha256_of_braces, sizeof sha256_of_braces);
    bl_mtp_probe_done(&p);
}

/* The loose bound, at it and one beyond. */
static void test_probe_bound(void **state) {
    (void)state;
    write_padded(CONFIG_FILE, good_config, BL_MTP_PROBE_MAX_BYTES);
    assert_int_equal(declared_now(), BL_MTP_DECLARED);
    assert_int_equal(truncate(at(CONFIG_FILE), (off_t)BL_MTP_PROBE_MAX_BYTES + 1), 0);
    assert_int_equal(declared_now(), BL_MTP_UNDETERMINABLE);
    finds("beyond the loose bound", BL_MTP_FOUND_CONFIG_TOO_LARGE, "config.json");
}

/* Beyond the strict bound a declaration is refused loudly, and a config without one stays silent. */
static void test_oversized(void **state) {
    (void)state;
    bl_mtp_probe p;
    bl_mtp_inspection i;
    write_padded(CONFIG_FILE, good_config, BL_MTP_INSPECT_MAX_BYTES);
    finds("at the strict bound", BL_MTP_FOUND_OK, "");
    write_padded(CONFIG_FILE, good_config, BL_MTP_INSPECT_MAX_BYTES + 1);
    finds("oversized, declared", BL_MTP_FOUND_CONFIG_TOO_LARGE, "1048577");
    bl_mtp_probe_read(at("m"), &p);
    assert_int_equal(p.declaration, BL_MTP_DECLARED);
    bl_mtp_decision d = decide_auto(&p, &i);
    assert_int_equal(d.reason, BL_MTP_INLINE_ARTIFACT_INVALID);
    assert_true(d.loud && d.configured);
    assert_non_null(strstr(d.detail, "config.json"));
    bl_mtp_probe_done(&p);

    write_padded(CONFIG_FILE, "{\"model_type\":\"qwen3_5\"}", BL_MTP_INSPECT_MAX_BYTES + 1);
    bl_mtp_probe_read(at("m"), &p);
    assert_int_equal(p.declaration, BL_MTP_ABSENT);
    d = decide_auto(&p, &i);
    assert_int_equal(d.reason, BL_MTP_CONFIG_DISABLED);
    assert_int_equal(i.finding, BL_MTP_FOUND_NOT_INSPECTED);
    assert_true(!d.loud && !d.configured);
    bl_mtp_probe_done(&p);
}

/* ---- one read ---- */

static const char *refused_path; /* its end; opening it fails */
static int refused_errno;
static unsigned n_config_opens;

static bool ends_with(const char *s, const char *end) {
    size_t n = strlen(s), m = strlen(end);
    return n >= m && strcmp(s + n - m, end) == 0;
}

static int hooked_open(const char *path, int flags, mode_t mode) {
    n_config_opens += ends_with(path, "/config.json");
    if (refused_path && ends_with(path, refused_path)) {
        errno = refused_errno;
        return -1;
    }
    bl_os_calls hooked = bl_os;
    bl_os_reset();
    int fd = bl_os.open(path, flags, mode);
    bl_os = hooked;
    return fd;
}

static void hook_open(const char *refused, int error) {
    refused_path = refused;
    refused_errno = error;
    n_config_opens = 0;
    bl_os.open = hooked_open;
}

static void test_reads_once(void **state) {
    (void)state;
    bl_mtp_probe p;
    bl_mtp_inspection i;
    hook_open(NULL, 0);
    bl_mtp_probe_read(at("m"), &p);
    bl_mtp_decision d = decide_auto(&p, &i);
    assert_int_equal(d.outcome, BL_MTP_EMBEDDED);
    assert_int_equal(n_config_opens, 1);
    bl_mtp_probe_done(&p);
}

/* The file after the probe has no say: not when the declaration is gone, not when one has come. */
static void test_swapped_between(void **state) {
    (void)state;
    static const char *const later[] = {"{}", "not json",
                                        CONFIG("{\"included\":true,\"prefix\":\"x.\"}", "{}")};
    for (size_t k = 0; k <= BL_COUNTOF(later); k++) {
        bl_mtp_probe p;
        bl_mtp_inspection i;
        write_text(CONFIG_FILE, good_config);
        bl_mtp_probe_read(at("m"), &p);
        if (k < BL_COUNTOF(later)) {
            write_text(CONFIG_FILE, later[k]);
        } else {
            assert_int_equal(unlink(at(CONFIG_FILE)), 0);
        }
        bl_mtp_decision d = decide_auto(&p, &i);
        assert_int_equal(d.outcome, BL_MTP_EMBEDDED);
        assert_memory_equal(i.config_sha256, p.config_sha256, sizeof i.config_sha256);
        bl_mtp_probe_done(&p);
    }
    bl_mtp_probe p;
    bl_mtp_inspection i;
    write_text(CONFIG_FILE, "{}");
    bl_mtp_probe_read(at("m"), &p);
    write_text(CONFIG_FILE, good_config);
    bl_mtp_decision d = decide_auto(&p, &i);
    assert_int_equal(d.reason, BL_MTP_CONFIG_DISABLED);
    assert_int_equal(d.source, BL_MTP_SOURCE_NONE);
    assert_false(d.loud);
    bl_mtp_probe_done(&p);
}

static void test_unreadable(void **state) {
    (void)state;
    hook_open("/config.json", EACCES);
    assert_int_equal(declared_now(), BL_MTP_UNDETERMINABLE);
    finds("config", BL_MTP_FOUND_CONFIG_UNREADABLE, "config.json");
    hook_open("/model.safetensors.index.json", EACCES);
    finds("index", BL_MTP_FOUND_INDEX_UNREADABLE, "index.json");
    hook_open("/mtp-1.safetensors", EACCES);
    finds("shard", BL_MTP_FOUND_SHARD_UNREADABLE, "mtp-1.safetensors");
}

/* ---- inspection: what the texts say ---- */

static const struct {
    const char *name, *config, *index, *shard; /* NULL: the good one */
    bl_mtp_finding want;
    const char *part;
} cases[] = {
#define HEAD(fields) CONFIG("{\"included\":true," fields "}", "{}"), NULL, NULL
    {"good", NULL, NULL, NULL, BL_MTP_FOUND_OK, ""},
    {"prefix given", HEAD("\"prefix\":\"mtp.\""), BL_MTP_FOUND_OK, ""},
    {"prefix other", HEAD("\"prefix\":\"head.\""), BL_MTP_FOUND_PREFIX, "'head.'"},
    {"prefix empty", HEAD("\"prefix\":\"\""), BL_MTP_FOUND_PREFIX, "prefix"},
    {"prefix no string", HEAD("\"prefix\":1"), BL_MTP_FOUND_PREFIX, "prefix"},
    {"block 2", HEAD("\"block_size\":2"), BL_MTP_FOUND_OK, ""},
    {"block 8", HEAD("\"block_size\":8"), BL_MTP_FOUND_OK, ""},
    {"block 1", HEAD("\"block_size\":1"), BL_MTP_FOUND_BLOCK_SIZE, "block_size"},
    {"block 9", HEAD("\"block_size\":9"), BL_MTP_FOUND_BLOCK_SIZE, "block_size"},
    {"block real", HEAD("\"block_size\":3.0"), BL_MTP_FOUND_BLOCK_SIZE, "block_size"},
    {"shares", HEAD("\"shares_target_embeddings\":true,\"shares_target_lm_head\":true"), BL_MTP_FOUND_OK, ""},
    {"own embedding", HEAD("\"shares_target_embeddings\":false"), BL_MTP_FOUND_OWN_MATRICES, "embeddings"},
    {"own output", HEAD("\"shares_target_lm_head\":false"), BL_MTP_FOUND_OWN_MATRICES, "lm_head"},
    {"shares no bool", HEAD("\"shares_target_lm_head\":1"), BL_MTP_FOUND_OWN_MATRICES, "lm_head"},
#undef HEAD
    {"not declared", "{}", NULL, NULL, BL_MTP_FOUND_NOT_DECLARED, "included"},
    {"config malformed", "{", NULL, NULL, BL_MTP_FOUND_CONFIG_MALFORMED, "config.json"},
    {"config no object", "[1]", NULL, NULL, BL_MTP_FOUND_CONFIG_MALFORMED, "no object"},
    {"config empty", "", NULL, NULL, BL_MTP_FOUND_CONFIG_EMPTY, "config.json is empty"},
    {"no quantization", "{\"mtplx_mtp\":{\"included\":true}}", NULL, NULL, BL_MTP_FOUND_QUANTIZATION,
     "missing"},
    {"quantization list", CONFIG("{\"included\":true}", "[]"), NULL, NULL, BL_MTP_FOUND_QUANTIZATION,
     "no object"},

    {"index empty", NULL, "", NULL, BL_MTP_FOUND_INDEX_EMPTY, "index.json is empty"},
    {"index malformed", NULL, "{", NULL, BL_MTP_FOUND_INDEX_MALFORMED, "index.json"},
    {"index list", NULL, "[]", NULL, BL_MTP_FOUND_INDEX_MALFORMED, "no object"},
    {"no map", NULL, "{}", NULL, BL_MTP_FOUND_INDEX_MALFORMED, "weight_map is missing"},
    {"map list", NULL, "{\"weight_map\":[]}", NULL, BL_MTP_FOUND_INDEX_MALFORMED, "weight_map is no object"},
    {"map value", NULL, INDEX("\"a\":1"), NULL, BL_MTP_FOUND_INDEX_MALFORMED, "'a'"},
    {"metadata", NULL, "{\"metadata\":1,\"weight_map\":{" IN_SHARD("mtp.fc.weight") "}}", NULL,
     BL_MTP_FOUND_INDEX_MALFORMED, "metadata"},
    {"no metadata", NULL, "{\"weight_map\":{" IN_SHARD("mtp.fc.weight") "}}", NULL, BL_MTP_FOUND_OK, ""},
    {"no tensor", NULL, INDEX("\"mtp_fc\":\"mtp-1.safetensors\""), NULL, BL_MTP_FOUND_NO_TENSORS, "mtp."},
    {"empty map", NULL, INDEX(""), NULL, BL_MTP_FOUND_NO_TENSORS, "mtp."},
    {"prefix alone", NULL, INDEX(IN_SHARD("mtp.")), NULL, BL_MTP_FOUND_KEY, "4 bytes"},

    {"shard in a folder", NULL, INDEX("\"mtp.a\":\"x/a.safetensors\""), NULL, BL_MTP_FOUND_SHARD_NAME, "x/a"},
    {"shard above", NULL, INDEX("\"mtp.a\":\"../a.safetensors\""), NULL, BL_MTP_FOUND_SHARD_NAME, ".."},
    {"shard absolute", NULL, INDEX("\"mtp.a\":\"/a.safetensors\""), NULL, BL_MTP_FOUND_SHARD_NAME, "/a"},
    {"shard backslash", NULL, INDEX("\"mtp.a\":\"x\\\\a.safetensors\""), NULL, BL_MTP_FOUND_SHARD_NAME, "x"},
    {"shard with two dots", NULL, INDEX("\"mtp.a\":\"a..safetensors\""), NULL, BL_MTP_FOUND_SHARD_NAME,
     "a.."},
    {"shard of another kind", NULL, INDEX("\"mtp.a\":\"a.bin\""), NULL, BL_MTP_FOUND_SHARD_NAME, "a.bin"},
    {"shard without a name", NULL, INDEX("\"mtp.a\":\"\""), NULL, BL_MTP_FOUND_SHARD_NAME, "shard"},
    {"shard missing", NULL, INDEX("\"mtp.a\":\"b.safetensors\""), NULL, BL_MTP_FOUND_SHARD_MISSING, "b.safe"},

    {"tensor missing", NULL, NULL, "mtp.fc.weight:BF16:6", BL_MTP_FOUND_TENSOR_MISSING, "mtp.norm.weight"},
    {"tensor empty", NULL, NULL, "mtp.fc.weight:BF16:0,mtp.norm.weight:BF16:1", BL_MTP_FOUND_TENSOR_EMPTY,
     "mtp.fc.weight"},
    {"others beside it", NULL, NULL, "mtp.fc.weight:BF16:6,mtp.norm.weight:F32:1,b:I32:1", BL_MTP_FOUND_OK,
     ""},
    {"integer weight", NULL, NULL, "mtp.fc.weight:BF16:6,mtp.norm.weight:I32:1", BL_MTP_FOUND_DTYPE, "I32"},
    {"unknown dtype", NULL, NULL, "mtp.fc.weight:BF16:6,mtp.norm.weight:F64:1", BL_MTP_FOUND_DTYPE, "F64"},
};

static void test_cases(void **state) {
    (void)state;
    for (size_t i = 0; i < BL_COUNTOF(cases); i++) {
        write_text(CONFIG_FILE, cases[i].config ? cases[i].config : good_config);
        write_text(INDEX_FILE, cases[i].index ? cases[i].index : good_index);
        write_shard(SHARD_FILE, cases[i].shard ? cases[i].shard : good_shard);
        finds(cases[i].name, cases[i].want, cases[i].part);
    }
}

/* A quantised head: weight, scales and biases of one module. */
#define AFFINE "{\"group_size\":64,\"bits\":4}"
static const struct {
    const char *name, *quantization, *weight, *scales, *biases;
    bl_mtp_finding want;
} quantized[] = {
    {"affine", AFFINE, "U32", "BF16", "BF16", BL_MTP_FOUND_OK},
    {"f16 scales", AFFINE, "U32", "F16", "BF16", BL_MTP_FOUND_DTYPE},
    {"f32 scales", AFFINE, "U32", "F32", "BF16", BL_MTP_FOUND_DTYPE},
    {"f16 biases", AFFINE, "U32", "BF16", "F16", BL_MTP_FOUND_DTYPE},
    {"byte scales with biases", AFFINE, "U32", "U8", "BF16", BL_MTP_FOUND_DTYPE},
    {"bf16 weight with scales", AFFINE, "BF16", "BF16", "BF16", BL_MTP_FOUND_DTYPE},
    {"small floats", AFFINE, "U32", "U8", NULL, BL_MTP_FOUND_OK},
    {"bf16 scales without biases", AFFINE, "U32", "BF16", NULL, BL_MTP_FOUND_DTYPE},
    {"nothing said", "{}", "U32", "BF16", "BF16", BL_MTP_FOUND_QUANTIZATION},
    {"bits alone", "{\"bits\":4}", "U32", "BF16", "BF16", BL_MTP_FOUND_QUANTIZATION},
    {"own entry", "{\"fc\":" AFFINE "}", "U32", "BF16", "BF16", BL_MTP_FOUND_OK},
    {"own entry with prefix", "{\"mtp.fc\":" AFFINE "}", "U32", "BF16", "BF16", BL_MTP_FOUND_OK},
    {"skipped", "{\"group_size\":64,\"bits\":4,\"fc\":false}", "U32", "BF16", "BF16",
     BL_MTP_FOUND_QUANTIZATION},
};

static void test_quantized(void **state) {
    (void)state;
    for (size_t i = 0; i < BL_COUNTOF(quantized); i++) {
        char config[512], shard[512];
        const char *biases = quantized[i].biases;
        snprintf(config, sizeof config, CONFIG("{\"included\":true}", "%s"), quantized[i].quantization);
        snprintf(shard, sizeof shard, "mtp.fc.weight:%s:4,mtp.fc.scales:%s:4%s%s%s", quantized[i].weight,
                 quantized[i].scales, biases ? ",mtp.fc.biases:" : "", biases ? biases : "",
                 biases ? ":4" : "");
        write_text(CONFIG_FILE, config);
        write_text(INDEX_FILE, biases ? INDEX(IN_SHARD("mtp.fc.weight") "," IN_SHARD(
                                            "mtp.fc.scales") "," IN_SHARD("mtp.fc.biases"))
                                      : INDEX(IN_SHARD("mtp.fc.weight") "," IN_SHARD("mtp.fc.scales")));
        write_shard(SHARD_FILE, shard);
        finds(quantized[i].name, quantized[i].want, "");
    }
}

/* ---- inspection: what the files are ---- */

static void test_folder(void **state) {
    (void)state;
    bl_mtp_inspection i = inspect_dir("none");
    assert_int_equal(i.finding, BL_MTP_FOUND_NO_FOLDER);
    i = inspect_dir(CONFIG_FILE);
    assert_int_equal(i.finding, BL_MTP_FOUND_NO_FOLDER);
}

static void test_missing_and_irregular(void **state) {
    (void)state;
    static const struct {
        const char *file;
        bl_mtp_finding missing, link, irregular;
    } files[] = {
        {CONFIG_FILE, BL_MTP_FOUND_CONFIG_MISSING, BL_MTP_FOUND_CONFIG_LINK, BL_MTP_FOUND_CONFIG_IRREGULAR},
        {INDEX_FILE, BL_MTP_FOUND_INDEX_MISSING, BL_MTP_FOUND_INDEX_LINK, BL_MTP_FOUND_INDEX_IRREGULAR},
        {SHARD_FILE, BL_MTP_FOUND_SHARD_MISSING, BL_MTP_FOUND_SHARD_LINK, BL_MTP_FOUND_SHARD_IRREGULAR},
    };
    for (size_t i = 0; i < BL_COUNTOF(files); i++) {
        const char *name = strchr(files[i].file, '/') + 1;
        assert_int_equal(rename(at(files[i].file), at("elsewhere.safetensors")), 0);
        finds("missing", files[i].missing, name);
        assert_int_equal(symlink(at("elsewhere.safetensors"), at(files[i].file)), 0);
        finds("link out of the folder", files[i].link, name);
        assert_int_equal(unlink(at(files[i].file)), 0);
        assert_int_equal(mkdir(at(files[i].file), 0700), 0);
        finds("folder", files[i].irregular, name);
        assert_int_equal(rmdir(at(files[i].file)), 0);
        assert_int_equal(mkfifo(at(files[i].file), 0600), 0);
        finds("pipe", files[i].irregular, name);
        assert_int_equal(unlink(at(files[i].file)), 0);
        assert_int_equal(rename(at("elsewhere.safetensors"), at(files[i].file)), 0);
        finds("back again", BL_MTP_FOUND_OK, "");
    }
}

/* As a hub cache stores it: the snapshot's files are links to blobs; and a link beyond the cache. */
static void test_hub_cache(void **state) {
    (void)state;
    static const char *const names[] = {"config.json", "model.safetensors.index.json", "mtp-1.safetensors"};
    char file[128], blob[128], snapshot[] = "models--a--b/snapshots/0a";
    make_dir("models--a--b/blobs");
    make_dir(snapshot);
    for (size_t i = 0; i < BL_COUNTOF(names); i++) {
        snprintf(file, sizeof file, "m/%s", names[i]);
        snprintf(blob, sizeof blob, "models--a--b/blobs/%zu", i);
        assert_int_equal(rename(at(file), at(blob)), 0);
        snprintf(file, sizeof file, "%s/%s", snapshot, names[i]);
        snprintf(blob, sizeof blob, "../../blobs/%zu", i);
        assert_int_equal(symlink(blob, at(file)), 0);
    }
    bl_mtp_inspection i = inspect_dir(snapshot);
    assert_string_equal(i.detail, "");
    assert_int_equal(i.finding, BL_MTP_FOUND_OK);
    assert_int_equal(rename(at("models--a--b/blobs/2"), at("outside")), 0);
    i = inspect_dir(snapshot);
    assert_int_equal(i.finding, BL_MTP_FOUND_SHARD_MISSING); /* a link to nothing */
    assert_int_equal(unlink(at(file)), 0);
    assert_int_equal(symlink("../../../outside", at(file)), 0);
    i = inspect_dir(snapshot);
    assert_int_equal(i.finding, BL_MTP_FOUND_SHARD_LINK);
}

static void test_index_bound(void **state) {
    (void)state;
    write_padded(INDEX_FILE, good_index, BL_MTP_INSPECT_MAX_BYTES);
    finds("at the bound", BL_MTP_FOUND_OK, "");
    write_padded(INDEX_FILE, good_index, BL_MTP_INSPECT_MAX_BYTES + 1);
    finds("beyond it", BL_MTP_FOUND_INDEX_TOO_LARGE, "1048577");
}

/* n tensors mtp.0 ... of one shard, whose names are len bytes long. */
static void write_many(unsigned n, size_t len) {
    bl_buf index, shard;
    bl_buf_init(&index, 1 << 20);
    bl_buf_init(&shard, 1 << 20);
    assert_int_equal(bl_buf_printf(&index, NULL, "{\"weight_map\":{"), BL_OK);
    assert_int_equal(bl_buf_append(&shard, "\0\0\0\0\0\0\0\0{", 9, NULL), BL_OK);
    for (unsigned i = 0; i < n; i++) {
        const char *comma = i ? "," : "";
        int digits = (int)len - 4;
        assert_int_equal(
            bl_buf_printf(&index, NULL, "%s\"mtp.%0*u\":\"mtp-1.safetensors\"", comma, digits, i), BL_OK);
        assert_int_equal(
            bl_buf_printf(&shard, NULL,
                          "%s\"mtp.%0*u\":{\"dtype\":\"BF16\",\"shape\":[1],\"data_offsets\":[%u,%u]}", comma,
                          digits, i, 2 * i, 2 * i + 2),
            BL_OK);
    }
    assert_int_equal(bl_buf_append_str(&index, "}}", NULL), BL_OK);
    assert_int_equal(bl_buf_append_char(&shard, '}', NULL), BL_OK);
    for (int i = 0; i < 8; i++) {
        shard.data[i] = (char)((shard.len - 8) >> 8 * i);
    }
    for (unsigned i = 0; i < n; i++) {
        assert_int_equal(bl_buf_append(&shard, "dd", 2, NULL), BL_OK);
    }
    write_bytes(INDEX_FILE, index.data, index.len);
    write_bytes(SHARD_FILE, shard.data, shard.len);
    bl_buf_done(&index);
    bl_buf_done(&shard);
}

static void test_names_bounds(void **state) {
    (void)state;
    char index[512], name[300];
    write_many(BL_MTP_MAX_TENSORS, 8);
    finds("512 tensors", BL_MTP_FOUND_OK, "");
    write_many(BL_MTP_MAX_TENSORS + 1, 8);
    finds("513 tensors", BL_MTP_FOUND_TOO_MANY_TENSORS, "513");
    write_many(1, BL_MTP_MAX_KEY_BYTES);
    finds("name of 1024 bytes", BL_MTP_FOUND_OK, "");
    write_many(1, BL_MTP_MAX_KEY_BYTES + 1);
    finds("name of 1025 bytes", BL_MTP_FOUND_KEY, "1025");
    for (size_t n = BL_MTP_MAX_SHARD_NAME; n <= BL_MTP_MAX_SHARD_NAME + 1; n++) {
        memset(name, 'n', sizeof name);
        snprintf(name + n - strlen(".safetensors"), 13, ".safetensors");
        snprintf(index, sizeof index, INDEX("\"mtp.a\":\"%s\""), name);
        write_text(INDEX_FILE, index);
        finds("shard's name",
              n == BL_MTP_MAX_SHARD_NAME ? BL_MTP_FOUND_SHARD_MISSING : BL_MTP_FOUND_SHARD_NAME, "");
    }
}

static void test_damaged_shard(void **state) {
    (void)state;
    struct stat st;
    assert_int_equal(stat(at(SHARD_FILE), &st), 0);
    for (off_t n = st.st_size - 1; n >= 0; n--) {
        assert_int_equal(truncate(at(SHARD_FILE), n), 0);
        finds("cut short", BL_MTP_FOUND_SHARD_MALFORMED, "mtp-1.safetensors");
    }
    write_shard(SHARD_FILE, good_shard);
    assert_int_equal(truncate(at(SHARD_FILE), st.st_size + 1), 0);
    finds("too long", BL_MTP_FOUND_SHARD_MALFORMED, "mtp-1.safetensors");
    /* the length of the header is believed where the file has room for it only */
    static const uint8_t large[8] = {1, 0, 0, 1}, huge[8] = {255, 255, 255, 255, 255, 255, 255, 255};
    write_bytes(SHARD_FILE, large, sizeof large);
    assert_int_equal(truncate(at(SHARD_FILE), (off_t)BL_MTP_MAX_HEADER_BYTES + 64), 0);
    finds("header beyond 16 MiB", BL_MTP_FOUND_SHARD_HEADER_TOO_LARGE, "16777217");
    write_bytes(SHARD_FILE, huge, sizeof huge);
    finds("header beyond the file", BL_MTP_FOUND_SHARD_MALFORMED, "mtp-1.safetensors");
}

/* ---- sizes ---- */

/* A sparse file: its tensor's bytes are never read. */
static void write_large(uint64_t bytes) {
    char header[256];
    int n = snprintf(header + 8, sizeof header - 8,
                     "{\"mtp.a\":{\"dtype\":\"BF16\",\"shape\":[%llu],\"data_offsets\":[0,%llu]}}",
                     (unsigned long long)bytes / 2, (unsigned long long)bytes);
    memset(header, 0, 8);
    header[0] = (char)n;
    write_bytes(SHARD_FILE, header, (size_t)n + 8);
    assert_int_equal(truncate(at(SHARD_FILE), n + 8 + (off_t)bytes), 0);
}

static void test_payload(void **state) {
    (void)state;
    bl_mtp_inspection i = inspect_dir("m");
    char revision[32];
    assert_int_equal(i.finding, BL_MTP_FOUND_OK);
    assert_int_equal(i.n_tensors, 2);
    assert_int_equal(i.block_size, 3);
    assert_int_equal(i.artifact_bytes, 14);
    assert_int_equal(i.resident_bytes, 17); /* 16.8 */
    snprintf(revision, sizeof revision, "inline-%02x%02x%02x%02x-%02x%02x%02x%02x", i.config_sha256[0],
             i.config_sha256[1], i.config_sha256[2], i.config_sha256[3], i.index_sha256[0], i.index_sha256[1],
             i.index_sha256[2], i.index_sha256[3]);
    assert_string_equal(i.revision, revision);
    assert_memory_not_equal(i.config_sha256, i.index_sha256, sizeof i.config_sha256);

    write_text(INDEX_FILE, INDEX(IN_SHARD("mtp.a")));
    write_large(BL_MTP_MAX_PAYLOAD);
    i = inspect_dir("m");
    assert_int_equal(i.finding, BL_MTP_FOUND_OK);
    assert_int_equal(i.artifact_bytes, BL_MTP_MAX_PAYLOAD);
    assert_int_equal(i.resident_bytes, 2576980378); /* 2576980377.6 */
    write_large(BL_MTP_MAX_PAYLOAD + 2);
    finds("beyond 2 GiB", BL_MTP_FOUND_PAYLOAD_TOO_LARGE, "2147483648");
}

/* Without an index, one file lists its tensors itself; with one, it does not. */
static void test_single_file(void **state) {
    (void)state;
    assert_int_equal(remove(at(INDEX_FILE)), 0);
    finds("neither", BL_MTP_FOUND_INDEX_MISSING, "model.safetensors.index.json");
    write_shard("m/model.safetensors", "a.weight:BF16:4,mtp.fc.weight:BF16:6,mtp.norm.weight:BF16:1");
    bl_mtp_inspection i = inspect_dir("m"), other;
    assert_int_equal(i.finding, BL_MTP_FOUND_OK);
    assert_int_equal(i.n_tensors, 2);
    assert_int_equal(i.artifact_bytes, 14); /* the head's own, not the target's */
    /* its header stands for the index: the data does not matter, a name does */
    write_shard("m/model.safetensors", "a.weight:BF16:4,mtp.fc.weight:BF16:6,mtp.nurm.weight:BF16:1");
    other = inspect_dir("m");
    assert_int_equal(other.finding, BL_MTP_FOUND_OK);
    assert_memory_not_equal(i.index_sha256, other.index_sha256, sizeof i.index_sha256);
    assert_memory_equal(i.config_sha256, other.config_sha256, sizeof i.config_sha256);
    write_shard("m/model.safetensors", "a.weight:BF16:4,mtp.fc.weight:F64:6");
    finds("dtype", BL_MTP_FOUND_DTYPE, "mtp.fc.weight");
    write_shard("m/model.safetensors", "a.weight:BF16:4");
    finds("no head in it", BL_MTP_FOUND_NO_TENSORS, "mtp.");
    write_text("m/model.safetensors", "short");
    finds("cut short", BL_MTP_FOUND_SHARD_MALFORMED, "model.safetensors");
    hook_open("/model.safetensors", EACCES);
    finds("unreadable", BL_MTP_FOUND_SHARD_UNREADABLE, "model.safetensors");
    bl_os_reset();
    write_shard("m/model.safetensors", "a.weight:BF16:4,mtp.fc.weight:BF16:6");
    write_text(INDEX_FILE, INDEX("\"a.weight\":\"model.safetensors\""));
    finds("an index rules", BL_MTP_FOUND_NO_TENSORS, "mtp.");
}

/* ---- a folder that holds a head alone ---- */

static const char local_config[] = "{\"model_type\":\"qwen3_5_mtp\"}";
static const char local_shard[] = "fc.weight:BF16:6,norm.weight:BF16:1";

static const struct {
    const char *name, *file, *config, *shard; /* file: one more member */
    bl_mtp_finding want;
    const char *part;
} local_cases[] = {
    {"good", NULL, NULL, NULL, BL_MTP_FOUND_OK, ""},
    {"moe", NULL, "{\"model_type\":\"qwen3_5_moe_mtp\",\"block_size\":8}", NULL, BL_MTP_FOUND_OK, ""},
    {"a target", NULL, "{\"model_type\":\"qwen3_5\"}", NULL, BL_MTP_FOUND_MODEL_TYPE, "'qwen3_5'"},
    {"no type", NULL, "{}", NULL, BL_MTP_FOUND_MODEL_TYPE, "model_type"},
    {"block 9", NULL, "{\"model_type\":\"qwen3_5_mtp\",\"block_size\":9}", NULL, BL_MTP_FOUND_BLOCK_SIZE,
     "block_size"},
    {"quantization", NULL, "{\"model_type\":\"qwen3_5_mtp\",\"quantization\":4}", NULL,
     BL_MTP_FOUND_QUANTIZATION, "quantization"},
    {"malformed", NULL, "{", NULL, BL_MTP_FOUND_CONFIG_MALFORMED, "config.json"},
    {"empty", NULL, "", NULL, BL_MTP_FOUND_CONFIG_EMPTY, "config.json"},
    {"a tokenizer", "h/tokenizer.json", NULL, NULL, BL_MTP_FOUND_FILE_STRANGE, "'tokenizer.json'"},
    {"an index", "h/model.safetensors.index.json", NULL, NULL, BL_MTP_FOUND_FILE_STRANGE, "index.json"},
    {"a hidden file", "h/.x", NULL, NULL, BL_MTP_FOUND_FILE_STRANGE, "'.x'"},
    {"no shard but its end", "h/y.safetensors", NULL, NULL, BL_MTP_FOUND_SHARD_MALFORMED, "y.safetensors"},
    {"f16 scales", NULL, NULL, "fc.weight:U32:2,fc.scales:F16:1,fc.biases:F16:1", BL_MTP_FOUND_DTYPE, "fc."},
    {"scales nobody describes", NULL, NULL, "fc.weight:U32:2,fc.scales:BF16:1,fc.biases:BF16:1",
     BL_MTP_FOUND_QUANTIZATION, "fc.scales"},
    {"scales described", NULL,
     "{\"model_type\":\"qwen3_5_mtp\",\"quantization\":{\"bits\":4,\"group_size\":64}}",
     "fc.weight:U32:2,fc.scales:BF16:1,fc.biases:BF16:1", BL_MTP_FOUND_OK, ""},
    {"the other key", NULL,
     "{\"model_type\":\"qwen3_5_mtp\",\"quantization_config\":{\"bits\":4,\"group_size\":64}}",
     "fc.weight:U32:2,fc.scales:BF16:1,fc.biases:BF16:1", BL_MTP_FOUND_OK, ""},
    {"a name without a dot", NULL, NULL, "weight:BF16:1", BL_MTP_FOUND_KEY, "'weight'"},
    {"a wrong type", NULL, NULL, "fc.weight:F64:1", BL_MTP_FOUND_DTYPE, "fc.weight"},
    {"an empty tensor", NULL, NULL, "fc.weight:BF16:0", BL_MTP_FOUND_TENSOR_EMPTY, "fc.weight"},
};

static void finds_local(const char *name, const char *path, bl_mtp_finding want, const char *part) {
    bl_mtp_inspection i;
    bl_mtp_inspect_local(path, &i);
    if (i.finding != want || (want == BL_MTP_FOUND_OK) != (i.detail[0] == '\0') || !strstr(i.detail, part)) {
        fail_msg("%s: %s, not %s: %s", name, bl_mtp_finding_name(i.finding), bl_mtp_finding_name(want),
                 i.detail);
    }
}

static void write_local(void) {
    make_dir("h");
    write_text("h/config.json", local_config);
    write_shard("h/head.safetensors", local_shard);
}

static void test_local_cases(void **state) {
    (void)state;
    write_local();
    for (size_t i = 0; i < BL_COUNTOF(local_cases); i++) {
        write_text("h/config.json", local_cases[i].config ? local_cases[i].config : local_config);
        write_shard("h/head.safetensors", local_cases[i].shard ? local_cases[i].shard : local_shard);
        if (local_cases[i].file) {
            write_text(local_cases[i].file, "x");
        }
        finds_local(local_cases[i].name, at("h"), local_cases[i].want, local_cases[i].part);
        if (local_cases[i].file) {
            assert_int_equal(remove(at(local_cases[i].file)), 0);
        }
    }
}

static void test_local_folder(void **state) {
    (void)state;
    char path[BL_MTP_MAX_PATH + 2], file[64];
    write_local();
    bl_mtp_inspection i;
    bl_mtp_inspect_local(at("h"), &i);
    assert_int_equal(i.n_tensors, 2);
    assert_int_equal(i.block_size, 3);
    assert_int_equal(i.artifact_bytes, 14);
    assert_int_equal(i.resident_bytes, 17);
    assert_memory_equal(i.revision, "local-", 6);
    assert_int_equal(strlen(i.revision), 6 + 16);
    memset(path, '/', sizeof path - 1);
    path[sizeof path - 1] = '\0';
    finds_local("a long path", path, BL_MTP_FOUND_FOLDER_PATH, "4097");
    finds_local("none", at("none"), BL_MTP_FOUND_NO_FOLDER, "none");
    finds_local("a file", at("h/config.json"), BL_MTP_FOUND_NO_FOLDER, "no folder");
    assert_int_equal(symlink("h", at("link")), 0);
    finds_local("a link", at("link"), BL_MTP_FOUND_FOLDER_LINK, "a link");
    assert_int_equal(rename(at("h/head.safetensors"), at("other")), 0);
    finds_local("no weights", at("h"), BL_MTP_FOUND_NO_TENSORS, "no tensor");
    assert_int_equal(symlink(at("other"), at("h/head.safetensors")), 0);
    finds_local("a link in it", at("h"), BL_MTP_FOUND_FILE_LINK, "head.safetensors");
    assert_int_equal(remove(at("h/head.safetensors")), 0);
    make_dir("h/sub.safetensors");
    finds_local("a folder in it", at("h"), BL_MTP_FOUND_FILE_STRANGE, "sub.safetensors");
    assert_int_equal(remove(at("h/sub.safetensors")), 0);
    assert_int_equal(remove(at("h/config.json")), 0);
    write_shard("h/head.safetensors", local_shard);
    finds_local("no config", at("h"), BL_MTP_FOUND_CONFIG_MISSING, "config.json");
    write_text("h/config.json", local_config);
    for (unsigned k = 0; k < BL_MTP_MAX_FILES - 1; k++) {
        char tensor[32];
        snprintf(file, sizeof file, "h/%u.safetensors", k);
        snprintf(tensor, sizeof tensor, "layers.%u.weight:BF16:1", k);
        if (k == BL_MTP_MAX_FILES - 2) {
            finds_local("64 files", at("h"), BL_MTP_FOUND_OK, "");
        }
        write_shard(file, tensor);
    }
    finds_local("65 files", at("h"), BL_MTP_FOUND_TOO_MANY_FILES, "64");
}

static void test_local_bounds(void **state) {
    (void)state;
    write_local();
    write_padded("h/config.json", local_config, BL_MTP_INSPECT_MAX_BYTES);
    finds_local("1 MiB", at("h"), BL_MTP_FOUND_OK, "");
    write_padded("h/config.json", local_config, BL_MTP_INSPECT_MAX_BYTES + 1);
    finds_local("and a byte", at("h"), BL_MTP_FOUND_CONFIG_TOO_LARGE, "1048577");
    write_text("h/config.json", local_config);
    write_text("h/z.safetensors", "");
    assert_int_equal(truncate(at("h/z.safetensors"), (off_t)BL_MTP_MAX_PAYLOAD), 0);
    finds_local("2 GiB", at("h"), BL_MTP_FOUND_PAYLOAD_TOO_LARGE, "2147483648");
}

/* Each allocation fails once: a head that could not be looked at is not accepted, and nothing leaks or stops.
 */
static size_t countdown;

static void *failing_malloc(size_t n) {
    if (countdown > 0 && --countdown == 0) {
        return NULL;
    }
    bl_os_calls hooked = bl_os;
    bl_os_reset();
    void *p = bl_os.malloc(n);
    bl_os = hooked;
    return p;
}

static void test_no_memory(void **state) {
    (void)state;
    for (size_t n = 1;; n++) {
        countdown = n;
        bl_os.malloc = failing_malloc;
        bl_mtp_inspection i = inspect_dir("m");
        bl_os_reset();
        if (countdown > 0) {
            assert_true(n > 3);
            assert_int_equal(i.finding, BL_MTP_FOUND_OK);
            break;
        }
        assert_int_equal(i.finding, BL_MTP_FOUND_NO_MEMORY);
        assert_true(i.detail[0] != '\0');
    }
}

static void test_names(void **state) {
    (void)state;
    for (int f = 0; f < BL_MTP_FOUND__MAX; f++) {
        assert_non_null(bl_mtp_finding_name((bl_mtp_finding)f));
        for (int g = 0; g < f; g++) {
            assert_string_not_equal(bl_mtp_finding_name((bl_mtp_finding)f),
                                    bl_mtp_finding_name((bl_mtp_finding)g));
        }
    }
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, begin, end)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_probe_texts),
        TEST(test_probe_carries),
        TEST(test_probe_bound),
        TEST(test_oversized),
        TEST(test_reads_once),
        TEST(test_swapped_between),
        TEST(test_unreadable),
        TEST(test_cases),
        TEST(test_quantized),
        TEST(test_folder),
        TEST(test_missing_and_irregular),
        TEST(test_hub_cache),
        TEST(test_index_bound),
        TEST(test_names_bounds),
        TEST(test_damaged_shard),
        TEST(test_payload),
        TEST(test_single_file),
        TEST(test_local_cases),
        TEST(test_local_folder),
        TEST(test_local_bounds),
        TEST(test_no_memory),
        cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
