/* What a build needs of a machine, and whether the machine has it (spec provider-contracts.md 6.9).
 * docs/capabilities.md
 *
 * A requirement is a set of strings. It is the union of what a list says (a catalog's), what the rules in
 * this program say for the build's id, and what the checkpoint itself says; nothing takes one away. A string
 * that means nothing here is kept as it is and counts as missing. Pure: the machine is described by the
 * caller.
 */
#ifndef BL_PROVIDER_CAPABILITIES_H
#define BL_PROVIDER_CAPABILITIES_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "bl/bl_err.h"

#define BL_CAPABILITIES_MAX  32u
#define BL_CAPABILITY_BYTES  64u /* with the NUL */
#define BL_CAPABILITIES_TEXT 128u
#define BL_CAPABILITIES_KEY  "darkbloom_requires" /* of config.json: a list of strings */

/* A zeroed one is empty. Order is that of adding. */
typedef struct {
    char names[BL_CAPABILITIES_MAX][BL_CAPABILITY_BYTES];
    uint32_t n;
    uint32_t n_unreadable; /* asked for and not kept: no text, too long, too many. Never met */
} bl_capabilities;

typedef struct {
    const char *cpu;       /* features by their names in --cpu-mask, joined by '+' or ','; NULL: none */
    uint32_t cuda_sm;      /* compute capability of the best device, 90 for 9.0; 0: no device */
    uint64_t memory_bytes; /* that the program may come to use; 0: not known, so no such need is met */
} bl_machine;

/* Exactly (ids and capabilities keep their case; no white space is removed): cpu:FEATURE; cuda:sm_N, met by N
 * and above; mem:NGiB. Everything else is unknown: false. */
bool bl_machine_has(const bl_machine *m, const char *capability);

/* Each adds what is not there yet. name NULL: unreadable. */
void bl_capabilities_add(bl_capabilities *c, const char *name);
/* The rules for exactly this id ("ORG/REPO"). */
void bl_capabilities_add_rules(bl_capabilities *c, const char *id);
/* The rules for the id that a path spells: .../ORG/REPO, .../ORG--REPO, .../models--ORG--REPO/snapshots/REV,
 * each with or without a .gguf file behind. As written, and where links lead. */
void bl_capabilities_add_path(bl_capabilities *c, const char *path);
/* What config.json asks for, and the rules for the id it says to come from (_name_or_path). NULL: nothing. */
void bl_capabilities_add_config(bl_capabilities *c, const json_t *config);

/* The part of c that the machine lacks. */
void bl_capabilities_missing(const bl_capabilities *c, const bl_machine *m, bl_capabilities *ret);
/* "cpu:avx2, mem:18GiB and 2 more": one line in ret, which it returns. */
const char *bl_capabilities_text(const bl_capabilities *c, char ret[BL_CAPABILITIES_TEXT]);
/* BL_ENOTSUP with a line that lists what is missing. Permanent: trying again changes nothing. `model` names
 * it in the message. */
bl_code bl_capabilities_check(const bl_capabilities *c, const bl_machine *m, const char *model,
                              bl_err *err) BL_MUST_CHECK;

/* For a build made from another: config (an object) asks for what it asked for and for c. BL_ENOMEM;
 * BL_ENOTSUP when c holds something unreadable, which could not be passed on. */
bl_code bl_capabilities_pass_on(const bl_capabilities *c, json_t *config, bl_err *err) BL_MUST_CHECK;

#endif
