#!/usr/bin/env python3
"""measure.py FIGURES QEMU...: measures for five seconds what disturbs the virtual machines of these QEMU processes.

The CPUs of a virtual machine are those on which its vCPU threads may run. Prints who was switched in there, and writes to FIGURES, as NAME=VALUE:

  foreign      switch-ins of anything but a vCPU thread that may run there, the idle task and kernel threads bound to that CPU
  interrupts   device interrupts on these CPUs
  waiting      milliseconds in which vCPU threads could have run and another task did, summed
  pause        the longest pause of the guests' loops (pause.S), in milliseconds
  others       milliseconds in which QEMU's other threads could have run and another task did, summed
  ran          milliseconds that the vCPU threads ran, summed
  measured     milliseconds between the readings

A value is "unknown" if it could not be measured, and the reason is printed.
"""
import collections
import os
import pathlib
import re
import sys
import time

SECONDS = 5
TRACE = pathlib.Path("/sys/kernel/tracing")
SWITCH = re.compile(r"\[(\d+)\].*sched_switch:.*==> next_comm=(.*) next_pid=(\d+) ")
LOST = re.compile(r"^(?:overrun|commit overrun|dropped events): (\d+)$", re.M)


def threads(qemus):
    """The ids of the vCPU threads, by their names (QEMU's option debug-threads), and of QEMU's other threads."""
    vcpus, others = [], []
    for task in (task for qemu in qemus for task in pathlib.Path(f"/proc/{qemu}/task").iterdir()):
        (vcpus if re.match(r"CPU \d+/", (task / "comm").read_text()) else others).append(int(task.name))
    return vcpus, others


def schedstat(tids):
    """Nanoseconds that each thread ran, and that it waited for a CPU. Threads that ended are missing."""
    pairs = {}
    for tid in tids:
        try:
            pair = pathlib.Path(f"/proc/{tid}/schedstat").read_text(encoding="ascii").split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        pairs[tid] = int(pair[0]), int(pair[1])
    return pairs


def spent_ms(before, after):
    """The milliseconds between two readings that threads ran, and that they waited, summed over those in both."""
    return [round(sum(after[tid][place] - before[tid][place] for tid in before.keys() & after.keys()) / 1e6) for place in (0, 1)]


def what_they_do(qemu):
    """Prints what each thread of a QEMU waits for."""
    for task in sorted(pathlib.Path(f"/proc/{qemu}/task").iterdir(), key=lambda task: int(task.name)):
        try:
            state = re.search(r"^State:\t(.*)$", (task / "status").read_text(), re.M)[1]
            words = (task / "comm").read_text().strip(), state, (task / "wchan").read_text(), (task / "schedstat").read_text().strip()
        except OSError:
            continue
        print(f"  thread {task.name}: {' '.join(words)}")


def interrupts(cpus):
    """How often device interrupts fired on the CPUs since boot. Those of arm64 that each CPU has of its own, the timer's among them, have numbers below 32
    at the interrupt controller."""
    lines = [line for line in open("/proc/interrupts", encoding="ascii") if re.match(r" *[1-9]\d*:", line) and not re.search(r" GICv3 +([12]?\d|3[01]) ", line)]
    return sum(int(line.split()[1 + cpu]) for line in lines for cpu in cpus)


def pauses(qemu):
    """The complete lines of a guest as (counter, longest pause), and when the last one was written."""
    path = pathlib.Path(f"/proc/{qemu}/root/run/pause")
    lines = path.read_text(encoding="ascii").splitlines(keepends=True)
    pairs = [line.split() for line in lines if line.endswith("\n")]
    return [(int(counter, 16), int(pause, 16)) for counter, pause in pairs], path.stat().st_mtime_ns


def longest_pause_ns(before, after):
    """The longest pause between two readings of a guest's lines. How fast its counter counts follows from when lines were written."""
    (old, began), (new, ended) = before, after
    lines = new[len(old) :]
    if not old or not lines:
        return None
    units = (lines[-1][0] - old[-1][0]) % (1 << 32)
    return max(pause for _, pause in lines) * (ended - began) / units


def bound_kernel_thread(pid, comm, cpu):
    """Whether it is a kernel thread, which has no command line, that the kernel bound to this CPU."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            if file.read():
                return False
        return os.sched_getaffinity(pid) == {cpu}
    except OSError:
        # The name of a kworker that ended says which CPU it was bound to; an unbound one is kworker/u….
        return re.match(rf"kworker/{cpu}:", comm) is not None


def traced(cpus):
    """Begins to trace who is switched in on these CPUs; the function that is returned ends it, with the trace and the lost events."""
    (TRACE / "tracing_on").write_text("0")
    (TRACE / "buffer_size_kb").write_text("16384")
    (TRACE / "tracing_cpumask").write_text(f"{sum(1 << cpu for cpu in cpus):x}")
    (TRACE / "events/sched/sched_switch/enable").write_text("1")
    (TRACE / "trace").write_text("")
    (TRACE / "tracing_on").write_text("1")

    def end():
        (TRACE / "tracing_on").write_text("0")
        (TRACE / "events/sched/sched_switch/enable").write_text("0")
        lost = sum(int(number) for file in TRACE.glob("per_cpu/cpu*/stats") for number in LOST.findall(file.read_text()))
        return (TRACE / "trace").read_text(encoding="utf-8", errors="replace"), lost

    return end


def foreign_switch_ins(trace, own):
    """Prints who was switched in, and returns how often it was somebody else."""
    seen = collections.Counter()
    for line in trace.splitlines():
        match = SWITCH.search(line)
        if match and int(match[1]) in own:
            seen[int(match[1]), match[2], int(match[3])] += 1
    foreign = 0
    print(f"{'CPU':>3}  {'SWITCHED IN':20} {'TID':>7} {'TIMES':>6}  WHO")
    for (cpu, comm, pid), times in sorted(seen.items()):
        if pid in own[cpu]:
            who = "vCPU thread of this CPU"
        elif pid == 0:
            who = "idle"
        elif bound_kernel_thread(pid, comm, cpu):
            who = "kernel thread bound to this CPU"
        else:
            who = "FOREIGN"
            foreign += times
        print(f"{cpu:>3}  {comm:20} {pid:>7} {times:>6}  {who}")
    return foreign


def main():
    qemus = [int(pid) for pid in sys.argv[2:]]
    vcpus, others = threads(qemus)
    own = collections.defaultdict(set)
    for tid in vcpus:
        for cpu in os.sched_getaffinity(tid):
            own[cpu].add(tid)

    def read():
        return [pauses(qemu) for qemu in qemus], schedstat(vcpus), schedstat(others), interrupts(own), time.monotonic()

    end = traced(own)
    lines, before, others_before, fired, began = read()
    time.sleep(SECONDS)
    lines_after, after, others_after, fired_after, ended = read()
    trace, lost = end()
    foreign = foreign_switch_ins(trace, own)
    longest = [longest_pause_ns(*pair) for pair in zip(lines, lines_after)]
    (ran, waiting), (_, others_waiting) = spent_ms(before, after), spent_ms(others_before, others_after)
    figures = {
        "foreign": foreign,
        "interrupts": fired_after - fired,
        "waiting": waiting,
        "pause": None if None in longest else round(max(longest) / 1e6, 1),
        "others": others_waiting,
        "ran": ran,
        "measured": round((ended - began) * 1000),
    }
    unknown = []
    if not figures["ran"]:
        unknown.append("no vCPU thread ran")
        # Then a zero proves nothing.
        figures.update({name: figures[name] or None for name in ("foreign", "interrupts", "waiting")})
    elif figures["pause"] is None:
        unknown.append("a guest wrote no line in the time that was measured")
        for qemu in (qemu for qemu, pause in zip(qemus, longest) if pause is None):
            what_they_do(qemu)
    # A switch-in that was seen counts whatever the trace lost.
    if lost and figures["foreign"] == 0:
        figures["foreign"] = None
        unknown.append(f"the trace lost {lost} events")
    text = "".join(f"{name}={'unknown' if value is None else value}\n" for name, value in figures.items())
    pathlib.Path(sys.argv[1]).write_text(text, encoding="ascii")
    print("  " + text.strip().replace("\n", "  "))
    if unknown:
        print("  not measured: " + "; ".join(unknown))


main()
