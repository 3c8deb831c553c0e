/* formats/checkpoint: which files belong to a model, links, shards, and the agreement of index and shards. */
#include "cmocka_all.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/base.h"
#include "base/buf.h"
#include "base/file.h"
#include "formats/checkpoint.h"
#include "formats/json.h"
#include "formats/limits.h"
#include "match.h"
#include "scratch_folder.h"

/* A safetensors file with tensors of 4 bytes, their names a comma-separated list. */
static void write_shard(const char *file, const char *names) {
    bl_buf b;
    unsigned n = 0;
    bl_buf_init(&b, 1 << 20);
    assert_int_equal(bl_buf_append(&b, "\0\0\0\0\0\0\0\0{", 9, NULL), BL_OK);
    while (*names) {
        size_t len = strcspn(names, ",");
        assert_int_equal(bl_buf_printf(&b, NULL,
                                       "%s\"%.*s\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[%u,%u]}",
                                       n ? "," : "", (int)len, names, 4 * n, 4 * n + 4),
                         BL_OK);
        names += len + (names[len] == ',');
        n++;
    }
    assert_int_equal(bl_buf_append_char(&b, '}', NULL), BL_OK);
    for (int i = 0; i < 8; i++) {
        b.data[i] = (char)((b.len - 8) >> 8 * i);
    }
    for (unsigned i = 0; i < n; i++) {
        assert_int_equal(bl_buf_append(&b, "data", 4, NULL), BL_OK);
    }
    write_bytes(file, b.data, b.len);
    bl_buf_done(&b);
}

/* The smallest GGUF file. */
static void write_gguf(const char *file) {
    static const char bytes[24] = {'G', 'G', 'U', 'F', 3};
    write_bytes(file, bytes, sizeof bytes);
}

/* Prints what differs; '#' in msg stands for digits and "ROOT" for the scratch folder. */
static bool fails_with(const char *name, const char *path, bl_code code, const char *msg) {
    char want[512] = "";
    bl_err err = {0};
    bl_checkpoint *c = NULL;
    bl_code rc = bl_checkpoint_open(path, &c, &err);
    const char *r = strstr(msg, "ROOT");
    if (r) {
        snprintf(want, sizeof want, "%.*s%s%s", (int)(r - msg), msg, root, r + 4);
    } else {
        snprintf(want, sizeof want, "%s", msg);
    }
    /* the scratch folder's own digits are no wildcards, so only patterns without ROOT may use '#' */
    bool ok =
        rc == code && err.code == code && !c && (r ? strcmp(err.msg, want) == 0 : msg_matches(err.msg, want));
    if (!ok) {
        print_error("case '%s': %s: %s\n", name, bl_code_name(rc), err.msg);
        bl_checkpoint_free(c);
    }
    return ok;
}

static bl_checkpoint *open_ok(const char *path) {
    bl_err err = {0};
    bl_checkpoint *c = NULL;
    if (bl_checkpoint_open(path, &c, &err) != BL_OK) {
        fail_msg("%s", err.msg);
    }
    return c;
}

/* ---- index and shards ---- */

/* Folder: config.json, a.safetensors with tensors x and y, b.safetensors with z, and the index of the case.
 */
static const struct {
    const char *name, *index;
    bl_code code;
    const char *msg;
} set_cases[] = {
    {"shard is absolute", "{\"weight_map\":{\"x\":\"/etc/a.safetensors\"}}", BL_EFORMAT,
     "checkpoint 'm': index: shard '/etc/a.safetensors' is a path, allowed are bare file names without '..'"},
    {"shard in a subfolder", "{\"weight_map\":{\"x\":\"d/a.safetensors\"}}", BL_EFORMAT,
     "checkpoint 'm': index: shard 'd/a.safetensors' is a path, allowed are bare file names without '..'"},
    {"shard with a backslash", "{\"weight_map\":{\"x\":\"d\\\\a.safetensors\"}}", BL_EFORMAT,
     "checkpoint 'm': index: shard 'd\\a.safetensors' is a path, allowed are bare file names without '..'"},
    {"shard with ..", "{\"weight_map\":{\"x\":\"..a.safetensors\"}}", BL_EFORMAT,
     "checkpoint 'm': index: shard '..a.safetensors' is a path, allowed are bare file names without '..'"},
    {"shard is ..", "{\"weight_map\":{\"x\":\"..\"}}", BL_EFORMAT,
     "checkpoint 'm': index: shard '..' is a path, allowed are bare file names without '..'"},
    {"shard with NUL", "{\"weight_map\":{\"x\":\"a\\u0000.safetensors\"}}", BL_EFORMAT,
     "checkpoint 'm': model.safetensors.index.json: line 1, column #: NUL in a string"},
    {"shard with a control byte", "{\"weight_map\":{\"x\":\"a\\n.safetensors\"}}", BL_EFORMAT,
     "checkpoint 'm': index: shard holds the control byte 0x0a at 1"},
    {"shard without a name", "{\"weight_map\":{\"x\":\"\"}}", BL_EFORMAT,
     "checkpoint 'm': index: shard is empty"},
    {"shard of another kind", "{\"weight_map\":{\"x\":\"config.json\"}}", BL_EFORMAT,
     "checkpoint 'm': index: shard 'config.json' does not end in .safetensors"},
    {"shard is a number", "{\"weight_map\":{\"x\":1}}", BL_EFORMAT,
     "checkpoint 'm': index: tensor 'x' has no file name"},
    {"bad name behind good ones", "{\"weight_map\":{\"x\":\"a.safetensors\",\"y\":\"../a.safetensors\"}}",
     BL_EFORMAT,
     "checkpoint 'm': index: shard '../a.safetensors' is a path, allowed are bare file names without '..'"},
    {"tensor listed but absent",
     "{\"weight_map\":{\"x\":\"a.safetensors\",\"y\":\"a.safetensors\",\"z\":\"b.safetensors\",\"w\":\"b."
     "safetensors\"}}",
     BL_EFORMAT, "checkpoint 'm': tensor 'w' is listed in the index but absent from shard 'b.safetensors'"},
    {"tensor listed in the wrong shard",
     "{\"weight_map\":{\"x\":\"a.safetensors\",\"y\":\"b.safetensors\",\"z\":\"b.safetensors\"}}", BL_EFORMAT,
     "checkpoint 'm': tensor 'y' is listed in the index but absent from shard 'b.safetensors'"},
    {"tensor present but unlisted", "{\"weight_map\":{\"x\":\"a.safetensors\",\"z\":\"b.safetensors\"}}",
     BL_EFORMAT,
     "checkpoint 'm': tensor 'y' is present in shard 'a.safetensors' but not listed in the index"},
    {"tensor in two shards",
     "{\"weight_map\":{\"x\":\"a.safetensors\",\"y\":\"a.safetensors\",\"z\":\"b.safetensors\",\"q\":\"c."
     "safetensors\"}}",
     BL_EFORMAT, "checkpoint 'm': tensor 'z' is present in two shards, allowed is one"},
    {"tensor listed twice", "{\"weight_map\":{\"x\":\"a.safetensors\",\"x\":\"b.safetensors\"}}", BL_EFORMAT,
     "checkpoint 'm': model.safetensors.index.json: line 1, column #: an object has the same key twice"},
    {"tensor name empty", "{\"weight_map\":{\"\":\"a.safetensors\"}}", BL_EFORMAT,
     "checkpoint 'm': index: tensor name is empty"},
    {"no weight_map", "{\"metadata\":{\"total_size\":12}}", BL_EFORMAT,
     "checkpoint 'm': index: 'weight_map' is missing, allowed is an object"},
    {"weight_map an array", "{\"weight_map\":[]}", BL_EFORMAT,
     "checkpoint 'm': index: 'weight_map' is no object, allowed is an object"},
    {"weight_map empty", "{\"weight_map\":{}}", BL_EFORMAT,
     "checkpoint 'm': index: 'weight_map' is empty, allowed are 1 tensor and more"},
    {"index an array", "[]", BL_EFORMAT, "checkpoint 'm': model.safetensors.index.json is no object"},
    {"index nested 5 deep", "{\"weight_map\":{},\"metadata\":{\"a\":[[[1]]]}}", BL_ELIMIT,
     "checkpoint 'm': model.safetensors.index.json is nested deeper than 4 at byte #"},
    {"index cut", "{\"weight_map\":{\"x\":\"a.safe", BL_EFORMAT,
     "checkpoint 'm': model.safetensors.index.json: line 1, column #: the text ends too early"},
    {"shard missing", "{\"weight_map\":{\"x\":\"gone.safetensors\"}}", BL_ENOTFOUND,
     "checkpoint 'm': cannot open 'ROOT/m/gone.safetensors': No such file or directory"},
    {"shard is a folder", "{\"weight_map\":{\"x\":\"d.safetensors\"}}", BL_EFORMAT,
     "checkpoint 'm': 'ROOT/m/d.safetensors' is a folder, a regular file is required"},
    {"shard is a pipe", "{\"weight_map\":{\"x\":\"p.safetensors\"}}", BL_EFORMAT,
     "checkpoint 'm': 'ROOT/m/p.safetensors' is no regular file, a regular file is required"},
    {"shard is empty", "{\"weight_map\":{\"x\":\"0.safetensors\"}}", BL_EFORMAT,
     "checkpoint 'm': 'ROOT/m/0.safetensors' is empty"},
    {"shard is damaged", "{\"weight_map\":{\"x\":\"bad.safetensors\"}}", BL_EFORMAT,
     "checkpoint 'm': safetensors 'bad.safetensors': file has 3 bytes, the header length alone needs 8"},
    {"shard is a link within the folder", "{\"weight_map\":{\"x\":\"in.safetensors\"}}", BL_EFORMAT,
     "checkpoint 'm': 'in.safetensors' is a link, allowed are links inside a Hugging Face cache (models--…) "
     "only"},
    {"shard is a link out of the folder", "{\"weight_map\":{\"x\":\"out.safetensors\"}}", BL_EFORMAT,
     "checkpoint 'm': 'out.safetensors' is a link, allowed are links inside a Hugging Face cache (models--…) "
     "only"},
};

static void test_set_rules(void **state) {
    (void)state;
    size_t n_bad = 0;
    write_text("m/config.json", "{}");
    write_shard("m/a.safetensors", "x,y");
    write_shard("m/b.safetensors", "z");
    write_shard("m/c.safetensors", "q,z");
    write_shard("m/0.safetensors", "");
    assert_int_equal(truncate(at("m/0.safetensors"), 0), 0);
    write_text("m/bad.safetensors", "abc");
    write_shard("outside.safetensors", "x");
    make_dir("m/d.safetensors");
    assert_int_equal(mkfifo(at("m/p.safetensors"), 0600), 0);
    assert_int_equal(symlink("a.safetensors", at("m/in.safetensors")), 0);
    assert_int_equal(symlink("../outside.safetensors", at("m/out.safetensors")), 0);
    for (size_t i = 0; i < BL_COUNTOF(set_cases); i++) {
        write_text("m/model.safetensors.index.json", set_cases[i].index);
        n_bad += !fails_with(set_cases[i].name, at("m"), set_cases[i].code, set_cases[i].msg);
    }
    assert_int_equal(n_bad, 0);
}

/* Exactly the named shards: model.safetensors beside the index and stray shards are not read. */
/* ---- shards of a draft head alone ---- */

#define MAP(more) "{\"weight_map\":{\"x\":\"a.safetensors\",\"y\":\"a.safetensors\"" more "}}"
#define IN_HEAD   ",\"mtp.v\":\"h.safetensors\",\"mtp.w\":\"h.safetensors\""

/* Folder: a.safetensors with x and y, h.safetensors as `head` says (NULL: missing), and the index. */
static const struct {
    const char *name, *index, *head;
    size_t n; /* tensors that are there */
    const char *left_out;
} head_cases[] = {
    {"whole", MAP(IN_HEAD), "mtp.v,mtp.w", 4, NULL},
    {"missing", MAP(IN_HEAD), NULL, 2, "h.safetensors"},
    {"a tensor missing", MAP(IN_HEAD), "mtp.v", 2, "'mtp.w' is listed in the index but absent"},
    {"a tensor too many", MAP(IN_HEAD), "mtp.v,mtp.w,mtp.x", 2,
     "'mtp.x' is present in shard 'h.safetensors'"},
    {"one of the model's", MAP(IN_HEAD), "mtp.v,mtp.w,x", 2, "'x' is present in shard 'h.safetensors'"},
    {"a path", MAP(",\"mtp.v\":\"../h.safetensors\""), NULL, 2, "'../h.safetensors' is a path"},
    {"another kind", MAP(",\"mtp.v\":\"h.bin\""), NULL, 2, "'h.bin' does not end in .safetensors"},
    {"no name", MAP(",\"mtp.v\":7"), NULL, 2, "'mtp.v' has no file name"},
    {"first of two", MAP(IN_HEAD ",\"mtp.z\":\"i.safetensors\""), NULL, 2, "h.safetensors"},
    {"second of two", MAP(IN_HEAD ",\"mtp.z\":\"i.safetensors\""), "mtp.v,mtp.w", 4, "i.safetensors"},
};

static void test_head_left_out(void **state) {
    (void)state;
    write_text("m/config.json", "{}");
    write_shard("m/a.safetensors", "x,y");
    for (size_t i = 0; i < BL_COUNTOF(head_cases); i++) {
        (void)remove(at("m/h.safetensors"));
        if (head_cases[i].head) {
            write_shard("m/h.safetensors", head_cases[i].head);
        }
        write_text("m/model.safetensors.index.json", head_cases[i].index);
        bl_checkpoint *c = open_ok(at("m"));
        const char *why = bl_checkpoint_left_out(c), *want = head_cases[i].left_out;
        if ((why == NULL) != (want == NULL) || (want && !strstr(why, want)) ||
            bl_checkpoint_count(c) != head_cases[i].n) {
            fail_msg("%s: %zu tensors, left out: %s", head_cases[i].name, bl_checkpoint_count(c), why);
        }
        assert_non_null(bl_checkpoint_find(c, "x"));
        bl_checkpoint_free(c);
    }
}

/* What is in the way of a shard: the head is left out, and named by its shard. */
static void test_head_damaged(void **state) {
    (void)state;
    write_text("m/config.json", "{}");
    write_text("m/model.safetensors.index.json", MAP(IN_HEAD));
    write_shard("m/a.safetensors", "x,y");
    write_shard("m/h.safetensors", "mtp.v,mtp.w");
    assert_int_equal(truncate(at("m/h.safetensors"), 60), 0);
    for (int turn = 0; turn < 3; turn++) {
        bl_checkpoint *c = open_ok(at("m"));
        assert_int_equal(bl_checkpoint_count(c), 2);
        assert_non_null(strstr(bl_checkpoint_left_out(c), "h.safetensors"));
        bl_checkpoint_free(c);
        (void)remove(at("m/h.safetensors"));
        if (turn == 0) { /* a link out of the folder, then a folder */
            write_shard("h.safetensors", "mtp.v,mtp.w");
            assert_int_equal(symlink(at("h.safetensors"), at("m/h.safetensors")), 0);
        } else {
            assert_int_equal(mkdir(at("m/h.safetensors"), 0700), 0);
        }
    }
}

/* A shard in which the model has a tensor too is the model's. */
static void test_head_beside_the_model(void **state) {
    (void)state;
    write_text("m/config.json", "{}");
    write_text("m/model.safetensors.index.json", MAP(",\"mtp.v\":\"a.safetensors\""));
    write_shard("m/a.safetensors", "x,y");
    assert_true(fails_with("absent", at("m"), BL_EFORMAT,
                           "checkpoint 'm': tensor 'mtp.v' is listed in the index but absent from shard "
                           "'a.safetensors'"));
    write_shard("m/a.safetensors", "x,y,mtp.v,mtp.w");
    assert_true(
        fails_with("unlisted", at("m"), BL_EFORMAT,
                   "checkpoint 'm': tensor 'mtp.w' is present in shard 'a.safetensors' but not listed "
                   "in the index"));
    write_text("m/model.safetensors.index.json", MAP(IN_HEAD ",\"z\":\"h.safetensors\""));
    write_shard("m/a.safetensors", "x,y");
    assert_true(fails_with("missing", at("m"), BL_ENOTFOUND,
                           "checkpoint 'm': cannot open 'ROOT/m/h.safetensors': No such file or directory"));
}

/* Drafts are verified, so a head that is cut short under a running load spoils nothing but itself. */
static void test_head_cut_while_open(void **state) {
    (void)state;
    write_text("m/config.json", "{}");
    write_text("m/model.safetensors.index.json", MAP(IN_HEAD));
    write_shard("m/a.safetensors", "x,y");
    write_shard("m/h.safetensors", "mtp.v,mtp.w");
    bl_checkpoint *c = open_ok(at("m"));
    assert_int_equal(truncate(at("m/h.safetensors"), 10), 0);
    assert_int_equal(bl_checkpoint_check_intact(c, NULL), BL_OK);
    assert_int_equal(truncate(at("m/a.safetensors"), 10), 0);
    assert_int_equal(bl_checkpoint_check_intact(c, NULL), BL_ECORRUPT);
    bl_checkpoint_free(c);
}

/* ---- a head from a folder of its own ---- */

static void write_own_head(void) {
    make_dir("h");
    write_text("h/config.json",
               "{\"model_type\":\"qwen3_5_mtp\",\"block_size\":4,\"quantization\":{\"bits\":4}}");
    write_shard("h/one.safetensors", "norm,layers.0.w");
    write_shard("h/two.safetensors", "fc");
}

static void test_attached_head(void **state) {
    (void)state;
    bl_err err = {0};
    write_text("m/config.json", "{\"a\":1}");
    write_shard("m/model.safetensors", "x,y,mtp.norm,mtp.other");
    write_own_head();
    bl_checkpoint *c = open_ok(at("m"));
    const bl_tensor_view *own = bl_checkpoint_find(c, "mtp.norm");
    const uint8_t *data = own->data;
    if (bl_checkpoint_attach_head(c, at("h"), &err) != BL_OK) {
        fail_msg("%s", err.msg);
    }
    /* the model's own tensors, and in place of its head's the other's under the prefix */
    static const char *const names[] = {"x", "y", "mtp.norm", "mtp.layers.0.w", "mtp.fc"};
    assert_int_equal(bl_checkpoint_count(c), BL_COUNTOF(names));
    for (size_t i = 0; i < BL_COUNTOF(names); i++) {
        const bl_tensor_view *t = bl_checkpoint_find(c, names[i]);
        assert_non_null(t);
        assert_string_equal(t->name, names[i]);
        assert_memory_equal(t->data, "data", 4);
    }
    assert_ptr_not_equal(bl_checkpoint_find(c, "mtp.norm")->data, data);
    assert_null(bl_checkpoint_find(c, "mtp.other"));
    assert_null(bl_checkpoint_find(c, "norm"));
    const json_t *config = bl_checkpoint_config(c), *head = json_object_get(config, "mtplx_mtp");
    assert_int_equal(json_integer_value(json_object_get(config, "a")), 1);
    assert_true(json_is_true(json_object_get(head, "included")));
    assert_int_equal(json_integer_value(json_object_get(head, "block_size")), 4);
    assert_string_equal(json_string_value(json_object_get(head, "model_type")), "qwen3_5_mtp");
    assert_int_equal(
        json_integer_value(json_object_get(json_object_get(config, "mtplx_mtp_quantization"), "bits")), 4);
    assert_int_equal(bl_checkpoint_check_intact(c, NULL), BL_OK);
    assert_int_equal(bl_checkpoint_attach_head(c, at("h"), &err), BL_ENOTSUP);
    bl_checkpoint_free(c);
}

/* Whatever is wrong with it, the checkpoint is as it was. */
static void test_attached_head_refused(void **state) {
    (void)state;
    static const struct {
        const char *file, *text; /* text NULL: a shard with the tensors of `part` */
        bl_code code;
        const char *part;
    } cases[] = {
        {"h/config.json", "{", BL_EFORMAT, "config.json"},
        {"h/config.json", "[]", BL_EFORMAT, "no object"},
        {"h/two.safetensors", "short", BL_EFORMAT, "two.safetensors"},
        {"h/two.safetensors", NULL, BL_EFORMAT, "norm"},
    };
    write_text("m/config.json", "{}");
    write_shard("m/model.safetensors", "x,mtp.norm");
    for (size_t i = 0; i < BL_COUNTOF(cases); i++) {
        bl_err err = {0};
        write_own_head();
        if (cases[i].text) {
            write_text(cases[i].file, cases[i].text);
        } else {
            write_shard(cases[i].file, cases[i].part);
        }
        bl_checkpoint *c = open_ok(at("m"));
        assert_int_equal(bl_checkpoint_attach_head(c, at("h"), &err), cases[i].code);
        assert_non_null(strstr(err.msg, cases[i].part));
        assert_int_equal(bl_checkpoint_count(c), 2);
        assert_non_null(bl_checkpoint_find(c, "mtp.norm"));
        assert_null(json_object_get(bl_checkpoint_config(c), "mtplx_mtp"));
        bl_checkpoint_free(c);
    }
    bl_checkpoint *c = open_ok(at("m"));
    assert_int_equal(bl_checkpoint_attach_head(c, at("none"), NULL), BL_ENOTFOUND);
    make_dir("e");
    write_text("e/config.json", "{}");
    assert_int_equal(bl_checkpoint_attach_head(c, at("e"), NULL), BL_ENOTFOUND);
    bl_checkpoint_free(c);
    write_gguf("g.gguf");
    c = open_ok(at("g.gguf"));
    assert_int_equal(bl_checkpoint_attach_head(c, at("h"), NULL), BL_ENOTSUP);
    bl_checkpoint_free(c);
}

static void test_index_wins(void **state) {
    (void)state;
    write_text("m/config.json", "{}");
    write_shard("m/a.safetensors", "x,y");
    write_shard("m/mtp-00001.safetensors", "mtp.z");
    write_text("m/model.safetensors", "not even a safetensors file");
    write_text("m/model-stray.safetensors", "nor this");
    write_text("m/model.safetensors.index.json", "{\"metadata\":{\"total_size\":12},\"weight_map\":{\"y\":"
                                                 "\"a.safetensors\",\"mtp.z\":\"mtp-00001.safetensors\","
                                                 "\"x\":\"a.safetensors\"}}");
    bl_checkpoint *c = open_ok(at("m"));
    assert_int_equal(bl_checkpoint_count(c), 3);
    assert_int_equal(bl_checkpoint_tensor_bytes(c), 12);
    assert_memory_equal(bl_checkpoint_find(c, "mtp.z")->data, "data", 4);
    assert_non_null(bl_checkpoint_find(c, "x"));
    assert_non_null(bl_checkpoint_find(c, "y"));
    assert_null(bl_checkpoint_find(c, "z"));
    bl_checkpoint_free(c);
}

static void test_shard_limit(void **state) {
    (void)state;
    write_text("m/config.json", "{}");
    for (unsigned n = BL_ST_MAX_SHARDS; n <= BL_ST_MAX_SHARDS + 1; n++) {
        bl_buf b;
        bl_buf_init(&b, 1 << 16);
        assert_int_equal(bl_buf_append_str(&b, "{\"weight_map\":{", NULL), BL_OK);
        for (unsigned i = 0; i < n; i++) {
            char file[64], tensor[16];
            snprintf(file, sizeof file, "m/%u.safetensors", i);
            snprintf(tensor, sizeof tensor, "t%u", i);
            write_shard(file, tensor);
            assert_int_equal(bl_buf_printf(&b, NULL, "%s\"%s\":\"%s\"", i ? "," : "", tensor, file + 2),
                             BL_OK);
        }
        assert_int_equal(bl_buf_append_str(&b, "}}", NULL), BL_OK);
        write_bytes("m/model.safetensors.index.json", b.data, b.len);
        bl_buf_done(&b);
        if (n == BL_ST_MAX_SHARDS) {
            bl_checkpoint *c = open_ok(at("m"));
            assert_int_equal(bl_checkpoint_count(c), n);
            bl_checkpoint_free(c);
        } else {
            assert_true(fails_with("65 shards", at("m"), BL_ELIMIT,
                                   "checkpoint 'm': index names 65 shards, allowed are 64"));
        }
    }
}

/* ---- the folder ---- */

static void test_folder_rules(void **state) {
    (void)state;
    assert_true(
        fails_with("absent", at("gone"), BL_ENOTFOUND, "cannot open 'ROOT/gone': No such file or directory"));
    assert_true(fails_with("nothing in it", at("m"), BL_ENOTFOUND,
                           "checkpoint 'm': folder 'ROOT/m' holds neither config.json nor a .gguf file"));
    write_gguf("m/one.gguf");
    bl_checkpoint *c = open_ok(at("m"));
    assert_int_equal(bl_checkpoint_kind_of(c), BL_CKPT_GGUF);
    assert_string_equal(bl_checkpoint_name(c), "one");
    bl_checkpoint_free(c);
    write_gguf("m/two.gguf");
    assert_true(fails_with(
        "two gguf files", at("m"), BL_EINVAL,
        "checkpoint 'm': folder 'ROOT/m' holds 2 .gguf files, allowed is one: name the file itself"));
    write_text("m/config.json", "{}");
    assert_true(
        fails_with("no weights", at("m"), BL_ENOTFOUND,
                   "checkpoint 'm': cannot open 'ROOT/m/model.safetensors': No such file or directory"));
    write_shard("m/model.safetensors", "x");
    write_text("m/config.json", "[]");
    assert_true(
        fails_with("config an array", at("m"), BL_EFORMAT, "checkpoint 'm': config.json is no object"));
    write_text("m/config.json", "{\"a\":1,\"a\":2}");
    assert_true(
        fails_with("config with a duplicate", at("m"), BL_EFORMAT,
                   "checkpoint 'm': config.json: line 1, column #: an object has the same key twice"));
    write_text("m/config.json", "{}");
    write_text("m/generation_config.json", "{");
    assert_true(
        fails_with("generation_config cut", at("m"), BL_EFORMAT,
                   "checkpoint 'm': generation_config.json: line 1, column #: the text ends too early"));
    write_text("m/generation_config.json", "{\"top_k\":64}");
    c = open_ok(at("m/"));
    assert_string_equal(bl_checkpoint_name(c), "m");
    uint64_t top_k = 0;
    assert_int_equal(bl_json_get_u64(bl_checkpoint_generation_config(c), "top_k", 0, 99, "g", &top_k, NULL),
                     BL_OK);
    assert_int_equal(top_k, 64);
    bl_checkpoint_free(c);
}

static void test_config_limits(void **state) {
    (void)state;
    char *text = bl_alloc(BL_MODEL_CONFIG_MAX_BYTES + 1);
    memset(text, ' ', BL_MODEL_CONFIG_MAX_BYTES + 1);
    text[0] = '{';
    text[1] = '}';
    write_shard("m/model.safetensors", "x");
    write_bytes("m/config.json", text, BL_MODEL_CONFIG_MAX_BYTES);
    bl_checkpoint_free(open_ok(at("m")));
    write_bytes("m/config.json", text, BL_MODEL_CONFIG_MAX_BYTES + 1);
    assert_true(fails_with("config of 64 MiB and a byte", at("m"), BL_ELIMIT,
                           "checkpoint 'm': 'ROOT/m/config.json' has 67108865 bytes, 67108864 allowed"));
    write_text("m/config.json", "{}");
    write_bytes("m/generation_config.json", text, BL_CONFIG_MAX_BYTES + 1);
    assert_true(
        fails_with("generation_config of 1 MiB and a byte", at("m"), BL_ELIMIT,
                   "checkpoint 'm': 'ROOT/m/generation_config.json' has 1048577 bytes, 1048576 allowed"));
    assert_int_equal(remove(at("m/generation_config.json")), 0);
    memcpy(text, "{\"a\":", 5);
    memset(text + 5, '[', 100000);
    write_bytes("m/config.json", text, 100005);
    assert_true(fails_with("config nested 100,001 deep", at("m"), BL_ELIMIT,
                           "checkpoint 'm': config.json is nested deeper than 32 at byte #"));
    /* sizes are bounded before anything is multiplied or allocated */
    write_text("m/config.json", "{\"num_hidden_layers\":1000000000,\"hidden_size\":-1,\"vocab_size\":1e9}");
    bl_checkpoint *c = open_ok(at("m"));
    bl_err err = {0};
    uint64_t n = 0;
    const json_t *o = bl_checkpoint_config(c);
    assert_int_equal(bl_json_get_u64(o, "num_hidden_layers", 1, 1024, "config.json", &n, &err), BL_EFORMAT);
    assert_string_equal(err.msg, "config.json: 'num_hidden_layers' is 1000000000, allowed are 1 to 1024");
    assert_int_equal(bl_json_get_u64(o, "hidden_size", 1, 1024, "config.json", &n, &err), BL_EFORMAT);
    assert_int_equal(bl_json_get_u64(o, "vocab_size", 1, 1024, "config.json", &n, &err), BL_EFORMAT);
    bl_checkpoint_free(c);
    bl_free(text);
}

static void test_gguf_file_rules(void **state) {
    (void)state;
    write_text("x.gguf", "GGUF");
    assert_true(fails_with("cut gguf", at("x.gguf"), BL_EFORMAT,
                           "gguf 'x.gguf': version needs 4 bytes at 4, file has 4 bytes"));
    write_text("x.bin", "PK\3\4 something else");
    assert_true(fails_with("no gguf", at("x.bin"), BL_EFORMAT,
                           "gguf 'x.bin': file of 19 bytes does not start with 'GGUF'"));
    write_gguf("real.gguf");
    assert_int_equal(symlink("real.gguf", at("link.gguf")), 0);
    bl_checkpoint *c = open_ok(at("link.gguf"));
    assert_string_equal(bl_checkpoint_name(c), "link");
    assert_string_equal(bl_checkpoint_path(c), at("link.gguf"));
    bl_buf b;
    bl_err err = {0};
    assert_int_equal(bl_checkpoint_read_side(c, "tokenizer.json", 100, &b, &err), BL_ENOTFOUND);
    assert_string_equal(err.msg, "'tokenizer.json' does not exist: the checkpoint is a GGUF file");
    bl_checkpoint_free(c);
}

static void test_side_files(void **state) {
    (void)state;
    write_text("m/config.json", "{}");
    write_shard("m/model.safetensors", "x");
    write_text("m/chat_template.jinja", "hello");
    write_text("secret", "s");
    bl_checkpoint *c = open_ok(at("m"));
    bl_buf b;
    bl_err err = {0};
    assert_int_equal(bl_checkpoint_read_side(c, "chat_template.jinja", 5, &b, &err), BL_OK);
    assert_string_equal(bl_buf_str(&b), "hello");
    bl_buf_done(&b);
    assert_int_equal(bl_checkpoint_read_side(c, "chat_template.jinja", 4, &b, &err), BL_ELIMIT);
    assert_int_equal(bl_checkpoint_read_side(c, "tokenizer.json", 4, &b, &err), BL_ENOTFOUND);
    assert_int_equal(bl_checkpoint_read_side(c, "../secret", 4, &b, &err), BL_EFORMAT);
    assert_string_equal(err.msg, "file name '../secret' is a path, allowed are bare file names without '..'");
    assert_int_equal(symlink("../secret", at("m/link")), 0);
    assert_int_equal(bl_checkpoint_read_side(c, "link", 4, &b, &err), BL_EFORMAT);
    bl_checkpoint_free(c);
}

/* ---- Hugging Face cache: snapshots/<revision>/file -> ../../blobs/<hash> ---- */

#define SNAP "models--google--tiny-it/snapshots/0123abcd"

static void make_cache(void) {
    make_dir(SNAP);
    make_dir("models--google--tiny-it/blobs");
    make_dir("models--google--tiny-it-evil");
    write_text("models--google--tiny-it/blobs/aa", "{\"model_type\":\"x\"}");
    write_shard("models--google--tiny-it/blobs/bb", "x,y");
    write_shard("models--google--tiny-it-evil/bb", "x,y");
    assert_int_equal(symlink("../../blobs/aa", at(SNAP "/config.json")), 0);
}

static void test_cache_links(void **state) {
    (void)state;
    make_cache();
    assert_int_equal(symlink("../../blobs/bb", at(SNAP "/model.safetensors")), 0);
    bl_checkpoint *c = open_ok(at(SNAP));
    assert_string_equal(bl_checkpoint_name(c), "tiny-it");
    assert_int_equal(bl_checkpoint_count(c), 2);
    bl_checkpoint_free(c);
    /* a link to the snapshot folder itself is the user's own choice */
    assert_int_equal(symlink(SNAP, at("short")), 0);
    c = open_ok(at("short"));
    assert_string_equal(bl_checkpoint_name(c), "tiny-it");
    bl_checkpoint_free(c);
}

static void test_cache_links_out(void **state) {
    (void)state;
    static const char *const targets[] = {"../../../models--google--tiny-it-evil/bb",
                                          "../../../m/model.safetensors"};
    make_cache();
    write_shard("m/model.safetensors", "x");
    for (size_t i = 0; i < BL_COUNTOF(targets); i++) {
        assert_int_equal(symlink(targets[i], at(SNAP "/model.safetensors")), 0);
        assert_true(fails_with(
            targets[i], at(SNAP), BL_EFORMAT,
            "checkpoint '0123abcd': 'model.safetensors' is a link out of 'ROOT/models--google--tiny-it', "
            "allowed are links below it"));
        assert_int_equal(unlink(at(SNAP "/model.safetensors")), 0);
    }
    assert_int_equal(symlink("../../blobs/gone", at(SNAP "/model.safetensors")), 0);
    assert_true(fails_with("dangling", at(SNAP), BL_ENOTFOUND,
                           "checkpoint '0123abcd': cannot open 'ROOT/" SNAP
                           "/model.safetensors': No such file or directory"));
}

/* A damaged blob is named by the shard, not only by its hash. */
static void test_cache_damaged_blob(void **state) {
    (void)state;
    make_cache();
    write_text("models--google--tiny-it/blobs/cc", "abc");
    assert_int_equal(symlink("../../blobs/cc", at(SNAP "/model.safetensors")), 0);
    assert_true(fails_with(
        "damaged", at(SNAP), BL_EFORMAT,
        "checkpoint '0123abcd': model.safetensors: safetensors 'cc': file has 3 bytes, the header length "
        "alone needs 8"));
}

/* ---- files that change under the map ---- */

static void test_cut_while_open(void **state) {
    (void)state;
    static char big[300000];
    bl_err err = {0};
    int len =
        snprintf(big + 8, 200, "{\"x\":{\"dtype\":\"U8\",\"shape\":[200000],\"data_offsets\":[0,200000]}}");
    big[0] = (char)len;
    memset(big + 8 + len, 'w', 200000);
    write_text("m/config.json", "{}");
    write_bytes("m/model.safetensors", big, 8 + (size_t)len + 200000);
    bl_checkpoint *c = open_ok(at("m"));
    const bl_tensor_view *t = bl_checkpoint_find(c, "x");
    assert_int_equal(bl_checkpoint_check_intact(c, &err), BL_OK);
    assert_int_equal(truncate(at("m/model.safetensors"), 4096), 0);
    const volatile uint8_t *p = t->data;
    assert_int_equal(p[100], 'w');
    assert_int_equal(p[199999], 0); /* no SIGBUS */
    assert_int_equal(bl_checkpoint_check_intact(c, &err), BL_ECORRUPT);
    assert_string_equal(
        err.msg, "file 'model.safetensors' was cut short while it was read, allowed are files that keep "
                 "their size");
    bl_checkpoint_free(c);
}

static void test_written_or_replaced_while_open(void **state) {
    (void)state;
    bl_err err = {0};
    write_text("m/config.json", "{}");
    write_shard("m/model.safetensors", "x");
    bl_checkpoint *c = open_ok(at("m"));
    write_shard("m/model.safetensors", "y"); /* by rename: the map keeps the old file */
    assert_int_equal(bl_checkpoint_check_intact(c, &err), BL_OK);
    bl_checkpoint_free(c);
    c = open_ok(at("m"));
    FILE *f = fopen(at("m/model.safetensors"), "r+");
    assert_non_null(f);
    fputc('!', f);
    fclose(f);
    const struct timespec times[2] = {{.tv_sec = 1}, {.tv_sec = 1}};
    assert_int_equal(utimensat(AT_FDCWD, at("m/model.safetensors"), times, 0),
                     0); /* whatever the clock's grain */
    assert_int_equal(bl_checkpoint_check_intact(c, &err), BL_ECORRUPT);
    assert_string_equal(err.msg, "file 'model.safetensors' was written to while it was read");
    assert_int_equal(truncate(at("m/model.safetensors"), 12), 0);
    assert_int_equal(bl_checkpoint_check_intact(c, &err), BL_ECORRUPT);
    assert_true(
        msg_matches(err.msg, "file 'model.safetensors' had # bytes when it was opened and has 12 now"));
    bl_checkpoint_free(c);
    write_gguf("x.gguf");
    c = open_ok(at("x.gguf"));
    assert_int_equal(bl_checkpoint_check_intact(c, &err), BL_OK);
    assert_int_equal(truncate(at("x.gguf"), 12), 0);
    assert_int_equal(bl_checkpoint_check_intact(c, &err), BL_ECORRUPT);
    bl_checkpoint_free(c);
}

/* ---- good checkpoints ---- */

static void test_opens_tiny_folders(void **state) {
    (void)state;
    static const struct {
        const char *name, *type;
    } models[] = {{"gemma3-tiny", "gemma3_text"}, {"llama-tiny", "llama"}};
    for (size_t i = 0; i < BL_COUNTOF(models); i++) {
        char path[512];
        bl_err err = {0};
        bl_checkpoint *c = NULL;
        snprintf(path, sizeof path, BL_SOURCE_DIR "/tests/fixtures/tiny/%s", models[i].name);
        assert_int_equal(bl_checkpoint_open(path, &c, &err), BL_OK);
        assert_int_equal(bl_checkpoint_kind_of(c), BL_CKPT_HF);
        assert_string_equal(bl_checkpoint_name(c), models[i].name);
        assert_string_equal(bl_checkpoint_path(c), path);
        assert_null(bl_checkpoint_gguf(c));
        const char *type = NULL;
        assert_int_equal(bl_json_get_str(bl_checkpoint_config(c), "model_type", "config.json", &type, &err),
                         BL_OK);
        assert_string_equal(type, models[i].type);
        const bl_tensor_view *t = bl_checkpoint_find(c, "model.embed_tokens.weight");
        assert_non_null(t);
        assert_int_equal(t->dtype, BL_DTYPE_BF16);
        assert_int_equal(t->n_dims, 2);
        assert_int_equal(t->size_bytes, 2 * t->dims[0] * t->dims[1]);
        assert_null(bl_checkpoint_find(c, "model.embed_tokens.weigh"));
        uint64_t sum = 0;
        for (size_t k = 0; k < bl_checkpoint_count(c); k++) {
            t = bl_checkpoint_at(c, k);
            sum += t->size_bytes;
            assert_ptr_equal(bl_checkpoint_find(c, t->name), t);
            assert_int_equal(bl_dtype_check_finite(t->dtype, t->data, t->size_bytes / 2, &err), BL_OK);
        }
        assert_int_equal(sum, bl_checkpoint_tensor_bytes(c));
        bl_checkpoint_free(c);
    }
}

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static void touch_all(const bl_gguf *g) {
    for (size_t i = 0; i < bl_gguf_count(g); i++) {
        const bl_tensor_view *t = bl_gguf_at(g, i);
        const bl_dtype_info *info = bl_dtype_get(t->dtype);
        bl_err err = {0};
        assert_int_equal(bl_dtype_check_finite(t->dtype, t->data,
                                               t->size_bytes / info->block_bytes * info->block_elems, &err),
                         BL_OK);
    }
}

/* Real files, when this machine has them. */
static void test_opens_real_gguf(void **state) {
    (void)state;
    static const struct {
        const char *path, *name, *arch;
        size_t n_vocab;
    } models[] = {
        {"/tmp/models/gemma-3-270m-q4_k_m.gguf", "gemma-3-270m-q4_k_m", "gemma3", 262144},
        {"/tmp/models/SmolLM2-135M-Instruct.Q4_1.gguf", "SmolLM2-135M-Instruct.Q4_1", "llama", 49152},
    };
    size_t n_done = 0;
    for (size_t i = 0; i < BL_COUNTOF(models); i++) {
        bl_err err = {0};
        bl_checkpoint *c = NULL;
        double begin = now_ms();
        bl_code rc = bl_checkpoint_open(models[i].path, &c, &err);
        if (rc == BL_ENOTFOUND) {
            continue;
        }
        assert_int_equal(rc, BL_OK);
        print_message("%s: opened in %.1f ms\n", models[i].name, now_ms() - begin);
        assert_int_equal(bl_checkpoint_kind_of(c), BL_CKPT_GGUF);
        assert_string_equal(bl_checkpoint_name(c), models[i].name);
        const bl_gguf *g = bl_checkpoint_gguf(c);
        const char *arch = NULL;
        size_t len = 0;
        bool found = false;
        assert_int_equal(bl_gguf_get_str(g, "general.architecture", &arch, &len, &found, &err), BL_OK);
        assert_true(found && len == strlen(models[i].arch) && memcmp(arch, models[i].arch, len) == 0);
        bl_gguf_strings tokens = {0};
        assert_int_equal(bl_gguf_get_strings(g, "tokenizer.ggml.tokens", &tokens, &found, &err), BL_OK);
        assert_int_equal(tokens.n, models[i].n_vocab);
        const bl_tensor_view *t = bl_checkpoint_find(c, "token_embd.weight");
        assert_int_equal(t->dims[0], models[i].n_vocab);
        touch_all(g);
        bl_checkpoint_release_pages(c, t);
        bl_checkpoint_free(c);
        n_done++;
    }
    if (n_done == 0) {
        print_message("skipped: no model in /tmp/models\n");
        skip();
    }
}

/* The rule on links, for a file that is not opened here. */
static void test_locate(void **state) {
    (void)state;
    char want[PATH_MAX], *path = NULL;
    bl_err err = {0};
    write_text("m/a.json", "{}");
    assert_int_equal(symlink("a.json", at("m/b.json")), 0);
    assert_int_equal(bl_file_make_dirs(at("models--x--y/snapshots/0"), NULL), BL_OK);
    assert_int_equal(symlink("../../blob", at("models--x--y/snapshots/0/c.json")), 0);
    assert_int_equal(bl_checkpoint_locate(at("m"), "a.json", &path, &err), BL_OK);
    assert_non_null(realpath(at("m/a.json"), want));
    assert_string_equal(path, want);
    bl_free(path);
    path = NULL;
    assert_int_equal(bl_checkpoint_locate(at("m"), "b.json", &path, &err), BL_EFORMAT);
    assert_int_equal(bl_checkpoint_locate(at("m"), "none.json", &path, &err), BL_ENOTFOUND);
    assert_int_equal(bl_checkpoint_locate(at("m"), "../m/a.json", &path, &err), BL_EFORMAT);
    assert_int_equal(bl_checkpoint_locate(at("none"), "a.json", &path, &err), BL_ENOTFOUND);
    assert_int_equal(bl_checkpoint_locate(at("models--x--y/snapshots/0"), "c.json", &path, &err),
                     BL_ENOTFOUND);
    assert_null(path);
    write_text("models--x--y/blob", "{}");
    assert_int_equal(bl_checkpoint_locate(at("models--x--y/snapshots/0"), "c.json", &path, &err), BL_OK);
    assert_non_null(realpath(at("models--x--y/blob"), want));
    assert_string_equal(path, want);
    bl_free(path);
}

#define IN_ROOT(f) cmocka_unit_test_setup_teardown(f, make_root, remove_root)

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_ROOT(test_set_rules),
        IN_ROOT(test_index_wins),
        IN_ROOT(test_head_left_out),
        IN_ROOT(test_head_damaged),
        IN_ROOT(test_head_beside_the_model),
        IN_ROOT(test_head_cut_while_open),
        IN_ROOT(test_attached_head),
        IN_ROOT(test_attached_head_refused),
        IN_ROOT(test_shard_limit),
        IN_ROOT(test_folder_rules),
        IN_ROOT(test_config_limits),
        IN_ROOT(test_gguf_file_rules),
        IN_ROOT(test_side_files),
        IN_ROOT(test_cache_links),
        IN_ROOT(test_cache_links_out),
        IN_ROOT(test_cache_damaged_blob),
        IN_ROOT(test_locate),
        IN_ROOT(test_cut_while_open),
        IN_ROOT(test_written_or_replaced_while_open),
        cmocka_unit_test(test_opens_tiny_folders),
        cmocka_unit_test(test_opens_real_gguf),
    };
    return cmocka_run_group_tests_name("checkpoint", tests, NULL, NULL);
}
