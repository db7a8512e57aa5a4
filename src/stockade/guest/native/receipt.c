#define _GNU_SOURCE
#include "receipt.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "machine.h"

static size_t read_file(int folder, const char *path, char *text, size_t size)
{
    const int file = openat(folder, path, O_RDONLY | O_CLOEXEC);
    size_t length = 0;
    ssize_t count;

    if (file < 0)
        return 0;
    while (length < size && (count = read(file, text + length, size - length)) > 0)
        length += (size_t)count;
    close(file);
    return length;
}

static void add_file(struct json *json, const char *name, int folder, const char *path)
{
    char text[1024];

    json_add(json, "\"%s\":", name);
    json_add_string(json, text, read_file(folder, path, text, sizeof text));
    json_add(json, ",");
}

/* Of each mount its place, its flags and its file system: the rest tells of the host. */
static void add_mounts(struct json *json, int process)
{
    static char text[65536], kept[8192];
    size_t used = 0;

    text[read_file(process, "mountinfo", text, sizeof text - 1)] = '\0';
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        char place[256], flags[128], kind[64];
        const char *after = strstr(line, " - ");

        if (!after || sscanf(after, " - %63s", kind) != 1 ||
            sscanf(line, "%*s %*s %*s %*s %255s %127s", place, flags) != 2)
            continue;
        if (used + sizeof place + sizeof flags + sizeof kind > sizeof kept)
            break; /* the executor misses what it expects, and refuses */
        used += (size_t)sprintf(kept + used, "%s %s %s\n", place, flags, kind);
    }
    json_add(json, "\"mounts\":");
    json_add_string(json, kept, used);
    json_add(json, ",");
}

/* The lines of /proc/self/status that tell ids, capabilities, no_new_privs and the filter. */
static void add_status(struct json *json, int process)
{
    static const char *const wanted[] = {"Uid:", "Gid:", "Cap", "NoNewPrivs:", "Seccomp:"};
    char text[8192], kept[1024];
    size_t length = read_file(process, "status", text, sizeof text - 1), used = 0;

    text[length] = '\0';
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
        for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++)
            if (strncmp(line, wanted[i], strlen(wanted[i])) == 0 &&
                used + strlen(line) + 1 < sizeof kept)
                used += (size_t)sprintf(kept + used, "%s\n", line);
    json_add(json, "\"status\":");
    json_add_string(json, kept, used);
    json_add(json, ",");
}

/* The name of the error of an attempt; empty where it succeeded. */
static void add_attempt(struct json *json, const char *name, long returned)
{
    json_add(json, "\"%s\":\"%s\",", name, returned < 0 ? strerrorname_np(errno) : "");
}

/* The metadata service: reachable in a host's network if anything is. Routed, not contacted. */
static long connect_out(void)
{
    const struct sockaddr_in metadata = {.sin_family = AF_INET,
                                         .sin_port = htons(80),
                                         .sin_addr.s_addr = htonl(0xa9fea9fe)};
    const int attempt = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    long returned;
    int error;

    if (attempt < 0)
        return -1;
    returned = connect(attempt, (const struct sockaddr *)&metadata, sizeof metadata);
    error = errno;
    close(attempt);
    errno = error;
    return returned;
}

static long open_for(const char *path, int flags)
{
    const int file = open(path, flags | O_CLOEXEC, 0600);

    if (file >= 0)
        close(file);
    return file;
}

void receipt_add(struct json *json, int process)
{
    struct utsname name;
    cpu_set_t cpus;

    json_add(json, "{\"version\":1,\"receipt\":{");
    add_status(json, process);
    add_file(json, "uid_map", process, "uid_map");
    add_mounts(json, process);
    add_file(json, "devices", process, "net/dev");
    add_attempt(json, "connect", connect_out());
    add_attempt(json, "write", open_for("/usr/.stockade-receipt", O_WRONLY | O_CREAT));
    add_attempt(json, "agent_memory", open_for("/proc/1/mem", O_RDONLY));
    machine_add_facts(json);
    uname(&name);
    json_add(json, "\"kernel\":\"%s\",", name.release);
    CPU_ZERO(&cpus);
    sched_getaffinity(0, sizeof cpus, &cpus);
    json_add(json, "\"cpus\":%d}}", CPU_COUNT(&cpus));
}
