#include "blcheck.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"

static const uint32_t masks[] = {0, BL_CPU_AVX2, BL_CPU_AVX2 | BL_CPU_AVX512, BL_CPU_ALL};

/* Runs a check when the tier brings an entry not seen before. */
#define IF_NEW(field, label, call)                                                                           \
    do {                                                                                                     \
        if (memcmp(&next.field, &seen.field, sizeof(next.field)) != 0) {                                     \
            uint64_t before = c.n_failed;                                                                    \
            call;                                                                                            \
            printf("  %-18s %s\n", label, c.n_failed == before ? "ok" : "FAILED");                           \
        }                                                                                                    \
    } while (0)

static int usage(void) {
    fprintf(stderr, "usage: blcheck [--seed N] [--selftest] [--bench [FILTER] [--threads N] "
                    "[--cpu-mask M] [--csv]]\n");
    return 2;
}

static bool number(const char *s, uint64_t *ret) {
    char *end;
    *ret = strtoull(s, &end, 0);
    return *s && !*end;
}

static void check_tiers(bl_check *total, uint64_t seed) {
    bl_kernels ref, seen;
    bl_kernels_ref(&ref);
    seen = ref;
    for (size_t i = 0; i < BL_COUNTOF(masks); i++) {
        if ((bl_cpu_detect() & masks[i]) != masks[i]) {
            continue;
        }
        bl_kernels next;
        char name[64];
        bl_kernels_fill(&next, masks[i]);
        bl_check c = {.ref = &ref,
                      .cand = &next,
                      .tier = bl_cpu_flags_name(masks[i], name),
                      .seed = seed,
                      .first_seed = seed};
        printf("%s\n", name);
        const bc_form *f;
        size_t n_forms = bc_forms(&f);
        for (size_t k = 0; k < n_forms; k++) {
            char label[40];
            IF_NEW(matmul[f[k].t], bc_form_name(&f[k], label), check_matmul(&c, &f[k]));
        }
        if (i == 0) {
            check_embed(&c);
            check_accuracy(&c);
            check_nmse(&c);
        }
        IF_NEW(quant32, "quant32", check_quant(&c));
        IF_NEW(quant64, "quant64", check_quant(&c));
        IF_NEW(quant256, "quant256", check_quant(&c));
        IF_NEW(embed, "embed", check_embed(&c));
        IF_NEW(rmsnorm, "rmsnorm", check_rmsnorm(&c));
        IF_NEW(add, "add", check_elementwise(&c));
        IF_NEW(glu, "glu", check_elementwise(&c));
        IF_NEW(softcap, "softcap", check_elementwise(&c));
        IF_NEW(rope, "rope", check_rope(&c));
        IF_NEW(kv_store, "kv_store", check_kv_store(&c));
        IF_NEW(attention, "attention", check_attention(&c));
        IF_NEW(axpy, "axpy", check_elementwise(&c));
        IF_NEW(conv, "conv", check_conv(&c));
        IF_NEW(delta, "delta", check_delta(&c));
        check_threads(&c, masks[i], name);
        total->n_passed += c.n_passed;
        total->n_failed += c.n_failed;
        seen = next;
    }
}

int main(int argc, char **argv) {
    uint64_t seed = 1, n;
    bool want_bench = false, want_selftest = false;
    bc_bench_options o = {.mask = BL_CPU_ALL};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc && number(argv[i + 1], &seed)) {
            i++;
        } else if (strcmp(argv[i], "--threads") == 0 && i + 1 < argc && number(argv[i + 1], &n) && n <= 256) {
            o.threads = (uint32_t)n;
            i++;
        } else if (strcmp(argv[i], "--cpu-mask") == 0 && i + 1 < argc &&
                   bl_cpu_parse_mask(argv[i + 1], &o.mask, NULL) == BL_OK) {
            i++;
        } else if (strcmp(argv[i], "--selftest") == 0) {
            want_selftest = true;
        } else if (strcmp(argv[i], "--csv") == 0) {
            o.csv = true;
        } else if (strcmp(argv[i], "--bench") == 0) {
            want_bench = true;
            if (i + 1 < argc && argv[i + 1][0] != '-') {
                o.filter = argv[++i];
            }
        } else {
            return usage();
        }
    }
    if (want_bench) {
        return bench(&o);
    }
    bl_kernels ref;
    bl_kernels_ref(&ref);
    bl_check total = {.ref = &ref, .cand = &ref, .tier = "selftest", .seed = seed, .first_seed = seed};
    selftest(&total);
    if (!want_selftest) {
        check_tiers(&total, seed);
    }
    printf("%llu passed, %llu failed\n", (unsigned long long)total.n_passed,
           (unsigned long long)total.n_failed);
    return total.n_failed ? 1 : 0;
}
