/* The model store: folders made for the test, names and what they resolve to. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/base.h"
#include "base/file.h"
#include "provider/store.h"

static char root[256];
static bl_store store;

static const char *at(const char *rel) {
    static char paths[8][512];
    static unsigned next;
    char *p = paths[next++ % 8];
    snprintf(p, sizeof(paths[0]), "%s/%s", root, rel);
    return p;
}

static void put(const char *rel, size_t n) {
    char dir[512];
    snprintf(dir, sizeof(dir), "%s", at(rel));
    *strrchr(dir, '/') = '\0';
    assert_int_equal(bl_file_make_dirs(dir, NULL), BL_OK);
    char *data = bl_alloc(n + 1);
    assert_non_null(data);
    memset(data, 'a', n);
    assert_int_equal(bl_file_write_atomic(at(rel), data, n, NULL), BL_OK);
    bl_free(data);
}

static int set_up(void **state) {
    (void)state;
    snprintf(root, sizeof(root), "/tmp/bl_test_store.%ld", (long)getpid());
    put("models/gemma-3-270m.gguf", 5);
    put("models/acme--Big-Model-Q4/w.Q4_K_M.gguf", 7);
    put("models/acme--two/a.gguf", 1);
    put("models/acme--two/b.gguf", 2);
    put("models/acme--two/mmproj-x.gguf", 2);
    put("models/acme--hf/config.json", 2);
    put("models/acme--hf/model-1.safetensors", 10);
    put("models/acme--hf/model-2.safetensors", 20);
    put("models/acme--no-config/model.safetensors", 20);
    put("models/notes.txt", 20);
    put("models/.partial/acme--x/half.gguf", 20);
    put("hub/models--acme--hf/snapshots/aa/config.json", 2);
    put("hub/models--acme--hf/snapshots/aa/model.safetensors", 2);
    put("hub/models--org--cached/snapshots/0a1b/config.json", 2);
    put("hub/models--org--cached/snapshots/0a1b/model.safetensors", 3);
    put("hub/models--org--cached/snapshots/ffff/config.json", 2);
    put("hub/models--org--cached/snapshots/ffff/model.safetensors", 4);
    put("hub/models--org--noref/snapshots/old/config.json", 2);
    put("hub/models--org--noref/snapshots/old/model.safetensors", 1);
    put("hub/models--org--noref/snapshots/new/config.json", 2);
    put("hub/models--org--noref/snapshots/new/model.safetensors", 2);
    put("hub/models--org--empty/refs/main", 2);
    put("hub/datasets--org--data/snapshots/aa/model.safetensors", 2);
    assert_int_equal(bl_file_make_dirs(at("hub/models--org--cached/refs"), NULL), BL_OK);
    assert_int_equal(bl_file_write_atomic(at("hub/models--org--cached/refs/main"), "0a1b\n", 5, NULL), BL_OK);
    struct timespec past[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
    assert_int_equal(utimensat(AT_FDCWD, at("hub/models--org--noref/snapshots/old"), past, 0), 0);
    bl_store_settings s = {.models_dir = at("models"), .hf_hub_cache = at("hub")};
    return bl_store_init(&store, &s, NULL) == BL_OK ? 0 : 1;
}

static int tear_down(void **state) {
    (void)state;
    char cmd[512];
    snprintf(cmd, sizeof(cmd), "rm -rf '%s'", root);
    return system(cmd);
}

static void the_list_holds_what_can_run(void **state) {
    (void)state;
    bl_store_list l;
    bl_err err;
    assert_int_equal(bl_store_list_models(&store, &l, &err), BL_OK);
    static const struct {
        const char *name, *path;
        uint64_t size;
        bl_store_origin origin;
    } want[] = {
        {"acme/Big-Model-Q4", "models/acme--Big-Model-Q4/w.Q4_K_M.gguf", 7, BL_STORE_OWN},
        {"acme/hf", "models/acme--hf", 30, BL_STORE_OWN},
        {"acme/two/a.gguf", "models/acme--two/a.gguf", 1, BL_STORE_OWN},
        {"acme/two/b.gguf", "models/acme--two/b.gguf", 2, BL_STORE_OWN},
        {"gemma-3-270m", "models/gemma-3-270m.gguf", 5, BL_STORE_OWN},
        {"acme/hf", "hub/models--acme--hf/snapshots/aa", 2, BL_STORE_HF_CACHE},
        {"org/cached", "hub/models--org--cached/snapshots/0a1b", 3, BL_STORE_HF_CACHE},
        {"org/noref", "hub/models--org--noref/snapshots/new", 2, BL_STORE_HF_CACHE},
    };
    assert_int_equal(l.n, BL_COUNTOF(want));
    for (size_t i = 0; i < l.n; i++) {
        assert_string_equal(l.models[i].name, want[i].name);
        assert_string_equal(l.models[i].path, at(want[i].path));
        assert_int_equal(l.models[i].size_bytes, want[i].size);
        assert_int_equal(l.models[i].origin, want[i].origin);
    }
    bl_store_list_free(&l);
}

static void resolves(const char *name, const char *rel) {
    char *path = NULL;
    bl_err err;
    assert_int_equal(bl_store_resolve(&store, name, &path, &err), BL_OK);
    assert_string_equal(path, at(rel));
    bl_free(path);
}

static void refused(const char *name, bl_code code, const char *text) {
    char *path = NULL;
    bl_err err;
    assert_int_equal(bl_store_resolve(&store, name, &path, &err), code);
    assert_null(path);
    assert_non_null(strstr(err.msg, text));
}

static void names_resolve(void **state) {
    (void)state;
    resolves("gemma-3-270m", "models/gemma-3-270m.gguf");
    resolves("GEMMA", "models/gemma-3-270m.gguf");
    resolves("acme/big", "models/acme--Big-Model-Q4/w.Q4_K_M.gguf");
    resolves("big-model-q4", "models/acme--Big-Model-Q4/w.Q4_K_M.gguf");
    resolves("acme/hf", "models/acme--hf"); /* also in the other cache */
    resolves("hf", "models/acme--hf");
    resolves("b.gguf", "models/acme--two/b.gguf");
    resolves("cached", "hub/models--org--cached/snapshots/0a1b");
    char path[512];
    snprintf(path, sizeof(path), "%s", at("models/notes.txt"));
    resolves(path, "models/notes.txt"); /* an existing path is taken as it is */
}

static void unknown_and_ambiguous_names(void **state) {
    (void)state;
    refused("acme/two", BL_EINVAL,
            "'acme/two' could be any of 2 models: 'acme/two/a.gguf', 'acme/two/b.gguf'");
    refused("acme", BL_EINVAL, "could be any of 4 models");
    refused("gema-3-270m", BL_ENOTFOUND, "did you mean 'gemma-3-270m'?");
    refused("llama", BL_ENOTFOUND, "no model or file 'llama' (8 models here");
    refused("./llama", BL_ENOTFOUND, "no file or folder './llama'");
    refused("/nowhere/llama", BL_ENOTFOUND, "no file or folder");
    refused("", BL_EINVAL, "empty");
}

static void folders_follow_the_settings(void **state) {
    (void)state;
    bl_store s;
    bl_err err;
    assert_int_equal(bl_store_init(&s, &(bl_store_settings){.home = "/h"}, &err), BL_OK);
    assert_string_equal(s.models, "/h/.cache/darkbloom/models");
    assert_string_equal(s.hf_hub, "/h/.cache/huggingface/hub");
    assert_int_equal(
        bl_store_init(&s, &(bl_store_settings){.home = "/h", .cache_home = "/c", .hf_home = "/f"}, &err),
        BL_OK);
    assert_string_equal(s.models, "/c/darkbloom/models");
    assert_string_equal(s.hf_hub, "/f/hub");
    assert_int_equal(bl_store_init(&s, &(bl_store_settings){.models_dir = "m", .cache_home = ""}, &err),
                     BL_OK);
    assert_string_equal(s.models, "m");
    assert_string_equal(s.hf_hub, "");
    assert_int_equal(bl_store_init(&s, &(bl_store_settings){.home = ""}, &err), BL_EINVAL);
    /* Folders that do not exist hold no models. */
    bl_store_list l;
    assert_int_equal(bl_store_init(&s, &(bl_store_settings){.home = "/nowhere"}, &err), BL_OK);
    assert_int_equal(bl_store_list_models(&s, &l, &err), BL_OK);
    assert_int_equal(l.n, 0);
    bl_store_list_free(&l);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_list_holds_what_can_run),
        cmocka_unit_test(names_resolve),
        cmocka_unit_test(unknown_and_ambiguous_names),
        cmocka_unit_test(folders_follow_the_settings),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
