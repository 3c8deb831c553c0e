/* Every ceiling of the file formats, with its reason. A file beyond one is refused with BL_ELIMIT, never half
 * read. Limits of requests live with the server, limits of runtime structures with the engine.
 */
#ifndef BL_FORMATS_LIMITS_H
#define BL_FORMATS_LIMITS_H

#include <stdint.h>

/* JSON numbers pass through doubles in many writers and readers: integers are exact up to here only. */
#define BL_MAX_EXACT_INT ((uint64_t)1 << 53)

/* config.json of published checkpoints is below 20 KiB; generation_config.json below 1 KiB. */
#define BL_CONFIG_MAX_BYTES ((size_t)1 << 20)
/* Of config.json itself: as loose as the probe for a draft head, so that a config that is too large for a
 * head (docs/mtp.md) costs the head and not the model. */
#define BL_MODEL_CONFIG_MAX_BYTES ((size_t)64 << 20)
#define BL_CONFIG_MAX_DEPTH       32u
/* The largest tokenizer.json in use (Gemma, 262k pieces) has 33 MiB. No JSON text in the product is larger.
 */
#define BL_TOKENIZER_JSON_MAX_BYTES ((size_t)64 << 20)
#define BL_JSON_MAX_BYTES           BL_TOKENIZER_JSON_MAX_BYTES

/* Tokenizers: the largest vocabularies in use have 262145 ids and 514906 merges; their contents take 2 MiB,
 * the longest is below 400 bytes. */
#define BL_TOKENIZER_MAX_IDS    (1u << 21)
#define BL_TOKENIZER_MAX_MERGES (1u << 22)
#define BL_TOKENIZER_MAX_BLOB   ((size_t)64 << 20)
#define BL_TOKENIZER_MAX_PIECE  16384u
/* Bytes of one added token: bounds what looking for one costs per byte of text. */
#define BL_TOKENIZER_MAX_ADDED 1024u
/* More than any context holds; the positions inside are 32 bits. */
#define BL_TOKENIZER_MAX_TEXT ((size_t)256 << 20)
#define BL_TOKENIZER_MAX_OUT  ((size_t)1 << 30)
/* Symbols that may merge with each other: about 50 bytes of work space each. */
#define BL_TOKENIZER_MAX_WORD (16u << 20)
/* Normalizers and pre-tokenizers of real files: below 8. Tokens put before or after a text: 1 or 2. */
#define BL_TOKENIZER_MAX_OPS    16u
#define BL_TOKENIZER_MAX_AROUND 8u
/* A hash table that needs more probes than this was made to collide. */
#define BL_TOKENIZER_MAX_PROBES 4096u

/* Memory of a parsed text: a number costs about 40 bytes, an object about 600. Gemma's tokenizer.json has 1.9
 * million values and 6,500 objects; a safetensors header has an object for each tensor. */
#define BL_JSON_MAX_VALUES  (1u << 22)
#define BL_JSON_MAX_OBJECTS (1u << 18)

/* safetensors: real headers are below 4 MiB; the reference allows 100 MB. */
#define BL_ST_MAX_HEADER_BYTES ((uint64_t)32 << 20)
#define BL_ST_MAX_TENSORS      200000u
#define BL_ST_MAX_NAME_BYTES   1024u
/* {name: {"shape": [..]}} is 3 deep. */
#define BL_ST_MAX_DEPTH 4u
/* model.safetensors.index.json repeats names and shard names only. */
#define BL_ST_MAX_INDEX_BYTES ((size_t)32 << 20)
#define BL_ST_MAX_SHARDS      64u

/* GGUF: the largest published files have about 2,000 tensors and 100 keys. */
#define BL_GGUF_MAX_TENSORS 200000u
#define BL_GGUF_MAX_KEYS    65536u
#define BL_GGUF_MAX_DIMS    4u
/* ggml keeps names in 64 bytes with the NUL, and refuses longer ones. */
#define BL_GGUF_MAX_NAME_BYTES 63u
/* The format's own ceiling on keys. */
#define BL_GGUF_MAX_KEY_BYTES 65535u
/* One string value; a tokenizer.json may be embedded as one. */
#define BL_GGUF_MAX_STRING_BYTES ((uint64_t)64 << 20)
/* Strings in all arrays of a file: each costs 12 bytes of index. Vocabulary and merges together are below 1.5
 * million. */
#define BL_GGUF_MAX_ARRAY_STRINGS ((uint64_t)1 << 24)

/* TOML: a provider.toml with everything in it is below 8 KiB. Keys are compared with their neighbours one by
 * one, so their number bounds the time too. */
#define BL_TOML_MAX_BYTES ((size_t)1 << 20)
#define BL_TOML_MAX_KEYS  4096u
#define BL_TOML_MAX_NODES (1u << 16)
#define BL_TOML_MAX_DEPTH 32u /* of arrays and inline tables within each other; of parts of a dotted key */
/* Characters of one number, underscores and all. */
#define BL_TOML_MAX_NUMBER 256u
#define BL_TOML_MAX_MEMORY ((size_t)64 << 20)

/* Bytes of a name that a message shows; the rest of the 255 is for the file, the value found and the value
 * allowed. */
#define BL_NAME_SHOWN_BYTES 72u

#endif
