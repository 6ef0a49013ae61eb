"""Writes down what a daemon left on this node: tree, node and kubelet's file, as text. See README.md in tests/data/tree-0.1.0."""
import os
import sys

CGROUP = "/sys/fs/cgroup"
CPU = "/sys/devices/system/cpu"
WORKQUEUE = "/sys/devices/virtual/workqueue"
FILES = """cgroup.type cgroup.subtree_control cgroup.freeze
cpuset.cpus cpuset.cpus.effective cpuset.cpus.exclusive cpuset.cpus.exclusive.effective cpuset.cpus.isolated
cpuset.cpus.partition cpuset.mems
cpu.weight cpu.max io.weight io.max pids.max
memory.max memory.high memory.min memory.low memory.swap.max memory.oom.group
hugetlb.2MB.max hugetlb.2MB.rsvd.max""".split()


def read(path):
    with open(path) as file:
        return file.read().rstrip("\n")


def status(thread):
    lines = (line.split(":", 1) for line in read(f"/proc/{thread}/status").splitlines() if ":" in line)
    return {name: value.strip() for name, value in lines}


def described(thread):
    """One thread: number on the host, process, start time, numbers from the host's namespace inwards, affinity, name."""
    fields = status(thread)
    start = read(f"/proc/{thread}/stat").rsplit(")", 1)[1].split()[19]
    numbers = "/".join(fields["NSpid"].split())
    return (f"thread {thread} of {fields['Tgid']} start {start} numbers {numbers} "
            f"on {fields['Cpus_allowed_list']} {fields['Name']}")


def attributes(path):
    names = sorted(name for name in os.listxattr(path) if name.startswith("user."))
    return [f"{name}={os.getxattr(path, name).decode()}" for name in names]


def group(path, with_threads):
    lines = [f"[{path.removeprefix(CGROUP) or '/'}]"]
    lines += attributes(path)
    for name in FILES:
        try:
            for value in read(f"{path}/{name}").split("\n"):
                lines.append(f"{name}={value}")
        except OSError:
            pass  # Not in this cgroup, or not read there.
    if with_threads:
        lines += [described(thread) for thread in sorted(read(f"{path}/cgroup.threads").split(), key=int)]
    return "\n".join(lines) + "\n"


def below(path):
    return sorted(folder for folder, _, _ in os.walk(path))


def main(results):
    alone = ["", "/init.scope", "/system.slice", "/user.slice", "/kubepods.slice"]
    groups = [group(CGROUP + path, False) for path in alone if os.path.isdir(CGROUP + path)]
    groups += [group(path, True) for path in below(f"{CGROUP}/kubepods.slice")[1:]]
    groups += [group(path, True) for path in below(f"{CGROUP}/stelia.slice")]
    with open(f"{results}/tree", "w") as file:
        file.write("\n".join(groups))
    lines = [f"kernel {os.uname().release}"]
    for number in sorted(int(name[3:]) for name in os.listdir(CPU) if name[3:].isdigit()):
        folder = f"{CPU}/cpu{number}"
        node = next(name[4:] for name in os.listdir(folder) if name.startswith("node"))
        package, core = (read(f"{folder}/topology/{name}") for name in ("physical_package_id", "core_id"))
        lines.append(f"cpu {number} package {package} core {core} node {node}")
    lines += [f"workqueue {name} {read(f'{WORKQUEUE}/{name}')}" for name in sorted(os.listdir(WORKQUEUE))
              if name.startswith("cpumask")]
    with open(f"{results}/node", "w") as file:
        file.write("\n".join(lines) + "\n")
    with open(f"{results}/cpu_manager_state", "w") as file:
        file.write(read("/var/lib/kubelet/cpu_manager_state") + "\n")


main(sys.argv[1])
