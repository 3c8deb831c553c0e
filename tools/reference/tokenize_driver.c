/* Answers tokenizer requests on stdin, for compare_tokenizer.py: tokenize_driver FILE (tokenizer.json or
 * .gguf). E FLAGS N\n + N bytes   -> "I COUNT id id ...\n" D SKIP N id id ...\n    -> "T BYTES\n" + bytes
 * (whole decode) S SKIP N id id ...\n    -> the same, one token at a time, as raw bytes and "F message\n"
 * where a call fails. Not part of the product.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "base/clock.h"
#include "base/file.h"
#include "formats/gguf.h"
#include "formats/tokenizer.h"

static bl_code open_tokenizer(const char *path, bl_tokenizer **ret, bl_err *err) {
    size_t n = strlen(path);
    if (n > 5 && strcmp(path + n - 5, ".gguf") == 0) {
        bl_gguf *g = NULL;
        BL_TRY(bl_gguf_open(path, &g, err));
        uint64_t t0 = bl_clock_mono_ns();
        bl_code rc = bl_tokenizer_from_gguf(g, ret, err);
        fprintf(stderr, "loaded in %.1f ms\n", (double)(bl_clock_mono_ns() - t0) / 1e6);
        bl_gguf_free(g);
        return rc;
    }
    bl_buf text;
    bl_code rc = bl_file_read(path, (size_t)64 << 20, &text, err);
    if (rc == BL_OK) {
        uint64_t t0 = bl_clock_mono_ns();
        rc = bl_tokenizer_from_json(bl_buf_str(&text), text.len, ret, err);
        fprintf(stderr, "loaded in %.1f ms\n", (double)(bl_clock_mono_ns() - t0) / 1e6);
    }
    bl_buf_done(&text);
    return rc;
}

static bl_code encode(const bl_tokenizer *t, unsigned flags, size_t n, bl_err *err) {
    char *text = bl_alloc(n + 1);
    bl_ids ids;
    bl_ids_init(&ids, (size_t)1 << 28);
    if (!text || fread(text, 1, n, stdin) != n) {
        exit(3);
    }
    uint64_t t0 = bl_clock_mono_ns();
    bl_code rc = bl_tokenizer_encode(t, text, n, flags, &ids, err);
    if (n > 100000) {
        fprintf(stderr, "%zu bytes in %.1f ms\n", n, (double)(bl_clock_mono_ns() - t0) / 1e6);
    }
    if (rc == BL_OK) {
        printf("I %zu", ids.n);
        for (size_t i = 0; i < ids.n; i++) {
            printf(" %" PRId32, ids.ids[i]);
        }
        printf("\n");
    }
    bl_free(text);
    bl_ids_done(&ids);
    return rc;
}

static bl_code decode(const bl_tokenizer *t, bool stream, bool skip, size_t n, bl_err *err) {
    int32_t *ids = bl_alloc_array(n + 1, sizeof *ids);
    bl_buf text;
    bl_code rc = BL_OK;
    bl_buf_init(&text, (size_t)1 << 30);
    for (size_t i = 0; ids && i < n; i++) {
        if (scanf("%" SCNd32, &ids[i]) != 1) {
            exit(3);
        }
    }
    bool first = true;
    for (size_t i = 0; stream && rc == BL_OK && i < n; i++) {
        rc = bl_tokenizer_token_bytes(t, ids[i], first, skip, &text, err);
        first = first && skip && bl_tokenizer_is_special(t, ids[i]);
    }
    if (!stream) {
        rc = bl_tokenizer_decode(t, ids, n, skip, &text, err);
    }
    if (rc == BL_OK) {
        printf("T %zu\n", text.len);
        fwrite(bl_buf_str(&text), 1, text.len, stdout);
    }
    bl_free(ids);
    bl_buf_done(&text);
    return rc;
}

int main(int argc, char **argv) {
    bl_tokenizer *t = NULL;
    bl_err err = {0};
    char what;
    unsigned flags;
    size_t n;
    if (argc != 2 || open_tokenizer(argv[1], &t, &err) != BL_OK) {
        fprintf(stderr, "%s\n", argc == 2 ? err.msg : "usage: tokenize_driver FILE");
        return 1;
    }
    printf("R %u\n", bl_tokenizer_vocab_size(t));
    fflush(stdout);
    while (scanf(" %c %u %zu", &what, &flags, &n) == 3) {
        (void)getchar();
        bl_code rc = what == 'E' ? encode(t, flags, n, &err) : decode(t, what == 'S', flags != 0, n, &err);
        if (rc != BL_OK) {
            printf("F %s\n", err.msg);
        }
        fflush(stdout);
    }
    bl_tokenizer_free(t);
    return 0;
}
