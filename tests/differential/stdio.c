// Streams of the C library on connections; they call the kernel by themselves.
// path: shunted
// variant: fortify -O2 -D_FORTIFY_SOURCE=2
#include "diff.h"

static void lines(struct end *e)
{
    char line[128];
    if (e->role == S) {
        FILE *f = fdopen(FD, "r+");
        for (int i = 0; fgets(line, sizeof line, f); i++) {
            fprintf(f, "%d: %s", i, line);
            fflush(f);
        }
        say(e, "end %d error %d", feof(f) != 0, ferror(f) != 0);
        T(fclose(f));
        T(fcntl(FD, F_GETFD));
        FD = -1;
    } else {
        FILE *out = fdopen(dup(FD), "w"), *in = fdopen(FD, "r");
        for (int i = 0; i < 20; i++) {
            fprintf(out, "line %d\n", i);
            fflush(out);
            say(e, "%.*s", (int)strcspn(fgets(line, sizeof line, in), "\n"), line);
        }
        fclose(out);
        shutdown(FD, SHUT_WR);
        say(e, "%d", fgets(line, sizeof line, in) == NULL);
        fclose(in);
        FD = -1;
    }
}

static void formatted(struct end *e)
{
    char buf[64] = "";
    AT(C) {
        T(dprintf(FD, "%d and %s\n", 42, "text"));
        T(write(FD, "raw\n", 4));
        T(dprintf(FD, "%c", 'x'));
    }
    AT(S) {
        await_bytes(e, FD, 17);
        T(recv(FD, buf, 63, 0));
        say(e, "%.16s", strchr(buf, 'r'));
        T(dprintf(FD, "back"));
    }
    AT(C) {
        await_bytes(e, FD, 4);
        T(recv(FD, buf, 63, 0));
    }
}

// Plain calls first, a stream later, plain calls again.
static void stream_later(struct end *e)
{
    char line[64];
    if (e->role == S) {
        T(recv(FD, line, 4, MSG_WAITALL));
        FILE *f = fdopen(dup(FD), "r+");
        setvbuf(f, NULL, _IOLBF, 256);
        say(e, "%.*s", (int)strcspn(fgets(line, sizeof line, f), "\n"), line);
        fputs("to you\n", f);
        fflush(f);
        fclose(f);
        T(send(FD, "done", 4, 0));
        T(recv(FD, line, 4, MSG_WAITALL));
    } else {
        T(send(FD, "abcd", 4, 0));
        T(send(FD, "one line\n", 9, 0));
        T(recv(FD, line, 11, MSG_WAITALL));
        say(e, "%.6s", line);
        T(send(FD, "last", 4, 0));
    }
}

static void large(struct end *e)
{
    unsigned char buf[1000];
    if (e->role == S) {
        FILE *f = fdopen(dup(FD), "r");
        size_t done = 0, n;
        long bad = -1;
        while (bad < 0 && (n = fread(buf, 1, sizeof buf, f)) > 0) {
            bad = check(buf, n, done, 7);
            done += n;
        }
        say(e, "%zu bytes, %ld", done, bad);
        fclose(f);
    } else {
        FILE *f = fdopen(dup(FD), "w");
        for (size_t done = 0; done < 1000000; done += sizeof buf) {
            fill(buf, sizeof buf, done, 7);
            if (fwrite(buf, 1, sizeof buf, f) != sizeof buf)
                say(e, "short");
        }
        T(fclose(f));
        T(shutdown(FD, SHUT_WR));
    }
}

// Standard streams themselves, in a process of their own.
static void standard_streams(struct end *e)
{
    char buf[64];
    if (e->role == S) {
        struct kid kid = spawn(e);
        if (kid.pid == 0) {
            dup2(FD, 0);
            dup2(FD, 1);
            char line[64];
            while (fgets(line, sizeof line, stdin)) {
                printf("echo %s", line);
                fflush(stdout);
            }
            say(e, "end");
            exit(0);
        }
        close(FD), FD = -1;
        reap(e, &kid);
    } else {
        for (int i = 0; i < 5; i++) {
            put(FD, "hello\n", 6);
            if (get(FD, buf, 11) != 11 || memcmp(buf, "echo hello\n", 11))
                say(e, "wrong");
        }
        T(shutdown(FD, SHUT_WR));
        T(recv(FD, buf, 1, 0));
    }
}

DIFF_MAIN(CASE(lines, TWO | ALL | COLD), CASE(formatted, ALL | COLD), CASE(stream_later, TWO | COLD),
          CASE(large, TWO | COLD), CASE(standard_streams, SPLIT | COLD))
