/* The gate: waits for a lease before the real compiler, and for the compiler in the launcher's place. It does what the
   gate in _launcher.py does, where the protocol stands as well; but a build has hundreds of these waiting.
     gate COMPILER WORDS...                               ccache's prefix: a lease, then WHEELMILL_REAL
     gate --cached FD N FILE... CCACHE COMPILER WORDS...  in the launcher's place: ccache, then `end` by FD
     gate --bare FD N FILE... COMPILER WORDS...           both in one, without a cache
   FD is the launcher's connection, the N files go afterwards. No process group of our own: ninja ends one by it. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define GONE "the governor at %s has gone"
static const char *id, *path, *real, *argv0, *refusals; /* path is the governor's socket */
static volatile pid_t child;
static sigset_t inherited, blocked, waiting; /* signal masks: the compiler's, ours, and ours while we wait */
static char answer[4096];

static int begins(const char *text, const char *with) { return strncmp(text, with, strlen(with)) == 0; }
static int shell_status(int status) { return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status); }

/* Kill whatever is below us. Orphans become our children, so only these need to be found. */
static void end_tree(void)
{
    for (pid_t gone; (gone = waitpid(-1, NULL, WNOHANG)) >= 0;) {
        DIR *processes = gone ? NULL : opendir("/proc");
        for (struct dirent *entry; processes && (entry = readdir(processes));) {
            char name[300], stat[512] = "", *rest;
            snprintf(name, sizeof name, "/proc/%s/stat", entry->d_name);
            int pid = atoi(entry->d_name), file = pid > 0 ? open(name, O_RDONLY) : -1;
            if (read(file, stat, sizeof stat - 1) > 0 && (rest = strrchr(stat, ')')) /* "PID (NAME) S PARENT" */
                && strlen(rest) > 4 && atoi(rest + 4) == getpid())
                kill(pid, SIGKILL);
            close(file);
        }
        if (processes)
            closedir(processes);
        if (gone == 0)
            waitpid(-1, NULL, 0);
    }
}

/* Say why there is no object, with nothing left that could still make one. */
static void complain(const char *format, const char *one, const char *two)
{
    char text[sizeof answer + 256];
    snprintf(text, sizeof text, format, one, two);
    end_tree();
    int files[] = {2, refusals ? open(refusals, O_WRONLY | O_APPEND | O_CREAT, 0666) : -1};
    for (int at = 0; at < 2; at++)
        dprintf(files[at], "wheelmill: not compiled: %s; start the build again with `wheelmill build`\n", text);
    _exit(1);
}

/* Wait for a line; the end of a very long one is lost. What could not be said shows here as well. */
static void hear(int governor)
{
    ssize_t size = 0;
    for (ssize_t part; size == 0 || answer[size - 1] != '\n'; size += part) {
        size -= size == sizeof answer - 1;
        if ((part = read(governor, answer + size, sizeof answer - 1 - size)) <= 0)
            complain(GONE, path, "");
    }
    answer[size - 1] = 0;
}

/* Give a refusal's message, cut out of the answer in its place. */
static const char *reason(void)
{
    char *text = strstr(answer, "\"message\":\""), *from = text ? text += 11 : strchr(answer, 0), *to = from;
    for (; *from && *from != '"'; *to++ = *from++)
        from += *from == '\\' && (from[1] == '"' || from[1] == '\\');
    *to = 0;
    return text ? text : answer;
}

static void forward(int number)
{
    if (number != SIGCHLD && child)
        kill(child, number);
    else if (number != SIGCHLD)
        _exit(128 + number); /* nothing runs yet; the connection closes, which says so */
}

/* Run a program to its end, and what it leaves behind; end all of it at once when the governor has gone. */
static int run(const char *program, char **argv, int governor, struct rusage *use)
{
    int status;
    sigprocmask(SIG_SETMASK, &blocked, NULL);
    pid_t started = fork();
    if (started == 0) {
        signal(SIGPIPE, SIG_DFL), signal(SIGXFSZ, SIG_DFL); /* Python, which we once were, ignores both */
        sigprocmask(SIG_SETMASK, &inherited, NULL);
        if (program == real && (status = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC)) >= 0)
            dprintf(status, "900"); /* the kernel takes a compiler before anything else, its gate not */
        execve(program, argv, environ);
    }
    if (started <= 0)
        complain("cannot run %s (%s)", program, strerror(errno));
    child = started;
    while (wait4(started, &status, WNOHANG, use) == 0) {
        struct pollfd connection = {.fd = governor, .events = POLLRDHUP};
        if (ppoll(&connection, 1, NULL, &waiting) > 0)
            complain(GONE, path, "");
    }
    child = 0;
    end_tree();
    sigprocmask(SIG_SETMASK, &waiting, NULL);
    return status;
}

/* Empty a file in which ccache keeps what a compiler says: a killed attempt's words would stay with the object. */
static void unsay(int file, const char *link, const char *name)
{
    char target[4096] = "";
    if (readlink(link, target, sizeof target - 1) > 0 && strstr(target, name) && ftruncate(file, 0) == 0)
        lseek(file, 0, SEEK_SET);
}

/* Wait for a lease, run the compiler, report; again as often as the governor says so. The compiler inherits the
   connection: should we be killed, the lease lasts as long as its tree, because its memory does. */
static int gated(char **argv)
{
    char **kept = environ;
    for (char **at = environ; *at; at++)
        if (!begins(*at, "CCACHE_") && (!begins(*at, "WHEELMILL_") || begins(*at, "WHEELMILL_LAUNCHED=")))
            *kept++ = *at;
    *kept = NULL;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int governor = socket(AF_UNIX, SOCK_STREAM, 0);
    strncpy(address.sun_path, path, sizeof address.sun_path - 1);
    if (connect(governor, (struct sockaddr *)&address, sizeof address) != 0)
        complain("the governor at %s does not answer (%s)", path, strerror(errno));
    dprintf(governor, "{\"op\":\"want\",\"id\":%s}\n", id);
    hear(governor);
    while (begins(answer, "{\"op\":\"go\"")) {
        struct rusage use;
        struct timespec from, to;
        clock_gettime(CLOCK_MONOTONIC, &from);
        int status = run(real, argv, governor, &use), code = shell_status(status);
        clock_gettime(CLOCK_MONOTONIC, &to);
        double wall = to.tv_sec - from.tv_sec + (to.tv_nsec - from.tv_nsec) / 1e9;
        double cpu = use.ru_utime.tv_sec + use.ru_stime.tv_sec + (use.ru_utime.tv_usec + use.ru_stime.tv_usec) / 1e6;
        dprintf(governor, "{\"op\":\"done\",\"id\":%s,\"exit\":%d,\"signal\":%d,\"wall\":%.3f,\"cpu\":%.3f,"
                "\"peak_rss_bytes\":%lld}\n", id, code, WTERMSIG(status), wall, cpu, use.ru_maxrss * 1024LL);
        hear(governor);
        if (begins(answer, "{\"op\":\"exit\""))
            return code;
        unsay(1, "/proc/self/fd/1", "/stdout.tmp.");
        unsay(2, "/proc/self/fd/2", "/stderr.tmp.");
    }
    complain("%s", reason(), "");
    return 1;
}

/* Stand in the launcher's place until its compile has ended. */
static int launched(int cached, int governor, int files, char **words)
{
    struct rusage use;
    fcntl(governor, F_SETFD, FD_CLOEXEC);
    int code = cached ? shell_status(run(words[files], words + files, governor, &use)) : gated(words + files);
    while (files-- > 0)
        unlink(words[files]);
    dprintf(governor, "{\"op\":\"end\",\"id\":%s,\"exit\":%d}\n", id, code);
    hear(governor);
    return code;
}

int main(int argc, char **argv)
{
    id = getenv("WHEELMILL_COMPILE_ID"), path = getenv("WHEELMILL_SOCKET"), real = getenv("WHEELMILL_REAL");
    argv0 = getenv("WHEELMILL_ARGV0"), refusals = getenv("WHEELMILL_REFUSALS");
    if (argc < 2 || !id || !path || !real || !argv0)
        return 2; /* called by hand */
    signal(SIGPIPE, SIG_IGN);
    sigprocmask(SIG_BLOCK, NULL, &inherited);
    waiting = blocked = inherited;
    for (const int *each = (const int[]){SIGCHLD, SIGTERM, SIGINT, 0}; *each; each++) {
        signal(*each, forward); /* a read goes on after it, ppoll does not */
        sigaddset(&blocked, *each);
        sigdelset(&waiting, *each);
    }
    sigprocmask(SIG_SETMASK, &waiting, NULL);
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    if (argc > 4 && begins(argv[1], "--"))
        return launched(strcmp(argv[1], "--cached") == 0, atoi(argv[2]), atoi(argv[3]), argv + 4);
    argv[1] = (char *)argv0;
    return gated(argv + 1);
}
