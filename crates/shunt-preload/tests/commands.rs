//! Ordinary programs, where they are installed.

mod common;

use common::{run, same};

fn shell(script: &str) {
    let program = script.split_whitespace().next().expect("a command");
    let found = run(None, &["sh", "-c", &format!("command -v {program}")])
        .status
        .success();
    if found {
        same(&["sh", "-c", script]);
    } else {
        eprintln!("{program} is not installed");
    }
}

#[test]
fn shells_and_pipes() {
    shell("ls -l /bin/sh /etc/hostname /nonexistent");
    shell(
        "bash -c 'set -o pipefail; seq 1 1000 | sort -rn | head -3 | cat; echo ${PIPESTATUS[@]}; cat <(echo a) <<< b'",
    );
    shell("dash -c 'yes | head -n 2; (exit 3); echo $?; trap \"echo trapped\" TERM; kill $$'");
    shell("find /etc -maxdepth 1 -name 'host*' | xargs cat | wc -l");
    shell("tar cf - /etc/hostname 2>/dev/null | gzip -9n | gzip -d | tar tf -");
}

#[test]
fn interpreters() {
    shell(
        r#"python3 -c '
import asyncio, multiprocessing, socket, subprocess, threading
a, b = socket.socketpair(); a.sendall(b"x" * 100); print(len(b.recv(200)))
print(subprocess.run(["echo", "hi"], capture_output=True).stdout, subprocess.getoutput("exit 3; echo no"))
async def main():
    server = await asyncio.start_server(lambda r, w: (w.write(b"hello"), w.close()), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    print(await reader.read())
asyncio.run(main())
with multiprocessing.get_context("fork").Pool(2) as pool: print(pool.map(abs, [-1, 2]))
f = b.makefile("rb"); a.sendall(b"line\n"); print(f.readline())
'"#,
    );
    shell(
        r#"perl -MIO::Socket::INET -e '
my $s = IO::Socket::INET->new(Listen => 1, LocalAddr => "127.0.0.1") or die;
if (!fork) { my $c = IO::Socket::INET->new(PeerAddr => "127.0.0.1", PeerPort => $s->sockport); print $c "from the child\n"; exit 0 }
my $c = $s->accept; print <$c>; wait; print $? . "\n"; print `echo backquoted`'"#,
    );
    shell(
        "awk 'BEGIN { \"echo in\" | getline x; print x; system(\"exit 2\"); print \"b\" | \"cat\" }'",
    );
}

#[test]
fn tools() {
    shell("git --version && git config --list --show-origin --system || true");
    shell("gdb --version");
    shell("sqlite3 :memory: 'select 1+1'");
    shell("curl --silent --max-time 5 http://127.0.0.1:1/ ; echo $?");
    shell("ssh -V");
    shell("gcc --version");
    shell("timeout 1 sleep 5; echo $?");
    shell("env -i /bin/echo inert");
    shell("xargs --version");
    shell("openssl version");
}
