"""Real programs on the two hosts of `cargo xtask lab rdma`: what they say to one another, and by which way it went.

    programs.py DIRECTORY [NAME;...]

DIRECTORY has shunt, shuntd and libshunt.so. A server runs on host b and its client on host a, which are network namespaces with a
shuntd each; 10.9.0.2 is host b. What a load has to show: its client's own check, that over 99 % of its payload went through rings at
both ends, and that the devices have sent at least as many packets as that takes. Each line that begins with LAB is the lab's.
"""
import json
import os
import pwd
import re
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAMS = os.path.join(HERE, "../programs")
PYTHON = "/usr/bin/python3"
ADDRESS = "10.9.0.2"
PORT = 7100
SHARE = 0.99
# Of the soft-RoCE devices: no packet has more payload.
MTU = 4096
LONGEST = 120
POSTGRES = "/usr/lib/postgresql/15/bin/"
DEVICES = {"a": "ra", "b": "rb"}


def say(text):
    print("LAB " + text, flush=True)


class Host:
    """A network namespace with a shuntd."""

    def __init__(self, name, directory):
        self.name = name
        self.directory = directory
        self.place = f"/run/lab/{name}"
        os.makedirs(self.place, exist_ok=True)
        # Servers that are not root's write there, too.
        self.counts = self.place + "-counts"
        os.makedirs(self.counts, exist_ok=True)
        os.chmod(self.counts, 0o777)
        self.socket = os.path.join(self.place, "socket")
        with open(os.path.join(self.place, "shunt.toml"), "w") as file:
            file.write(
                f'[hosts]\nkey = "/run/lab/key"\nnetworks = ["10.9.0.0/24"]\npinned_per_process = 256\nrdma = true\ndevice = "{DEVICES[name]}"\n'
            )

    def within(self, command, **options):
        return subprocess.Popen(["ip", "netns", "exec", self.name, *command], **options)

    def start_daemon(self):
        # One kernel has both hosts, so its eBPF programs would tell that the other end is on the same one.
        command = [self.tool("shuntd"), "--system", "--by-addresses", "--name", "lab-" + self.name]
        command += ["--config", os.path.join(self.place, "shunt.toml"), "--socket", self.socket]
        self.daemon = self.within(command)
        wait_until(lambda: os.path.exists(self.socket), "shuntd")

    def tool(self, name):
        return os.path.join(self.directory, name)

    def run(self, command, mode, output, user):
        """Under Shunt; what each process has counted goes to the statistics file."""
        self.statistics = os.path.join(self.counts, "statistics")
        if os.path.exists(self.statistics):
            os.unlink(self.statistics)
        environment = dict(os.environ, SHUNT_SOCKET=self.socket, HOME="/run/lab")
        become = ["setpriv", "--reuid", user, "--regid", user, "--init-groups"] if user else []
        under = [*become, self.tool("shunt"), "run", "--upgrade=" + mode, "--stats", self.statistics, "--"]
        # A group of its own: whatever it starts ends with it.
        return self.within(
            under + command, env=environment, stdout=output, stderr=output, stdin=subprocess.DEVNULL, start_new_session=True
        )

    def counted(self):
        """Bytes of payload in rings and by the kernel, and the reasons for the latter."""
        ring = kernel = 0
        reasons = {}
        with open(self.statistics) as file:
            for line in map(json.loads, file):
                for way in (line["tx"], line["rx"]):
                    ring += way["ring_bytes"]
                    kernel += way["kernel_bytes"]
                for reason, count in line["reasons"].items():
                    reasons[reason] = reasons.get(reason, 0) + count
        return ring, kernel, reasons


def wait_until(holds, what, longest=60):
    deadline = time.monotonic() + longest
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {longest} s")
        time.sleep(0.1)


def listens(host, port):
    command = ["ip", "netns", "exec", host, "cat", "/proc/net/tcp", "/proc/net/tcp6"]
    lines = subprocess.run(command, capture_output=True, text=True).stdout.split("\n")
    return any(f":{port:04X} " in line and " 0A " in line for line in lines)


def python(script, *words):
    return [PYTHON, os.path.join(PROGRAMS, script), *map(str, words)]


def redis(port):
    return ["redis-server", "--port", str(port), "--bind", ADDRESS, "--protected-mode", "no", "--save", "", "--dir", "/run/lab"]


def nginx(port):
    home = "/run/lab/nginx"
    os.makedirs(home, exist_ok=True)
    with open(home + "/file", "w") as file:
        file.write("x" * 20000)
    with open(home + "/conf", "w") as file:
        file.write(
            f"daemon off; worker_processes 1; user root; pid {home}/pid; error_log {home}/error; events {{}}\n"
            f"http {{ access_log off; keepalive_requests 1000000; server {{ listen {ADDRESS}:{port}; root {home}; }} }}\n"
        )
    return ["nginx", "-c", home + "/conf"]


def postgresql(port):
    home = "/run/lab/postgresql"
    if not os.path.exists(home):
        os.makedirs(home)
        owner = pwd.getpwnam("postgres")
        os.chown(home, owner.pw_uid, owner.pw_gid)
        become = ["setpriv", "--reuid", "postgres", "--regid", "postgres", "--init-groups"]
        initdb = [POSTGRES + "initdb", "-D", home + "/data", "-A", "trust", "-U", "postgres", "--no-sync"]
        subprocess.run(become + initdb, check=True, stdout=subprocess.DEVNULL, cwd="/")
    settings = ["-c", "listen_addresses=" + ADDRESS, "-c", "fsync=off", "-c", "shared_buffers=16MB"]
    host = f"host all all {ADDRESS}/24 trust"
    with open(home + "/data/pg_hba.conf", "w") as file:
        file.write(host + "\n")
    return [POSTGRES + "postgres", "-D", home + "/data", "-p", str(port), "-k", home, *settings]


def pgbench(port):
    where = f"-h {ADDRESS} -p {port} -U postgres"
    return ["sh", "-ec", f"pgbench -i -q {where} postgres; pgbench -n -S -c 4 -t 500 {where} postgres"]


# Name: server, client, what the client says if all is well, as which user both run, and when connections are moved.
LOADS = {
    "redis": (redis, lambda port: python("redis_check.py", port, ADDRESS, 0), None, None, "sync"),
    "redis-benchmark": (
        redis,
        lambda port: ["redis-benchmark", "-h", ADDRESS, "-p", str(port), "-t", "set,get", "-n", "3000", "-c", "20", "-q"],
        r"GET: [\d.]+ requests per second",
        None,
        "sync",
    ),
    "memcached": (
        lambda port: ["memcached", "-u", "root", "-l", ADDRESS, "-p", str(port)],
        lambda port: python("memcached_check.py", port, ADDRESS, 0),
        None,
        None,
        "sync",
    ),
    "nginx and wrk": (
        nginx,
        lambda port: ["wrk", "-t1", "-c8", "-d10", "--timeout", "20", f"http://{ADDRESS}:{port}/file"],
        r"requests in(?![\s\S]*(Non-2xx|Socket errors))",
        None,
        "sync",
    ),
    "iperf3": (
        lambda port: ["iperf3", "-s", "-1", "-B", ADDRESS, "-p", str(port)],
        lambda port: ["iperf3", "-c", ADDRESS, "-p", str(port), "-n", "20M"],
        r"iperf Done",
        None,
        "sync",
    ),
    "asyncio, 200 clients": (
        lambda port: python("echo_server.py", port, ADDRESS),
        lambda port: python("echo_client.py", port, 200, 120, ADDRESS),
        None,
        None,
        "sync",
    ),
    "Java, channels": (
        lambda port: ["java", os.path.join(PROGRAMS, "Echo.java"), str(port), "nio", ADDRESS],
        lambda port: python("echo_client.py", port, 20, 200, ADDRESS),
        None,
        None,
        "sync",
    ),
    "PostgreSQL and pgbench": (postgresql, pgbench, r"number of transactions actually processed: 2000/2000", "postgres", "adaptive"),
}


def tell_where():
    """Where the threads of programs under Shunt are."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/maps") as file:
                if "libshunt.so" not in file.read():
                    continue
            with open(f"/proc/{pid}/cmdline") as file:
                say(f"  {pid} {file.read()[:80]!r}")
            stack = subprocess.run(["gdb", "-p", pid, "-batch", "-ex", "thread apply all bt 14"], capture_output=True, text=True, timeout=60)
            for line in stack.stdout.split("\n"):
                if line.startswith(("#", "Thread")):
                    say("    " + line[:150])
        except (OSError, subprocess.TimeoutExpired):
            continue


def packets():
    """How many packets the devices of both hosts have sent."""
    sent = 0
    for device in DEVICES.values():
        with open(f"/sys/class/infiniband/{device}/ports/1/hw_counters/sent_pkts") as file:
            sent += int(file.read())
    return sent


def run(name, hosts, port):
    serve, ask, expected, user, mode = LOADS[name]
    begun, before = time.monotonic(), packets()
    with open("/run/lab/server", "w") as server_says, open("/run/lab/client", "w") as client_says:
        server = hosts["b"].run(serve(port), mode, server_says, user)
        try:
            wait_until(lambda: listens("b", port), "the server", 180)
            client = hosts["a"].run(ask(port), mode, client_says, user)
            try:
                status = client.wait(timeout=LONGEST)
            except subprocess.TimeoutExpired:
                tell_where()
                os.killpg(client.pid, signal.SIGKILL)
                status = "none: it hangs"
        finally:
            os.killpg(server.pid, signal.SIGTERM)
            try:
                server.wait(timeout=30)
            except subprocess.TimeoutExpired:
                os.killpg(server.pid, signal.SIGKILL)
                status = "that of a server that hangs"
    with open("/run/lab/client") as file:
        text = file.read()
    ways = {host: hosts[host].counted() for host in "ab"}
    shares = [ring / max(1, ring + kernel) for ring, kernel, _ in ways.values()]
    told = ", ".join(f"{host}: {ring} bytes in rings, {kernel} by TCP {reasons or ''}" for host, (ring, kernel, reasons) in ways.items())
    sent, least = packets() - before, ways["a"][0] // MTU
    held = status == 0 and min(shares) > SHARE and sent >= least and (expected is None or re.search(expected, text) is not None)
    say(f"{'held' if held else 'failed'}: {name}: {told}; {sent} packets; {time.monotonic() - begun:.0f} s")
    if not held:
        say(f"  status {status}")
        for line in text.strip().split("\n")[-40:]:
            say("  client: " + line)
        with open("/run/lab/server") as file:
            for line in file.read().strip().split("\n")[-40:]:
                say("  server: " + line)
    return held


def main():
    directory = sys.argv[1]
    names = sys.argv[2].split(";") if len(sys.argv) > 2 and sys.argv[2] else list(LOADS)
    os.makedirs("/run/lab", exist_ok=True)
    subprocess.run([os.path.join(directory, "shunt"), "host", "key", "/run/lab/key"], check=True, stdout=subprocess.DEVNULL)
    hosts = {name: Host(name, directory) for name in "ab"}
    for host in hosts.values():
        host.start_daemon()
    say("both hosts have their shuntd")
    held = 0
    for number, name in enumerate(names):
        try:
            held += run(name, hosts, PORT + number)
        except Exception as error:  # noqa: BLE001 - told, and the next one runs all the same
            say(f"failed: {name}: {error!r}")
    if held == len(names):
        say("held: all programs")
    for host in hosts.values():
        host.daemon.terminate()
        host.daemon.wait()
    return 0 if held == len(names) else 1


sys.exit(main())
