"""SQLite in WAL mode: a process reads while another one writes."""

import os
import sqlite3
import subprocess
import sys

WRITER = """
import sqlite3, sys
database = sqlite3.connect("notes.db", isolation_level=None)
database.execute("BEGIN IMMEDIATE")
database.executemany("INSERT INTO note VALUES (?)", [(f"note {n}",) for n in range(1000)])
print("written", flush=True)
sys.stdin.readline()
database.execute("COMMIT")
"""

database = sqlite3.connect("notes.db", isolation_level=None)
assert database.execute("PRAGMA journal_mode=WAL").fetchone() == ("wal",)
database.execute("CREATE TABLE note (text TEXT)")
database.execute("INSERT INTO note VALUES ('first')")


def count() -> int:
    """What this process sees."""
    return database.execute("SELECT count(*) FROM note").fetchone()[0]


with subprocess.Popen(
    [sys.executable, "-c", WRITER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
) as writer:
    assert writer.stdout.readline() == "written\n"
    # Neither waits for the other, by the shared memory of both.
    assert os.path.exists("notes.db-shm")
    assert count() == 1
    try:
        sqlite3.connect("notes.db", timeout=0.1).execute("INSERT INTO note VALUES ('second')")
    except sqlite3.OperationalError as error:
        refusal = str(error)
    else:
        refusal = "none: two wrote at once"
    assert refusal == "database is locked", refusal
    writer.stdin.write("\n")
    writer.stdin.flush()
    assert writer.wait() == 0
assert count() == 1001
database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
print(count())
