#!/usr/bin/env python3
"""Rates of real servers, natively and under Shunt in turn, beside busy loops.

    beside_loops.py [--loops 0,2,4,8] [--rounds 5] [--seconds 1] [--only NAME,...] [--control] [--shunt PATH]

Every server runs twice, once without Shunt and once under it, and every round asks both, in an order that changes. A
line per load and number of loops tells the medians, their ratio, and all rates in order. With --control every server
runs a third time, without Shunt again: the ratio of these two tells how much of a ratio is chance. Root is needed: MariaDB and
PostgreSQL run as their own users, and so do their clients (ends of two users are not paired).
Packages: gcc redis-server redis-tools memcached nginx wrk varnish haproxy python3-zmq mariadb-server sysbench postgresql
default-jdk-headless nodejs libzookeeper-java python3-kazoo rabbitmq-server python3-pika.
"""
import argparse
import os
import pwd
import re
import shutil
import signal
import statistics
import subprocess
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
PYTHON = "/usr/bin/python3"
FIRST_PORT = 23000
NATIVE, SHUNTED, CONTROL = range(3)


class Bench:
    """What all loads share: a directory, the servers, and how to run a client on one side."""

    def __init__(self, options):
        self.options = options
        self.directory = tempfile.mkdtemp()
        os.chmod(self.directory, 0o755)
        self.servers = []
        self.ports = {}
        self.echo = self.path("echo")
        self.burn = self.path("burn")
        for program in ("echo", "burn"):
            source = os.path.join(HERE, program + ".c")
            subprocess.check_call(["gcc", "-O1", "-o", self.path(program), source, "-lpthread"])

    def path(self, *parts):
        return os.path.join(self.directory, *parts)

    def port(self, name, side):
        first = self.ports.setdefault(name, FIRST_PORT + 3 * len(self.ports))
        return str(first + side)

    @property
    def sides(self):
        return (NATIVE, SHUNTED, CONTROL) if self.options.control else (NATIVE, SHUNTED)

    def wrap(self, side, command, user=None):
        under = [self.options.shunt, "run", "--"] if side == SHUNTED else []
        become = ["setpriv", "--reuid", user, "--regid", user, "--init-groups"] if user else []
        return become + under + command

    def serve(self, side, command, user=None):
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        command = self.wrap(side, command, user)
        self.servers.append(subprocess.Popen(command, start_new_session=True, cwd="/", **quiet))

    def prepare(self, command, user=None):
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        subprocess.run(self.wrap(0, command, user), check=True, cwd="/", **quiet)

    def ask(self, side, command, pattern=r"^([\d.]+)", user=None, clients=1):
        """The sum of what the clients print: numbers that the pattern finds."""
        command = self.wrap(side, command, user)
        running = [
            subprocess.Popen(command, cwd="/", stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            for _ in range(clients)
        ]
        texts = [client.communicate(timeout=120)[0] for client in running]
        return sum(float(m.group(1)) for m in (re.search(pattern, text, re.M) for text in texts) if m)

    def own_directory(self, name, user):
        path = self.path(name)
        os.makedirs(path)
        owner = pwd.getpwnam(user)
        os.chown(path, owner.pw_uid, owner.pw_gid)
        return path

    def end(self):
        for number in (signal.SIGTERM, signal.SIGKILL):
            for server in self.servers:
                try:
                    os.killpg(server.pid, number)
                except ProcessLookupError:
                    pass
            time.sleep(1)
        shutil.rmtree(self.directory, ignore_errors=True)


def one_after_another(b, side):
    b.serve(side, [b.echo, "serve-one", b.port("one", side)])


def threads(b, side):
    b.serve(side, [b.echo, "serve-threads", b.port("threads", side)])


def epoll(b, side):
    b.serve(side, [PYTHON, os.path.join(HERE, "epoll_echo.py"), b.port("epoll", side)])


def redis(b, side):
    b.serve(side, ["redis-server", "--port", b.port("redis", side), "--save", "", "--dir", b.directory])


def memcached(b, side):
    b.serve(side, ["memcached", "-u", "nobody", "-t", "2", "-l", "127.0.0.1", "-p", b.port("memcached", side)])


def nginx(b, side):
    home = b.path(f"nginx{side}")
    os.makedirs(home)
    with open(os.path.join(home, "file"), "w") as file:
        file.write("x" * 1000)
    with open(os.path.join(home, "conf"), "w") as file:
        file.write(
            f"daemon off; worker_processes 1; pid {home}/pid; error_log /dev/null; events {{}}\n"
            f"http {{ access_log off; keepalive_requests 1000000000; server {{"
            f" listen 127.0.0.1:{b.port('nginx', side)}; root {home}; }} }}\n"
        )
    b.serve(side, ["nginx", "-c", home + "/conf"])


def varnish(b, side):
    front, back = b.port("varnish", side), b.port("nginx", side)
    name = b.path(f"varnish{side}")
    b.serve(side, ["varnishd", "-F", "-a", "127.0.0.1:" + front, "-b", "127.0.0.1:" + back, "-n", name])


def haproxy(b, side):
    configuration = b.path(f"haproxy{side}")
    with open(configuration, "w") as file:
        file.write(
            "global\n nbthread 1\n"
            "defaults\n mode http\n timeout client 60s\n timeout server 60s\n timeout connect 5s\n"
            f"frontend f\n bind 127.0.0.1:{b.port('haproxy', side)}\n default_backend b\n"
            f"backend b\n server s 127.0.0.1:{b.port('nginx', side)}\n"
        )
    b.serve(side, ["haproxy", "-db", "-f", configuration])


def zeromq(b, side):
    b.serve(side, [PYTHON, os.path.join(HERE, "zmq_ping.py"), "serve", b.port("zeromq", side)])


def unix(b, side):
    return f"ipc://{b.directory}/zeromq{side}"


def zeromq_unix(b, side):
    b.serve(side, [PYTHON, os.path.join(HERE, "zmq_ping.py"), "serve", unix(b, side)])


def java(name, mode):
    def serve(b, side):
        b.serve(side, ["java", os.path.join(HERE, "../programs/Echo.java"), b.port(name, side), mode])

    return serve


java_threads = java("java threads", "blocking")
java_selector = java("java selector", "nio")


def node(b, side):
    serve = "require('http').createServer((_, answer) => answer.end('x'.repeat(1000)))"
    b.serve(side, ["node", "-e", f"{serve}.listen({b.port('node', side)}, '127.0.0.1')"])


def zookeeper(b, side):
    home = b.path(f"zookeeper{side}")
    os.makedirs(home)
    with open(home + "/conf", "w") as file:
        file.write(f"dataDir={home}\nclientPortAddress=127.0.0.1\nclientPort={b.port('zookeeper', side)}\nadmin.enableServer=false\n")
    jars = "/usr/share/java/zookeeper.jar:/usr/share/java/slf4j-nop.jar"
    b.serve(side, ["java", "-cp", jars, "org.apache.zookeeper.server.ZooKeeperServerMain", home + "/conf"])


def rabbitmq(b, side):
    home, names = b.path(f"rabbitmq{side}"), b.port("names of Erlang", side)
    os.makedirs(home)
    b.serve(side, ["epmd", "-address", "127.0.0.1", "-port", names])
    wait_for(names)
    settings = [f"HOME={home}", f"RABBITMQ_MNESIA_BASE={home}/mnesia", f"RABBITMQ_LOG_BASE={home}/log"]
    settings += ["ERL_EPMD_PORT=" + names, "RABBITMQ_NODENAME=shunt@localhost", "RABBITMQ_NODE_IP_ADDRESS=127.0.0.1"]
    settings += ["RABBITMQ_NODE_PORT=" + b.port("rabbitmq", side), "RABBITMQ_DIST_PORT=" + b.port("nodes of Erlang", side)]
    # What is installed has no say.
    settings += ["RABBITMQ_CONF_ENV_FILE=/dev/null", f"RABBITMQ_CONFIG_FILE={home}/none", f"RABBITMQ_ENABLED_PLUGINS_FILE={home}/none"]
    # The program of this name in /usr/sbin takes another user.
    b.serve(side, ["env", *settings, "/usr/lib/rabbitmq/bin/rabbitmq-server"])


SYSBENCH = ["sysbench", "oltp_point_select", "--db-driver=mysql", "--mysql-host=127.0.0.1", "--mysql-user=root"]
SYSBENCH += ["--mysql-db=sbtest", "--table-size=1000"]


def mariadb(b, side):
    home, port = b.own_directory(f"mariadb{side}", "mysql"), b.port("mariadb", side)
    where = ["--no-defaults", f"--datadir={home}/data", "--innodb-log-file-size=16M"]
    access = "--auth-root-authentication-method=normal"
    b.prepare(["mariadb-install-db", *where, "--skip-test-db", access], user="mysql")
    listen = ["--bind-address=127.0.0.1", "--skip-name-resolve", f"--socket={home}/socket", "--port=" + port]
    b.serve(side, ["/usr/sbin/mariadbd", *where, *listen], user="mysql")
    client = ["mariadb", "--no-defaults", "--protocol=tcp", "-h", "127.0.0.1", "-P", port, "-u", "root"]
    wait_for(port)
    b.prepare([*client, "-e", "create database sbtest"])
    b.prepare([*SYSBENCH, "--mysql-port=" + port, "prepare"])


def postgresql(b, side):
    home, port = b.own_directory(f"postgresql{side}", "postgres"), b.port("postgresql", side)
    programs = max(os.listdir("/usr/lib/postgresql"), key=int)
    programs = f"/usr/lib/postgresql/{programs}/bin/"
    initdb = ["-D", home + "/data", "-A", "trust", "-U", "postgres", "--no-sync"]
    b.prepare([programs + "initdb", *initdb], user="postgres")
    settings = ["-c", "listen_addresses=127.0.0.1", "-c", "fsync=off"]
    b.serve(side, [programs + "postgres", "-D", home + "/data", "-p", port, "-k", home, *settings], user="postgres")
    wait_for(port)
    b.prepare(["pgbench", "-i", "-q", "-h", "127.0.0.1", "-p", port, "-U", "postgres", "postgres"])


def echo_client(name, clients):
    return lambda b, side, s: b.ask(side, [b.echo, "ask", b.port(name, side), str(s)], clients=clients)


def redis_client(clients, a_second):
    def ask(b, side, s):
        count = str(round(a_second * s))
        command = ["redis-benchmark", "-p", b.port("redis", side), "-t", "get", "--csv", "-n", count, "-c", str(clients)]
        return b.ask(side, command, r'^"GET","([\d.]+)"')

    return ask


def wrk(name, clients):
    def ask(b, side, s):
        url = f"http://127.0.0.1:{b.port(name, side)}/file"
        return b.ask(side, ["wrk", "-t1", f"-c{clients}", f"-d{s}", url], r"Requests/sec:\s+([\d.]+)")

    return ask


def python_client(name, script, *words):
    script = os.path.join(HERE, script)
    return lambda b, side, s: b.ask(side, [PYTHON, script, *words, b.port(name, side), str(s)])


def zeromq_unix_client(b, side, s):
    return b.ask(side, [PYTHON, os.path.join(HERE, "zmq_ping.py"), "ask", unix(b, side), str(s)])


def sysbench(clients):
    def ask(b, side, s):
        options = ["--mysql-port=" + b.port("mariadb", side), f"--threads={clients}", f"--time={s}"]
        return b.ask(side, [*SYSBENCH, *options, "run"], r"queries:\s+\d+\s+\(([\d.]+) per", user="mysql")

    return ask


def pgbench(clients):
    def ask(b, side, s):
        where = ["-h", "127.0.0.1", "-p", b.port("postgresql", side), "-U", "postgres", "postgres"]
        return b.ask(side, ["pgbench", "-n", "-S", "-c", str(clients), "-T", str(s), *where], r"tps = ([\d.]+)", user="postgres")

    return ask


# Name of the load: the servers that it needs, in the order in which they start, and its client.
LOADS = {
    "echo, 1 client": ([one_after_another], echo_client("one", 1)),
    "echo in threads, 1 client": ([threads], echo_client("threads", 1)),
    "echo in threads, 4 clients": ([threads], echo_client("threads", 4)),
    "echo by epoll, 1 client": ([epoll], echo_client("epoll", 1)),
    "echo by epoll, 4 clients": ([epoll], echo_client("epoll", 4)),
    "redis, 1 client": ([redis], redis_client(1, 8000)),
    "redis, 50 clients": ([redis], redis_client(50, 40000)),
    "memcached, 16 clients": ([memcached], python_client("memcached", "memcached_get.py")),
    "nginx, 1 client": ([nginx], wrk("nginx", 1)),
    "nginx, 16 clients": ([nginx], wrk("nginx", 16)),
    "Varnish, 1 client": ([nginx, varnish], wrk("varnish", 1)),
    "Varnish, 16 clients": ([nginx, varnish], wrk("varnish", 16)),
    "HAProxy, 16 clients": ([nginx, haproxy], wrk("haproxy", 16)),
    "ZeroMQ, 1 client": ([zeromq], python_client("zeromq", "zmq_ping.py", "ask")),
    "Unix socket of ZeroMQ, 1 client": ([zeromq_unix], zeromq_unix_client),  # not TCP: what its threads alone allow
    "MariaDB, 1 client": ([mariadb], sysbench(1)),
    "MariaDB, 8 clients": ([mariadb], sysbench(8)),
    "PostgreSQL, 1 client": ([postgresql], pgbench(1)),
    "PostgreSQL, 50 clients": ([postgresql], pgbench(50)),
    "Java in threads, 1 client": ([java_threads], echo_client("java threads", 1)),
    "Java in threads, 4 clients": ([java_threads], echo_client("java threads", 4)),
    "Java by a selector, 1 client": ([java_selector], echo_client("java selector", 1)),
    "Java by a selector, 4 clients": ([java_selector], echo_client("java selector", 4)),
    "Node, 1 client": ([node], wrk("node", 1)),
    "Node, 16 clients": ([node], wrk("node", 16)),
    "ZooKeeper, 1 client": ([zookeeper], python_client("zookeeper", "zookeeper_get.py")),
    "RabbitMQ, 1 client": ([rabbitmq], python_client("rabbitmq", "rabbitmq_get.py")),
}


def wait_for(port):
    """Waits until somebody listens, which Java does by IPv6."""
    wanted = re.compile(f":{int(port):04X} 0+:0000 0A")
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        for table in ("/proc/net/tcp", "/proc/net/tcp6"):
            with open(table) as file:
                if any(wanted.search(line) for line in file):
                    return
        time.sleep(0.05)
    raise TimeoutError(f"nobody listens at port {port}")


def measure(b, names, loops):
    burning = [subprocess.Popen([b.burn]) for _ in range(loops)]
    rates = {}
    try:
        for turn in range(b.options.rounds):
            for name in names:
                for side in b.sides if turn % 2 == 0 else reversed(b.sides):
                    rate = LOADS[name][1](b, side, b.options.seconds)
                    rates.setdefault((name, side), []).append(rate)
    finally:
        for process in burning:
            process.kill()
            process.wait()
    for name in names:
        report(name, loops, [sorted(rates[name, side]) for side in b.sides])


def report(name, loops, rates):
    native, shunted, *control = [statistics.median(side) for side in rates]
    words = [f"{loops} loops  {name:28} native {native:8.0f}  shunted {shunted:8.0f}  ratio {ratio(shunted, native)}"]
    words += [f"control {ratio(again, native)}" for again in control]
    every = " | ".join(" ".join(f"{rate:.0f}" for rate in side) for side in rates)
    print("  ".join([*words, " " + every]), flush=True)


def ratio(rate, native):
    return f"{rate / native:5.2f}" if native else "    -"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--loops", default="0,2,4,8", help="numbers of busy loops (0,2,4,8)")
    parser.add_argument("--rounds", type=int, default=5, help="number of which medians are taken (5)")
    parser.add_argument("--seconds", type=int, default=1, help="how long each client asks (1)")
    parser.add_argument("--only", default="", help="loads whose names begin so, separated by commas (all)")
    parser.add_argument("--control", action="store_true", help="run a third time, without Shunt again")
    parser.add_argument("--shunt", default=os.path.join(HERE, "../../target/release/shunt"), help="the program shunt")
    options = parser.parse_args()
    options.shunt = os.path.realpath(options.shunt)
    wanted = [name.strip().lower() for name in options.only.split(",")]
    names = [name for name in LOADS if any(name.lower().startswith(word) for word in wanted)]
    b = Bench(options)
    try:
        started = []
        for start in [server for name in names for server in LOADS[name][0]]:
            if start not in started:
                started.append(start)
                for side in b.sides:
                    start(b, side)
        for port in [int(port) + side for port in b.ports.values() for side in b.sides]:
            wait_for(port)
        for loops in options.loops.split(","):
            measure(b, names, int(loops))
    finally:
        b.end()


if __name__ == "__main__":
    main()
