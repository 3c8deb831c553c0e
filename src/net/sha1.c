#include "net/sha1.h"

#include <string.h>

#include "base/base.h"

static uint32_t rol(uint32_t x, unsigned n) {
    return x << n | x >> (32 - n);
}

static void compress(bl_sha1 *s) {
    uint32_t w[80];
    for (unsigned t = 0; t < 16; t++) {
        const uint8_t *p = &s->block[4 * t];
        w[t] = (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
    }
    for (unsigned t = 16; t < 80; t++) {
        w[t] = rol(w[t - 3] ^ w[t - 8] ^ w[t - 14] ^ w[t - 16], 1);
    }
    uint32_t a = s->h[0], b = s->h[1], c = s->h[2], d = s->h[3], e = s->h[4];
    for (unsigned t = 0; t < 80; t++) {
        uint32_t f, k;
        if (t < 20) {
            f = (b & c) | (~b & d);
            k = 0x5A827999u;
        } else if (t < 40) {
            f = b ^ c ^ d;
            k = 0x6ED9EBA1u;
        } else if (t < 60) {
            f = (b & c) | (b & d) | (c & d);
            k = 0x8F1BBCDCu;
        } else {
            f = b ^ c ^ d;
            k = 0xCA62C1D6u;
        }
        uint32_t sum = rol(a, 5) + f + e + k + w[t];
        e = d;
        d = c;
        c = rol(b, 30);
        b = a;
        a = sum;
    }
    s->h[0] += a;
    s->h[1] += b;
    s->h[2] += c;
    s->h[3] += d;
    s->h[4] += e;
}

void bl_sha1_init(bl_sha1 *s) {
    *s = (bl_sha1){.h = {0x67452301u, 0xEFCDAB89u, 0x98BADCFEu, 0x10325476u, 0xC3D2E1F0u}};
}

void bl_sha1_update(bl_sha1 *s, const void *data, size_t n) {
    const uint8_t *p = data;
    while (n > 0) {
        size_t at = (size_t)(s->n_bytes % 64);
        size_t part = BL_MIN(n, 64 - at);
        memcpy(&s->block[at], p, part);
        s->n_bytes += part;
        p += part;
        n -= part;
        if (at + part == 64) {
            compress(s);
        }
    }
}

void bl_sha1_final(bl_sha1 *s, uint8_t ret[BL_SHA1_BYTES]) {
    uint64_t n_bits = s->n_bytes * 8;
    static const uint8_t pad[64] = {0x80};
    size_t at = (size_t)(s->n_bytes % 64);
    bl_sha1_update(s, pad, at < 56 ? 56 - at : 120 - at);
    uint8_t len[8];
    for (unsigned i = 0; i < 8; i++) {
        len[i] = (uint8_t)(n_bits >> (56 - 8 * i));
    }
    bl_sha1_update(s, len, sizeof(len));
    for (unsigned i = 0; i < 5; i++) {
        for (unsigned j = 0; j < 4; j++) {
            ret[4 * i + j] = (uint8_t)(s->h[i] >> (24 - 8 * j));
        }
    }
}
