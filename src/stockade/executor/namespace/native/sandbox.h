/*
 * The namespace tier's boundary, in two steps.
 *
 *   launch.c    the outer step, once per tenant: a process tree of its own with a
 *               read-only root, in which a warm interpreter (the zygote) waits.
 *   sandbox.c   the inner step, once per sandbox: the zygote clones itself into fresh
 *               namespaces and gives up everything it could hurt anybody with.
 *
 * Mechanism only. Which limits, which ids and which mounts is the caller's decision.
 */
#ifndef STOCKADE_SANDBOX_H
#define STOCKADE_SANDBOX_H

#include <stdint.h>

#define STOCKADE_JOINS_MAX 4
#define STOCKADE_GUEST_ID 1000 /* the only user and group id that exists inside */

/* One sandbox. The layout is mirrored by ctypes in guest/zygote.py. */
struct stockade_sandbox {
    uint32_t size;          /* sizeof of this struct: refuses a caller of another version */
    uint32_t id;            /* user and group id in the zygote's user namespace */
    uint64_t disk_bytes;    /* of /workspace and /tmp together */
    uint64_t inodes;        /* of /workspace and /tmp together */
    uint64_t affinity[16];  /* CPUs it may run on, 1,024 bits; all zero: do not restrict */
    int32_t wire_in;        /* becomes descriptor 3 */
    int32_t wire_out;       /* becomes descriptor 4 */
    int32_t joins;          /* how many of join[] are used */
    int32_t join[STOCKADE_JOINS_MAX]; /* cgroup.procs, become descriptors 5 and up */
};

/*
 * Clone the calling process into a sandbox.
 *
 * In the parent: the child's pid, and a pidfd of it (close-on-exec) in *pidfd; or a
 * negative errno. In the child: 0, inside the finished sandbox. A child whose set-up
 * fails never returns: it says why in a RESET frame on the wire and ends.
 */
int stockade_clone(const struct stockade_sandbox *sandbox, int *pidfd);

/* Whether other processes of the same user may look into this one: 0 or 1, PR_SET_DUMPABLE. */
int stockade_set_dumpable(int dumpable);

#endif
