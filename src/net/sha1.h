/* SHA-1 (FIPS 180-4), only to check files against the ids that git gives them; nothing here relies on it
 * being collision-free. libsodium, which does our other hashing, does not offer it.
 */
#ifndef BL_NET_SHA1_H
#define BL_NET_SHA1_H

#include <stddef.h>
#include <stdint.h>

#define BL_SHA1_BYTES 20

typedef struct {
    uint32_t h[5];
    uint64_t n_bytes;
    uint8_t block[64];
} bl_sha1;

void bl_sha1_init(bl_sha1 *s);
void bl_sha1_update(bl_sha1 *s, const void *data, size_t n);
void bl_sha1_final(bl_sha1 *s, uint8_t ret[BL_SHA1_BYTES]);

#endif
