"""Takes more of the processor than its share, or takes it from others."""

import errno
import os
import struct

from stockade.cli.attack.programs.kit import GVISOR, VICTIM, refused, refuses, run


def attack() -> None:
    if not GVISOR:
        refused("a nice value of -20", lambda: os.setpriority(os.PRIO_PROCESS, 0, -20))
    refused("slow down the agent", lambda: os.setpriority(os.PRIO_PROCESS, VICTIM, 19))
    refused("slow down the user", lambda: os.setpriority(os.PRIO_USER, 0, 5))
    for policy in (1, 2):  # FIFO, RR
        # EINVAL: gVisor has no such policy.
        also = (errno.EINVAL,) if GVISOR else ()
        refuses("sched_setscheduler", 0, policy, struct.pack("i", 10), also=also)
    refuses("sched_setscheduler", VICTIM, 5, struct.pack("i", 0))  # IDLE
    refuses("sched_setaffinity", 0, 8, struct.pack("Q", 2**62 - 1))
    refuses("ioprio_set", 1, 0, 1 << 13)  # real time
    refuses("prctl", 62, 1, 0, 1, 0)  # PR_SCHED_CORE


if __name__ == "__main__":
    run(attack)
