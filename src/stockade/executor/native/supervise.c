/*
 * Runs a command in a pid namespace that dies with the executor.
 *
 *   stockade-supervise --parent PID --control FD [--door FD]... [--cpu N]... [--rights N]
 *                      [--root-id ID --nobody-id ID --group-id ID] [--see PATH]... -- COMMAND...
 *
 * For a tier whose sandbox is another program's work: however many processes that program
 * makes, and whatever becomes of it, they end as one.
 *
 *   supervisor   dies with the executor (PR_SET_PDEATHSIG); reaps the init; does nothing else
 *   init         pid 1 of the namespace; dies with the supervisor, and everything with it
 *   command      has standard streams as this program had them; its end ends the init, unless
 *                it succeeded and left others running: then the end of the first of those does
 *
 * --control: a socket; one packet of a byte with the init's pidfd goes out on it.
 * --door: of a cgroup, to write "0" to; entered before there is anything to count.
 * --cpu: one that the command may run on; none named: any.
 * --rights: 0: the command, though user 0 inside, has no capability there, nor gets any.
 * --root-id, --nobody-id, --group-id: for root, who they are on the host that are users 0 and
 *   65534 and group 0 inside: from the init on nobody is root there.
 * --see: a file or folder of the host that stays; none of the others is left inside. Beside
 *   them there are /proc, an empty /tmp, and the command, whose own path need not be seen.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_SEEN = 32 };

/* What the init and the command are to be. */
static struct {
    int root, nobody, group; /* ids of the host; root 0: a plain user's own */
    const char *seen[MOST_SEEN];
    int seen_count;
    int rights;  /* 0: none at all */
    int program; /* the command's file */
} wanted = {.rights = 1};

static _Noreturn void fail(const char *step)
{
    fprintf(stderr, "stockade-supervise: %s: %s\n", step, strerror(errno));
    _exit(126);
}

#define MUST(call, step)                                                                           \
    do {                                                                                           \
        if ((call) < 0)                                                                            \
            fail(step);                                                                            \
    } while (0)

/* The command's streams are the command's: whoever reads them is to see their end with it. */
static void let_go_of_streams(void)
{
    const int null = open("/dev/null", O_RDWR | O_CLOEXEC);

    MUST(null, "open /dev/null");
    MUST(dup2(null, 0), "let go of the streams");
    MUST(dup2(null, 1), "let go of the streams");
}

/* Property: the host's root is nobody from here on, whatever becomes of the command. */
static void become_root_inside(void)
{
    MUST(setgroups(0, NULL), "setgroups");
    MUST(setresgid(0, 0, 0), "setresgid");
    MUST(setresuid(0, 0, 0), "setresuid");
}

static void make_folders(char *path)
{
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        if (mkdir(path, 0755) < 0 && errno != EEXIST)
            fail(path);
        *slash = '/';
    }
}

/* Mounts the same file or folder below the new root, which is mounted on /tmp. */
static void show(int descriptor, const char *path)
{
    char source[32], target[4096];
    struct stat status;

    snprintf(source, sizeof source, "/proc/self/fd/%d", descriptor);
    if (snprintf(target, sizeof target, "/tmp%s", path) >= (int)sizeof target)
        fail("a path that is too long");
    make_folders(target);
    MUST(fstat(descriptor, &status), path);
    if (S_ISDIR(status.st_mode)) {
        if (mkdir(target, 0755) < 0 && errno != EEXIST)
            fail(target);
    } else {
        MUST(close(open(target, O_WRONLY | O_CREAT | O_CLOEXEC, 0644)), target);
    }
    MUST(mount(source, target, NULL, MS_BIND | MS_REC, NULL), path);
    close(descriptor);
}

/*
 * Before anything is in front of them, and as who this was: what is above them may be the
 * executor's alone.
 */
static void open_seen(int *seen)
{
    for (int i = 0; i < wanted.seen_count; i++) {
        seen[i] = open(wanted.seen[i], O_PATH | O_CLOEXEC);
        MUST(seen[i], wanted.seen[i]);
    }
}

/*
 * Property: of the host's files only those that were named are left, for the command as for
 * what takes it over; and of its processes only those of this namespace.
 */
static void leave_host(const int *seen)
{
    MUST(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL), "make the mounts private");
    MUST(mount("root", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, "mode=755"), "mount a root");
    for (int i = 0; i < wanted.seen_count; i++)
        show(seen[i], wanted.seen[i]);
    if (mkdir("/tmp/tmp", 0755) < 0 && errno != EEXIST)
        fail("make /tmp");
    MUST(mkdir("/tmp/proc", 0755), "make /proc");
    MUST(mount("proc", "/tmp/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL), "mount /proc");
    MUST(chdir("/tmp"), "chdir");
    /* The old root on top of the new one, to be taken off: pivot_root(2). */
    MUST(syscall(SYS_pivot_root, ".", "."), "pivot_root");
    MUST(umount2(".", MNT_DETACH), "unmount the host");
    MUST(chdir("/"), "chdir");
}

/* Property: exec gives none back, though this is user 0: capabilities(7), the bounding set. */
static void give_up_rights(void)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {{0}};

    for (int right = 0; prctl(PR_CAPBSET_READ, right) >= 0; right++)
        MUST(prctl(PR_CAPBSET_DROP, right), "give up a right");
    MUST(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0), "give up the ambient rights");
    MUST(syscall(SYS_capset, &header, none), "give up all rights");
}

#if defined(__x86_64__)
#define OWN_ARCHITECTURE AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define OWN_ARCHITECTURE AUDIT_ARCH_AARCH64
#endif

/*
 * Not a wall: registering for membarrier(2) waits for a grace period of RCU, ten milliseconds in
 * each of the seven times that runsc starts itself. It does without where there is none, and
 * then answers its guests that there is none.
 */
static void refuse_membarrier(void)
{
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, OWN_ARCHITECTURE, 0, 2),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_membarrier, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
    };
    const struct sock_fprog program = {sizeof rules / sizeof *rules, rules};

    MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), "seccomp");
}

/*
 * Waits for a child to end; -1 when there is none. Meanwhile SIGUSR1 stops every process beside
 * the init, and SIGUSR2 lets them go on.
 */
static pid_t wait_for_any(const sigset_t *awaited, int *status)
{
    pid_t pid;
    int number;

    while ((pid = waitpid(-1, status, WNOHANG)) == 0) {
        number = sigwaitinfo(awaited, NULL);
        if (number == SIGUSR1 || number == SIGUSR2)
            kill(-1, number == SIGUSR1 ? SIGSTOP : SIGCONT);
    }
    return pid;
}

static int code_of(int status)
{
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* Property: nothing of the command outlives the init, nor the init the supervisor. */
static _Noreturn void be_init(int alive, char **command)
{
    struct pollfd supervisor = {.fd = alive};
    char byte;
    sigset_t awaited;
    pid_t child, ended;
    int seen[MOST_SEEN], status;

    /* Before the executor knows whom to send one. */
    sigemptyset(&awaited);
    sigaddset(&awaited, SIGCHLD);
    sigaddset(&awaited, SIGUSR1);
    sigaddset(&awaited, SIGUSR2);
    MUST(sigprocmask(SIG_BLOCK, &awaited, NULL), "block signals");

    /* A byte says that all is prepared; an end, that the supervisor has died before. */
    if (read(alive, &byte, 1) != 1)
        _exit(1);
    open_seen(seen);
    if (wanted.root)
        become_root_inside();
    /* Only now: whoever changes user loses it (commit_creds in kernel/cred.c). */
    MUST(prctl(PR_SET_PDEATHSIG, SIGKILL), "prctl");
    if (poll(&supervisor, 1, 0) != 0)
        _exit(1); /* it died before it could be watched */
    close(alive);
    leave_host(seen);
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs");
    refuse_membarrier();
    child = fork();
    MUST(child, "fork");
    if (child == 0) {
        sigprocmask(SIG_UNBLOCK, &awaited, NULL);
        if (!wanted.rights)
            give_up_rights();
        syscall(SYS_execveat, wanted.program, "", command, environ, AT_EMPTY_PATH);
        fail(command[0]);
    }
    let_go_of_streams();
    while ((ended = wait_for_any(&awaited, &status)) != child)
        MUST(ended, "wait");
    if (code_of(status) == 0)
        (void)wait_for_any(&awaited, &status);
    _exit(code_of(status));
}

static void send_pidfd(int control, int pidfd)
{
    union {
        char space[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } ancillary;
    char byte = '+';
    struct iovec bytes = {&byte, 1};
    struct msghdr message = {.msg_iov = &bytes,
                             .msg_iovlen = 1,
                             .msg_control = ancillary.space,
                             .msg_controllen = sizeof ancillary.space};
    struct cmsghdr *header;

    memset(&ancillary, 0, sizeof ancillary);
    header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof pidfd);
    memcpy(CMSG_DATA(header), &pidfd, sizeof pidfd);
    MUST(sendmsg(control, &message, MSG_NOSIGNAL), "send the pidfd");
}

static void write_file(pid_t process, const char *name, const char *text)
{
    char path[64];
    int file;

    snprintf(path, sizeof path, "/proc/%d/%s", process, name);
    file = open(path, O_WRONLY | O_CLOEXEC);
    MUST(file, path);
    MUST(write(file, text, strlen(text)), path);
    close(file);
}

/* Users 0 and nobody, which is all that gVisor has use for. */
static void map_ids(pid_t process)
{
    char map[64];

    snprintf(map, sizeof map, "0 %d 1\n65534 %d 1", wanted.root, wanted.nobody);
    write_file(process, "uid_map", map);
    snprintf(map, sizeof map, "0 %d 1\n65534 %d 1", wanted.group, wanted.nobody);
    write_file(process, "gid_map", map);
}

/* A plain user makes namespaces from within one of users: user_namespaces(7). */
static void map_own_ids(pid_t process)
{
    char map[64];

    write_file(process, "setgroups", "deny");
    snprintf(map, sizeof map, "0 %u 1", geteuid());
    write_file(process, "uid_map", map);
    snprintf(map, sizeof map, "0 %u 1", getegid());
    write_file(process, "gid_map", map);
}

static int number_of(const char *text)
{
    char *end;
    const long number = strtol(text, &end, 10);

    if (*text == '\0' || *end != '\0' || number < 0 || number > INT32_MAX) {
        fprintf(stderr, "stockade-supervise: %s is no number\n", text);
        _exit(64);
    }
    return (int)number;
}

int main(int count, char **arguments)
{
    /* Property: a crash leaves nothing on the host; 0 would let a handler run: core(5). */
    static const struct rlimit no_core = {1, 1};
    static const struct sched_param no_priority = {0};
    int parent = -1, control = -1, pidfd = -1, alive[2], status, i = 1;
    struct clone_args clone;
    cpu_set_t cpus;
    long init;

    CPU_ZERO(&cpus);
    /* What the executor ignores is inherited, through exec as well: signal(7). */
    for (int number = 1; number < NSIG; number++)
        signal(number, SIG_DFL);

    for (; i + 1 < count && strcmp(arguments[i], "--") != 0; i += 2) {
        if (strcmp(arguments[i], "--see") == 0) {
            if (wanted.seen_count == MOST_SEEN)
                break;
            wanted.seen[wanted.seen_count++] = arguments[i + 1];
            continue;
        }
        const int number = number_of(arguments[i + 1]);

        if (strcmp(arguments[i], "--parent") == 0) {
            parent = number;
        } else if (strcmp(arguments[i], "--control") == 0) {
            control = number;
        } else if (strcmp(arguments[i], "--rights") == 0) {
            wanted.rights = number;
        } else if (strcmp(arguments[i], "--root-id") == 0) {
            wanted.root = number;
        } else if (strcmp(arguments[i], "--nobody-id") == 0) {
            wanted.nobody = number;
        } else if (strcmp(arguments[i], "--group-id") == 0) {
            wanted.group = number;
        } else if (strcmp(arguments[i], "--door") == 0) {
            if (write(number, "0", 1) != 1)
                fail("enter the cgroup");
            close(number);
        } else if (strcmp(arguments[i], "--cpu") == 0 && number < CPU_SETSIZE) {
            CPU_SET(number, &cpus);
        } else {
            break;
        }
    }
    if (i + 1 >= count || strcmp(arguments[i], "--") != 0 || parent < 0 || control < 0 ||
        !wanted.root != !wanted.nobody || !wanted.root != !wanted.group) {
        fputs("usage: stockade-supervise --parent PID --control FD [--door FD]... "
              "[--cpu N]... [--rights N] [--root-id ID --nobody-id ID --group-id ID] [--see PATH]... "
              "-- COMMAND\n",
              stderr);
        return 64;
    }
    MUST(prctl(PR_SET_PDEATHSIG, SIGKILL), "prctl");
    if (getppid() != parent)
        return 1; /* the executor died before it could be watched */
    if (CPU_COUNT(&cpus))
        MUST(sched_setaffinity(0, sizeof cpus, &cpus), "sched_setaffinity");
    MUST(setrlimit(RLIMIT_CORE, &no_core), "setrlimit");
    /*
     * None of gVisor's processes takes the CPU from the one that woke it. Its syscall thread
     * would, and then spins until the one that it took the CPU from, its kernel, waits:
     * syscall_loop in pkg/sentry/platform/systrap/stub_amd64.s.
     */
    MUST(sched_setscheduler(0, SCHED_BATCH, &no_priority), "sched_setscheduler");
    wanted.program = open(arguments[i + 1], O_PATH | O_CLOEXEC);
    MUST(wanted.program, arguments[i + 1]);
    MUST(fcntl(control, F_SETFD, FD_CLOEXEC), "fcntl");
    MUST(pipe2(alive, O_CLOEXEC), "pipe");
    memset(&clone, 0, sizeof clone);
    clone.flags = CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS |
                  CLONE_PIDFD;
    if (geteuid() != 0 || wanted.root)
        clone.flags |= CLONE_NEWUSER;
    clone.exit_signal = SIGCHLD;
    clone.pidfd = (uint64_t)(uintptr_t)&pidfd;
    init = syscall(SYS_clone3, &clone, sizeof clone);
    MUST(init, "clone");
    if (init == 0) {
        close(alive[1]);
        close(control);
        be_init(alive[0], arguments + i + 1);
    }
    close(alive[0]);
    if (wanted.root)
        map_ids((pid_t)init);
    else if (clone.flags & CLONE_NEWUSER)
        map_own_ids((pid_t)init);
    MUST(write(alive[1], "+", 1), "start the init");
    let_go_of_streams();
    send_pidfd(control, pidfd);
    close(pidfd);
    while (waitpid((pid_t)init, &status, 0) < 0)
        if (errno != EINTR)
            fail("wait");
    return code_of(status);
}
