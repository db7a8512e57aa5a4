/*
 * Steps of a sandbox's set-up that a process inside may take for itself, whatever the
 * kernel: the scratch file system, and the end of every right.
 *
 * Each returns NULL, or the step that failed with errno.
 */
#ifndef STOCKADE_CONFINE_H
#define STOCKADE_CONFINE_H

#include <stdint.h>
#include <sys/types.h>

/*
 * Property: everything the guest can write is one fresh tmpfs, bounded in bytes and, where
 * inodes is not 0, in inodes, that nobody else ever sees and that dies with the mount
 * namespace. nosuid and nodev: no set-id program and no device node planted there works.
 */
const char *confine_scratch(uint64_t bytes, uint64_t inodes, uid_t owner);

/* Other ceilings for the same. */
const char *confine_scratch_again(uint64_t bytes, uint64_t inodes);

/* Property: no program that is executed ever gets a capability. Takes CAP_SETPCAP. */
const char *confine_bounding_set(void);

/*
 * Property: no capability, not even inside its own user namespace, and no way to one; exec
 * never gains a privilege: set-id bits and file capabilities are inert.
 */
const char *confine_rights(void);

#endif
