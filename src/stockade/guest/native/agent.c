/*
 * The agent: pid 1 of a sandbox. It speaks the wire (docs/wire.md) and starts programs.
 *
 *   stockade-agent DOORS PID               executed by sandbox.c; descriptors as in park.h
 *   stockade-agent boot BYTES INODES [MODULE]...
 *                                          executed as the first process of a kernel of its
 *                                          own; the wire is standard input and output. It sets
 *                                          the sandbox up, and stands still where a snapshot
 *                                          may be taken: docs/wire.md
 *   stockade-agent machine BYTES INODES [MODULE]...
 *                                          the same in a machine of its own, executed by init.c;
 *                                          the wire is one port
 *
 * One thread, one poll(2). A program cannot signal it (pid 1 of a pid namespace is immune
 * from inside: pid_namespaces(7)), look into it (undumpable) or starve it (another
 * cgroup). What it reports the executor treats as hostile all the same.
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <malloc.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "confine.h"
#include "egress.h"
#include "files.h"
#include "filter.h"
#include "json.h"
#include "machine.h"
#include "park.h"
#include "receipt.h"
#include "wire.h"

#define EXIT_MARK "stockade:exit" /* program.py */
#define COPIED '\xff'             /* program.py */
#define BOOT                                                                                       \
    "import sys\n"                                                                                 \
    "sys.path[0 : not sys.flags.isolated] = ['/opt/stockade']\n"                                   \
    "from stockade_guest import program\n"                                                         \
    "run = program.main(sys.argv[1:])\n"                                                           \
    "try:\n"                                                                                       \
    "    exec(run.compile(), run.names)\n"                                                         \
    "except BaseException:\n"                                                                      \
    "    run.failed()\n"                                                                           \
    "run.finish()\n"

enum {
    SAMPLE_MS = 100,
    MOST_LOOKS = 2,
    SHORTEST_PROGRAM = 13, /* its arguments: flags, the terminal's size, two lengths */
    CEILINGS = 12, /* behind them, where a flag says so: memory, processes */
    SMALL_READ = 4096,
    PAUSE_MS = 1,
    DISCONNECTED_MS = 10, /* between two looks at a port that no host has */
    MOST_TRANSFERS = 64,
    MOST_MODULES = 256,
    STACK_USED = 128 * 1024, /* at the most, by what this program calls */
    AGENT_ID = GUEST_ID + 1, /* in a kernel of its own: boot() */
    /* Of a program: the sandbox serves no other; the host counts and kills by itself, so that
     * nothing has to be waited for once the program has said its end. */
    FLAG_LAST = 1,
    FLAG_BRISK = 2,
    FLAG_CEILINGS = 4,
    FLAG_REHEARSAL = 8, /* nobody's: what it touches, the next need not touch first */
    /* Channels of a program, from its first. */
    CONTROL = 0,
    INPUT,
    OUTPUT,
    ERROR,
    RESULT_CHANNEL,
    SOURCE,
};

/* A channel's bytes on their way into a descriptor of the program's. */
struct feed {
    int descriptor; /* -1: nobody takes them */
    uint16_t channel;
    uint8_t *waiting; /* a window's worth, made when first needed */
    uint32_t start, length;
    uint32_t uncounted; /* of what waits, the first bytes are the agent's own */
    bool ended;
};

struct output {
    int descriptor; /* -1: ended */
    uint16_t channel;
    /* A little came: the next is read a little later, so that bytes written one by one do
     * not become as many frames, which cost the executor more than the program. */
    bool pausing;
};

static struct {
    bool active, last, brisk, rehearsal, exited, drained;
    bool taken; /* the terminal, by the program: before that a key would signal nobody */
    pid_t pid;
    uint16_t control;
    int status, master, slave;
    struct feed input, source;
    struct output outputs[3];
    int exit_status;
    long parking; /* CPU time that its process had taken until it began, where that counts */
    struct rusage usage, before; /* before: of all children that had ended when it began */
    unsigned open_files, peak_processes, stragglers, looks;
    unsigned long long disk_used, inodes_used; /* the most that was seen */
} program;

struct transfer {
    enum { NONE, PUT, GET, LIST } kind;
    uint16_t channel;
    int file;
    uint64_t bytes; /* written, or left to send */
    DIR *folder;
    const char *error;
};

/* An output has just ended. A process that exits closes several, and what it then has to say
 * is one message: what ends alone is told PAUSE_MS later. */
static bool ending;
static struct transfer transfers[MOST_TRANSFERS];
static struct parked parked;
static struct parked spare; /* for the program after a rehearsal; of a machine's copies */
/* A machine's own, with nothing of the guest's on it yet; and its ceiling, less than it has. */
static struct statvfs empty_disk;
static unsigned long long disk_ceiling;
static int doors;
static int own_process; /* /proc/self, which a kernel of its own is told to hide */
static bool privileged; /* the agent has rights left, which the program's process must not */
static struct timespec sampled;

/* --- programs: parking, starting --- */

/* The first program of a sandbox that boots has modules loaded, and is not isolated (-I), so
 * that its sys.flags are a program's own: there is nothing yet that an import could find. */
static void execute_interpreter(char **modules)
{
    char *arguments[MOST_MODULES + 5] = {INTERPRETER};
    int count = 1;

    if (!modules)
        arguments[count++] = "-I";
    arguments[count++] = "-c";
    arguments[count++] = BOOT;
    for (int i = 0; modules && modules[i]; i++)
        arguments[count++] = modules[i];
    execve(INTERPRETER, arguments, (char *[]){GUEST_ENVIRONMENT, NULL});
}

static void park_next(char **modules)
{
    const int forked = park(&parked, doors);

    if (forked < 0)
        wire_die("cannot fork the next program's process");
    if (forked == 1) {
        /* No id of the agent's, where it has one: boot(). */
        if (setresuid(GUEST_ID, GUEST_ID, GUEST_ID) < 0)
            _exit(127);
        if (privileged && (confine_rights() || filter_load()))
            _exit(127);
        /* Nothing that an earlier program left in the workspace is in the way of an import. */
        if (chdir("/") < 0)
            _exit(127);
        execute_interpreter(modules);
        _exit(127);
    }
}

/* Blocks until the first program's process is ready; what it says instead ends the sandbox. */
static void await_parked(void)
{
    struct pollfd wait = {.fd = parked.status, .events = POLLIN};
    char text[128];
    ssize_t length;

    while (poll(&wait, 1, -1) < 0 && errno == EINTR)
        ;
    length = read(parked.status, text, sizeof text - 1);
    if (length == 1 && text[0] == '+')
        return;
    text[length < 0 ? 0 : length] = '\0';
    wire_die(*text ? text : "the program's process did not start");
}

static void close_parked(struct parked *each)
{
    close(each->specification);
    close(each->status);
    close(each->input);
    close(each->output);
    close(each->error);
    close(each->result);
    memset(each, 0, sizeof *each);
}

/* Property: beside a program that is somebody's there is no process that waits for another. */
static void drop_spare(void)
{
    kill(spare.pid, SIGKILL);
    waitpid(spare.pid, NULL, 0);
    close_parked(&spare);
}

/* The one that waited beside it takes its place. */
static void end_rehearsal(void)
{
    kill(program.pid, SIGKILL);
    waitpid(program.pid, NULL, 0);
    parked = spare;
    memset(&spare, 0, sizeof spare);
}

static void end_feed(struct feed *feed)
{
    if (feed->descriptor >= 0) {
        /*
         * A terminal has no end of file; its program is told by the end-of-file character.
         * Twice: within a line the first only hands over what there is of it (termios(3)).
         */
        if (feed->descriptor == program.master) {
            if (write(program.master, "\4\4", 2) < 0)
                errno = 0;
        } else {
            close(feed->descriptor);
        }
    }
    feed->descriptor = -1;
    if (feed->length > feed->uncounted)
        wire_taken(feed->channel, feed->length - feed->uncounted);
    feed->length = feed->uncounted = 0;
    free(feed->waiting);
    feed->waiting = NULL;
}

/* Writes what the program takes now: called once for all the frames of one read. */
static void pump(struct feed *feed)
{
    if (feed == &program.input && !program.taken)
        return;
    while (feed->length && feed->descriptor >= 0) {
        const ssize_t count = write(feed->descriptor, feed->waiting + feed->start, feed->length);
        uint32_t own;

        if (count < 0) {
            if (errno == EAGAIN || errno == EINTR)
                return;
            end_feed(feed); /* nobody reads it any more */
            return;
        }
        own = (uint32_t)count < feed->uncounted ? (uint32_t)count : feed->uncounted;
        feed->uncounted -= own;
        feed->start += (uint32_t)count;
        feed->length -= (uint32_t)count;
        if (count > own)
            wire_taken(feed->channel, (uint32_t)count - own);
    }
    if (!feed->length)
        feed->start = 0;
    if (feed->ended && !feed->length)
        end_feed(feed);
}

static void feed_bytes(struct feed *feed, const void *bytes, uint32_t length, bool own)
{
    if (feed->descriptor < 0) {
        if (!own)
            wire_taken(feed->channel, length);
        return;
    }
    /* At most a window is untaken; our own header comes before any of it. */
    if (!feed->waiting && !(feed->waiting = malloc(WINDOW + CHUNK)))
        wire_die("out of memory");
    if (feed->start + feed->length + length > WINDOW + CHUNK) {
        memmove(feed->waiting, feed->waiting + feed->start, feed->length);
        feed->start = 0;
    }
    memcpy(feed->waiting + feed->start + feed->length, bytes, length);
    feed->length += length;
    if (own)
        feed->uncounted += length;
}

static bool open_terminal(uint16_t rows, uint16_t columns, char *name, size_t size)
{
    const struct winsize window = {.ws_row = rows, .ws_col = columns};

    program.master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK);
    if (program.master < 0 || unlockpt(program.master) < 0 ||
        ptsname_r(program.master, name, size) != 0 ||
        ioctl(program.master, TIOCSWINSZ, &window) < 0)
        return false;
    /* Held open until the program has ended: else the master fails whenever nobody has it. */
    program.slave = open(name, O_RDWR | O_NOCTTY | O_CLOEXEC);
    return program.slave >= 0;
}

/* By its clock of CPU time, as clock_getcpuclockid(3) names it. */
static long microseconds_of(pid_t process)
{
    struct timespec spent;

    if (clock_gettime((clockid_t)(~(unsigned)process << 3 | 2), &spent) < 0)
        return 0;
    return (long)spent.tv_sec * 1000000 + spent.tv_nsec / 1000;
}

static uint64_t get_number(const uint8_t *from, int bytes)
{
    uint64_t number = 0;

    for (int i = 0; i < bytes; i++)
        number = number << 8 | from[i];
    return number;
}

/* Where this kernel counts: begin, with the ceilings that stand behind the other arguments. */
static void begin_counting(const uint8_t *arguments)
{
    const uint8_t *const ceilings = arguments + SHORTEST_PROGRAM;
    const char *failed = NULL;

    machine_begin();
    if (arguments[0] & FLAG_CEILINGS)
        failed = machine_set_ceilings(get_number(ceilings, 8), get_number(ceilings + 8, 4));
    if (failed)
        wire_die(failed);
}

static void start_program(uint16_t channel, const uint8_t *arguments, uint32_t length)
{
    static const char busy[] = "{\"refused\":{\"what\":\"\",\"reason\":\"another program runs\"}}";
    const uint16_t rows = (uint16_t)(arguments[1] << 8 | arguments[2]);
    const uint16_t columns = (uint16_t)(arguments[3] << 8 | arguments[4]);
    char terminal[64] = "";
    uint8_t name_length;

    if (program.active) {
        wire_send(channel, busy, sizeof busy - 1);
        for (uint16_t i = 0; i < 6; i++)
            wire_close(channel + i);
        return;
    }
    memset(&program, 0, sizeof program);
    program.master = program.slave = -1;
    program.taken = rows == 0;
    if (!parked.pid)
        park_next(NULL);
    program.active = true;
    program.last = arguments[0] & FLAG_LAST;
    program.brisk = arguments[0] & FLAG_BRISK;
    program.rehearsal = arguments[0] & FLAG_REHEARSAL && spare.pid;
    if (spare.pid && !program.rehearsal)
        drop_spare();
    program.pid = parked.pid;
    program.control = channel;
    program.status = parked.status;
    program.peak_processes = 1;
    getrusage(RUSAGE_CHILDREN, &program.before);
    if (!program.brisk)
        program.parking = microseconds_of(program.pid);
    if (machine_is_own())
        begin_counting(arguments);
    program.input = (struct feed){.descriptor = parked.input, .channel = channel + INPUT};
    program.source = (struct feed){.descriptor = parked.specification, .channel = channel + SOURCE};
    program.outputs[0] = (struct output){parked.output, channel + OUTPUT, false};
    program.outputs[1] = (struct output){parked.error, channel + ERROR, false};
    program.outputs[2] = (struct output){parked.result, channel + RESULT_CHANNEL, false};
    if (rows) {
        if (!open_terminal(rows, columns, terminal, sizeof terminal))
            wire_die("cannot open a terminal");
        close(parked.input);
        close(parked.output);
        close(parked.error);
        program.input.descriptor = program.outputs[0].descriptor = program.master;
        program.outputs[1].descriptor = -1;
        wire_close(channel + ERROR);
    }
    memset(&parked, 0, sizeof parked);
    /* To the program's process: the terminal's name, then the lengths of what comes on source. */
    name_length = (uint8_t)strlen(terminal);
    feed_bytes(&program.source, &name_length, 1, true);
    feed_bytes(&program.source, terminal, name_length, true);
    if (arguments[0] & FLAG_CEILINGS)
        length = SHORTEST_PROGRAM;
    feed_bytes(&program.source, arguments + 5, length - 5, true);
    clock_gettime(CLOCK_MONOTONIC, &sampled);
}

/* A command of the executor's about the running program. */
static void command(const uint8_t *message, uint32_t length)
{
    if (length == 1 && message[0] == 'k') {
        kill(-1, SIGKILL); /* the end is then noticed, and reported, like any other */
    } else if (length == 2 && message[0] == 's' && !program.exited) {
        if (kill(-program.pid, message[1]) < 0)
            kill(program.pid, message[1]);
    } else if (length == 5 && message[0] == 'r' && program.master >= 0) {
        const struct winsize window = {.ws_row = (uint16_t)(message[1] << 8 | message[2]),
                                       .ws_col = (uint16_t)(message[3] << 8 | message[4])};

        ioctl(program.master, TIOCSWINSZ, &window);
    }
}

/* --- programs: output, ends --- */

static unsigned count_entries(const char *path)
{
    DIR *folder = opendir(path);
    unsigned count = 0;

    if (!folder)
        return 0;
    for (struct dirent *entry; (entry = readdir(folder));)
        if (isdigit((unsigned char)entry->d_name[0]))
            count++;
    closedir(folder);
    return count;
}

/* In use now, and as many as there may be. */
struct scratch {
    unsigned long long bytes, inodes;
    unsigned long long most_bytes;
    long long most_inodes;
};

static unsigned long long less(unsigned long long from, unsigned long long taken)
{
    return from > taken ? from - taken : 0;
}

static struct scratch look_at_scratch(void)
{
    struct statvfs disk;

    memset(&disk, 0, sizeof disk);
    statvfs(WORKSPACE, &disk);
    if (machine_has_disk()) { /* it had something on it before there was anything of the guest's */
        const unsigned long long bytes = less(empty_disk.f_bavail, disk.f_bavail) * disk.f_frsize;

        return (struct scratch){
            .bytes = bytes < disk_ceiling ? bytes : disk_ceiling,
            .inodes = less(empty_disk.f_ffree, disk.f_ffree),
            .most_bytes = disk_ceiling,
            .most_inodes = (long long)empty_disk.f_ffree,
        };
    }
    /* Three of the inodes are ours: sandbox.c. Not every kernel counts. */
    return (struct scratch){
        .bytes = (unsigned long long)(disk.f_blocks - disk.f_bfree) * disk.f_frsize,
        .inodes = disk.f_files ? disk.f_files - disk.f_ffree - 3 : 0,
        .most_bytes = (unsigned long long)disk.f_blocks * disk.f_frsize,
        .most_inodes = disk.f_files ? (long long)disk.f_files - 3 : 0,
    };
}

static struct scratch sample_disk(void)
{
    const struct scratch disk = look_at_scratch();

    if (disk.bytes > program.disk_used)
        program.disk_used = disk.bytes;
    if (disk.inodes > program.inodes_used)
        program.inodes_used = disk.inodes;
    return disk;
}

/* All but the agent's: a ceiling on processes counts threads, as every kernel's does. */
static unsigned count_threads(void)
{
    DIR *folder = opendir("/proc");
    unsigned count = 0;

    if (!folder)
        return 0;
    for (struct dirent *entry; (entry = readdir(folder));) {
        char path[64];
        struct stat status;

        if (!isdigit((unsigned char)entry->d_name[0]) || strcmp(entry->d_name, "1") == 0)
            continue;
        snprintf(path, sizeof path, "/proc/%.20s/task", entry->d_name);
        /* Its links are itself, its parent, and each thread. A dead process is still one. */
        count += stat(path, &status) == 0 && status.st_nlink > 3 ? (unsigned)status.st_nlink - 2 : 1;
    }
    closedir(folder);
    return count;
}

/* What no counter of the kernel tells: what is in use now, and may be let go before the end. */
static void sample(void)
{
    char path[64];
    unsigned count;

    sample_disk();

    clock_gettime(CLOCK_MONOTONIC, &sampled);
    count = count_threads();
    if (count > program.peak_processes)
        program.peak_processes = count;
    snprintf(path, sizeof path, "/proc/%d/fd", program.pid);
    count = count_entries(path);
    if (count > program.open_files)
        program.open_files = count;
}

static void sample_if_due(void)
{
    struct timespec now;

    if (!program.active || program.exited)
        return;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if ((now.tv_sec - sampled.tv_sec) * 1000 + (now.tv_nsec - sampled.tv_nsec) / 1000000 >= SAMPLE_MS)
        sample();
}

static long microseconds(const struct rusage *usage)
{
    return (long)(usage->ru_utime.tv_sec + usage->ru_stime.tv_sec) * 1000000 +
           (long)(usage->ru_utime.tv_usec + usage->ru_stime.tv_usec);
}

static void report_end(void)
{
    char text[1024];
    struct json json = {.text = text, .size = sizeof text};
    struct rusage total;
    const struct scratch disk = sample_disk();
    const int status = program.exit_status;
    long cpu, memory = program.usage.ru_maxrss * 1024L;
    struct counts counts = {0};

    getrusage(RUSAGE_CHILDREN, &total);
    cpu = microseconds(&total) - microseconds(&program.before) - program.parking;
    if (cpu < 0)
        cpu = 0; /* not all that it took is its child's yet: the program's word is its end */
    if (machine_is_own()) {
        counts = machine_counts();
        cpu = (long)counts.cpu_microseconds;
        if (counts.peak_memory)
            memory = (long)counts.peak_memory;
        if (counts.peak_processes)
            program.peak_processes = (unsigned)counts.peak_processes;
    }
    json_add(&json, "{\"ended\":{");
    if (WIFEXITED(status))
        json_add(&json, "\"code\":%d,\"signal\":null", WEXITSTATUS(status));
    else
        json_add(&json, "\"code\":null,\"signal\":%d", WTERMSIG(status));
    json_add(&json, ",\"cpu_seconds\":%ld.%06ld,\"peak_memory_bytes\":%ld",
             cpu / 1000000, cpu % 1000000, memory);
    json_add(&json, ",\"disk\":[%llu,%llu],\"inodes\":[%llu,%lld]", program.disk_used,
             disk.most_bytes, program.inodes_used, disk.most_inodes);
    json_add(&json, ",\"open_files\":%u,\"peak_processes\":%u,\"stragglers\":%u",
             program.open_files, program.peak_processes, program.stragglers);
    if (machine_is_own())
        json_add(&json, ",\"oom_kills\":%llu,\"processes_refused\":%llu", counts.oom_kills,
                 counts.refused);
    json_add(&json, "}}");
    if (!program.last)
        egress_end_connections();
    wire_send(program.control, text, json.length);
    wire_close(program.source.channel);
    wire_close(program.input.channel);
    wire_close(program.control);
    program.active = false;
    wire_flush();
    if (program.last)
        wire_end(0);
    if (program.rehearsal)
        end_rehearsal();
    else
        park_next(NULL);
}

static bool outputs_ended(void)
{
    for (int i = 0; i < 3; i++)
        if (program.outputs[i].descriptor >= 0)
            return false;
    return true;
}

static void end_output(struct output *output)
{
    if (output->descriptor == program.master)
        program.master = program.input.descriptor = -1;
    close(output->descriptor);
    output->descriptor = -1;
    wire_close(output->channel);
    ending = true;
    if (program.drained && outputs_ended())
        report_end();
}

/* Whether there may be more to read now. */
static bool read_output(struct output *output)
{
    long count;

    if (output->descriptor < 0 || wire_credit(output->channel) == 0)
        return false;
    count = wire_send_from(output->channel, output->descriptor, CHUNK);
    output->pausing = count > 0 && count < SMALL_READ;
    if (count > 0)
        return true;
    /* EIO: a terminal whose last user is gone (pty(7)). */
    if (count < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    end_output(output);
    return false;
}

/* Kills every process in here but the agent, and waits until they are gone. */
static unsigned kill_others(void)
{
    unsigned count = 0;

    if (program.rehearsal || kill(-1, SIGKILL) < 0)
        return 0; /* a rehearsal is the executor's own, and leaves nothing */
    while (waitpid(-1, NULL, 0) > 0)
        count++;
    return count;
}

/* What the program's process said before there was a program; nothing if there was one. */
static void read_refusal(void)
{
    static char text[CHUNK];
    ssize_t length = read(program.status, text, sizeof text);
    const char *start = text;

    close(program.status);
    if (length > 0 && text[0] == '+') { /* it was ready */
        start++;
        length--;
    }
    if (length > 0)
        wire_send(program.control, start, (size_t)length);
}

/* The program has ended: end what it left behind, and send the rest. */
static void finish(void)
{
    program.drained = true;
    program.stragglers = kill_others();
    read_refusal();
    if (program.slave >= 0)
        close(program.slave);
    if (program.master >= 0)
        program.input.descriptor = -1; /* nobody is left to be told of the input's end */
    end_feed(&program.input);
    end_feed(&program.source);
    if (outputs_ended()) {
        report_end();
        return;
    }
    /* All writers are dead: what is still in the pipes comes, then their ends. */
    for (int i = 0; i < 3 && program.active; i++)
        while (read_output(&program.outputs[i]))
            ;
}

/*
 * The program has stopped with its last word, its exit code: that is the end, if nothing else
 * lives and all that was written has been read. Its own end takes a kernel a while.
 */
static bool end_at_word(int code)
{
    if (!program.brisk || 
        count_entries("/proc") != 2 + (spare.pid != 0)) /* the agent and the program */
        return false;
    for (int i = 0; i < 3; i++) {
        while (read_output(&program.outputs[i]))
            ;
        if (program.outputs[i].descriptor >= 0 && wire_credit(program.outputs[i].channel) == 0)
            return false;
    }
    program.exited = program.drained = true;
    program.exit_status = code << 8;
    for (int i = 0; i < 3; i++)
        if (program.outputs[i].descriptor >= 0)
            wire_close(program.outputs[i].channel);
    read_refusal();
    end_feed(&program.input);
    end_feed(&program.source);
    report_end();
    return true;
}

/*
 * A program of the warm interpreter shows itself before it ends: program.py. By its name alone
 * if it failed, so that what it holds can be counted; with its exit code at the very end.
 */
static void look_at_exit(void)
{
    char path[64], name[32] = "", digits[3] = "";
    const size_t mark = sizeof EXIT_MARK - 1;
    ssize_t length = -1;
    int file;

    snprintf(path, sizeof path, "/proc/%d/comm", program.pid);
    file = open(path, O_RDONLY | O_CLOEXEC);
    if (file >= 0) {
        length = read(file, name, sizeof name - 1);
        close(file);
    }
    /* A program could ask for this without end, and have the agent work outside its ceiling. */
    if (program.looks >= MOST_LOOKS || length < (ssize_t)mark || memcmp(name, EXIT_MARK, mark) != 0)
        return;
    program.looks++;
    if (length == (ssize_t)mark + 3) {
        memcpy(digits, name + mark, 2);
        if (isxdigit((unsigned char)digits[0]) && isxdigit((unsigned char)digits[1]) &&
            end_at_word((int)strtol(digits, NULL, 16)))
            return;
    } else if (length == (ssize_t)mark + 1) {
        sample();
    }
    kill(program.pid, SIGCONT);
}

static void reap(void)
{
    struct rusage usage;
    int status;

    for (pid_t pid; (pid = wait4(-1, &status, WNOHANG | WUNTRACED, &usage)) > 0;) {
        if (pid == parked.pid && !WIFSTOPPED(status)) {
            /* Killed for the memory ceiling, say; the next is made when it is needed. */
            close_parked(&parked);
        } else if (pid == spare.pid && !WIFSTOPPED(status)) {
            close_parked(&spare);
        } else if (program.active && pid == program.pid) {
            if (WIFSTOPPED(status)) {
                look_at_exit();
            } else {
                program.exited = true;
                program.exit_status = status;
                program.usage = usage;
            }
        }
    }
    if (program.active && program.exited && !program.drained)
        finish();
}

/* --- files --- */

static struct transfer *find_transfer(uint16_t channel)
{
    for (int i = 0; i < MOST_TRANSFERS; i++)
        if (transfers[i].kind != NONE && transfers[i].channel == channel)
            return &transfers[i];
    return NULL;
}

static struct transfer *new_transfer(uint16_t channel)
{
    for (int i = 0; i < MOST_TRANSFERS; i++)
        if (transfers[i].kind == NONE) {
            transfers[i] = (struct transfer){.channel = channel, .file = -1};
            return &transfers[i];
        }
    wire_reset(channel, "too many files at once");
    return NULL;
}

static void drop_transfer(struct transfer *transfer)
{
    if (transfer->folder)
        closedir(transfer->folder);
    else if (transfer->file >= 0)
        close(transfer->file);
    transfer->kind = NONE;
}

static void answer(struct transfer *transfer, const char *key, uint64_t number)
{
    char text[1024];
    struct json json = {.text = text, .size = sizeof text};

    if (transfer->error) {
        json_add(&json, "{\"error\":");
        json_add_string(&json, transfer->error, strlen(transfer->error));
        json_add(&json, "}");
    } else {
        json_add(&json, "{\"%s\":%llu}", key, (unsigned long long)number);
    }
    wire_send(transfer->channel, text, json.length);
}

static void end_transfer(struct transfer *transfer)
{
    const uint16_t channel = transfer->channel;

    drop_transfer(transfer);
    wire_close(channel);
}

static void write_upload(struct transfer *transfer, const uint8_t *bytes, uint32_t length)
{
    while (length && !transfer->error) {
        const ssize_t count = write(transfer->file, bytes, length);

        if (count < 0) {
            transfer->error = file_explain(errno);
            /* A part of a file is of no use, and may be what filled the disk. */
            if (ftruncate(transfer->file, 0) < 0)
                errno = 0;
            break;
        }
        transfer->bytes += (uint64_t)count;
        bytes += count;
        length -= (uint32_t)count;
    }
}

static void continue_download(struct transfer *transfer)
{
    while (transfer->bytes) {
        long count;

        if (wire_credit(transfer->channel) == 0)
            return; /* goes on when credit comes */
        count = wire_send_from(transfer->channel, transfer->file,
                               transfer->bytes < CHUNK ? (size_t)transfer->bytes : CHUNK);
        if (count <= 0)
            break; /* it shrank: the executor sees that bytes are missing */
        transfer->bytes -= (uint64_t)count;
    }
    end_transfer(transfer);
}

static const char *kind_of(mode_t mode)
{
    if (S_ISREG(mode))
        return "file";
    if (S_ISDIR(mode))
        return "folder";
    return S_ISLNK(mode) ? "link" : "other";
}

/* One page: as many entries as surely fit. */
static bool list_page(struct transfer *transfer, struct json *json)
{
    bool first = true;

    json_add(json, "{\"entries\":[");
    while (json->size - json->length > 8192) {
        struct dirent *entry = readdir(transfer->folder);
        struct stat status;

        if (!entry) {
            json_add(json, "],\"more\":false}");
            return false;
        }
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0 ||
            fstatat(dirfd(transfer->folder), entry->d_name, &status, AT_SYMLINK_NOFOLLOW) < 0)
            continue;
        json_add(json, first ? "[" : ",[");
        json_add_string(json, entry->d_name, strlen(entry->d_name));
        json_add(json, ",\"%s\",%llu]", kind_of(status.st_mode), (unsigned long long)status.st_size);
        first = false;
    }
    json_add(json, "],\"more\":true}");
    return true;
}

static void continue_listing(struct transfer *transfer)
{
    static char page[CHUNK];
    bool more = true;

    while (more) {
        struct json json = {.text = page, .size = sizeof page};

        if (wire_credit(transfer->channel) < CHUNK)
            return;
        more = list_page(transfer, &json);
        wire_send(transfer->channel, page, json.length);
    }
    end_transfer(transfer);
}

static void open_put(uint16_t channel, const char *root, const char *path)
{
    struct transfer *transfer = new_transfer(channel);

    if (!transfer)
        return;
    transfer->kind = PUT;
    transfer->file = file_open_for_writing(root, path, 0644, &transfer->error);
}

static void open_get(uint16_t channel, const char *path)
{
    struct transfer *transfer = new_transfer(channel);

    if (!transfer)
        return;
    transfer->kind = GET;
    transfer->file = file_open_for_reading(path, &transfer->bytes, &transfer->error);
    answer(transfer, "size", transfer->bytes);
    if (transfer->error)
        end_transfer(transfer);
    else
        continue_download(transfer);
}

static void open_list(uint16_t channel, const char *path)
{
    struct transfer *transfer = new_transfer(channel);

    if (!transfer)
        return;
    transfer->kind = LIST;
    transfer->file = folder_open(path, &transfer->error);
    if (!transfer->error && !(transfer->folder = fdopendir(transfer->file)))
        transfer->error = file_explain(errno);
    if (transfer->error) {
        answer(transfer, "", 0);
        end_transfer(transfer);
    } else {
        continue_listing(transfer);
    }
}

/* --- frames --- */

static void refuse(const struct frame *open, const char *reason)
{
    for (unsigned i = 0; i < open->payload[0]; i++)
        wire_reset((uint16_t)(open->channel + i), reason);
}

/* The payload of OPEN: span, service name, NUL, arguments. */
static void on_open(const struct frame *frame)
{
    static char path[4096];
    const char *name = (const char *)frame->payload + 1;
    const uint8_t *arguments;
    size_t length;

    if (frame->length < 2 || !memchr(name, '\0', frame->length - 1))
        wire_die("an OPEN frame without a service");
    arguments = (const uint8_t *)name + strlen(name) + 1;
    length = frame->length - (size_t)(arguments - frame->payload);
    if (!wire_open(frame->channel, frame->payload[0]))
        return;
    if (strcmp(name, "program") == 0 && length >= SHORTEST_PROGRAM && frame->payload[0] == SOURCE + 1) {
        if (arguments[0] & FLAG_CEILINGS &&
            (!machine_is_own() || length != SHORTEST_PROGRAM + CEILINGS)) {
            refuse(frame, "ceilings that are incomplete, or that nobody here can keep");
            return;
        }
        start_program(frame->channel, arguments, (uint32_t)length);
        return;
    }
    if (strcmp(name, "accept") == 0) {
        if (length != 2 || frame->payload[0] != 1)
            refuse(frame, "a port that is none");
        else
            egress_open(frame->channel, (uint16_t)get_number(arguments, 2));
        return;
    }
    if (length >= sizeof path || memchr(arguments, '\0', length)) {
        refuse(frame, "a path that is too long, or has a NUL");
        return;
    }
    memcpy(path, arguments, length);
    path[length] = '\0';
    if (strcmp(name, "put") == 0)
        open_put(frame->channel, WORKSPACE, path);
    else if (strcmp(name, "put-temporary") == 0)
        open_put(frame->channel, TEMPORARY, path);
    else if (strcmp(name, "get") == 0)
        open_get(frame->channel, path);
    else if (strcmp(name, "list") == 0)
        open_list(frame->channel, path);
    else
        refuse(frame, "unknown service");
}

static struct feed *find_feed(uint16_t channel)
{
    if (program.active && channel == program.input.channel)
        return &program.input;
    if (program.active && channel == program.source.channel)
        return &program.source;
    return NULL;
}

static void on_data(const struct frame *frame)
{
    struct feed *feed = find_feed(frame->channel);
    struct transfer *transfer = find_transfer(frame->channel);

    if (feed) {
        feed_bytes(feed, frame->payload, frame->length, false);
        return;
    }
    if (egress_data(frame->channel, frame->payload, frame->length))
        return;
    if (program.active && frame->channel == program.control)
        command(frame->payload, frame->length);
    else if (transfer && transfer->kind == PUT)
        write_upload(transfer, frame->payload, frame->length);
    wire_taken(frame->channel, frame->length);
}

static void on_close(const struct frame *frame)
{
    struct feed *feed = find_feed(frame->channel);
    struct transfer *transfer = find_transfer(frame->channel);

    if (feed) {
        feed->ended = true;
    } else if (egress_close(frame->channel)) {
        return;
    } else if (transfer && transfer->kind == PUT) {
        answer(transfer, "written", transfer->bytes);
        end_transfer(transfer);
    }
}

static void on_credit(const struct frame *frame)
{
    struct transfer *transfer = find_transfer(frame->channel);

    if (transfer && transfer->kind == GET)
        continue_download(transfer);
    else if (transfer && transfer->kind == LIST)
        continue_listing(transfer);
    else if (program.active && program.drained)
        for (int i = 0; i < 3 && program.active; i++)
            if (program.outputs[i].channel == frame->channel)
                while (read_output(&program.outputs[i]))
                    ;
}

static void on_reset(const struct frame *frame)
{
    struct feed *feed = find_feed(frame->channel);
    struct transfer *transfer = find_transfer(frame->channel);

    /* The number may serve another channel from now on: nothing here keeps it. */
    if (feed) {
        feed->ended = true;
        feed->channel = 0;
        end_feed(feed);
    }
    if (transfer)
        drop_transfer(transfer);
    egress_reset(frame->channel);
    if (program.active && program.control == frame->channel)
        program.control = 0;
    for (int i = 0; i < 3 && program.active; i++) {
        struct output *output = &program.outputs[i];

        if (output->channel != frame->channel)
            continue;
        output->channel = 0;
        if (output->descriptor >= 0)
            end_output(output);
    }
}

static void receive(void)
{
    struct frame frame;

    if (!wire_read())
        _exit(0); /* the executor is gone, and with pid 1 everything in here */
    while (wire_next(&frame)) {
        if (frame.kind == OPEN)
            on_open(&frame);
        else if (frame.kind == DATA)
            on_data(&frame);
        else if (frame.kind == CLOSE)
            on_close(&frame);
        else if (frame.kind == CREDIT)
            on_credit(&frame);
        else
            on_reset(&frame);
    }
    if (program.active) {
        pump(&program.source);
        pump(&program.input);
    }
}

/* --- the loop --- */

enum { POLL_WIRE, POLL_CHILD, POLL_STATUS, POLL_INPUT, POLL_SOURCE, POLL_OUTPUT, POLLED = POLL_OUTPUT + 3 };

/* The agent's own, and behind them those of egress. */
static struct pollfd polled[POLLED + MOST_EGRESS_POLLED];

static int descriptor_that_waits(const struct feed *feed)
{
    return feed->length ? feed->descriptor : -1;
}

static void serve(int child)
{
    for (;;) {
        struct signalfd_siginfo ignored;
        int timeout = program.active ? SAMPLE_MS : -1;
        int connections;

        polled[POLL_WIRE] = (struct pollfd){.fd = WIRE_IN, .events = POLLIN};
        polled[POLL_CHILD] = (struct pollfd){.fd = child, .events = POLLIN};
        for (int i = POLL_STATUS; i < POLLED; i++)
            polled[i].fd = -1;
        if (program.active) {
            if (!program.taken)
                polled[POLL_STATUS].fd = program.status; /* its end: there is a program */
            else
                polled[POLL_INPUT].fd = descriptor_that_waits(&program.input);
            polled[POLL_SOURCE].fd = descriptor_that_waits(&program.source);
            polled[POLL_INPUT].events = polled[POLL_SOURCE].events = POLLOUT;
            for (int i = 0; i < 3; i++) {
                polled[POLL_OUTPUT + i].events = POLLIN;
                if (program.outputs[i].pausing)
                    timeout = PAUSE_MS;
                else if (wire_credit(program.outputs[i].channel))
                    polled[POLL_OUTPUT + i].fd = program.outputs[i].descriptor;
                program.outputs[i].pausing = false;
            }
        }
        if (ending)
            timeout = PAUSE_MS;
        else
            wire_flush();
        ending = false;
        connections = egress_poll(polled + POLLED);
        if (poll(polled, (nfds_t)(POLLED + connections), timeout) < 0) {
            if (errno != EINTR)
                wire_die("poll");
            continue;
        }
        if (polled[POLL_STATUS].revents)
            program.taken = true;
        if (polled[POLL_STATUS].revents || polled[POLL_INPUT].revents)
            pump(&program.input);
        if (polled[POLL_SOURCE].revents)
            pump(&program.source);
        for (int i = 0; i < 3 && program.active; i++)
            if (polled[POLL_OUTPUT + i].revents)
                read_output(&program.outputs[i]);
        egress_serve(polled + POLLED, connections);
        if (polled[POLL_CHILD].revents) {
            while (read(child, &ignored, sizeof ignored) > 0)
                ;
            reap();
        }
        sample_if_due();
        if (polled[POLL_WIRE].revents)
            receive();
    }
}

/* --- starting --- */

/* The wire to its own numbers, and nothing on the standard ones. */
static void take_wire_from_streams(void)
{
    int null;

    if (dup2(0, WIRE_IN) < 0 || dup2(1, WIRE_OUT) < 0 || (null = open("/dev/null", O_RDWR)) < 0)
        _exit(1);
    for (int standard = 0; standard <= 1; standard++)
        dup2(null, standard);
    close(null);
    fcntl(WIRE_IN, F_SETFD, FD_CLOEXEC);
    fcntl(WIRE_OUT, F_SETFD, FD_CLOEXEC);
}

/*
 * Once before a snapshot and once in each copy, so that no call has to wait for it: gVisor
 * rewrites the place of each system call when it is first come by, and gets a restored page
 * when that is first touched.
 */
static void rehearse(void)
{
    static char line[512];
    const int file = openat(own_process, "maps", O_RDONLY | O_CLOEXEC);
    FILE *maps = file < 0 ? NULL : fdopen(file, "r");
    struct rusage usage;
    const unsigned long here = (unsigned long)&usage;
    unsigned long start, end;
    char readable, writable;

    while (maps && fgets(line, sizeof line, maps)) {
        if (sscanf(line, "%lx-%lx %c%c", &start, &end, &readable, &writable) != 4 ||
            readable != 'r' || strstr(line, "[v"))
            continue;
        if (here >= start && here < end) /* the stack: gVisor tells of all that it may become */
            start = here - start > STACK_USED ? (here - STACK_USED) & ~4095UL : start;
        for (volatile char *page = (char *)start; page < (char *)end; page += 4096) {
            const char byte = *page;

            if (writable == 'w')
                *page = byte;
        }
    }
    if (maps)
        fclose(maps);
    sample_disk();
    program.disk_used = program.inodes_used = 0;
    getrusage(RUSAGE_CHILDREN, &usage);
    waitpid(-1, NULL, WNOHANG);
    kill(-1, 0);
    count_entries("/proc");
    if (machine_is_own())
        machine_counts();
    free(malloc(WINDOW + CHUNK));
}

static void open_own_process(void)
{
    own_process = open("/proc/self", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (own_process < 0)
        wire_die("cannot open /proc/self");
}

/*
 * Property: of this kernel's own files the guest sees no more than of the host's in the other
 * tier: nothing that tells of it or takes a right to use. Nothing of this process either,
 * whose descriptors gVisor would let anybody open that may open what they lead to.
 */
static const char *hide_kernel(void)
{
    if (umount2("/sys", MNT_DETACH) < 0)
        return "unmount /sys";
    if ((unlink("/dev/fuse") < 0 || unlink("/dev/net/tun") < 0 || rmdir("/dev/net") < 0) &&
        errno != ENOENT)
        return "remove devices";
    if (rmdir("/dev/shm") < 0 || symlink("/tmp", "/dev/shm") < 0)
        return "lead /dev/shm to the scratch mount";
    if (mount("none", "/proc/1", "tmpfs", MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC,
              "mode=555") < 0)
        return "hide the agent";
    return NULL;
}

/*
 * Property: nothing that the guest may do to its own processes it may do to this one. gVisor
 * lets a signal kill pid 1, and limits be set by whoever has its user id, so its real and saved
 * ids differ. The effective one is the guest's: what is written for it belongs to it, and it
 * can be signalled.
 */
static const char *become_agent(void)
{
    static const struct rlimit no_core = {1, 1}; /* sandbox.c */

    if (setgroups(0, NULL) < 0 || setresgid(GUEST_ID, GUEST_ID, GUEST_ID) < 0 ||
        setresuid(AGENT_ID, GUEST_ID, AGENT_ID) < 0 || chdir(WORKSPACE) < 0)
        return "become the agent";
    if (setrlimit(RLIMIT_CORE, &no_core) < 0)
        return "set the ceiling of core files";
    return NULL;
}

/* What sandbox.c sets up in the host's kernel, in one of the sandbox's own. */
static const char *set_up_in_kernel(uint64_t bytes, uint64_t inodes)
{
    const char *failed;

    open_own_process();
    failed = confine_scratch(bytes, inodes, GUEST_ID);
    if (!failed)
        failed = hide_kernel();
    if (!failed)
        failed = confine_bounding_set();
    if (!failed)
        failed = become_agent();
    if (!failed)
        failed = confine_rights();
    if (!failed)
        failed = filter_load();
    return failed;
}

/* The same in a machine, but for two rights: go_on_in_machine(). */
static const char *set_up_in_machine(uint64_t bytes, uint64_t inodes)
{
    const char *failed = machine_divide();

    if (!failed)
        failed = machine_set_up();
    if (!failed)
        failed = machine_confine_scratch(bytes, inodes, GUEST_ID);
    if (failed)
        return failed;
    if (machine_has_disk()) {
        statvfs(WORKSPACE, &empty_disk);
        disk_ceiling = (bytes + empty_disk.f_frsize - 1) / empty_disk.f_frsize * empty_disk.f_frsize;
    }
    open_own_process();
    failed = confine_bounding_set();
    if (!failed)
        failed = machine_keep_rights();
    if (!failed)
        failed = become_agent();
    if (!failed)
        failed = machine_reduce_rights();
    doors = MACHINE_DOORS;
    privileged = true;
    return failed;
}

static _Noreturn void fail_set_up(const char *step)
{
    char text[256];

    snprintf(text, sizeof text, "sandbox set-up: %s: %s", step, strerrordesc_np(errno));
    wire_die(text);
}

/*
 * A port is at its end while no host has it, as a copy's until its own host is there. So long
 * as nothing was agreed upon, that is none.
 */
static void say_waiting(void)
{
    while (write(WIRE_OUT, ".", 1) != 1)
        poll(NULL, 0, DISCONNECTED_MS);
}

static void read_go_ahead(uint8_t message[GO_AHEAD_BYTES])
{
    struct pollfd port = {.fd = WIRE_IN, .events = POLLIN};
    size_t length = 0;

    while (length < GO_AHEAD_BYTES) {
        ssize_t count;

        poll(&port, 1, -1);
        count = read(WIRE_IN, message + length, GO_AHEAD_BYTES - length);
        if (count > 0)
            length += (size_t)count;
        else
            poll(NULL, 0, DISCONNECTED_MS);
    }
}

/* Property: before the first word of the wire there is no right left in the sandbox. */
static void go_on_in_machine(void)
{
    uint8_t message[GO_AHEAD_BYTES];
    const char *failed;

    say_waiting();
    read_go_ahead(message);
    if (message[0] != '.')
        wire_die("a go-ahead that is none");
    failed = machine_go_on(message);
    explicit_bzero(message, sizeof message);
    if (!failed)
        failed = confine_rights();
    if (!failed)
        failed = filter_load();
    if (failed)
        fail_set_up(failed);
    privileged = false;
}

static void tell_copied(void)
{
    const char byte = COPIED;

    if (write(parked.specification, &byte, 1) != 1)
        wire_die("the program's process is gone");
    await_parked();
}

static void swap_parked(void)
{
    const struct parked other = spare;

    spare = parked;
    parked = other;
}

/*
 * In a kernel of its own, as its first process and with its rights. Once the warm interpreter
 * waits, one byte says so. What is read next is the first that differs between two sandboxes
 * restored from one snapshot.
 */
static void boot(int count, char **arguments, bool machine)
{
    const uint64_t bytes = strtoull(arguments[2], NULL, 10);
    const uint64_t inodes = strtoull(arguments[3], NULL, 10);
    const char *failed;
    const char byte = '.';
    char answer;

    take_wire_from_streams();
    if (machine)
        wire_over_port();
    if (count - 4 > MOST_MODULES)
        wire_die("too many modules");
    failed = machine ? set_up_in_machine(bytes, inodes) : set_up_in_kernel(bytes, inodes);
    if (failed)
        fail_set_up(failed);
    park_next(arguments + 4);
    await_parked();
    if (machine && !machine_has_disk()) { /* one that has is no copy, and rehearses nothing */
        spare = parked;
        park_next(arguments + 4);
        await_parked();
    }
    rehearse();
    if (machine)
        go_on_in_machine();
    else if (write(WIRE_OUT, &byte, 1) != 1 || read(WIRE_IN, &answer, 1) != 1)
        _exit(0);
    rehearse();
    tell_copied();
    if (machine && !machine_has_disk()) {
        swap_parked();
        tell_copied();
        swap_parked();
    }
}

int main(int count, char **arguments)
{
    static char text[CHUNK];
    struct json json = {.text = text, .size = sizeof text};
    const bool machine = count >= 4 && strcmp(arguments[1], "machine") == 0;
    const bool boots = machine || (count >= 4 && strcmp(arguments[1], "boot") == 0);
    sigset_t children;
    int child;

    /* It kills whatever it can see, which must be its own sandbox and nothing else. */
    if ((count != 3 && !boots) || getpid() != 1) {
        fputs("stockade-agent: runs as pid 1 of a sandbox only\n", stderr);
        return 64;
    }
    signal(SIGPIPE, SIG_IGN);
    /* A window's buffer comes and goes with each program; it need not be mapped each time. */
    mallopt(M_MMAP_THRESHOLD, 1 << 30);
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    sigemptyset(&children);
    sigaddset(&children, SIGCHLD);
    sigprocmask(SIG_BLOCK, &children, NULL);
    if (boots) {
        boot(count, arguments, machine);
    } else {
        doors = atoi(arguments[1]);
        parked = (struct parked){.pid = atoi(arguments[2]),
                                 .specification = FIRST_PARKED,
                                 .status = FIRST_PARKED + 1,
                                 .input = FIRST_PARKED + 2,
                                 .output = FIRST_PARKED + 3,
                                 .error = FIRST_PARKED + 4,
                                 .result = FIRST_PARKED + 5};
    }
    /* Now only: the fixed numbers are taken. */
    if (!boots)
        open_own_process();
    child = signalfd(-1, &children, SFD_NONBLOCK | SFD_CLOEXEC);
    prctl(PR_SET_DUMPABLE, 0);
    receipt_add(&json, own_process);
    if (!boots)
        await_parked();
    if (json.overflow)
        wire_die("the receipt is too long");
    wire_hello(text, json.length);
    serve(child);
}
