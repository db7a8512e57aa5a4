"""Read a web server's log (common log format) from standard input and say what was asked for."""

import re
import sys
from collections import Counter
from datetime import datetime

LINE = re.compile(
    r'(?P<host>\S+) \S+ \S+ \[(?P<time>[^]]+)\] "(?P<method>\S+) (?P<path>\S+)[^"]*" '
    r"(?P<status>\d{3}) (?P<size>\d+|-)"
)

hosts: Counter[str] = Counter()
statuses: Counter[str] = Counter()
bytes_of: Counter[str] = Counter()
times = []
unread = 0
for line in sys.stdin:
    found = LINE.match(line)
    if found is None:
        unread += 1
        continue
    hosts[found["host"]] += 1
    statuses[found["status"]] += 1
    bytes_of[found["path"]] += 0 if found["size"] == "-" else int(found["size"])
    times.append(datetime.strptime(found["time"], "%d/%b/%Y:%H:%M:%S %z"))

seconds = (max(times) - min(times)).total_seconds()
print(f"{hosts.total()} requests by {len(hosts)} hosts in {seconds:.0f} s, {unread} lines unread")
print("status  " + ", ".join(f"{status}: {count}" for status, count in statuses.most_common()))
print("largest share of the bytes:")
for path, size in bytes_of.most_common(3):
    print(f"{size:>9}  {path}")
