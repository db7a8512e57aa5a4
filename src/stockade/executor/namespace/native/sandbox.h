/*
 * The namespace tier's boundary, in two steps.
 *
 *   launch.c    the outer step, once per tenant: a process tree of its own with a
 *               read-only root, in which a warm interpreter (the zygote) waits.
 *   sandbox.c   the inner step, once per sandbox: the zygote clones itself into fresh
 *               namespaces and gives up everything it could hurt anybody with.
 *
 * The agent, which then is pid 1 inside, is in guest/native/.
 *
 * Mechanism only. Which limits, which ids and which mounts is the caller's decision.
 */
#ifndef STOCKADE_SANDBOX_H
#define STOCKADE_SANDBOX_H

#include <stdint.h>

#define STOCKADE_GUEST_ID 1000 /* the only user and group id that exists inside */
#define STOCKADE_AGENT "/opt/stockade/stockade-agent"

/* One sandbox. The layout is mirrored by ctypes in guest/zygote.py. */
struct stockade_sandbox {
    uint32_t size;          /* sizeof of this struct: refuses a caller of another version */
    uint32_t id;            /* user and group id in the zygote's user namespace */
    uint64_t disk_bytes;    /* of /workspace and /tmp together */
    uint64_t inodes;        /* of /workspace and /tmp together */
    uint64_t affinity[16];  /* CPUs it may run on, 1,024 bits; all zero: do not restrict */
    int32_t wire_in, wire_out;
    int32_t doors;          /* how many of door[] are used */
    int32_t door[4];        /* of its cgroups: "0" written by a process lets it in */
};

/*
 * Clone the calling process into a sandbox.
 *
 * In the parent: the pid of the sandbox's pid 1, and a pidfd of it (close-on-exec) in
 * *pidfd; or a negative errno. In the program's process, which is a copy of the caller
 * inside the finished sandbox: 0. What fails before that is told in a RESET frame on the
 * wire, and the sandbox ends.
 */
int stockade_clone(const struct stockade_sandbox *sandbox, int *pidfd);

/*
 * Let the kernel reap the caller's children: whoever waits for a sandbox does so by its
 * pidfd. 0, or a negative errno. Not inherited by a sandbox's processes: exec resets it in
 * the agent, park() in the program's.
 */
int stockade_reap_children(void);

/*
 * Make the caller's cgroup the root of all that it and its sandboxes see of cgroups
 * (cgroup_namespaces(7)): where the executor's are on the host is then not told inside.
 * 0, or a negative errno.
 */
int stockade_forget_cgroup(void);

#endif
