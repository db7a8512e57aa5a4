/* The inner step: one sandbox. Read set_up() first; it is the list of what is done. */
#define _GNU_SOURCE
#include "sandbox.h"
#include "confine.h"
#include "filter.h"
#include "park.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/sched.h>
#include <linux/securebits.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#if __GLIBC_PREREQ(2, 35)
#include <sys/rseq.h>
#endif
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Where a set-up failure is told; moves when the descriptors are laid out. */
static int report_to;

/* A RESET frame on channel 0 (docs/wire.md), then the end. The parent answers for it. */
static _Noreturn void fail(const char *step)
{
    unsigned char frame[7 + 160];
    const int error = errno;
    const int length = snprintf((char *)frame + 7, sizeof frame - 7, "sandbox set-up: %s: %s", step,
                                strerrordesc_np(error));

    frame[0] = frame[1] = frame[2] = 0;
    frame[3] = (unsigned char)length;
    frame[4] = frame[5] = 0;
    frame[6] = 6;
    if (length > 0 && (size_t)length < sizeof frame - 7 &&
        write(report_to, frame, 7 + (size_t)length) < 0)
        _exit(2);
    _exit(1);
}

#define MUST(call, step)                                                                           \
    do {                                                                                           \
        if ((call) < 0)                                                                            \
            fail(step);                                                                            \
    } while (0)

#define CONFINE(step)                                                                              \
    do {                                                                                           \
        const char *const failed = (step);                                                         \
        if (failed)                                                                                \
            fail(failed);                                                                          \
    } while (0)

static void write_file(const char *path, const char *text)
{
    const int file = open(path, O_WRONLY | O_CLOEXEC);

    MUST(file, path);
    MUST(write(file, text, strlen(text)), path);
    close(file);
}

/*
 * Property: only the sandbox's own processes are visible, and nothing of the kernel's
 * settings: subset=pid leaves out /proc/sys, kallsyms, config.gz and all else (proc(5)).
 */
static void mount_proc(void)
{
    MUST(mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, "subset=pid"),
         "mount /proc");
}

/*
 * Property: a terminal inside belongs to a pseudo-terminal system of this sandbox alone, which
 * cannot use up those of the whole kernel.
 */
static void mount_terminals(void)
{
    MUST(mount("devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC,
               "newinstance,ptmxmode=0666,mode=600,max=64"),
         "mount /dev/pts");
}

/* Property: the network is a loopback device of this sandbox alone, and nothing else. */
static void bring_up_loopback(void)
{
    struct ifreq request;
    const int control = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    MUST(control, "socket");
    memset(&request, 0, sizeof request);
    memcpy(request.ifr_name, "lo", 3);
    request.ifr_flags = IFF_UP | IFF_RUNNING;
    MUST(ioctl(control, SIOCSIFFLAGS, &request), "bring up lo");
    close(control);
}

/*
 * Property: on the host the guest is a user of its own, never root; inside, one
 * unprivileged user is all there is (user_namespaces(7)). The namespaces made above
 * belong to the outer user namespace, so nothing that the guest could ever become
 * inside this one has power over them.
 */
static void become_guest(const struct stockade_request *wanted)
{
    char map[64];

    /* Refused where the outer namespace has one id only (a plain user's): setgroups(2). */
    if (setgroups(0, NULL) < 0 && errno != EPERM)
        fail("setgroups");
    MUST(setresgid(wanted->id, wanted->id, wanted->id), "setresgid");
    /* Capabilities survive the change for the one call below: hosts exist which let nobody
     * without them make a user namespace. They all go in confine_rights(). */
    MUST(prctl(PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP), "set securebits");
    MUST(setresuid(wanted->id, wanted->id, wanted->id), "setresuid");
    /* The id change made this process undumpable, and its own map files root's: proc(5). */
    MUST(prctl(PR_SET_DUMPABLE, 1), "set dumpable");
    MUST(unshare(CLONE_NEWUSER), "unshare the user namespace");
    write_file("/proc/self/setgroups", "deny");
    snprintf(map, sizeof map, "%d %u 1", GUEST_ID, wanted->id);
    write_file("/proc/self/uid_map", map);
    write_file("/proc/self/gid_map", map);
}

static void set_ceiling(int resource, rlim_t value)
{
    const struct rlimit limit = {value, value};

    MUST(setrlimit((__rlimit_resource_t)resource, &limit), "setrlimit");
}

/*
 * Property: nothing of a crash reaches the host. A core limit of 1 stops both a core
 * file and a pipe handler of the host's core_pattern; 0 would not stop the latter
 * (fs/coredump.c). The filter refuses any change of it.
 * Locked memory and message queues are charged outside the memory ceiling: none. Nobody
 * gets ahead of his neighbours by a priority that the executor's user may have.
 */
static void set_ceilings(void)
{
    set_ceiling(RLIMIT_CORE, 1);
    set_ceiling(RLIMIT_MEMLOCK, 0);
    set_ceiling(RLIMIT_MSGQUEUE, 0);
    set_ceiling(RLIMIT_NICE, 0);
    set_ceiling(RLIMIT_RTPRIO, 0);
    set_ceiling(RLIMIT_SIGPENDING, 1024);
}

/* Property: the CPU count that the guest sees is the one it was granted. */
static void set_affinity(const struct stockade_request *wanted)
{
    uint64_t any = 0;

    for (size_t i = 0; i < sizeof wanted->affinity / sizeof wanted->affinity[0]; i++)
        any |= wanted->affinity[i];
    if (any)
        MUST(syscall(SYS_sched_setaffinity, 0, sizeof wanted->affinity, wanted->affinity),
             "sched_setaffinity");
}

/*
 * The kernel forgets a process's rseq(2) area when it is cloned with shared memory, and glibc
 * would go on reading a CPU number there that nobody renews. The program's copy inherits this.
 */
static void register_rseq(void)
{
#if __GLIBC_PREREQ(2, 35)
    if (__rseq_size > 0)
        MUST(syscall(SYS_rseq, (char *)__builtin_thread_pointer() + __rseq_offset,
                     sizeof(struct rseq), 0, RSEQ_SIG),
             "rseq");
#endif
}

/* Moves a descriptor out of the way of the fixed numbers below. */
static int lift(int descriptor)
{
    const int lifted = fcntl(descriptor, F_DUPFD_CLOEXEC, ABOVE_ALL);

    MUST(lifted, "duplicate a descriptor");
    return lifted;
}

/*
 * Property: no descriptor of the zygote or of the host stays open: no leaked folder to
 * escape by (CVE-2024-21626), no socket to pass descriptors over. Standard streams are
 * /dev/null; the wire and the cgroups' doors are where the agent expects them.
 */
static void lay_out_descriptors(const struct stockade_sandbox *sandbox)
{
    const int in = lift(sandbox->wire_in), out = lift(sandbox->wire_out);
    const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    int door[MOST_DOORS];

    MUST(null, "open /dev/null");
    for (int i = 0; i < sandbox->doors; i++)
        door[i] = lift(sandbox->door[i]);
    for (int standard = 0; standard <= 2; standard++)
        MUST(dup2(null, standard), "lay out descriptors");
    MUST(dup2(in, WIRE_IN), "lay out descriptors");
    MUST(dup2(out, WIRE_OUT), "lay out descriptors");
    report_to = WIRE_OUT;
    for (int i = 0; i < sandbox->doors; i++)
        MUST(dup2(door[i], FIRST_DOOR + i), "lay out descriptors");
    MUST(syscall(SYS_close_range, FIRST_DOOR + sandbox->doors, ~0U, 0), "close_range");
}

static void set_up(const struct stockade_sandbox *sandbox)
{
    const struct stockade_request *wanted = sandbox->wanted;

    report_to = sandbox->wire_out;
    register_rseq();
    CONFINE(confine_scratch(wanted->disk_bytes, wanted->inodes, wanted->id));
    mount_proc();
    mount_terminals();
    bring_up_loopback();
    MUST(chdir("/workspace"), "chdir");
    become_guest(wanted);
    set_ceilings();
    set_affinity(wanted);
    CONFINE(confine_bounding_set());
    CONFINE(confine_rights());
    lay_out_descriptors(sandbox);
    CONFINE(filter_load());
}

/*
 * Two processes out of one: pid 1 becomes the agent, and sheds the interpreter's memory
 * with it; the warm copy waits as the program to be. Returns in the latter only.
 */
static void divide(const struct stockade_sandbox *sandbox)
{
    struct parked parked;
    char doors[16], pid[16];
    int forked;

    forked = park(&parked, sandbox->doors);
    if (forked == 1)
        return;
    MUST(forked, "fork the program's process");
    const int ends[] = {parked.specification, parked.status, parked.input,
                        parked.output,        parked.error,  parked.result};
    int lifted[sizeof ends / sizeof ends[0]];

    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++)
        lifted[i] = lift(ends[i]);
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++)
        MUST(dup2(lifted[i], FIRST_PARKED + (int)i), "lay out descriptors");
    snprintf(doors, sizeof doors, "%d", sandbox->doors);
    snprintf(pid, sizeof pid, "%d", parked.pid);
    execve(STOCKADE_AGENT, (char *[]){STOCKADE_AGENT, doors, pid, NULL}, (char *[]){NULL});
    fail("exec the agent");
}

/* clone3(2), expanded in place: no frame of a called function may lie between it and us. */
static inline __attribute__((always_inline)) long clone_sharing_memory(struct clone_args *arguments)
{
#if defined(__x86_64__)
    long result;

    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "0"((long)SYS_clone3), "D"(arguments), "S"(sizeof *arguments)
                     : "rcx", "r11", "memory");
    return result;
#else
    register long number __asm__("x8") = SYS_clone3;
    register long first __asm__("x0") = (long)arguments;
    register long second __asm__("x1") = (long)sizeof *arguments;

    __asm__ volatile("svc #0" : "+r"(first) : "r"(number), "r"(second) : "memory");
    return first;
#endif
}

/*
 * Property: every namespace is fresh and used once. The child is pid 1 of its own pid
 * namespace: when it dies the kernel kills all others in it, whatever they ignore or
 * daemonise, and its pidfd reports only when they are gone (pid_namespaces(7)). The user
 * namespace follows in become_guest().
 *
 * Pid 1 is to shed this memory by exec at once, so it is not given a copy of it: as with
 * vfork(2) the caller stands still until then, and pid 1 works on the caller's stack below
 * this frame. The one copy that is made is the program's, which returns from here.
 */
static __attribute__((noinline)) long clone_and_set_up(struct clone_args *arguments,
                                                       const struct stockade_sandbox *sandbox)
{
    const long pid = clone_sharing_memory(arguments);

    if (pid == 0) {
        set_up(sandbox);
        divide(sandbox);
    }
    return pid;
}

int sandbox_clone(const struct stockade_sandbox *sandbox, int *pidfd)
{
    struct clone_args arguments;

    memset(&arguments, 0, sizeof arguments);
    arguments.flags = CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP |
                      CLONE_NEWNET | CLONE_PIDFD | CLONE_VM | CLONE_VFORK;
    arguments.exit_signal = SIGCHLD;
    arguments.pidfd = (uint64_t)(uintptr_t)pidfd;
    return (int)clone_and_set_up(&arguments, sandbox);
}
