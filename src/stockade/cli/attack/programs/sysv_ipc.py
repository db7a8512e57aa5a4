"""Makes shared memory, semaphores and queues that would outlive every process."""

from stockade.cli.attack.programs.kit import refuses, run

IPC_CREAT = 0o1000


def attack() -> None:
    refuses("shmget", 0x5EED, 1 << 20, IPC_CREAT | 0o666)
    refuses("semget", 0x5EED, 1, IPC_CREAT | 0o666)
    refuses("msgget", 0x5EED, IPC_CREAT | 0o666)
    refuses("mq_open", b"stockade", 0o102, 0o666, 0)


if __name__ == "__main__":
    run(attack)
