#define _GNU_SOURCE
#include "machine.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/random.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/reboot.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "confine.h"
#include "disk.h"
#include "park.h"

#define MUST(call, step)                                                                           \
    do {                                                                                           \
        if ((call) < 0)                                                                            \
            return step;                                                                           \
    } while (0)

/* Controllers of the programs' group. By "cpu" all of them together weigh as much as the agent,
 * which so always gets to run. */
#define CONTROLLERS "+cpu +memory +pids"
#if defined(__x86_64__)
#define MULTIARCH "x86_64-linux-gnu"
#elif defined(__aarch64__)
#define MULTIARCH "aarch64-linux-gnu"
#endif

enum { SMALL_FILE = 4096 };

/* Descriptors of the group's files: opened with rights that are gone when they are used. */
static struct {
    bool own, has_disk;
    int memory_max, pids_max, memory_events, memory_peak, pids_events, pids_peak, cpu_stat;
    struct counts before;
    char blocks[512], controllers[64];
} machine;

/* --- files of the kernel's --- */

static const char *write_file(int folder, const char *name, const char *text)
{
    const int file = openat(folder, name, O_WRONLY | O_CLOEXEC);
    ssize_t written;

    MUST(file, name);
    written = write(file, text, strlen(text));
    close(file);
    MUST(written, name);
    return NULL;
}

/* Text, without the newline at its end; none where it cannot be read. */
static void read_file(int folder, const char *name, char *text, size_t size)
{
    const int file = openat(folder, name, O_RDONLY | O_CLOEXEC);
    const ssize_t length = file < 0 ? -1 : read(file, text, size - 1);

    if (file >= 0)
        close(file);
    text[length < 0 ? 0 : length] = '\0';
    text[strcspn(text, "\n")] = '\0';
}

/* The number behind a key, or the first one where there is none. 0 where it is not told. */
static unsigned long long read_number(int file, const char *key)
{
    char text[SMALL_FILE];
    const ssize_t length = file < 0 ? -1 : pread(file, text, sizeof text - 1, 0);

    if (length < 0)
        return 0;
    text[length] = '\0';
    if (!key)
        return strtoull(text, NULL, 10);
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
        if (strncmp(line, key, strlen(key)) == 0 && line[strlen(key)] == ' ')
            return strtoull(line + strlen(key), NULL, 10);
    return 0;
}

/* --- two processes out of one --- */

/*
 * The machine's first process. It has no right but to end the machine, and waits for the
 * sandbox's: then nothing is left that the machine is for. Not by its own end, which the
 * kernel would take for a crash.
 */
static _Noreturn void end_machine_after(pid_t sandbox)
{
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct rights[2];

    memset(rights, 0, sizeof rights);
    rights[0].permitted = rights[0].effective = 1u << CAP_SYS_BOOT;
    syscall(SYS_close_range, 0, 1, 0);
    syscall(SYS_close_range, 3, ~0U, 0);
    prctl(PR_SET_DUMPABLE, 0);
    syscall(SYS_capset, &header, rights);
    for (pid_t ended; (ended = waitpid(-1, NULL, 0)) != sandbox;)
        if (ended < 0 && errno != EINTR)
            break;
    reboot(RB_AUTOBOOT);
    _exit(1);
}

const char *machine_divide(void)
{
    pid_t sandbox;

    MUST(unshare(CLONE_NEWPID), "unshare the pid namespace");
    sandbox = fork();
    MUST(sandbox, "fork the sandbox's first process");
    if (sandbox)
        end_machine_after(sandbox);
    return NULL;
}

/* --- setting up --- */

/* What only /sys tells, which the sandbox does not see: each block device, and if it is "ro". */
static void note_blocks(void)
{
    DIR *const folder = opendir("/sys/block");
    size_t used = 0;

    for (struct dirent *entry; folder && (entry = readdir(folder));) {
        char path[300], read_only[8];

        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "/sys/block/%s/ro", entry->d_name);
        read_file(AT_FDCWD, path, read_only, sizeof read_only);
        if (used + sizeof path > sizeof machine.blocks)
            break; /* more than anybody expects: the executor refuses what it reads */
        used += (size_t)sprintf(machine.blocks + used, "%s %s\n", entry->d_name,
                                strcmp(read_only, "1") == 0 ? "ro" : "rw");
    }
    if (folder)
        closedir(folder);
}

/* Out of the way of the fixed numbers: park.h. */
static int open_above(int folder, const char *name, int flags)
{
    const int low = openat(folder, name, flags | O_CLOEXEC);
    const int above = low < 0 ? -1 : fcntl(low, F_DUPFD_CLOEXEC, ABOVE_ALL);

    if (low >= 0)
        close(low);
    return above;
}

/*
 * Property: what keeps the ceilings, and counts, is a group that the sandbox's own process is
 * not in, and that no path of the sandbox leads to.
 */
static const char *make_group(void)
{
    const struct {
        const char *name;
        int *descriptor, flags;
        bool optional;
    } files[] = {
        {"memory.max", &machine.memory_max, O_WRONLY, false},
        {"pids.max", &machine.pids_max, O_WRONLY, false},
        {"memory.events", &machine.memory_events, O_RDONLY, false},
        {"pids.events", &machine.pids_events, O_RDONLY, false},
        {"cpu.stat", &machine.cpu_stat, O_RDONLY, false},
        {"memory.peak", &machine.memory_peak, O_RDWR, true}, /* begun anew: since Linux 6.12 */
        {"pids.peak", &machine.pids_peak, O_RDONLY, true},   /* since Linux 6.1 */
    };
    const int root = open("/sys/fs/cgroup", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const char *failed;
    int group, door;

    MUST(root, "open /sys/fs/cgroup");
    failed = write_file(root, "cgroup.subtree_control", CONTROLLERS);
    if (failed)
        return failed;
    read_file(root, "cgroup.subtree_control", machine.controllers, sizeof machine.controllers);
    MUST(mkdirat(root, "programs", 0755), "make a group");
    group = openat(root, "programs", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    MUST(group, "open a group");
    /* One of several processes killed would leave what is neither alive nor dead. */
    failed = write_file(group, "memory.oom.group", "1");
    if (failed)
        return failed;
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        *files[i].descriptor = open_above(group, files[i].name, files[i].flags);
        if (*files[i].descriptor < 0 && !files[i].optional)
            return files[i].name;
    }
    door = open_above(group, "cgroup.procs", O_WRONLY);
    MUST(door, "open the group's door");
    close(root);
    close(group);
    MUST(dup3(door, FIRST_DOOR, O_CLOEXEC), "lay out descriptors");
    close(door);
    return NULL;
}

/*
 * Property: the files of the kernel that the sandbox sees are those of the tier that shares the
 * host's: its own processes, and the devices that init made, which carry nothing anywhere.
 */
static const char *show_own_files_only(void)
{
    MUST(umount2("/sys", MNT_DETACH), "unmount /sys"); /* and the groups, which are below it */
    MUST(umount2("/proc", MNT_DETACH), "unmount /proc");
    MUST(mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, "subset=pid"),
         "mount /proc");
    MUST(rmdir("/dev/shm"), "remove /dev/shm");
    MUST(symlink("/tmp", "/dev/shm"), "lead /dev/shm to the scratch mount");
    MUST(mount(NULL, "/dev", NULL, MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NOEXEC, NULL),
         "make /dev read-only");
    return NULL;
}

/* Those of sandbox.c; and where a first process begins with less than a host's gives, as much. */
static const char *set_ceilings(void)
{
    static const struct {
        int resource;
        rlim_t soft, hard;
    } ceilings[] = {
        {RLIMIT_MEMLOCK, 0, 0},
        {RLIMIT_MSGQUEUE, 0, 0},
        {RLIMIT_NICE, 0, 0},
        {RLIMIT_RTPRIO, 0, 0},
        {RLIMIT_SIGPENDING, 1024, 1024},
        {RLIMIT_NOFILE, 1024, 1 << 20},
        {RLIMIT_NPROC, RLIM_INFINITY, RLIM_INFINITY}, /* the group has a ceiling */
    };

    for (size_t i = 0; i < sizeof ceilings / sizeof ceilings[0]; i++) {
        const struct rlimit limit = {ceilings[i].soft, ceilings[i].hard};

        MUST(setrlimit((__rlimit_resource_t)ceilings[i].resource, &limit), "setrlimit");
    }
    return NULL;
}

/*
 * A page of a file is charged to whoever reads it first. What programs are made of is nobody's
 * then: in their group, whose anonymous memory fills its ceiling, the kernel would throw their code
 * out and read it again without end, instead of telling that memory is out.
 */
static void read_what_programs_are_of(void)
{
    static const char *const files[] = {
        INTERPRETER,
        "/lib64/ld-linux-x86-64.so.2",
        "/lib/ld-linux-aarch64.so.1",
        "/usr/lib/" MULTIARCH "/libc.so.6",
        "/usr/lib/" MULTIARCH "/libm.so.6",
        "/usr/lib/" MULTIARCH "/libz.so.1",
        "/usr/lib/" MULTIARCH "/libexpat.so.1",
    };
    static char piece[65536];

    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        const int file = open(files[i], O_RDONLY | O_CLOEXEC);

        while (file >= 0 && read(file, piece, sizeof piece) > 0)
            ;
        if (file >= 0)
            close(file);
    }
}

const char *machine_set_up(void)
{
    const char *failed;

    umask(022);
    note_blocks();
    read_what_programs_are_of();
    /* A program meets its ceiling, and not the kernel's guess of what a small machine can give. */
    failed = write_file(AT_FDCWD, "/proc/sys/vm/overcommit_memory", "1");
    if (!failed)
        failed = make_group();
    if (!failed)
        failed = show_own_files_only();
    if (!failed)
        failed = set_ceilings();
    machine.own = !failed;
    return failed;
}

bool machine_is_own(void)
{
    return machine.own;
}

bool machine_has_disk(void)
{
    return machine.has_disk;
}

const char *machine_confine_scratch(uint64_t bytes, uint64_t inodes, uid_t owner)
{
    machine.has_disk = disk_is_there();
    return machine.has_disk ? disk_confine(bytes, inodes, owner)
                            : confine_scratch(bytes, inodes, owner);
}

/* --- rights --- */

const char *machine_keep_rights(void)
{
    MUST(prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0), "keep capabilities");
    return NULL;
}

const char *machine_reduce_rights(void)
{
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct rights[2];

    memset(rights, 0, sizeof rights);
    rights[0].permitted = rights[0].effective = 1u << CAP_SYS_ADMIN | 1u << CAP_SYS_TIME;
    MUST(syscall(SYS_capset, &header, rights), "capset");
    MUST(prctl(PR_SET_KEEPCAPS, 0, 0, 0, 0), "keep no capabilities");
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs");
    return NULL;
}

static const char *add_randomness(const uint8_t seed[SEED_BYTES])
{
    struct {
        struct rand_pool_info info;
        uint8_t bytes[SEED_BYTES];
    } pool = {.info = {.entropy_count = 8 * SEED_BYTES, .buf_size = SEED_BYTES}};
    const int device = open("/dev/urandom", O_RDWR | O_CLOEXEC);
    int returned;

    MUST(device, "open /dev/urandom");
    memcpy(pool.bytes, seed, SEED_BYTES);
    returned = ioctl(device, RNDADDENTROPY, &pool);
    explicit_bzero(&pool, sizeof pool);
    if (returned == 0)
        returned = ioctl(device, RNDRESEEDCRNG);
    close(device);
    MUST(returned, "add to the kernel's randomness");
    return NULL;
}

static uint64_t get_u64(const uint8_t *from)
{
    uint64_t number = 0;

    for (int i = 0; i < 8; i++)
        number = number << 8 | from[i];
    return number;
}

/* The clock, the randomness and the scratch mount's ceilings: what a copy has for itself. A disk
 * is the machine's own from the beginning: a machine that has one is nobody's copy. */
const char *machine_go_on(const uint8_t message[GO_AHEAD_BYTES])
{
    const uint8_t *const numbers = message + 1 + SEED_BYTES;
    const uint64_t nanoseconds = get_u64(numbers);
    const char *failed = NULL;
    struct timespec time;

    if (!machine.has_disk)
        failed = confine_scratch_again(get_u64(numbers + 8), get_u64(numbers + 16));

    if (failed)
        return failed;
    time.tv_sec = (time_t)(nanoseconds / 1000000000);
    time.tv_nsec = (long)(nanoseconds % 1000000000);
    MUST(clock_settime(CLOCK_REALTIME, &time), "set the clock");
    return add_randomness(message + 1);
}

/* --- the programs' group --- */

static struct counts read_counts(void)
{
    return (struct counts){
        .cpu_microseconds = read_number(machine.cpu_stat, "usage_usec"),
        .peak_memory = read_number(machine.memory_peak, NULL),
        .peak_processes = read_number(machine.pids_peak, NULL),
        .oom_kills = read_number(machine.memory_events, "oom_kill"),
        .refused = read_number(machine.pids_events, "max"),
    };
}

static const char *set_number(int file, uint64_t number, const char *step)
{
    char text[24];
    const int length = snprintf(text, sizeof text, "%llu", (unsigned long long)number);

    MUST(pwrite(file, text, (size_t)length, 0), step);
    return NULL;
}

void machine_begin(void)
{
    machine.before = read_counts();
    if (machine.memory_peak >= 0 && pwrite(machine.memory_peak, "0", 1, 0) < 0)
        errno = 0; /* an older kernel's is of all programs there were */
}

/* Where that is less than what waits to be the program has: its end comes at once. */
const char *machine_set_ceilings(uint64_t memory, uint64_t processes)
{
    const char *failed = set_number(machine.pids_max, processes, "set the ceiling of processes");

    if (!failed)
        failed = set_number(machine.memory_max, memory, "set the ceiling of memory");
    return failed;
}

struct counts machine_counts(void)
{
    struct counts now = read_counts();

    now.cpu_microseconds -= machine.before.cpu_microseconds;
    now.oom_kills -= machine.before.oom_kills;
    now.refused -= machine.before.refused;
    if (now.peak_processes == machine.before.peak_processes)
        now.peak_processes = 0; /* an earlier program's, or one that this has met: not known */
    return now;
}

/* --- the receipt --- */

void machine_add_facts(struct json *json)
{
    if (!machine.own)
        return;
    json_add(json, "\"blocks\":");
    json_add_string(json, machine.blocks, strlen(machine.blocks));
    json_add(json, ",\"controllers\":");
    json_add_string(json, machine.controllers, strlen(machine.controllers));
    json_add(json, ",");
}
