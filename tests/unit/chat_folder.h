/* A checkpoint folder made for a case: tiny-chat's weights, configuration and tokenizer, but for the files
 * given here. */
#ifndef BL_TESTS_CHAT_FOLDER_H
#define BL_TESTS_CHAT_FOLDER_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/base.h"
#include "base/file.h"
#include "chat/chat.h"

#define FIXTURES BL_SOURCE_DIR "/tests/fixtures"

typedef struct {
    const char *file, *text; /* text NULL: left out */
} folder_file;

static bl_buf folder_read(const char *path) {
    bl_buf b;
    bl_err err;
    if (bl_file_read(path, 64 << 20, &b, &err) != BL_OK) {
        fail_msg("%s", err.msg);
    }
    return b;
}

/* The text of the i-th default file, or of the case's file of that name. */
static bl_code chat_folder_open(const folder_file *files, size_t n, bl_chat **ret, bl_err *err) {
    static const char *const base[] = {"config.json", "model.safetensors", "tokenizer.json"};
    char dir[] = "/tmp/bl_test_chat_folder_XXXXXX", path[512];
    assert_non_null(mkdtemp(dir));
    for (size_t i = 0; i < BL_COUNTOF(base); i++) {
        snprintf(path, sizeof path, FIXTURES "/tiny-chat/%s", base[i]);
        bl_buf b = folder_read(path);
        snprintf(path, sizeof path, "%s/%s", dir, base[i]);
        assert_int_equal(bl_file_write_atomic(path, b.data, b.len, NULL), BL_OK);
        bl_buf_done(&b);
    }
    for (size_t i = 0; i < n; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, files[i].file);
        if (files[i].text) {
            assert_int_equal(bl_file_write_atomic(path, files[i].text, strlen(files[i].text), NULL), BL_OK);
        }
    }
    bl_checkpoint *c;
    bl_code rc = bl_checkpoint_open(dir, &c, err);
    if (rc == BL_OK) {
        rc = bl_chat_open(c, ret, err);
        bl_checkpoint_free(c);
    }
    for (size_t i = 0; i < n + BL_COUNTOF(base); i++) {
        snprintf(path, sizeof path, "%s/%s", dir, i < n ? files[i].file : base[i - n]);
        (void)unlink(path);
    }
    assert_int_equal(rmdir(dir), 0);
    return rc;
}

#endif
