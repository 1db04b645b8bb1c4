"""Has PostgreSQL send a table and take it back, and compares both: postgresql_check.py PORT ADDRESS PAUSE PSQL

The connections with a table begin with a hundred commands that take PAUSE seconds: they are paired by then,
however busy the machine is. Exits with 1 on any difference.
"""
import hashlib
import subprocess
import sys

ROWS = 200_000
port, address, pause, psql = sys.argv[1:]
SLOWLY = ["-c", f"do $$ begin perform pg_sleep({pause}); end $$"] * 100
table = "".join(f"{i}\t{hashlib.md5(b'%d' % i).hexdigest()}\n" for i in range(ROWS))


def run(command, text="", first=()):
    words = [psql, "-X", "-q", "-A", "-t", "-h", address, "-p", port, "-U", "postgres", *first, "-c", command]
    return subprocess.run(words, input=text, check=True, capture_output=True, text=True).stdout


made = f"select i, md5(i::text) from generate_series(0, {ROWS - 1}) i"
if run(f"copy ({made}) to stdout", first=SLOWLY) != table:
    sys.exit("the table that came is another one")
run("drop table if exists back")
run("create table back (number int, hash text)")
run("copy back from stdin", table, first=SLOWLY)
if run(f"select count(*) from (select * from back intersect {made}) both_have").strip() != str(ROWS):
    sys.exit("the table that was sent arrived as another one")
