/*
 * The agent as the first process of a whole machine: an ordinary kernel that serves one sandbox,
 * and that many copies may be made of while it waits.
 *
 * Each function that returns text returns NULL, or the step that failed with errno.
 */
#ifndef STOCKADE_MACHINE_H
#define STOCKADE_MACHINE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "json.h"

enum {
    SEED_BYTES = 32,
    GO_AHEAD_BYTES = 1 + SEED_BYTES + 3 * 8, /* '.', seed, time, bytes, inodes: docs/wire.md */
    MACHINE_DOORS = 1, /* a group of processes; its door is FIRST_DOOR: park.h */
};

/* What the kernel counted of the programs' group. */
struct counts {
    unsigned long long cpu_microseconds, peak_memory, peak_processes, oom_kills, refused;
};

/*
 * Property: nothing of the kernel's own processes is in the sandbox, whose first process is the
 * one that returns from here. The caller's waits for its end, and then ends the machine.
 */
const char *machine_divide(void);

/* As that process, with every right: all that is made before there is a snapshot. */
const char *machine_set_up(void);

/*
 * Property: what waits for the go-ahead has two rights left, to add to the kernel's randomness
 * and to set its clock. Around the change of the user id.
 */
const char *machine_keep_rights(void);
const char *machine_reduce_rights(void);

/* Property: no two copies of a machine have the same randomness, or the time of their snapshot. */
const char *machine_go_on(const uint8_t message[GO_AHEAD_BYTES]);

/* Property: as of confine_scratch(), on a disk of the machine's own where it has one. */
const char *machine_confine_scratch(uint64_t bytes, uint64_t inodes, uid_t owner);

/* Whether it has, once that was done. */
bool machine_has_disk(void);

/* Whether this is one: machine_set_up() was done. */
bool machine_is_own(void);

/* A program begins, with the ceilings that there are. */
void machine_begin(void);
const char *machine_set_ceilings(uint64_t memory, uint64_t processes);

/* Since it began. A peak of 0 is not known. */
struct counts machine_counts(void);

/* Facts for the receipt, each with a comma behind it; none if this is no machine of our own. */
void machine_add_facts(struct json *json);

#endif
