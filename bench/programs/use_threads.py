"""Fifty threads alive at once, a lock, a queue, a pool."""

import queue
import threading
from concurrent.futures import ThreadPoolExecutor

THREADS = 50
everybody = threading.Barrier(THREADS, timeout=60)
lock = threading.Lock()
numbers: "queue.Queue[int]" = queue.Queue()
counts = {"total": 0}


def work(number: int) -> None:
    """Nobody goes on until all are there."""
    everybody.wait()
    for _ in range(100):
        with lock:
            counts["total"] += 1
    numbers.put(number)


threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert counts["total"] == 100 * THREADS
assert sorted(numbers.get() for _ in range(THREADS)) == list(range(THREADS))
with ThreadPoolExecutor(8) as pool:
    assert list(pool.map(pow, range(100), [2] * 100)) == [n * n for n in range(100)]
print(counts["total"])
