#!/usr/bin/env python3
"""Counts who was switched in on which CPU, from a sched_switch trace.

switches.py TRACE CPU=TID [CPU=TID...]: prints a table and ends non-zero when anything but the CPU's own vCPU thread, the
idle task and kernel threads bound to that CPU was switched in.
"""
import collections
import os
import re
import sys

LINE = re.compile(r"\[(\d+)\].*sched_switch:.*==> next_comm=(.*) next_pid=(\d+) ")


def bound_kernel_thread(pid, comm, cpu):
    """A kernel thread (it has no command line) that the kernel itself bound to this CPU."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            if file.read():
                return False
        return os.sched_getaffinity(pid) == {cpu}
    except OSError:
        # A kworker that ended meanwhile: its name says which CPU it was bound to (an unbound one is kworker/u…).
        return re.match(rf"kworker/{cpu}:", comm) is not None


def main():
    own = {int(cpu): int(tid) for cpu, tid in (pair.split("=") for pair in sys.argv[2:])}
    seen = collections.Counter()
    with open(sys.argv[1], encoding="utf-8", errors="replace") as trace:
        for line in trace:
            match = LINE.search(line)
            if match and int(match[1]) in own:
                seen[int(match[1]), match[2], int(match[3])] += 1
    foreign = 0
    print(f"{'CPU':>3}  {'SWITCHED IN':20} {'TID':>7} {'TIMES':>6}  WHO")
    for (cpu, comm, pid), times in sorted(seen.items()):
        if pid == own[cpu]:
            who = "this CPU's vCPU thread"
        elif pid == 0:
            who = "idle"
        elif bound_kernel_thread(pid, comm, cpu):
            who = "kernel thread bound to this CPU"
        else:
            who = "FOREIGN"
            foreign += times
        print(f"{cpu:>3}  {comm:20} {pid:>7} {times:>6}  {who}")
    # A vCPU thread that holds its CPU for the whole time is never switched in: its run time tells, not the trace.
    print(f"foreign switch-ins: {foreign}")
    return 1 if foreign else 0


sys.exit(main())
