/* config.json of every family over real weights: the first byte picks the checkpoint, the rest is its config.
 * Whatever it says, the model is refused with one line or its op list stays inside its own tables. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/base.h"
#include "base/file.h"
#include "formats/checkpoint.h"
#include "model/model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const fixtures[] = {"tiny/gemma4-moe-tiny", "tiny/gemma4-e-tiny", "tiny/qwen3_5-moe-tiny",
                                       "tiny/gpt_oss-tiny",    "tiny/qwen3-tiny",    "tiny/gemma3-tiny",
                                       "tiny/llama-tiny",      "mlx/qwen3-tiny-4bit"};
static char folders[BL_COUNTOF(fixtures)][64];

static void remove_folders(void) {
    for (size_t i = 0; i < BL_COUNTOF(fixtures); i++) {
        char path[128];
        snprintf(path, sizeof path, "%.63s/config.json", folders[i]);
        unlink(path);
        snprintf(path, sizeof path, "%.63s/model.safetensors", folders[i]);
        unlink(path);
        rmdir(folders[i]);
    }
}

/* Weights stay, only config.json changes. */
static void make_folders(void) {
    for (size_t i = 0; i < BL_COUNTOF(fixtures); i++) {
        char from[512], to[128];
        bl_buf b;
        snprintf(folders[i], sizeof folders[i], "/tmp/darkbloom-fuzz-%d-%zu", (int)getpid(), i);
        snprintf(from, sizeof from, "%s/tests/fixtures/%s/model.safetensors", BL_SOURCE_DIR, fixtures[i]);
        snprintf(to, sizeof to, "%.63s/model.safetensors", folders[i]);
        BL_ASSERT(mkdir(folders[i], 0700) == 0);
        BL_ASSERT(bl_file_read(from, (size_t)16 << 20, &b, NULL) == BL_OK);
        FILE *f = fopen(to, "wb");
        BL_ASSERT(f && fwrite(b.data, 1, b.len, f) == b.len && fclose(f) == 0);
        bl_buf_done(&b);
    }
    atexit(remove_folders);
}

static void check_model(const bl_model *m) {
    BL_ASSERT(m->n_ops > 0 && m->n_ops <= m->n_all_ops && m->stored_op <= m->select_op);
    for (size_t i = 0; i < m->n_all_ops; i++) {
        const bl_op *op = &m->ops[i];
        BL_ASSERT(op->n_w <= BL_OP_MAX_W);
        for (size_t k = 0; k < BL_OP_MAX_W; k++) {
            BL_ASSERT(m->refs[i].w[k] < (int32_t)m->n_matrices && m->refs[i].bias[k] < (int32_t)m->n_vectors);
            BL_ASSERT(op->out[k] == BL_SLOT_NONE || m->widths[op->out[k]] > 0);
        }
        BL_ASSERT(m->refs[i].vec < (int32_t)m->n_vectors);
        BL_ASSERT(op->kind != BL_OP_ATTENTION || op->kv_layer < m->n_kv);
        BL_ASSERT(op->kind != BL_OP_DELTA || op->state_layer < m->n_states);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static bool ready;
    if (!ready) {
        make_folders();
        ready = true;
    }
    if (size < 2) {
        return 0;
    }
    const char *folder = folders[data[0] % BL_COUNTOF(fixtures)];
    char path[128];
    snprintf(path, sizeof path, "%.63s/config.json", folder);
    FILE *f = fopen(path, "wb");
    BL_ASSERT(f && fwrite(data + 1, 1, size - 1, f) == size - 1 && fclose(f) == 0);
    bl_checkpoint *c = NULL;
    bl_model *m = NULL;
    bl_err err = {0};
    bl_code rc = bl_checkpoint_open(folder, &c, &err);
    if (rc == BL_OK) {
        rc = bl_model_new(c, BL_ACTIVATIONS_INT8, &m, &err);
    }
    if (rc == BL_OK) {
        check_model(m);
    } else {
        BL_ASSERT(err.code != BL_OK && err.code != BL_EINTERNAL && err.msg[0] != '\0' &&
                  !strchr(err.msg, '\n'));
    }
    bl_model_free(m, NULL);
    bl_checkpoint_free(c);
    return 0;
}
