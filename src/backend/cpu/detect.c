/* What this machine and its OS can run, and the names of it. */
#include <stdio.h>
#include <string.h>

#include "backend/backend.h"
#include "base/base.h"

#if defined(__x86_64__)
#include <cpuid.h>

static uint64_t xcr0(void) {
    uint32_t lo, hi;
    __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
    return (uint64_t)hi << 32 | lo;
}

uint32_t bl_cpu_detect(void) {
    uint32_t a, b, c, d;
    /* leaf 1 ecx: FMA 12, OSXSAVE 27, AVX 28, F16C 29 */
    uint32_t need1 = 1u << 12 | 1u << 27 | 1u << 28 | 1u << 29;
    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & need1) != need1) {
        return 0;
    }
    uint64_t x = xcr0(); /* what the OS saves: XMM 1, YMM 2; opmask and ZMM 5, 6, 7 */
    if ((x & 0x6u) != 0x6u || !__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(b & 1u << 5)) {
        return 0;
    }
    uint32_t f = BL_CPU_AVX2;
    /* leaf 7 ebx: AVX512F 16, DQ 17, BW 30, VL 31; ecx: VNNI 11 */
    uint32_t need7 = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;
    if ((x & 0xe0u) == 0xe0u && (b & need7) == need7) {
        f |= BL_CPU_AVX512;
        if (c & 1u << 11) {
            f |= BL_CPU_AVX512_VNNI;
        }
    }
    return f;
}
#else
uint32_t bl_cpu_detect(void) {
    return 0;
}
#endif

static const struct {
    const char *name;
    uint32_t flag;
} names[] = {
    {"avx2", BL_CPU_AVX2}, {"avx512", BL_CPU_AVX512}, {"avx512vnni", BL_CPU_AVX512_VNNI}, {"scalar", 0},
    {"none", 0},           {"all", BL_CPU_ALL},
};

const char *bl_cpu_flags_name(uint32_t flags, char buf[64]) {
    size_t n = 0;
    for (size_t i = 0; i < 3; i++) {
        if (flags & names[i].flag) {
            n += (size_t)snprintf(buf + n, 64 - n, "%s%s", n ? "+" : "", names[i].name);
        }
    }
    if (n == 0) {
        snprintf(buf, 64, "scalar");
    }
    return buf;
}

/* A decimal or 0x number up to BL_CPU_ALL. */
static bool parse_number(const char *s, uint32_t *ret) {
    uint32_t base = 10, v = 0;
    if (s[0] == '0' && (s[1] == 'x' || s[1] == 'X')) {
        base = 16;
        s += 2;
    }
    if (!*s) {
        return false;
    }
    for (; *s; s++) {
        uint32_t d = *s >= '0' && *s <= '9'   ? (uint32_t)(*s - '0')
                     : *s >= 'a' && *s <= 'f' ? (uint32_t)(*s - 'a') + 10
                     : *s >= 'A' && *s <= 'F' ? (uint32_t)(*s - 'A') + 10
                                              : 99;
        if (d >= base || v > BL_CPU_ALL) {
            return false;
        }
        v = v * base + d;
    }
    *ret = v;
    return v <= BL_CPU_ALL;
}

bl_code bl_cpu_parse_mask(const char *s, uint32_t *ret, bl_err *err) {
    uint32_t v = 0;
    if (s[0] >= '0' && s[0] <= '9') {
        if (!parse_number(s, &v)) {
            BL_FAIL(err, BL_EINVAL, "cpu mask '%.40s': a number must be at most %u", s, BL_CPU_ALL);
        }
        *ret = v;
        return BL_OK;
    }
    const char *p = s;
    for (;;) {
        size_t n = strcspn(p, "+,"), i;
        for (i = 0; i < BL_COUNTOF(names); i++) {
            if (strlen(names[i].name) == n && memcmp(names[i].name, p, n) == 0) {
                v |= names[i].flag;
                break;
            }
        }
        if (i == BL_COUNTOF(names)) {
            BL_FAIL(
                err, BL_EINVAL,
                "cpu mask '%.40s': expected a number or names out of avx2, avx512, avx512vnni, scalar, all",
                s);
        }
        if (p[n] == '\0') {
            *ret = v;
            return BL_OK;
        }
        p += n + 1;
    }
}
