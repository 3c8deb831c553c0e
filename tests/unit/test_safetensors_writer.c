/* formats/safetensors_writer: what is written opens as a checkpoint and holds the same bytes, however it is
 * cut; a folder without a finish is left empty; mistakes are refused.
 */
#include "cmocka_all.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "base/file.h"
#include "formats/checkpoint.h"
#include "formats/safetensors_writer.h"

static char dir[64];

static int make_dir(void **state) {
    (void)state;
    snprintf(dir, sizeof dir, "/tmp/bl-writer-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static uint32_t count_files(void) {
    DIR *d = opendir(dir);
    assert_non_null(d);
    uint32_t n = 0;
    for (struct dirent *e; (e = readdir(d));) {
        n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    }
    closedir(d);
    return n;
}

static void remove_all(void) {
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s", dir, e->d_name);
        (void)unlink(path);
    }
    closedir(d);
}

static int remove_dir(void **state) {
    (void)state;
    remove_all();
    return rmdir(dir);
}

/* Byte k of tensor i. */
static uint8_t byte_of(uint32_t i, uint64_t k) {
    return (uint8_t)(i * 37 + k * 11 + k / 256);
}

#define N_TENSORS 6
static const struct {
    const char *name;
    bl_dtype dtype;
    uint32_t n_dims;
    uint64_t dims[3];
    const char *file;
} plan[N_TENSORS] = {
    {"b.weight", BL_DTYPE_U32, 2, {5, 7}, NULL},
    {"b.scales", BL_DTYPE_BF16, 2, {5, 3}, NULL},
    {"a \"quoted\\\" name", BL_DTYPE_U8, 1, {13}, NULL},
    {"mtp.x", BL_DTYPE_F32, 3, {2, 1, 3}, "mtp-00001.safetensors"},
    {"scalar", BL_DTYPE_F16, 0, {0}, NULL},
    {"empty", BL_DTYPE_F32, 2, {0, 4}, NULL},
};

static bl_safetensors_writer *begin(uint64_t max_shard_bytes) {
    bl_safetensors_writer *w = NULL;
    bl_err err;
    assert_int_equal(bl_safetensors_writer_new(dir, max_shard_bytes, &w, &err), BL_OK);
    for (uint32_t i = 0; i < N_TENSORS; i++) {
        uint32_t id = 99;
        assert_int_equal(bl_safetensors_writer_plan(w, plan[i].name, plan[i].dtype, plan[i].n_dims,
                                                    plan[i].dims, plan[i].file, &id, &err),
                         BL_OK);
        assert_int_equal(id, i);
    }
    assert_int_equal(bl_safetensors_writer_begin(w, &err), BL_OK);
    return w;
}

static const uint64_t sizes[N_TENSORS] = {140, 30, 13, 24, 2, 0};

/* All bytes, in pieces of `piece`, the tensors taking turns. */
static void put_all(bl_safetensors_writer *w, uint64_t piece) {
    bl_err err;
    for (uint64_t done = 0; done < 140; done += piece) {
        for (uint32_t i = 0; i < N_TENSORS; i++) {
            uint8_t part[140];
            uint64_t n = done < sizes[i] ? BL_MIN(piece, sizes[i] - done) : 0;
            for (uint64_t k = 0; k < n; k++) {
                part[k] = byte_of(i, done + k);
            }
            assert_int_equal(bl_safetensors_writer_put(w, i, part, (size_t)n, &err), BL_OK);
        }
    }
}

static void check_folder(void) {
    bl_checkpoint *c = NULL;
    bl_err err;
    if (bl_checkpoint_open(dir, &c, &err) != BL_OK) {
        fail_msg("%s", err.msg);
    }
    assert_int_equal(bl_checkpoint_count(c), N_TENSORS);
    for (uint32_t i = 0; i < N_TENSORS; i++) {
        const bl_tensor_view *t = bl_checkpoint_find(c, plan[i].name);
        assert_non_null(t);
        assert_int_equal(t->dtype, plan[i].dtype);
        assert_int_equal(t->n_dims, plan[i].n_dims);
        assert_memory_equal(t->dims, plan[i].dims, plan[i].n_dims * sizeof(uint64_t));
        assert_int_equal(t->size_bytes, sizes[i]);
        for (uint64_t k = 0; k < sizes[i]; k++) {
            assert_int_equal(t->data[k], byte_of(i, k));
        }
    }
    bl_checkpoint_free(c);
}

/* From one shard to one for each tensor. */
static void test_reads_back(void **state) {
    (void)state;
    static const struct {
        uint64_t max;
        uint32_t n_files; /* with index, config.json and the head's shard */
    } cases[] = {{1000, 4}, {185, 4}, {184, 5}, {150, 5}, {1, 7}};
    for (size_t c = 0; c < BL_COUNTOF(cases); c++) {
        for (uint64_t piece = 1; piece < 150; piece += 37) {
            bl_err err;
            bl_safetensors_writer *w = begin(cases[c].max);
            assert_int_equal(bl_safetensors_writer_bytes(w), 209);
            assert_int_equal(count_files(), 0);
            put_all(w, piece);
            assert_int_equal(bl_safetensors_writer_side(w, "config.json", "{}", 2, &err), BL_OK);
            assert_int_equal(bl_safetensors_writer_finish(w, &err), BL_OK);
            bl_safetensors_writer_free(w);
            assert_int_equal(count_files(), cases[c].n_files);
            check_folder();
            remove_all();
        }
    }
}

static void test_nothing_stays_without_finish(void **state) {
    (void)state;
    bl_err err;
    bl_safetensors_writer *w = begin(100);
    put_all(w, 140);
    assert_int_equal(bl_safetensors_writer_side(w, "config.json", "{}", 2, &err), BL_OK);
    assert_true(count_files() > 0);
    bl_safetensors_writer_free(w);
    assert_int_equal(count_files(), 0);
}

static void test_refuses(void **state) {
    (void)state;
    bl_err err;
    uint32_t id;
    uint64_t dims[1] = {4}, huge[2] = {UINT64_MAX, 2};
    uint8_t bytes[200] = {0};
    bl_safetensors_writer *w = begin(1000);
    assert_int_equal(bl_safetensors_writer_put(w, 1, bytes, 31, &err), BL_EINVAL);
    assert_string_equal(err.msg, "tensor 'b.scales': 31 bytes at 0 of 30");
    assert_int_equal(bl_safetensors_writer_put(w, 1, bytes, 29, &err), BL_OK);
    assert_int_equal(bl_safetensors_writer_side(w, "../x", "", 0, &err), BL_EINVAL);
    assert_int_equal(bl_safetensors_writer_side(w, ".x", "", 0, &err), BL_EINVAL);
    assert_int_equal(bl_safetensors_writer_side(w, "model.safetensors", "", 0, &err), BL_EINVAL);
    assert_int_equal(bl_safetensors_writer_finish(w, &err), BL_EINVAL);
    assert_string_equal(err.msg, "tensor 'b.weight' has 0 of 140 bytes");
    bl_safetensors_writer_free(w);
    assert_int_equal(bl_safetensors_writer_new(dir, 10, &w, &err), BL_OK);
    assert_int_equal(bl_safetensors_writer_plan(w, "x", BL_DTYPE_Q4_K, 1, dims, NULL, &id, &err), BL_EINVAL);
    assert_int_equal(bl_safetensors_writer_plan(w, "x", BL_DTYPE_F32, 2, huge, NULL, &id, &err), BL_ERANGE);
    assert_int_equal(bl_safetensors_writer_plan(w, "", BL_DTYPE_F32, 1, dims, NULL, &id, &err), BL_EFORMAT);
    assert_int_equal(bl_safetensors_writer_plan(w, "x", BL_DTYPE_F32, 1, dims, "a/b", &id, &err), BL_EINVAL);
    assert_int_equal(bl_safetensors_writer_plan(w, "x", BL_DTYPE_F32, 1, dims, NULL, &id, &err), BL_OK);
    assert_int_equal(bl_safetensors_writer_plan(w, "x", BL_DTYPE_F32, 1, dims, NULL, &id, &err), BL_OK);
    assert_int_equal(bl_safetensors_writer_begin(w, &err), BL_EINVAL);
    assert_string_equal(err.msg, "tensor 'x' is planned twice");
    bl_safetensors_writer_free(w);
    assert_int_equal(bl_safetensors_writer_new(dir, 16, &w, &err), BL_OK);
    for (uint32_t i = 0; i < 65; i++) {
        char name[16];
        snprintf(name, sizeof name, "t%u", i);
        assert_int_equal(bl_safetensors_writer_plan(w, name, BL_DTYPE_F32, 1, dims, NULL, &id, &err), BL_OK);
    }
    assert_int_equal(bl_safetensors_writer_begin(w, &err), BL_ELIMIT);
    assert_string_equal(err.msg, "1040 bytes of tensors make 65 shards of at most 16 bytes, allowed are 64");
    bl_safetensors_writer_free(w);
    bl_safetensors_writer_free(NULL);
    assert_int_equal(count_files(), 0);
}

/* Tensors of a shard that is there already are listed, and neither the shard nor the total of planned bytes
 * is touched. */
static void test_listed(void **state) {
    (void)state;
    bl_safetensors_writer *w = NULL;
    uint32_t id;
    const uint64_t four = 4;
    assert_int_equal(bl_safetensors_writer_new(dir, 1000, &w, NULL), BL_OK);
    assert_int_equal(
        bl_safetensors_writer_plan(w, "old", BL_DTYPE_U8, 1, &four, "kept.safetensors", &id, NULL), BL_OK);
    assert_int_equal(bl_safetensors_writer_begin(w, NULL), BL_OK);
    assert_int_equal(bl_safetensors_writer_put(w, id, "abcd", 4, NULL), BL_OK);
    assert_int_equal(bl_safetensors_writer_finish(w, NULL), BL_OK);
    bl_safetensors_writer_free(w);
    for (int finished = 0; finished < 2; finished++) { /* first given up, which leaves the old shard alone */
        assert_int_equal(bl_safetensors_writer_new(dir, 1000, &w, NULL), BL_OK);
        assert_int_equal(bl_safetensors_writer_list(w, "old", 4, "kept.safetensors", NULL), BL_OK);
        assert_int_equal(
            bl_safetensors_writer_plan(w, "new", BL_DTYPE_U8, 1, &four, "kept.safetensors", &id, NULL),
            BL_EINVAL);
        assert_int_equal(
            bl_safetensors_writer_plan(w, "new", BL_DTYPE_U8, 1, &four, "new.safetensors", &id, NULL), BL_OK);
        assert_int_equal(bl_safetensors_writer_list(w, "other", 4, "new.safetensors", NULL), BL_EINVAL);
        assert_int_equal(bl_safetensors_writer_bytes(w), 4);
        assert_int_equal(bl_safetensors_writer_begin(w, NULL), BL_OK);
        assert_int_equal(bl_safetensors_writer_put(w, id, "efgh", 4, NULL), BL_OK);
        if (finished) {
            assert_int_equal(bl_safetensors_writer_side(w, "config.json", "{}", 2, NULL), BL_OK);
            assert_int_equal(bl_safetensors_writer_finish(w, NULL), BL_OK);
        }
        bl_safetensors_writer_free(w);
    }
    bl_checkpoint *c = NULL;
    assert_int_equal(bl_checkpoint_open(dir, &c, NULL), BL_OK);
    assert_int_equal(bl_checkpoint_count(c), 2);
    assert_memory_equal(bl_checkpoint_find(c, "old")->data, "abcd", 4);
    assert_memory_equal(bl_checkpoint_find(c, "new")->data, "efgh", 4);
    bl_checkpoint_free(c);
    bl_buf b;
    char path[128];
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", dir);
    assert_int_equal(bl_file_read(path, 4096, &b, NULL), BL_OK);
    assert_non_null(strstr(bl_buf_str(&b), "\"total_size\": 8"));
    bl_buf_done(&b);
    remove_all();
    /* the same name twice */
    assert_int_equal(bl_safetensors_writer_new(dir, 1000, &w, NULL), BL_OK);
    assert_int_equal(bl_safetensors_writer_list(w, "old", 4, "kept.safetensors", NULL), BL_OK);
    assert_int_equal(bl_safetensors_writer_plan(w, "old", BL_DTYPE_U8, 1, &four, NULL, &id, NULL), BL_OK);
    assert_int_equal(bl_safetensors_writer_begin(w, NULL), BL_EINVAL);
    bl_safetensors_writer_free(w);
    assert_int_equal(count_files(), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_reads_back, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_nothing_stays_without_finish, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_refuses, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(test_listed, make_dir, remove_dir),
    };
    return cmocka_run_group_tests_name("safetensors_writer", tests, NULL, NULL);
}
