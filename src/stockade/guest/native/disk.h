/*
 * A machine whose scratch files are on a disk of its own, in place of its memory: init.c has
 * formatted and mounted it, and the sandbox's first process divides it.
 *
 * Each returns NULL, or the step that failed with errno.
 */
#ifndef STOCKADE_DISK_H
#define STOCKADE_DISK_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Where init leaves it, below whatever the root is at that time. */
#define SCRATCH "/run"

/* What the file system itself takes of them, and what stands on it beside the guest's files:
 * ten that ext4 reserves, lost+found, two folders, and the ballast with its folder. */
enum { OWN_INODES = 15 };

/* Whether init has mounted one. */
bool disk_is_there(void);

/*
 * Property: as of confine_scratch(). Inodes are exactly as many, for whatever more the disk has is
 * taken up by files that no path of the sandbox leads to; bytes are as many, and one in 256 more
 * for the file system's own lists.
 */
const char *disk_confine(uint64_t bytes, uint64_t inodes, uid_t owner);

#endif
