/* A job that bears witness: one line when it begins, one when it ends, each by a single append.
 *
 *   WITNESS_FILE   where the lines go
 *   WITNESS_ENDS   how attempts end, the last one for all that follow: exit:0,exit:3,signal:9
 *   WITNESS_MS     how long it runs
 *   WITNESS_UNTIL  if set, it then runs on until this file is there
 *   WITNESS_RANK   if set, only this rank ends so; the others end well
 *   WITNESS_OTHERS_MS  how long the other ranks run
 *
 * A line: begin|end job task attempt rank devices share pid boot-time-in-ns how port. Asked to
 * stop, it says that it ends, and dies of the signal.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char *value(const char *name, const char *otherwise)
{
    const char *found = getenv(name);
    return found != NULL && *found != '\0' ? found : otherwise;
}

static void say(const char *what, const char *how)
{
    char line[512];
    struct timespec now;
    clock_gettime(CLOCK_BOOTTIME, &now);
    long long at_ns = (long long)now.tv_sec * 1000000000LL + now.tv_nsec;
    int size = snprintf(line, sizeof line, "%s %s %s %s %s %s %s %d %lld %s %s\n", what,
                        value("TGPU_JOB_ID", "-"), value("TGPU_ARRAY_INDEX", "-"),
                        value("TGPU_ATTEMPT", "-"), value("RANK", "0"),
                        value("CUDA_VISIBLE_DEVICES", "-"), value("TGPU_GPU_SHARE", "0"),
                        (int)getpid(), at_ns, how, value("MASTER_PORT", "-"));
    int file = open(value("WITNESS_FILE", "/dev/null"), O_WRONLY | O_APPEND | O_CREAT, 0644);
    if (file < 0 || write(file, line, (size_t)size) != size)
        _exit(99);
    close(file);
}

static void asked_to_stop(int number)
{
    say("end", "signal:15");
    signal(number, SIG_DFL);
    raise(number);
}

static void rest(long ms)
{
    struct timespec wait = {ms / 1000, (ms % 1000) * 1000000L};
    while (nanosleep(&wait, &wait) != 0)
        continue;
}

static void end_like(const char *how)
{
    signal(SIGTERM, SIG_IGN);
    say("end", how);
    if (strncmp(how, "signal:", 7) == 0) {
        int number = atoi(how + 7);
        signal(number, SIG_DFL);
        sigset_t open;
        sigemptyset(&open);
        sigaddset(&open, number);
        raise(number);
        sigprocmask(SIG_UNBLOCK, &open, NULL);
    }
    _exit(atoi(how + 5));
}

int main(void)
{
    /* Who is asked to stop at once says first that it has begun. */
    sigset_t term;
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    sigprocmask(SIG_BLOCK, &term, NULL);
    struct sigaction stop = {.sa_handler = asked_to_stop, .sa_flags = SA_NODEFER};
    sigaction(SIGTERM, &stop, NULL);
    say("begin", "-");
    sigprocmask(SIG_UNBLOCK, &term, NULL);
    const char *chosen = value("WITNESS_RANK", "");
    if (*chosen != '\0' && strcmp(chosen, value("RANK", "0")) != 0) {
        rest(atol(value("WITNESS_OTHERS_MS", "0")));
        end_like("exit:0");
    }
    rest(atol(value("WITNESS_MS", "0")));
    const char *until = value("WITNESS_UNTIL", "");
    while (*until != '\0' && access(until, F_OK) != 0)
        rest(20);
    char ends[256];
    snprintf(ends, sizeof ends, "%s", value("WITNESS_ENDS", "exit:0"));
    long attempt = atol(value("TGPU_ATTEMPT", "1"));
    char *how = strtok(ends, ",");
    for (char *next = how; next != NULL && attempt > 0; attempt--) {
        how = next;
        next = strtok(NULL, ",");
    }
    end_like(how);
}
