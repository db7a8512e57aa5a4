/*
 * The namespace tier's boundary, in two steps.
 *
 *   launch.c    the outer step, once per tenant: a process tree of its own with a
 *               read-only root, in which a warm interpreter (the zygote) waits.
 *   zygote.c    what the zygote does from then on: it takes the executor's requests.
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

#define STOCKADE_AGENT "/opt/stockade/stockade-agent"

/* What the executor asks a zygote for. The layout is mirrored in executor/namespace/zygote.py. */
struct stockade_request {
    uint16_t size;          /* sizeof of this struct: refuses a caller of another version */
    uint16_t kind;          /* CLONE or ENTER */
    uint32_t id;            /* user and group id in the zygote's user namespace */
    uint64_t disk_bytes;    /* of /workspace and /tmp together */
    uint64_t inodes;        /* of /workspace and /tmp together */
    uint64_t affinity[16];  /* CPUs it may run on, 1,024 bits; all zero: do not restrict */
};

enum { CLONE = 1, ENTER = 2 };

struct stockade_sandbox {
    const struct stockade_request *wanted;
    int wire_in, wire_out;
    int doors;              /* how many of door[] are used */
    const int *door;        /* of its cgroups: "0" written by a process lets it in */
};

/*
 * Clone the calling process into a sandbox.
 *
 * In the caller: the pid of the sandbox's pid 1, and a pidfd of it (close-on-exec) in
 * *pidfd; or a negative errno. In the program's process, which is a copy of the caller
 * inside the finished sandbox: 0. What fails before that is told in a RESET frame on the
 * wire, and the sandbox ends.
 */
int sandbox_clone(const struct stockade_sandbox *sandbox, int *pidfd);

/*
 * Serve the executor on a control socket, as pid 1 of a tenant's tree: a sandbox for each
 * request. Returns in the program's process only, with 0. In the zygote it ends the process.
 */
int stockade_serve(int control);

#endif
