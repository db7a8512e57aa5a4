"""multiprocessing: pools by fork and by spawn, shared memory, a semaphore; and os.fork."""

import multiprocessing
import os
from multiprocessing import shared_memory


def square(number: int) -> int:
    """For the pools."""
    return number * number


def fill(name: str, ready: "multiprocessing.synchronize.Semaphore") -> None:
    """Write where the parent reads."""
    block = shared_memory.SharedMemory(name)
    block.buf[:5] = b"hello"
    block.close()
    ready.release()


if __name__ == "__main__":
    squares = [n * n for n in range(100)]
    for method in ("fork", "spawn"):
        with multiprocessing.get_context(method).Pool(4) as pool:
            assert pool.map(square, range(100)) == squares, method

    block = shared_memory.SharedMemory(create=True, size=4096)
    ready = multiprocessing.Semaphore(0)
    process = multiprocessing.Process(target=fill, args=(block.name, ready))
    process.start()
    assert ready.acquire(timeout=60)
    process.join()
    assert bytes(block.buf[:5]) == b"hello"
    block.close()
    block.unlink()

    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, b"from the child")
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert os.read(reader, 100) == b"from the child"
    print(sum(squares))
