"""Makes shared memory, semaphores and queues that would outlive every process."""

from stockade.cli.attack.programs.kit import CONTROL, refuses, run, syscall

IPC_CREAT, IPC_RMID = 0o1000, 0


def attack() -> None:
    refuses("shmget", 0x5EED, 1 << 20, IPC_CREAT | 0o666)
    refuses("semget", 0x5EED, 1, IPC_CREAT | 0o666)
    refuses("msgget", 0x5EED, IPC_CREAT | 0o666)
    refuses("mq_open", b"stockade", 0o102, 0o666, None)
    if CONTROL:
        syscall("shmctl", syscall("shmget", 0x5EED, 0, 0), IPC_RMID, None)
        syscall("semctl", syscall("semget", 0x5EED, 1, 0), 0, IPC_RMID, None)
        syscall("msgctl", syscall("msgget", 0x5EED, 0), IPC_RMID, None)
        syscall("mq_unlink", b"stockade")


if __name__ == "__main__":
    run(attack)
