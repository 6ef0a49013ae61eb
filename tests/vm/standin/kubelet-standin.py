#!/usr/bin/python3 -IS
"""kubelet-standin: plays kubelet and containerd's CRI on the test node.

It writes kubelet's checkpoint files exactly as kubelet does (two writes per change, each a temporary file, fsync and
rename, with kubelet's checksum) and runs pods as real containers (containerd + runc, systemd cgroup driver) where kubelet
would have them. Only the standard library; `kubelet-standin help` prints the commands.

As kubelet it is one process of its own, the node's agent starts it; `kubelet-standin` hands it each command, which a fork of it
does with the caller's folder and open files.
"""

import argparse
import base64
import contextlib
import ctypes
import fcntl
import json
import os
import re
import select
import signal
import socket
import stat
import subprocess
import sys
import time
import traceback
from pathlib import Path

RUN = Path("/run/kubelet-standin")
SOCKET = RUN / "socket"
CGROUP = Path("/sys/fs/cgroup")
NAMESPACE = "k8s.io"  # containerd's namespace for CRI containers
TASKS = Path(f"/run/containerd/io.containerd.runtime.v2.task/{NAMESPACE}")  # where containerd's shims keep their containers
# How containers are made. crun has the processes in the cgroup "container" of the scope, as on nodes of CRI-O. "direct" is crun
# without containerd and its shim, in runc's cgroups with the same config.json in the same place: what a test costs is mostly the
# starting of Go programs.
RUNTIMES = {
    "runc": ["runc", "--root", f"/run/containerd/runc/{NAMESPACE}", "--systemd-cgroup"],
    "crun": ["/usr/bin/crun", "--root", f"/run/containerd/runc/{NAMESPACE}", "--systemd-cgroup"],  # the shim's choice of a root
    "direct": ["crun", "--root", "/run/kubelet-standin/crun", "--systemd-cgroup"],
}
IMAGES = RUN / "images"
RUNNER_DIR = Path("/run/stelia/runner")
# What device plugins call /dev/kvm: KubeVirt's, and the generic-device-plugin.
KVM = ("devices.kubevirt.io/kvm", "squat.ai/kvm")
DEVICE_MANAGER = "/job/kubelet-devices"  # testing/kubelet-devices: kubelet's side of the device plugin API, in gRPC
DEVICE_UNIT = "kubelet-standin-devices.service"
PLANNER = "/node/bin/standin-cpus"  # testing/kubelet/src/bin/standin-cpus.rs

HELP = """\
kubelet-standin: plays kubelet and containerd on the test node

  init [--cpus LIST] [--root DIR]                    write the first cpu_manager_state and memory_manager_state
      --schema 2|3|4                                 what the files are written in: as kubelet up to 1.35 (the default), 1.36 with the
                                                     gate PodLevelResourceManagers, 1.37
      --memory-policy None|Static                    the memory manager's policy, default None
      --reserved LIST                                CPUs that are in the pool and given to nobody (reservedSystemCPUs), default none
      --option NAME=VALUE                            an option of the static policy such as full-pcpus-only=true, repeatable
      --policy static|none                           the CPU manager's policy, default static. "init" with pods running is a kubelet
                                                     started anew with that policy and no state file: no container is touched, so
                                                     after "init --policy none" each keeps the cpuset.cpus it has
      --runtime runc|crun|direct                     what pods are made by unless they say otherwise: containerd with runc (default), or
                                                     with crun, which puts the processes into the cgroup "container" of the scope, as
                                                     on nodes of CRI-O; or crun alone, in runc's cgroups and much quicker
  upgrade --schema 2|3|4                             another kubelet: its files rewritten in that schema, running pods untouched. Not
                                                     to 2 while a pod has CPUs of its own
  pod start NAME [options] [-- CMD...]               admit and run a pod of one container (CMD: sleep infinity)
      --qos-class guaranteed|burstable|besteffort    default guaranteed; only guaranteed pods get CPUs of their own (or --qos)
      --cpus N | --cpuset LIST                       a guaranteed pod's CPUs: N that kubelet's static policy takes (default 2), or
                                                     these. With policy none no pod gets CPUs, and N is the pod's CPU request and limit
      --cpu-limit N | Nm                             a CPU limit (a guaranteed pod's request too): cpu.max of container and pod.
                                                     Not for besteffort. Policy static: a whole number is --cpus, and as CPUs of
                                                     its own have no quota, cpu.max stays; with a fraction there are no such CPUs
      --pod-cpus N  --pod-memory SIZE                pod-level resources (schema 3 and 4): the pod has N CPUs at once, and its containers, this one and
                                                     those that join it with --in, have --cpus of them for themselves or are --shared
      --pod-shares NAME                              a container that will join as a --shared one: kubelet writes its entry with the others, repeatable
      --shared                                       a container on what the others leave of its pod's CPUs; these come last
      --device-plugin RESOURCE=NODE:ID               a device plugin's device at that NUMA node (-1: it does not say), repeatable; of
                                                     kubelet's checkpoint only
      --resource NAME=COUNT                          devices of a plugin that registered (see devices), repeatable: the container gets
                                                     the mounts, devices and variables that the plugin answers
      --uid UID  --container NAME                    default: a random uid, "instance"
      --memory SIZE  --pids N                        limits: memory on pod and container, pids on the pod (podPidsLimit)
      --container-pids N                             a pids limit on the container as well (kubelet sets none)
      --hugepages SIZE=BYTES                         a limit such as 2MB=64M, repeatable
      --unified FILE=TEXT                            what the runtime writes to that file of the container's cgroup, repeatable
      --mems LIST                                    cpuset.mems (with a static memory manager a guaranteed pod with --memory has it anyway)
      --env K=V  --mount SRC:DST[:ro]  --cap CAP_X  --device PATH      each repeatable
      --user UID[:GID]  --host-pid  --privileged  --readonly  --no-socket
      --cgroup-writable                              its own cgroup mounted to be written, as containerd's cgroup_writable has it
      --userns                                       hostUsers: false: user and network namespaces of the container's own
      --netns                                        a network namespace of its own, as every pod has under kubelet
      --restricted                                   no capabilities, no new privileges, a seccomp filter like RuntimeDefault
      --in POD  --share-pid                          one container more in that pod; in the PID namespace of its first
      --runtime runc|crun|direct                     see init
      --gap SECONDS                                  between the two writes of the admission, default 0.04
      --json                                         print what "pod show" tells
  pod apply FILE [--runtime runc|crun|direct]        admit and run the pod of a manifest, in a network namespace of its own. Images: the
                                                     container has the node's own files whatever it names; init containers have those
                                                     of localhost/node, a folder for localhost/NAME (/run/kubelet-standin/images/NAME,
                                                     as of an image without a shell), and an imported image else
  pod exec NAME -- CMD...                            run a command in the container; its exit code is ours
  pod kill NAME                                      SIGKILL the container's first process; the entry stays
  pod delete NAME [--grace SECONDS] [--gap SECONDS]  SIGTERM, wait (default 30), SIGKILL (with 0 at once), clean up, give the CPUs back
  pod restart NAME                                   a new container in the same pod with the same CPUs, as kubelet after a crash
  pod resize NAME [--cpuset LIST] [--memory SIZE] [--cpu-limit N | Nm]
                                                     a resize in place: kubelet's files, then the running container. A memory limit below
                                                     what the pod uses is refused, as kubelet does until it fits
      --delay SECONDS                                fewer CPUs are allocated so long before the entry has them (KEP-6122)
  pod exchange NAME=LIST NAME=LIST                   two resizes in place, each with CPUs of the other, in one write of kubelet's file
  pod wait NAME [--timeout SECONDS]                  wait for the container's end and print its exit code (124: still running)
  pod list [--json]                                  all pods
  pod show NAME [--json]                             one pod: uid, container, id, cgroup, pid, cpus, log, status
  pod logs NAME                                      what the container's processes printed
  entry add UID CONTAINER CPUS [--gap SECONDS]       only the state file's two writes, for a pod that need not exist
      --reused                                       the entry of an init container that ended, with CPUs of the pod's that another container has again
  entry remove UID [--gap SECONDS]
  devices start                                      kubelet's side of the device plugin API: remove sockets in /var/lib/kubelet/device-plugins, listen on
                                                     kubelet.sock, hold a stream to each plugin. The job must have kubelet-devices
  devices restart                                    kubelet started anew: sockets are removed, allocations stay
  devices stop                                       kubelet ended: its connections end, its socket's file stays
  devices show                                       JSON: resources with their healthy and unhealthy devices, registrations, allocations
  pool                                               defaultCpuSet
  state                                              the file itself
  self-test DIR                                      check the checksum code against genuine files below DIR
"""


class Problem(Exception):
    """An error for the user: printed without a traceback."""


# --- CPU lists, as kubelet prints them ---------------------------------------------------------------------------------


def parse_cpus(text):
    cpus = set()
    for part in filter(None, text.strip().split(",")):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if not match:
            raise Problem(f"not a CPU list: {text!r}")
        low, high = int(match[1]), int(match[2] or match[1])
        if low > high or high > 4095:
            raise Problem(f"not a CPU list: {text!r}")
        cpus.update(range(low, high + 1))
    return cpus


def format_cpus(cpus):
    runs = []
    for cpu in sorted(cpus):
        if runs and runs[-1][1] == cpu - 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(f"{a}-{b}" if a != b else f"{a}" for a, b in runs)


# --- kubelet's checkpoint files ----------------------------------------------------------------------------------------


def fnv1a(text):
    value = 0x811C9DC5
    for byte in text.encode():
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value


def go_map(mapping, show=str, order=str.encode):
    return "map[" + " ".join(f"{key}:{show(mapping[key])}" for key in sorted(mapping, key=order)) + "]"


def cpu_checksum(doc, schema=2):
    """kubelet hashes what Go's spew prints of the structure, not the JSON. Of schema 4 it is the schema 2 inside; 1 serves the
    self-test."""
    kind, show = ("map[string]string", str) if schema == 1 else ("map[string]map[string]string", go_map)
    text = f"(*state.CPUManagerCheckpoint){{PolicyName:(string){doc['policyName']} DefaultCPUSet:(string){doc['defaultCpuSet']}"
    text += f" Entries:({kind}){go_map(doc.get('entries') or {}, show)}"
    if schema == 3:

        def pod_entry(entry):
            elements = " ".join(f"{cpu}:{{}}" for cpu in sorted(parse_cpus(entry.get("cpuSet", ""))))
            return f"{{CPUSet:(cpuset.CPUSet){{elems:(map[int]struct {{}})map[{elements}]}}}}"

        text += f" PodEntries:(state.PodCPUAssignments){go_map(doc.get('podEntries') or {}, pod_entry)}"
    return fnv1a(text + " Checksum:(checksum.Checksum)0}")


def data_checksum(data):
    """Of the newest schemas: what counts is JSON in a string, and the checksum is of that string."""
    return fnv1a("(string)" + data)


def nil_or(value, show):
    return "<nil>" if value is None else show(value)


def go_list(values, show=str):
    return nil_or(values, lambda values: "[" + " ".join(map(show, values)) + "]")


def memory_checksum(doc, schema=1):
    def block(block):
        nodes = go_list(block["numaAffinity"])
        return f"{{NUMAAffinity:([]int){nodes} Type:(v1.ResourceName){block['type']} Size:(uint64){block['size']}}}"

    def table(table):
        names = {"TotalMemSize": "total", "SystemReserved": "systemReserved", "Allocatable": "allocatable", "Reserved": "reserved", "Free": "free"}
        return "<*>{" + " ".join(f"{name}:(uint64){table[key]}" for name, key in names.items()) + "}"

    def node(node):
        tables = nil_or(node["memoryMap"], lambda tables: go_map(tables, lambda one: nil_or(one, table)))
        text = f"NumberOfAssignments:(int){node['numberOfAssignments']} MemoryMap:(map[v1.ResourceName]*state.MemoryTable){tables}"
        return f"<*>{{{text} Cells:([]int){go_list(node['cells'])}}}"

    def blocks(blocks):
        return go_list(blocks, block)

    text = f"(*state.MemoryManagerCheckpoint){{PolicyName:(string){doc['policyName']} MachineState:(state.NUMANodeMap)"
    text += go_map(doc["machineState"], lambda one: nil_or(one, node), int)
    text += " Entries:(state.ContainerMemoryAssignments)" + go_map(doc.get("entries") or {}, lambda pod: go_map(pod, blocks))
    if schema == 2:
        pods = go_map(doc.get("podEntries") or {}, lambda pod: f"{{MemoryBlocks:([]state.Block){blocks(pod['memoryBlocks'])}}}")
        text += " PodEntries:(state.PodMemoryAssignments)" + pods
    return fnv1a(text + " Checksum:(checksum.Checksum)0}")


def device_checksum(data):
    def entry(entry):
        devices = go_map(entry["DeviceIDs"] or {}, go_list, int)
        answer = nil_or(entry["AllocResp"], lambda text: go_list(base64.b64decode(text)))
        text = f"PodUID:(string){entry['PodUID']} ContainerName:(string){entry['ContainerName']} ResourceName:(string){entry['ResourceName']}"
        return f"{{{text} DeviceIDs:(checkpoint.DevicesPerNUMA){devices} AllocResp:([]uint8){answer}}}"

    text = f"(checkpoint.checkpointData){{PodDeviceEntries:([]checkpoint.PodDevicesEntry){go_list(data['PodDeviceEntries'], entry)}"
    return fnv1a(text + f" RegisteredDevices:(map[string][]string){go_map(data['RegisteredDevices'] or {}, go_list)}}}")


def compact(value):
    return json.dumps(value, separators=(",", ":"))


def versioned(doc, schema, checksum):
    """A state file's text. Schema 2 knows no pods; 3 has them among the other keys; 4 has them in `data`, and a schema 2 around it.
    The memory manager's own numbers are one less."""
    later = ("podEntries", "baselines")
    pods = {"podEntries": doc["podEntries"]} if doc.get("podEntries") else {}
    baselines = {"baselines": doc["baselines"]} if doc.get("baselines") else {}
    plain = {key: value for key, value in doc.items() if value and key not in later or key in ("defaultCpuSet", "machineState")}
    if schema == 3:
        whole = plain | pods
        return compact(whole | {"checksum": checksum(whole, schema)})
    whole = plain | {"checksum": checksum(plain, 2)}
    if schema == 4:
        data = compact(plain | pods | baselines)
        whole |= {"data": data, "dataChecksum": data_checksum(data)}
    return compact(whole)


def read_versioned(path):
    doc = json.loads(path.read_text())
    return json.loads(doc["data"]) if "data" in doc else doc


def settings():
    try:
        return json.loads((RUN / "settings.json").read_text())
    except FileNotFoundError as error:
        raise Problem(f"no state yet, run kubelet-standin init first ({error.filename})") from error


def write_file(path, text):
    """Temporary file in the same folder, fsync, rename: the inode changes each time."""
    while True:
        temp = path.parent / f".{int.from_bytes(os.urandom(4))}"
        try:
            fd = os.open(temp, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            break
        except FileExistsError:
            continue
    try:
        os.write(fd, text.encode())
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(temp, path)


class State:
    """cpu_manager_state, in the schema that `init` or `upgrade` chose."""

    def __init__(self):
        self.schema = settings()["schema"]
        try:
            self.path = Path((RUN / "root").read_text()) / "cpu_manager_state"
            doc = read_versioned(self.path)
        except FileNotFoundError as error:
            raise Problem(f"no state yet, run kubelet-standin init first ({error.filename})") from error
        self.policy = doc["policyName"]
        self.default = parse_cpus(doc["defaultCpuSet"])
        self.entries = doc.get("entries") or {}
        self.pods = {uid: parse_cpus(entry.get("cpuSet", "")) for uid, entry in (doc.get("podEntries") or {}).items()}
        # The CPUs of resized containers at their admission. Only schema 4 has them, of kubelet 1.37 with the gate
        # InPlacePodVerticalScalingExclusiveCPUs.
        self.baselines = doc.get("baselines") or {}

    @property
    def static(self):
        return self.policy == "static"

    def write(self):
        doc = {"policyName": self.policy, "defaultCpuSet": format_cpus(self.default)}
        doc["entries"] = {u: dict(sorted(c.items())) for u, c in sorted(self.entries.items())}
        doc["podEntries"] = {uid: {"cpuSet": format_cpus(cpus)} for uid, cpus in sorted(self.pods.items())}
        doc["baselines"] = {uid: self.baselines[uid] for uid in sorted(self.baselines) if uid in self.entries}
        write_file(self.path, versioned(doc, self.schema, cpu_checksum))

    def admit(self, uid, container, cpus, gap):
        if uid in self.entries and container in self.entries[uid]:
            raise Problem(f"{uid}/{container} already has an entry")
        if not cpus or not cpus <= self.default:
            raise Problem(f"CPUs {format_cpus(cpus)!r} are not all in the pool {format_cpus(self.default)!r}")
        self.default -= cpus
        self.write()
        time.sleep(gap)
        self.entries.setdefault(uid, {})[container] = format_cpus(cpus)
        self.write()

    def admit_pod(self, uid, cpus, gap):
        """Pod-level resources: all of the pod's CPUs at once; its containers' entries follow."""
        self.default -= cpus
        self.write()
        time.sleep(gap)
        self.pods[uid] = cpus
        self.write()

    def join(self, uid, container, cpus):
        """A container's part of its pod's CPUs: its own, or the pool that all without have."""
        self.entries.setdefault(uid, {})[container] = format_cpus(cpus)
        self.write()

    def resize(self, uid, container, cpus, gap):
        old = parse_cpus(self.entries[uid][container])
        if not cpus or not cpus - old <= self.default:
            raise Problem(f"CPUs {format_cpus(cpus - old)!r} are not all in the pool {format_cpus(self.default)!r}")
        self.baselines.setdefault(uid, {}).setdefault(container, {"baseline": format_cpus(old)})
        self.default -= cpus
        self.write()
        time.sleep(gap)
        self.entries[uid][container] = format_cpus(cpus)
        self.write()
        time.sleep(gap)
        self.default |= old - cpus
        self.write()

    def exchange(self, sets):
        """Containers that get each other's CPUs, in one write."""
        formers = {key: parse_cpus(self.entries[key[0]][key[1]]) for key in sets}
        after = sorted(cpu for cpus in sets.values() for cpu in cpus)
        if after != sorted(set().union(*formers.values())):
            raise Problem("the CPUs after an exchange are those before it, and each is one container's")
        for (uid, container), cpus in sets.items():
            self.baselines.setdefault(uid, {}).setdefault(container, {"baseline": format_cpus(formers[uid, container])})
            self.entries[uid][container] = format_cpus(cpus)
        self.write()

    def choose(self, count, among=None):
        """The CPUs that kubelet's static policy would take, of the shared pool or of a pod's own CPUs, by the planner; its refusal is
        ours."""
        given = settings()
        path, reserved = self.path, given["reserved"]
        if among is not None:
            path, reserved = RUN / "among.json", ""
            doc = {"policyName": "static", "defaultCpuSet": format_cpus(among)}
            path.write_text(versioned(doc, 2, cpu_checksum))
        done = run(PLANNER, str(path), str(count), reserved, *given["options"], check=False)
        if done.returncode:
            raise Problem(done.stderr.strip())
        return parse_cpus(done.stdout)

    def remove(self, uid, gap, container=None):
        """The entries of a pod, or of one container of it. A pod's own CPUs go with its last container."""
        if uid not in self.entries or container not in (None, *self.entries[uid]):
            raise Problem(f"no entry of {uid} {container or ''}")
        containers = self.entries[uid]
        gone = [containers.pop(name) for name in [container] * (container is not None) or list(containers)]
        if not containers:
            del self.entries[uid]
        self.write()
        if uid in self.pods and containers:
            return
        time.sleep(gap)
        self.default |= self.pods.get(uid) or set().union(*map(parse_cpus, gone))
        self.write()
        # For a moment the CPUs are in the pool and the pod's: so it is with kubelet.
        if self.pods.pop(uid, None) is not None:
            self.write()


class PodResources:
    """allocated_pods_state and actuated_pods_state, as of kubelet 1.33: what it admitted, at a start and at a resize, and what the
    runtime has taken of that. Both differ while a resize is under way."""

    FILES = {"allocated": "allocated_pods_state", "actuated": "actuated_pods_state"}

    def __init__(self, kind):
        self.path = Path((RUN / "root").read_text()) / self.FILES[kind]
        self.entries = {}
        with contextlib.suppress(FileNotFoundError):
            self.entries = json.loads(json.loads(self.path.read_text())["data"]).get("entries") or {}

    @classmethod
    def record(cls, pod, *kinds):
        for kind in kinds:
            one = cls(kind)
            containers = one.entries.setdefault(pod["uid"], {"ContainerResources": {}})["ContainerResources"]
            containers[pod["container"]] = cls.of(pod)
            one.write()

    @classmethod
    def forget(cls, pod):
        for kind in cls.FILES:
            one = cls(kind)
            containers = one.entries.get(pod["uid"], {}).get("ContainerResources", {})
            containers.pop(pod["container"], None)
            if not containers:
                one.entries.pop(pod["uid"], None)
            one.write()

    @staticmethod
    def of(pod):
        """A guaranteed container's requests are its limits. Of others only the limits are known here."""
        options = pod["options"]
        cpu = str(len(parse_cpus(pod["cpus"]))) if pod["cpus"] else options["limit"] and f"{options['limit']}m"
        limits = {"cpu": cpu or None, "memory": options["memory"] and str(size(options["memory"]))}
        limits = {name: value for name, value in limits.items() if value}
        resources = {"limits": limits, "requests": limits if pod["qos"] == "guaranteed" else {}}
        return {name: value for name, value in resources.items() if value}

    def write(self):
        pods = {uid: self.entries[uid] for uid in sorted(self.entries)}
        data = compact({"entries": pods} if pods else {})
        write_file(self.path, compact({"data": data, "checksum": data_checksum(data)}))


MEMORY_RESERVED = 100 << 20  # kubelet's default for memory.available, on the first NUMA node


def page_kind(kib):
    return f"hugepages-{kib >> 20}Gi" if kib >= 1 << 20 else f"hugepages-{kib >> 10}Mi"


class Memory:
    """memory_manager_state. Policy None lists no nodes and no pods."""

    def __init__(self):
        self.schema = settings()["schema"]
        self.path = Path((RUN / "root").read_text()) / "memory_manager_state"
        doc = read_versioned(self.path)
        self.policy, self.nodes = doc["policyName"], doc["machineState"]
        self.entries, self.pods = doc.get("entries") or {}, doc.get("podEntries") or {}

    @classmethod
    def first(cls, path, schema, policy):
        memory = cls.__new__(cls)
        memory.path, memory.schema, memory.policy, memory.entries, memory.pods = path, schema, policy, {}, {}
        nodes = sorted(Path("/sys/devices/system/node").glob("node[0-9]*")) if policy == "Static" else []
        memory.nodes = {folder.name.removeprefix("node"): cls.node(folder) for folder in nodes}
        return memory

    @staticmethod
    def node(folder):
        def table(total, reserved, pages=0):
            some = {"total": total, "systemReserved": reserved, "allocatable": total - reserved - pages, "reserved": 0}
            return some | {"free": some["allocatable"]}

        number = int(folder.name.removeprefix("node"))
        total = int(re.search(r"MemTotal:\s*(\d+) kB", (folder / "meminfo").read_text())[1]) << 10
        tables = {}
        for pages in folder.glob("hugepages/hugepages-*kB"):
            kib = int(pages.name.removeprefix("hugepages-").removesuffix("kB"))
            tables[page_kind(kib)] = table(int((pages / "nr_hugepages").read_text()) * kib << 10, 0)
        tables["memory"] = table(total, 0 if number else MEMORY_RESERVED, sum(one["total"] for one in tables.values()))
        return {"numberOfAssignments": 0, "memoryMap": dict(sorted(tables.items())), "cells": [number]}

    def write(self):
        doc = {"policyName": self.policy, "machineState": self.nodes, "entries": self.entries, "podEntries": self.pods}
        write_file(self.path, versioned(doc, self.schema, lambda doc, schema: memory_checksum(doc, schema - 1)))

    def forget(self, uids):
        """What removed pods had is given back at the next admission, not before."""
        for uid in [uid for uid in self.entries if uid not in uids]:
            containers = self.entries.pop(uid)
            own = self.pods.pop(uid, None)
            for block in own["memoryBlocks"] if own else [block for blocks in containers.values() for block in blocks]:
                self.give_back(block)
            self.write()

    def take(self, requests):
        """Blocks for these amounts: on the first NUMA node that has all of it, else on all nodes together."""

        def fits(names):
            tables = [self.nodes[name]["memoryMap"] for name in names]
            for kind in requests:
                if any(kind not in table for table in tables):
                    raise Problem(f"kubelet crashes: a NUMA node has no {kind}")
            return all(sum(table[kind]["free"] for table in tables) >= wanted for kind, wanted in requests.items())

        alone = [[name] for name, node in self.nodes.items() if len(node["cells"]) == 1]
        groups = [*alone, list(self.nodes)]
        names = next((names for names in groups if fits(names)), None)
        if names is None or len(names) > 1 and any(node["numberOfAssignments"] and len(node["cells"]) == 1 for node in self.nodes.values()):
            raise Problem("UnexpectedAdmissionError: Allocate failed due to [memorymanager] failed to find NUMA nodes to extend the current topology hint")
        blocks = [{"numaAffinity": [int(name) for name in names], "type": kind, "size": size} for kind, size in sorted(requests.items())]
        for block in blocks:
            left = block["size"]
            for name in names:
                node = self.nodes[name]
                node["numberOfAssignments"] += 1
                node["cells"] = block["numaAffinity"]
                table = node["memoryMap"][block["type"]]
                taken = min(left, table["free"])
                table["free"], table["reserved"], left = table["free"] - taken, table["reserved"] + taken, left - taken
        return blocks

    def give_back(self, block):
        left = block["size"]
        for number in block["numaAffinity"]:
            node = self.nodes[str(number)]
            node["numberOfAssignments"] -= 1
            if not node["numberOfAssignments"]:
                node["cells"] = [number]
            table = node["memoryMap"][block["type"]]
            given = min(left, table["reserved"])
            table["free"], table["reserved"], left = table["free"] + given, table["reserved"] - given, left - given

    def admit(self, uid, container, requests, of_pod=None):
        """The NUMA nodes of a container's memory; None where it has none here. `of_pod` is what its new pod has as a whole."""
        if of_pod:
            self.pods[uid] = {"memoryBlocks": self.take(of_pod)}
            self.write()
        if uid in self.pods:
            whole, others = self.pods[uid]["memoryBlocks"], self.entries.get(uid, {})
            used = {block["type"]: 0 for block in whole}
            for name, blocks in others.items():
                if name not in self.sharing(uid):
                    for block in blocks:
                        used[block["type"]] += block["size"]
            if requests:
                blocks = [block | {"size": requests[block["type"]]} for block in whole if block["type"] in requests]
            else:
                blocks = [block | {"size": block["size"] - used[block["type"]]} for block in whole]
        elif requests:
            blocks = self.take(requests)
        else:
            return None
        self.entries.setdefault(uid, {})[container] = blocks
        self.entries = dict(sorted(self.entries.items()))
        self.write()
        return set().union(*(block["numaAffinity"] for block in blocks))

    @staticmethod
    def sharing(uid):
        return [pod["container"] for pod in pods() if pod["uid"] == uid and not pod["options"]["memory"]]


def memory_requests(memory, hugepages=()):
    if not memory:
        return {}
    requests = {"memory": size(memory)}
    for text in hugepages:
        name, _, limit = text.partition("=")
        requests[page_kind(size(name.removesuffix("B")) >> 10)] = size(limit)
    return requests


def add_devices(uid, container, given):
    """kubelet_internal_checkpoint, with a device plugin's devices: what removed pods had stays until the next admission. With `devices
    start` that file is of the program there."""
    path = Path((RUN / "root").read_text()) / "device-plugins/kubelet_internal_checkpoint"
    path.parent.mkdir(parents=True, exist_ok=True)
    data = json.loads(path.read_text())["Data"] if path.exists() else {"PodDeviceEntries": None, "RegisteredDevices": {}}
    alive = {pod["uid"] for pod in pods()}
    entries = {(e["PodUID"], e["ContainerName"], e["ResourceName"]): e for e in data["PodDeviceEntries"] or [] if e["PodUID"] in alive}
    for text in given:
        match = re.fullmatch(r"([^=]+)=(-1|\d+):(.+)", text)
        if not match:
            raise Problem(f"not RESOURCE=NODE:ID: {text!r}")
        resource, node, device = match.groups()
        blank = {"PodUID": uid, "ContainerName": container, "ResourceName": resource, "DeviceIDs": {}, "AllocResp": ""}
        entry = entries.setdefault((uid, container, resource), blank)
        entry["DeviceIDs"].setdefault(node, []).append(device)
        registered = data["RegisteredDevices"].setdefault(resource, [])
        registered.extend([device] * (device not in registered))
    data["PodDeviceEntries"] = list(entries.values())
    data["RegisteredDevices"] = dict(sorted(data["RegisteredDevices"].items()))
    write_file(path, compact({"Data": data, "Checksum": device_checksum(data)}))


def device_manager(*argv):
    if not Path(DEVICE_MANAGER).exists():
        raise Problem(f"{DEVICE_MANAGER} is not there: make node-test puts it into the job")
    return run(DEVICE_MANAGER, *argv, check=False)


def device_resources(texts):
    for text in texts:
        match = re.fullmatch(r"([^=]+)=([1-9]\d*)", text)
        if not match:
            raise Problem(f"not NAME=COUNT: {text!r}")
        yield match.groups()


def allocate_devices(uid, container, options):
    """The admission of a container that asks for plugins' devices, and what it gets of them, into its options."""
    alive = {pod["uid"] for pod in pods()}
    shown = device_manager("show")
    if shown.returncode:
        raise Problem(f"devices start is missing: {shown.stderr.strip()}")
    for gone in {one["pod"] for one in json.loads(shown.stdout)["allocations"]} - alive:
        device_manager("free", gone)
    for resource, count in device_resources(options["resource"]):
        done = device_manager("allocate", uid, container, resource, count)
        if done.returncode:
            device_manager("free", uid)
            raise Problem(f"UnexpectedAdmissionError: Allocate failed due to {done.stderr.strip()}, which is unexpected")
        answer = json.loads(done.stdout)
        options["env"] = [f"{key}={value}" for key, value in answer["envs"].items()] + options["env"]
        options["mount"] = options["mount"] + [
            f"{one['host']}:{one['container']}:{'ro' if one['read_only'] else 'rw'}" for one in answer["mounts"]
        ]
        options["plugin_device"] = options["plugin_device"] + answer["devices"]


def do_devices_start(_args):
    argv = ["--setenv=PATH=" + os.environ["PATH"], f"--unit={DEVICE_UNIT}", "--collect", DEVICE_MANAGER, "serve"]
    if not Path(DEVICE_MANAGER).exists():
        raise Problem(f"{DEVICE_MANAGER} is not there: make node-test puts it into the job")
    run("systemd-run", "-q", *argv)
    for _ in range(200):
        if device_manager("show").returncode == 0:
            return
        time.sleep(0.05)
    raise Problem(f"{DEVICE_UNIT} does not answer: {device_manager('show').stderr.strip()}")


def do_devices_stop(_args):
    run("systemctl", "stop", DEVICE_UNIT)


def do_devices_restart(args):
    do_devices_stop(args)
    do_devices_start(args)


def do_devices_show(_args):
    shown = device_manager("show")
    if shown.returncode:
        raise Problem(shown.stderr.strip())
    print(shown.stdout, end="")


def do_init(args):
    root = Path(args.root)
    root.mkdir(parents=True, exist_ok=True)
    (RUN / "pods").mkdir(parents=True, exist_ok=True)
    (RUN / "root").write_text(str(root))
    reserved = format_cpus(parse_cpus(args.reserved))
    # A kubelet started anew keeps the containers' runtime.
    kept = settings()["runtime"] if (RUN / "settings.json").exists() else "runc"
    given = {"reserved": reserved, "options": args.option, "runtime": args.runtime or kept, "schema": args.schema}
    (RUN / "settings.json").write_text(json.dumps(given))
    cpus = args.cpus or Path("/sys/devices/system/cpu/online").read_text()
    if args.policy == "none":
        cpus = ""  # that policy has no pools
    state = State.__new__(State)
    state.path, state.schema, state.policy = root / "cpu_manager_state", args.schema, args.policy
    state.default, state.entries, state.pods, state.baselines = parse_cpus(cpus), {}, {}, {}
    state.write()
    Memory.first(root / "memory_manager_state", args.schema, args.memory_policy).write()
    if given["runtime"] != "direct":
        start_containerd()


def start_containerd():
    if not (TASKS.parents[1] / "containerd.sock").exists():
        write_wrapper()
        run("systemctl", "start", "containerd")


def do_upgrade(args):
    state, memory, known = State(), Memory(), settings()
    if args.schema == 2 and (state.pods or memory.pods):
        raise Problem(f"pods have CPUs or memory of their own ({', '.join({**state.pods, **memory.pods})}): a kubelet of schema 2 does not start")
    (RUN / "settings.json").write_text(json.dumps(known | {"schema": args.schema}))
    for manager in (state, memory):
        manager.schema = args.schema
        manager.write()


def write_wrapper():
    """ctr forgets a container's runtime options, the cgroup driver among them, where it has a user namespace; CRI does not.
    containerd finds this runc first."""
    path = Path("/usr/local/sbin/runc")
    path.write_text(
        "#!/bin/sh\n"
        "driver= last=\n"
        "for word; do\n"
        '  if [ "$last" = --bundle ] && grep -q \'"cgroupsPath":"[^"/]*:cri-containerd:\' "$word/config.json"; then\n'
        "    driver=--systemd-cgroup\n"
        "  fi\n"
        "  last=$word\n"
        "done\n"
        'exec /usr/sbin/runc $driver "$@"\n'
    )
    path.chmod(0o755)


def do_self_test(args):
    article = {
        "policyName": "static",
        "defaultCpuSet": "2-11",
        "entries": {
            "3ceda12c-3ee9-40fa-9f42-61428fe654a6": {"instance": "0-1,12-13"},
            "416de7c2-21de-472d-817c-fa9d4306cb7d": {"instance": "14-17"},
            "b41f38d8-2c21-4168-af77-6d0cc5482dcb": {"instance": "18-19"},
        },
    }
    if cpu_checksum(article) != 3944432841:
        raise Problem(f"the known example gives {cpu_checksum(article)}, not 3944432841")
    checked = 1
    for path in sorted(Path(args.dir).rglob("*")) if args.dir else []:
        try:
            doc = json.loads(path.read_text())
        except (ValueError, OSError):
            continue
        if not isinstance(doc, dict) or not {"checksum", "Checksum"} & doc.keys():
            continue  # another file, or schema 0
        if "Data" in doc:
            said, sums = doc["Checksum"], [device_checksum(doc["Data"])]
        elif "machineState" in doc:
            said, sums = doc["checksum"], [memory_checksum(doc, schema) for schema in ([2] if "podEntries" in doc else [1, 2])]
        else:
            flat = any(isinstance(e, str) for e in (doc.get("entries") or {}).values())
            # Without entries the file does not tell its schema.
            schemas = [1] if flat else [3] if "podEntries" in doc else [2, 3] if doc.get("entries") else [1, 2, 3]
            said, sums = doc["checksum"], [cpu_checksum(doc, schema) for schema in schemas]
        if "data" in doc and doc["dataChecksum"] != data_checksum(doc["data"]):
            raise Problem(f"{path}: data: computed {data_checksum(doc['data'])}, the file says {doc['dataChecksum']}")
        if said not in sums:
            raise Problem(f"{path}: computed {sums}, the file says {said}")
        checked += 1
    print(f"{checked} checksums right")


# --- containers --------------------------------------------------------------------------------------------------------


def run(*argv, check=True, **options):
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)
    if check and done.returncode:
        raise Problem(f"{' '.join(argv)}: exit code {done.returncode}: {(done.stderr or done.stdout).strip()}")
    return done


def ctr(*argv, check=True):
    return run("ctr", "-n", NAMESPACE, *argv, check=check)


def escaped(uid):
    return uid.replace("-", "_")


def pod_slice(qos, uid):
    """(the slice of the QoS class, the pod's slice), as kubelet's systemd driver names them"""
    if qos == "guaranteed":
        return "kubepods.slice", f"kubepods-pod{escaped(uid)}.slice"
    return f"kubepods-{qos}.slice", f"kubepods-{qos}-pod{escaped(uid)}.slice"


def slice_path(qos, uid):
    parent, own = pod_slice(qos, uid)
    return f"kubepods.slice/{own}" if parent == "kubepods.slice" else f"kubepods.slice/{parent}/{own}"


def cpu_weight(shares):
    return 1 + (max(2, min(shares, 262144)) - 2) * 9999 // 262142  # the conversion of runc 1.1


PERIOD = 100_000  # kubelet's cpuCFSQuotaPeriod, in microseconds


def cpu_quota(milli):
    """What kubelet gives a limit in thousandths of a CPU, in microseconds a period; never less than a millisecond."""
    return max(milli * PERIOD // 1000, 1000)


def limit_slice(name, milli):
    """systemd counts in hundredths of a CPU, and what is between is rounded up."""
    percent = -(-cpu_quota(milli) * 100 // PERIOD)
    run("systemctl", "set-property", "--runtime", name, f"CPUQuotaPeriodSec={PERIOD}us", f"CPUQuota={percent}%")


def start_slice(name, parent, properties):
    # a-b.slice lies in a.slice: the name is the path.
    parts = name.removesuffix(".slice").split("-")
    path = CGROUP.joinpath(*("-".join(parts[: n + 1]) + ".slice" for n in range(len(parts))))
    if path.is_dir():
        return
    settings = [("Description", "s", "libcontainer container " + name), ("DefaultDependencies", "b", "false")]
    if parent:
        settings.append(("Wants", "as", "1 " + parent))
    settings += [(f"{kind}Accounting", "b", "true") for kind in ("CPU", "Memory", "IO", "Tasks")] + properties
    argv = []
    for key, kind, value in settings:
        argv += [key, kind, *(value.split() if kind == "as" else [str(value)])]
    run(
        "busctl", "-q", "call", "org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager",
        "StartTransientUnit", "ssa(sv)a(sa(sv))", name, "replace", str(len(settings)), *argv, "0",
    )  # fmt: skip
    for _ in range(100):  # the call only queues the job
        if path.is_dir():
            return
        time.sleep(0.05)
    raise Problem(f"{name} did not start")


def size(text):
    match = re.fullmatch(r"(\d+)([KMG]?)i?", text)
    if not match:
        raise Problem(f"not a size: {text!r}")
    return int(match[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[match[2]]


# What containerd's CRI plugin gives an ordinary container.
CAPABILITIES = (
    "CHOWN DAC_OVERRIDE FSETID FOWNER MKNOD NET_RAW SETGID SETUID SETFCAP SETPCAP NET_BIND_SERVICE SYS_CHROOT KILL AUDIT_WRITE"
).split()
ALL_CAPABILITIES = CAPABILITIES + (
    "DAC_READ_SEARCH LINUX_IMMUTABLE NET_BROADCAST NET_ADMIN IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO SYS_PTRACE SYS_PACCT"
    " SYS_ADMIN SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME SYS_TTY_CONFIG LEASE AUDIT_CONTROL MAC_OVERRIDE MAC_ADMIN SYSLOG"
    " WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE"
).split()
# What the filter RuntimeDefault keeps from a container without capabilities (containerd allows a list; this is the rest).
FORBIDDEN = (
    "acct add_key bpf clock_adjtime clock_settime create_module delete_module fanotify_init finit_module fsconfig fsmount fsopen"
    " fspick get_kernel_syms init_module io_uring_enter io_uring_register io_uring_setup ioperm iopl kcmp kexec_file_load"
    " kexec_load keyctl lookup_dcookie mbind mount mount_setattr move_mount move_pages migrate_pages get_mempolicy"
    " set_mempolicy nfsservctl open_by_handle_at open_tree perf_event_open pidfd_getfd pivot_root process_madvise"
    " process_vm_readv process_vm_writev query_module quotactl quotactl_fd reboot request_key setdomainname sethostname setns"
    " settimeofday stime swapoff swapon syslog umount umount2 unshare uselib userfaultfd ustat vhangup vm86 vm86old"
).split()
USERNS_SIZE = 65536
MASKED = (
    "/proc/acpi /proc/asound /proc/interrupts /proc/kcore /proc/keys /proc/latency_stats /proc/sched_debug /proc/scsi /proc/timer_list"
    " /proc/timer_stats /sys/devices/virtual/powercap /sys/firmware"
).split()


def root_bind():
    """runc refuses "/" as a root, so all containers share one bind mount of it (without what is mounted below)."""
    path = RUN / "rootfs"
    path.mkdir(parents=True, exist_ok=True)
    if not os.path.ismount(path):
        run("mount", "--bind", "/", str(path))
        run("mount", "--make-private", str(path))
    return path


def oom_score_adj(qos, memory):
    """A burstable container's is lower the more of the node's memory it requests."""
    if qos != "burstable":
        return {"guaranteed": -997, "besteffort": 1000}[qos]
    node = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(3, min(999, 1000 - 1000 * size(memory or "0") // node))


def oci_spec(pod, options, cpus):
    devices = [{"allow": False, "access": "rwm"}]  # the runtime adds those that every container has
    nodes = []
    for path in options["device"]:
        info = os.stat(path)
        kind = "b" if stat.S_ISBLK(info.st_mode) else "c"
        number = {"type": kind, "major": os.major(info.st_rdev), "minor": os.minor(info.st_rdev)}
        nodes.append({"path": path, "fileMode": 0o666, "uid": 0, "gid": 0, **number})
        devices.append({"allow": True, "access": "rwm", **number})
    # As containerd with device_ownership_from_security_context: the node's mode, and the container's user and group. In a user
    # namespace the runtime mounts the node's own device instead of making one.
    owner, _, group = options["user"].partition(":")
    for given in options.get("plugin_device", []):
        info = os.stat(given["host"])
        kind = "b" if stat.S_ISBLK(info.st_mode) else "c"
        number = {"type": kind, "major": os.major(info.st_rdev), "minor": os.minor(info.st_rdev)}
        mode = stat.S_IMODE(info.st_mode)
        nodes.append({"path": given["container"], "fileMode": mode, "uid": int(owner), "gid": int(group or owner), **number})
        devices.append({"allow": True, "access": given["permissions"], **number})
    if options["privileged"]:
        devices = [{"allow": True, "access": "rwm"}]

    def mount(kind, target, *flags, source=None):
        return {"destination": target, "type": kind, "source": source or kind, "options": list(flags)}

    read = "rw" if options["privileged"] else "ro"
    mounts = [
        mount("proc", "/proc", "nosuid", "noexec", "nodev"),
        mount("tmpfs", "/dev", "nosuid", "strictatime", "mode=755", "size=65536k"),
        mount("devpts", "/dev/pts", "nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"),
        mount("mqueue", "/dev/mqueue", "nosuid", "noexec", "nodev"),
        mount("tmpfs", "/dev/shm", "nosuid", "noexec", "nodev", "mode=1777", "size=65536k"),
        mount("sysfs", "/sys", "nosuid", "noexec", "nodev", read),
        mount("cgroup", "/sys/fs/cgroup", "nosuid", "noexec", "nodev", "relatime", "rw" if options["cgroup_writable"] else read),
        # Pods share the node's files but must not meet each other's.
        mount("tmpfs", "/tmp", "nosuid", "nodev", "mode=1777"),
        mount("tmpfs", "/run", "nosuid", "nodev", "mode=755"),
    ]

    def locked(source):
        """In a user namespace a bind mount keeps its source's restrictions; runc before 1.2 must be told them."""
        names = {os.ST_NOSUID: "nosuid", os.ST_NODEV: "nodev", os.ST_NOEXEC: "noexec"}
        held = os.statvfs(source).f_flag if options["userns"] else 0
        return [name for flag, name in names.items() if held & flag]

    if options["socket"] and RUNNER_DIR.is_dir():
        source = str(RUNNER_DIR)
        mounts.append(mount("bind", source, "rbind", "rprivate", "ro", *locked(source), source=source))
    for text in options["mount"]:
        source, _, rest = text.partition(":")
        target, _, flag = rest.partition(":")
        if not target or flag not in ("", "ro", "rw"):
            raise Problem(f"not SRC:DST[:ro]: {text!r}")
        mounts.append(mount("bind", target, "rbind", "rprivate", flag or "rw", *locked(source), source=source))

    caps = ALL_CAPABILITIES if options["privileged"] else [] if options["restricted"] else CAPABILITIES
    caps = sorted({f"CAP_{c}" for c in caps} | {"CAP_" + c.upper().removeprefix("CAP_") for c in options["cap"]})
    user, _, group = options["user"].partition(":")
    # Capabilities of other users than root are only bounds, as with containerd.
    held = caps if user == "0" else []
    resources = {"devices": devices, "cpu": {"shares": options["shares"], "cpus": format_cpus(cpus), "period": PERIOD}}
    if pod["cpus"] is None and options["limit"]:
        resources["cpu"]["quota"] = cpu_quota(options["limit"])
    elif pod["cpus"] and options["runtime"] == "runc":
        # CPUs of its own have no quota since kubelet 1.33. crun before 1.22 takes -1 for 1 % of a CPU (crun#1794).
        resources["cpu"]["quota"] = -1
    if options["mems"]:
        resources["cpu"]["mems"] = options["mems"]
    if options["memory"]:
        resources["memory"] = {"limit": size(options["memory"]), "swap": size(options["memory"])}
    if options["hugepages"]:
        limits = (text.partition("=") for text in options["hugepages"])
        resources["hugepageLimits"] = [{"pageSize": name, "limit": size(limit)} for name, _, limit in limits]
    resources["unified"] = {"memory.oom.group": "1", "memory.swap.max": "0"}
    resources["unified"].update(text.split("=", 1) for text in options["unified"])
    if options["container_pids"]:
        resources["pids"] = {"limit": options["container_pids"]}
    # containerd gives every container but a privileged one a cgroup namespace.
    kinds = ["mount", "uts", "ipc"] + ([] if options["privileged"] else ["cgroup"])
    namespaces = [{"type": kind} for kind in kinds]
    if options["share_pid"]:
        namespaces.append({"type": "pid", "path": f"/proc/{options['share_pid']}/ns/pid"})
    elif not options["host_pid"]:
        namespaces.append({"type": "pid"})
    extra = {}
    if options["userns"] or options["netns"]:
        namespaces.append({"type": "network"})
    if options["userns"]:
        # sysfs can be mounted only where the network namespace belongs to the user namespace.
        namespaces.append({"type": "user"})
        # Each pod has a range of its own, as kubelet's user namespace manager gives out.
        mapping = [{"containerID": 0, "hostID": USERNS_SIZE * (1 + int(pod["uid"][:3], 16)), "size": USERNS_SIZE}]
        extra.update(uidMappings=mapping, gidMappings=mapping)
    if options["restricted"]:
        extra["seccomp"] = {
            "defaultAction": "SCMP_ACT_ALLOW",
            "architectures": ["SCMP_ARCH_X86_64"],
            "syscalls": [{"names": FORBIDDEN, "action": "SCMP_ACT_ERRNO", "errnoRet": 1}],
        }
    env = {"PATH": "/node/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOSTNAME": pod["name"]}
    env.update(e.partition("=")[::2] for e in options["env"])
    return {
        "ociVersion": "1.1.0",
        "process": {
            "user": {"uid": int(user), "gid": int(group or user), "additionalGids": [int(group or user)]},
            "args": options["command"],
            "env": [f"{k}={v}" for k, v in env.items()],
            "cwd": "/",
            "capabilities": {"bounding": caps, "effective": held, "permitted": held},
            "noNewPrivileges": options["restricted"],
            "oomScoreAdj": oom_score_adj(pod["qos"], options["memory"]),
        },
        "root": {"path": str(root_bind()), "readonly": options["readonly"]},
        "hostname": pod["name"],
        "mounts": mounts,
        "annotations": {
            "io.kubernetes.cri.container-name": pod["container"],
            "io.kubernetes.cri.container-type": "container",
            "io.kubernetes.cri.image-name": "localhost/node:1",
            "io.kubernetes.cri.sandbox-id": pod["sandbox"],
            "io.kubernetes.cri.sandbox-name": pod["name"],
            "io.kubernetes.cri.sandbox-namespace": "default",
            "io.kubernetes.cri.sandbox-uid": pod["uid"],
        },
        "linux": {
            "resources": resources,
            "cgroupsPath": f"{pod_slice(pod['qos'], pod['uid'])[1]}:cri-containerd:{pod['id']}",
            "namespaces": namespaces,
            **extra,
            "devices": nodes,
            "maskedPaths": [] if options["privileged"] else MASKED,
            "readonlyPaths": [] if options["privileged"] else ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"],
        },
    }


# --- pods --------------------------------------------------------------------------------------------------------------


def pod_dir(name):
    if not re.fullmatch(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?", name):
        raise Problem(f"not a pod name: {name!r}")
    return RUN / "pods" / name


def remove_folder(folder):
    if folder.is_dir():
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()


def load(name):
    try:
        pod = json.loads((pod_dir(name) / "pod.json").read_text())
    except FileNotFoundError as error:
        raise Problem(f"no pod {name!r}") from error
    try:
        pod["exit_code"] = int((pod_dir(name) / f"exit-{pod['id']}").read_text())
    except (FileNotFoundError, ValueError):
        pod["exit_code"] = None
    pod["status"] = "running" if pod["exit_code"] is None else "exited"
    return pod


SHOWN = ("name", "uid", "container", "qos", "id", "cgroup", "pid", "cpus", "status", "exit_code", "log")


def shown(pod):
    return {key: pod.get(key) for key in SHOWN}


def save(pod):
    with contextlib.suppress(OSError):
        pod["pid_namespace"] = os.stat(f"/proc/{pod['pid']}/ns/pid").st_ino
    folder = pod_dir(pod["name"])
    temp = folder / ".new"
    temp.write_text(json.dumps({k: v for k, v in pod.items() if k not in ("exit_code", "status")}))
    temp.rename(folder / "pod.json")


def pods():
    return [load(p.parent.name) for p in sorted((RUN / "pods").glob("*/pod.json"))]


def update_shared(pool):
    """What kubelet does at its next tick: every container without CPUs of its own gets the new default set. With policy none
    it has no such tick."""
    if not State().static:
        return
    for pod in pods():
        if pod["cpus"] is None and not pod["pool"] and pod["status"] == "running":
            done = run(*runtime(pod), "update", "--cpuset-cpus", format_cpus(pool), pod["id"], check=False)
            # kubelet logs it too, and goes on: the container may have ended without anyone having noticed yet.
            if done.returncode and load(pod["name"])["status"] == "running":
                print(f"update of {pod['name']}: {done.stderr.strip()}", file=sys.stderr)


def weigh_burstable():
    """kubelet gives the slice of burstable pods the weight of all their requests."""
    shares = sum(pod["options"]["shares"] for pod in pods() if pod["qos"] == "burstable")
    run("systemctl", "set-property", "--runtime", "kubepods-burstable.slice", f"CPUWeight={cpu_weight(shares)}")


def runtime(pod):
    return RUNTIMES[pod["options"]["runtime"]]


def alone(kept, output="/dev/null"):
    """What a background process is: a session of its own and no open descriptors but these, so that it holds up nobody's pipe."""
    os.setsid()
    for std, (path, flags) in enumerate([("/dev/null", os.O_RDONLY)] + 2 * [(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)]):
        fd = os.open(path, flags, 0o600)
        os.dup2(fd, std)
    for other in [int(n) for n in os.listdir("/proc/self/fd")]:
        if other not in {0, 1, 2, *kept}:
            with contextlib.suppress(OSError):
                os.close(other)


def write_exit(pod, code):
    target = pod_dir(pod["name"]) / f"exit-{pod['id']}"
    if target.parent.is_dir():
        target.with_suffix(".new").write_text(str(code))
        target.with_suffix(".new").rename(target)


def start_direct(pod, spec):
    """A background process plays the shim: the container is its child, its end is told to it."""
    bundle = TASKS / pod["id"]
    bundle.mkdir(parents=True)
    # As runc: the processes are in the scope itself.
    spec["annotations"]["run.oci.systemd.subgroup"] = ""
    (bundle / "config.json").write_text(json.dumps(spec))
    told, tells = os.pipe()
    if os.fork() == 0:
        try:
            alone({tells}, pod["log"])
            subreaper = 36  # PR_SET_CHILD_SUBREAPER
            ctypes.CDLL(None).prctl(subreaper, 1, 0, 0, 0)
            argv = [*RUNTIMES["direct"], "--log", str(bundle / "log"), "run", "--detach", "--pid-file", str(bundle / "init.pid")]
            failed = subprocess.call([*argv, "--bundle", str(bundle), pod["id"]])
            pid = 0 if failed else int((bundle / "init.pid").read_text())
            os.write(tells, str(pid).encode())
            os.close(tells)
            if pid:
                # crun may leave a process between, which ends soon: then the container's first one is this one's child.
                while (ended := os.wait())[0] != pid:
                    pass
                code = os.waitstatus_to_exitcode(ended[1])
                write_exit(pod, code if code >= 0 else 128 - code)
                subprocess.call([*RUNTIMES["direct"], "delete", "--force", pod["id"]])
            remove_folder(bundle)
        except Exception:  # noqa: BLE001 - nobody waits for it: it goes to the container's log
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(tells)
    pid = int(os.read(told, 16) or 0)
    os.close(told)
    if not pid:
        raise Problem(f"crun run: {Path(pod['log']).read_text(errors='replace').strip()}")
    return pid


def watch(pod):
    """A background process plays containerd's reaction to a container's end: it removes the task at once and keeps the exit
    code."""
    fd = os.pidfd_open(pod["pid"])
    if os.fork():
        os.close(fd)
        return
    try:
        alone({fd})
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        poll.poll()
        code = 255
        for _ in range(50):  # the shim may need a moment to see it
            done = ctr("task", "delete", pod["id"], check=False)
            # It warns of an exit code other than 0, and of what keeps it from deleting the task.
            match = re.search(r"exit code (\d+)", done.stderr)
            if match or not done.returncode:
                code = int(match[1]) if match else 0
                break
            time.sleep(0.1)
        write_exit(pod, code)
        ctr("container", "delete", pod["id"], check=False)  # nobody waits for it
    finally:
        os._exit(0)


def start_container(pod, options, cpus):
    folder = pod_dir(pod["name"])
    pod["id"] = os.urandom(32).hex()
    crun = options["runtime"] == "crun"
    pod["cgroup"] = f"{slice_path(pod['qos'], pod['uid'])}/cri-containerd-{pod['id']}.scope" + "/container" * crun
    # One log a container, as kubelet keeps them.
    pod["log"] = str(folder / f"log-{pod['id'][:12]}")
    if options["runtime"] == "direct":
        pod["pid"] = start_direct(pod, oci_spec(pod, options, cpus))
        save(pod)
        return
    start_containerd()
    spec = folder / "spec.json"
    spec.write_text(json.dumps(oci_spec(pod, options, cpus)))
    own_slice = pod_slice(pod["qos"], pod["uid"])[1]
    ctr(
        "run", "-d", "--config", str(spec), "--runc-systemd-cgroup", "--cgroup", f"{own_slice}:cri-containerd:{pod['id']}",
        *["--runc-binary", RUNTIMES["crun"][0]] * crun, "--log-uri", f"file://{pod['log']}", pod["id"],
    )  # fmt: skip
    pod["pid"] = int((TASKS / pod["id"] / "init.pid").read_text())
    save(pod)
    try:
        watch(pod)
    except ProcessLookupError:  # it has already ended
        code = ctr("task", "delete", pod["id"], check=False).returncode
        (folder / f"exit-{pod['id']}").write_text(str(code))
        ctr("container", "delete", pod["id"], check=False)


def runs_on(pod, state):
    """Its own CPUs, what it shares with its pod, or the node's pool."""
    text = pod["cpus"] or pod["pool"]
    return parse_cpus(text) if text else state.default


def own_cpus(uid):
    """What containers of a pod have for themselves."""
    return set().union(*(parse_cpus(pod["cpus"]) for pod in pods() if pod["uid"] == uid and pod["cpus"]))


def shared_names(uid, state):
    """Those of a pod's entries that are its shared pool."""
    own = [pod["container"] for pod in pods() if pod["uid"] == uid and pod["cpus"]]
    return [name for name in state.entries.get(uid, {}) if name not in own]


def pod_level(args, state, uid):
    """All CPUs of a pod with pod-level resources, new or joined; None of another."""
    level = state.pods.get(uid)
    if args.pod_cpus is None:
        if level is None and (args.shared or args.pod_shares or args.pod_memory):
            raise Problem("--shared and --pod-memory are for a pod with --pod-cpus")
    elif level is not None or args.beside:
        raise Problem("the pod has what it has: --pod-cpus is for its first container")
    elif state.schema < 3 or not state.static or args.qos != "guaranteed":
        raise Problem("a pod has CPUs of its own with the policy static, schema 3 or 4, and as a guaranteed one")
    else:
        level = state.choose(args.pod_cpus)
    if level and not args.shared and shared_names(uid, state):
        raise Problem("kubelet divides a pod's CPUs at once: containers on what is left come last here")
    return level


def do_pod_start(args):
    folder = pod_dir(args.name)
    if folder.exists():
        raise Problem(f"pod {args.name!r} exists")
    state = State()
    beside = load(args.beside) if args.beside else None
    if beside:
        args.qos = beside["qos"]
        args.uid = beside["uid"]
        if args.container in [pod["container"] for pod in pods() if pod["uid"] == args.uid]:
            raise Problem(f"the pod has a container {args.container!r}")
    elif args.share_pid:
        raise Problem("--share-pid needs --in POD")
    if args.userns and args.runtime == "crun":
        raise Problem("--userns and crun: ctr forgets the runtime of such a container, and only runc has a wrapper for it")
    uid = args.uid or Path("/proc/sys/kernel/random/uuid").read_text().strip()
    limit = quantity(args.cpu_limit, milli=True) if args.cpu_limit else None
    if limit and args.qos == "besteffort":
        raise Problem("a pod with a CPU limit is not BestEffort")
    # A guaranteed pod requests what it is limited to; the others request 100m, or nothing.
    request = {"guaranteed": limit or 1000 * args.cpus, "burstable": 100, "besteffort": 0}[args.qos]
    level = pod_level(args, state, uid)
    pinned = args.qos == "guaranteed" and state.static and request % 1000 == 0 and not args.shared
    cpus = None
    if pinned:
        count, among = request // 1000, level and level - own_cpus(uid)
        cpus = parse_cpus(args.cpuset) if args.cpuset else state.choose(count, among)
        if level and not cpus <= among:
            raise Problem(f"CPUs {format_cpus(cpus)!r} are not all free ones of the pod ({format_cpus(among)!r})")
        request = 1000 * len(cpus)
    elif args.cpuset:
        raise Problem("only a guaranteed pod of whole CPUs has CPUs of its own, with the policy static")
    pool = format_cpus(level - own_cpus(uid)) if args.shared else None
    if pool == "":
        raise Problem("EmptyPodSharedPool: pod rejected, sum of exclusive container cpu requests equals pod budget, leaving no cpus for shared containers")
    if args.shared:  # without a request of its own it has the limit's shares, and without a limit the pod's
        request = 1000 * len(level)
    if args.qos == "guaranteed":
        limit = request
    shares = max(request * 1024 // 1000, 2)
    options = {
        key: getattr(args, key)
        for key in ("command", "env", "mount", "cap", "device", "user", "memory", "mems", "container_pids", "hugepages", "unified", "host_pid", "privileged", "readonly", "userns", "netns", "restricted", "cgroup_writable")
    }
    options["runtime"] = args.runtime or settings()["runtime"]
    options["share_pid"] = beside["pid"] if args.share_pid else None
    options.update(shares=shares, limit=limit, socket=not args.no_socket, command=args.command or ["sleep", "infinity"])
    # Admission, before anything of the pod exists. kubelet asks its device manager first.
    options.update(resource=args.resource, plugin_device=[])
    if args.resource:
        allocate_devices(uid, args.container, options)
    memory = Memory()
    memory.forget({pod["uid"] for pod in pods()})
    if memory.policy == "Static" and args.qos == "guaranteed":
        requests = memory_requests(args.memory, args.hugepages)
        nodes = memory.admit(uid, args.container, requests, memory_requests(args.pod_memory))
        options["mems"] = options["mems"] or format_cpus(nodes or [])
    if level and uid not in state.pods:
        state.admit_pod(uid, level, args.gap)
    if level:
        state.join(uid, args.container, cpus or parse_cpus(pool))
        for name in args.pod_shares:
            state.join(uid, name, level - own_cpus(uid) - (cpus or set()))
    elif pinned:
        state.admit(uid, args.container, cpus, args.gap)
    if args.device_plugin:
        add_devices(uid, args.container, args.device_plugin)
    try:
        folder.mkdir(parents=True)
        # The slices of a pod that is there are left as they are.
        start_slice("kubepods.slice", None, [("CPUWeight", "t", cpu_weight(1024 * os.cpu_count()))])
        parent, own = pod_slice(args.qos, uid)
        if parent != "kubepods.slice":
            start_slice(parent, "kubepods.slice", [("CPUWeight", "t", cpu_weight(2))])
        limits = [("CPUWeight", "t", cpu_weight(1024 * len(level) if level else shares))]
        if args.qos == "guaranteed":
            limits.append(("CPUQuotaPeriodUSec", "t", PERIOD))
        if args.pod_memory or args.memory and not level:
            limits.append(("MemoryMax", "t", size(args.pod_memory or args.memory)))
        if args.pids:
            limits.append(("TasksMax", "t", args.pids))
        start_slice(own, parent, limits)
        inside = [other for other in pods() if other["uid"] == uid]
        if limit and cpus is None and not level and not [other for other in inside if other["cpus"] or not other["options"]["limit"]]:
            limit_slice(own, limit + sum(other["options"]["limit"] for other in inside))
        pod = {
            "name": args.name, "uid": uid, "container": args.container, "qos": args.qos, "sandbox": os.urandom(32).hex(),
            "cpus": format_cpus(cpus) if pinned else None, "pool": pool, "options": options,
        }  # fmt: skip
        PodResources.record(pod, "allocated")
        start_container(pod, options, runs_on(pod, state))
        PodResources.record(pod, "actuated")
        if args.qos == "burstable":
            weigh_burstable()
    except BaseException:
        remove_folder(folder)
        if not beside:
            run("systemctl", "stop", pod_slice(args.qos, uid)[1], check=False)
        if pinned or level:
            state.remove(uid, args.gap, args.container if beside else None)
        raise
    if pinned or level:
        update_shared(state.default)
    pod = load(args.name)
    if args.json:
        print(json.dumps(shown(pod)))
    else:
        print(f"uid={uid} id={pod['id']} pid={pod['pid']} cpus={format_cpus(runs_on(pod, state))}")


# --- manifests ---------------------------------------------------------------------------------------------------------


def quantity(text, unit=1, milli=False):
    """A Kubernetes quantity, in `unit`s or in thousandths; fractions of them are refused with None."""
    match = re.fullmatch(r"(\d+)(m|Ki|Mi|Gi|)", str(text))
    if not match:
        raise Problem(f"not a quantity this knows: {text!r}")
    value = int(match[1]) * {"": 1000, "m": 1, "Ki": 1000 << 10, "Mi": 1000 << 20, "Gi": 1000 << 30}[match[2]]
    if milli:
        return value
    return value // (1000 * unit) if value % (1000 * unit) == 0 else None


def mounts_of(spec, container, folder, annotations):
    """--mount options; what a volume needs is made."""
    volumes = {volume["name"]: volume for volume in spec.get("volumes", [])}
    for mount in container.get("volumeMounts", []):
        volume = volumes[mount["name"]]
        if "hostPath" in volume:
            source = volume["hostPath"]["path"]
        elif volume.get("emptyDir", {}).get("medium") == "HugePages":
            source = str(folder) + "-hugepages"
            Path(source).mkdir(parents=True, exist_ok=True)
            if not os.path.ismount(source):
                run("mount", "-t", "hugetlbfs", "-o", "mode=1777", "none", source)
        elif "emptyDir" in volume or "downwardAPI" in volume:
            source = f"{folder}-{mount['name']}"
            Path(source).mkdir(parents=True, exist_ok=True)
            os.chmod(source, 0o777)
            for item in volume.get("downwardAPI", {}).get("items", []):
                key = re.fullmatch(r"metadata\.annotations\['(.*)'\]", item["fieldRef"]["fieldPath"])[1]
                (Path(source) / item["path"]).write_text(annotations.get(key, ""))
        else:
            raise Problem(f"a volume of a kind this does not know: {volume}")
        yield source, mount["mountPath"], "ro" if mount.get("readOnly") else "rw"


def user_of(spec, container):
    context = {**spec.get("securityContext", {}), **container.get("securityContext", {})}
    user = context.get("runAsUser", 0)
    return f"{user}:{context.get('runAsGroup', user)}"


def run_init(uid, image, mounts, user, userns, command):
    """An init container, by crun, in the cgroup of no pod: it has ended before the pod is admitted."""
    start = PARSER.parse_args(["pod", "start", "init", "--no-socket", "--user", user] + ["--userns"] * userns)
    options = {**vars(start), "command": command, "limit": None, "shares": 102, "share_pid": None, "socket": False}
    options["mount"] = [":".join(mount) for mount in mounts]
    pod = {"name": "init", "uid": uid, "id": os.urandom(32).hex(), "qos": "burstable", "container": "init", "sandbox": "", "cpus": None}
    spec = oci_spec(pod, options, State().default)
    spec["linux"]["cgroupsPath"] = f"system.slice:init:{pod['id']}"
    if image != "node":
        root = IMAGES / image
        if not root.is_dir():
            raise Problem(f"no image {image!r} in {IMAGES}")
        # Mounts are made by the container's root, who may not be the node's.
        for mount in spec["mounts"]:
            (root / mount["destination"].lstrip("/")).mkdir(parents=True, exist_ok=True)
        spec["root"]["path"] = str(root)
    bundle = RUN / f"init-{pod['id']}"
    bundle.mkdir()
    (bundle / "config.json").write_text(json.dumps(spec))
    try:
        run(*RUNTIMES["direct"], "run", "--bundle", str(bundle), pod["id"])
    finally:
        remove_folder(bundle)


def do_pod_apply(args):
    # The node has it; with -S its folder is not looked into.
    sys.path.append("/usr/lib/python3/dist-packages")
    import yaml

    manifest = yaml.safe_load(Path(args.file).read_text())
    if (manifest.get("apiVersion"), manifest.get("kind")) != ("v1", "Pod"):
        raise Problem(f"{args.file}: not a Pod of v1")
    name, spec = manifest["metadata"]["name"], manifest["spec"]
    annotations = manifest["metadata"].get("annotations", {})
    # Volumes lie beside the pod's folder, in a tmpfs as everything else here; they stay until the node ends.
    folder = RUN / "volumes" / name
    (main,) = spec["containers"]
    resources = main["resources"]
    if resources["requests"] != resources["limits"]:
        raise Problem("only Guaranteed pods: requests and limits differ")
    uid = Path("/proc/sys/kernel/random/uuid").read_text().strip()
    userns = spec.get("hostUsers") is False
    for init in spec.get("initContainers", []):
        if any("/" in key for key in init.get("resources", {}).get("limits", {})):
            raise Problem("an init container with devices of a plugin")
        mounts = list(mounts_of(spec, init, folder, annotations))
        # The runner's entry point, the only one of an image that is needed.
        command = init.get("command", ["/stelia-runner"]) + init.get("args", [])
        if init["image"].startswith("localhost/"):
            run_init(uid, init["image"].removeprefix("localhost/"), mounts, user_of(spec, init), userns, command)
            continue
        start_containerd()
        argv = ["ctr", "-n", NAMESPACE, "run", "--rm"]
        for source, target, flag in mounts:
            argv += ["--mount", f"type=bind,src={source},dst={target},options=rbind:{flag}"]
        # ctr takes the image's own entry point only when no arguments are given.
        run(*argv, init["image"], "init-" + os.urandom(8).hex(), *command)
    cpus = quantity(resources["limits"]["cpu"])
    if not cpus:
        raise Problem("only whole CPUs")
    context = {**spec.get("securityContext", {}), **main.get("securityContext", {})}
    capabilities = context.get("capabilities", {})
    restricted = capabilities.get("drop") == ["ALL"]
    if restricted != (context.get("seccompProfile", {}).get("type") == "RuntimeDefault") or restricted == context.get(
        "allowPrivilegeEscalation", True
    ):
        raise Problem("all of restricted (no capabilities, RuntimeDefault, no escalation) or nothing of it")
    if not set(capabilities.get("add", [])) <= {"NET_BIND_SERVICE"}:
        raise Problem("a capability that Pod Security's level restricted does not admit")
    argv = ["pod", "start", name, "--uid", uid, "--container", main["name"], "--cpus", str(cpus), "--no-socket", "--netns"]
    argv += ["--runtime", args.runtime or settings()["runtime"]]
    argv += ["--memory", str(quantity(resources["limits"]["memory"]))]
    for key, value in resources["limits"].items():
        if key.startswith("hugepages-"):
            argv += ["--hugepages", f"{key.removeprefix('hugepages-').removesuffix('i')}B={quantity(value)}"]
    # What another device plugin would do.
    if any(resources["limits"].get(name) == "1" for name in KVM):
        argv += ["--device", "/dev/kvm"]
    for key, value in resources["limits"].items():
        if "/" in key and key not in KVM:
            argv += ["--resource", f"{key}={value}"]
    for source, target, flag in mounts_of(spec, main, folder, annotations):
        argv += ["--mount", f"{source}:{target}:{flag}"]
    for variable in main.get("env", []):
        argv += ["--env", f"{variable['name']}={variable['value']}"]
    for capability in capabilities.get("add", []):
        argv += ["--cap", capability]
    argv += ["--user", user_of(spec, main)]
    flags = {
        "--userns": userns,
        "--host-pid": spec.get("hostPID", False),
        "--restricted": restricted,
        "--readonly": context.get("readOnlyRootFilesystem", False),
        "--privileged": context.get("privileged", False),
    }
    start = PARSER.parse_args(argv + [flag for flag, wanted in flags.items() if wanted])
    start.command = main.get("command", []) + main.get("args", [])
    do_pod_start(start)


PATIENCE = 120  # seconds, for what SIGKILL ends: an emulated node on a busy machine can be slow


def wait_killed(pod):
    if wait_exit(pod["name"], PATIENCE) is None:
        raise Problem(f"the container did not end within {PATIENCE} s of SIGKILL: {processes(pod)}")


def processes(pod):
    """What the processes in the PID namespace of a container do, for whoever has to find out why it does not end."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            status = dict(line.split(":\t", 1) for line in (path / "status").read_text().splitlines() if ":\t" in line)
            if int(path.name) == pod["pid"] or os.stat(path / "ns/pid").st_ino == pod.get("pid_namespace"):
                stack = ""
                with contextlib.suppress(OSError):  # one that has ended has none
                    stack = " < ".join(line.split("] ")[-1] for line in (path / "stack").read_text().splitlines()[:6])
                found.append(f"{path.name} {status['Name']} {status['State']} ({stack})")
    return "; ".join(found) or "none of its processes is left"


def wait_exit(name, seconds):
    end = time.monotonic() + seconds
    while (pod := load(name))["exit_code"] is None and time.monotonic() < end:
        time.sleep(0.05)
    return pod["exit_code"]


def signal_init(pod, number):
    """What runc does to the first process; where that one's end is not the others', to all of the cgroup."""
    if pod["options"]["host_pid"] and number == signal.SIGKILL:
        with contextlib.suppress(FileNotFoundError):  # it has ended
            (CGROUP / pod["cgroup"] / "cgroup.kill").write_text("1")
        return
    try:
        fd = os.pidfd_open(pod["pid"])
    except ProcessLookupError:
        return  # it has ended
    try:
        # A number may have become another's; the pod's end is written down when its first process ends.
        if wait_exit(pod["name"], 0) is None:
            signal.pidfd_send_signal(fd, number)
    except ProcessLookupError:
        pass
    finally:
        os.close(fd)


def do_pod_kill(args):
    pod = load(args.name)
    signal_init(pod, signal.SIGKILL)
    wait_killed(pod)


def do_pod_delete(args):
    pod = load(args.name)
    if pod["status"] == "running":
        if args.grace:
            signal_init(pod, signal.SIGTERM)
        if wait_exit(args.name, args.grace) is None:
            signal_init(pod, signal.SIGKILL)
            wait_killed(pod)
    last = not [other for other in pods() if other["uid"] == pod["uid"] and other["name"] != pod["name"]]
    if last:
        run("systemctl", "stop", pod_slice(pod["qos"], pod["uid"])[1])
    # kubelet takes the entry away only after all containers have stopped.
    if pod["cpus"] or pod["pool"]:
        state = State()
        if pod["container"] in state.entries.get(pod["uid"], {}):  # a job may have removed it by hand
            state.remove(pod["uid"], args.gap, None if last else pod["container"])
    remove_folder(pod_dir(args.name))
    PodResources.forget(pod)
    if pod["cpus"] or pod["pool"]:
        update_shared(State().default)


def refuse_less_than_used(pod, limit):
    """kubelet lowers no limit below what is used, which it asks the runtime for, and tries again at its next look."""
    problems = []
    whole = CGROUP / slice_path(pod["qos"], pod["uid"])
    named = ((whole, "pod"), (CGROUP / pod["cgroup"], f'container "{pod["container"]}"'))
    for folder, name in named:
        used = int((folder / "memory.current").read_text())
        if used >= limit:
            problems.append(f"attempting to set {name} memory limit ({limit}) below current usage ({used})")
    if problems:
        raise Problem(f"cannot decrease memory limits: [{', '.join(problems)}]")


def do_pod_resize(args):
    """A resize in place: kubelet's files first, then the container."""
    pod = load(args.name)
    argv, fewer, less = [], False, None
    if args.cpuset:
        if not pod["cpus"] or not State().static:
            raise Problem(f"{args.name} has no CPUs of its own")
        cpus = parse_cpus(args.cpuset)
        fewer = len(cpus) < len(parse_cpus(pod["cpus"]))
        pod["cpus"] = format_cpus(cpus)
    if args.memory:
        limit = size(args.memory)
        before = (CGROUP / pod["cgroup"] / "memory.max").read_text().strip()
        less = limit if before == "max" or limit < int(before) else None
        pod["options"]["memory"] = args.memory
    PodResources.record(pod, "allocated")
    if less is not None:
        refuse_less_than_used(pod, less)
    if args.delay and fewer:
        time.sleep(args.delay)
    if args.cpuset:
        State().resize(pod["uid"], pod["container"], cpus, args.gap)
        argv += ["--cpuset-cpus", pod["cpus"]]
    save(pod)
    if args.memory:
        # The pod's cgroup and the container's.
        own = pod_slice(pod["qos"], pod["uid"])[1]
        run("systemctl", "set-property", "--runtime", own, f"MemoryMax={size(args.memory)}")
        # Both, as at the start: without swap. runc of Debian unstable refuses a limit above the former sum of both.
        limit = str(size(args.memory))
        argv += ["--memory", limit, "--memory-swap", limit]
    if args.cpu_limit:
        limit = quantity(args.cpu_limit, milli=True)
        limit_slice(pod_slice(pod["qos"], pod["uid"])[1], limit)
        argv += ["--cpu-quota", str(cpu_quota(limit)), "--cpu-period", str(PERIOD)]
    run(*runtime(pod), "update", *argv, pod["id"])
    PodResources.record(pod, "actuated")
    if args.cpuset:
        update_shared(State().default)


def do_pod_exchange(args):
    """Resizes in place whose CPUs go from one container to the other: kubelet's file in one write, then the containers."""
    found, sets = [], {}
    for word in args.set:
        name, _, cpus = word.partition("=")
        pod = load(name)
        pod["cpus"] = format_cpus(parse_cpus(cpus))
        found.append(pod)
        sets[pod["uid"], pod["container"]] = parse_cpus(cpus)
    State().exchange(sets)
    for pod in found:
        save(pod)
        run(*runtime(pod), "update", "--cpuset-cpus", pod["cpus"], pod["id"])


def do_pod_restart(args):
    pod = load(args.name)
    if pod["status"] == "running":
        do_pod_kill(args)
    if not State().static:
        pod["cpus"] = pod["pool"] = None  # after a take-over a new container gets none
    cpus = runs_on(pod, State())
    start_container(pod, pod["options"], cpus)
    print(f"uid={pod['uid']} id={pod['id']} pid={pod['pid']} cpus={format_cpus(cpus)}")


def do_pod_exec(args):
    pod = load(args.name)
    if not args.command:
        raise Problem("pod exec NAME -- CMD")
    # What containerd's shim does, without the way there.
    return subprocess.call([*runtime(pod), "exec", pod["id"], *args.command])


def do_pod_wait(args):
    code = wait_exit(args.name, args.timeout)
    if code is None:
        print("still running", file=sys.stderr)
        return 124
    print(code)
    return 0


def do_pod_list(args):
    found = [shown(pod) for pod in pods()]
    if args.json:
        print(json.dumps(found))
        return
    for pod in found:
        print(pod["name"], pod["uid"], pod["container"], pod["qos"], pod["status"], pod["pid"], pod["cpus"] or "-")


def do_pod_show(args):
    pod = shown(load(args.name))
    if args.json:
        print(json.dumps(pod))
        return
    for key, value in pod.items():
        print(f"{key}={'' if value is None else value}")


def do_pod_logs(args):
    path = Path(load(args.name)["log"])
    sys.stdout.write(path.read_text(errors="replace") if path.exists() else "")


def do_entry_add(args):
    state = State()
    if args.reused:
        state.join(args.uid, args.container, parse_cpus(args.cpus))
    else:
        state.admit(args.uid, args.container, parse_cpus(args.cpus), args.gap)
    update_shared(state.default)


def do_entry_remove(args):
    state = State()
    state.remove(args.uid, args.gap)
    update_shared(state.default)


def do_pool(_args):
    print(format_cpus(State().default))


def do_state(_args):
    print(State().path.read_text())


# --- command line ------------------------------------------------------------------------------------------------------


def parser():
    top = argparse.ArgumentParser(prog="kubelet-standin", add_help=False)
    verbs = top.add_subparsers(dest="verb", required=True)

    def verb(group, name, do, *positional, lock=False):
        one = group.add_parser(name)
        one.set_defaults(do=do, lock=lock)
        for argument in positional:
            one.add_argument(argument)
        return one

    one = verb(verbs, "init", do_init, lock=True)
    one.add_argument("--cpus")
    one.add_argument("--reserved", default="")
    one.add_argument("--option", action="append", default=[])
    one.add_argument("--root", default="/var/lib/kubelet")
    one.add_argument("--policy", choices=("static", "none"), default="static")
    one.add_argument("--runtime", choices=RUNTIMES)
    one.add_argument("--schema", type=int, choices=(2, 3, 4), default=2)
    one.add_argument("--memory-policy", choices=("None", "Static"), default="None")
    verb(verbs, "upgrade", do_upgrade, lock=True).add_argument("--schema", type=int, choices=(2, 3, 4), required=True)
    verb(verbs, "self-test", do_self_test).add_argument("dir", nargs="?")
    verb(verbs, "pool", do_pool)
    verb(verbs, "state", do_state)

    entry = verbs.add_parser("entry").add_subparsers(required=True)
    one = verb(entry, "add", do_entry_add, "uid", "container", "cpus", lock=True)
    one.add_argument("--gap", type=float, default=0.04)
    one.add_argument("--reused", action="store_true")
    verb(entry, "remove", do_entry_remove, "uid", lock=True).add_argument("--gap", type=float, default=0.04)

    devices = verbs.add_parser("devices").add_subparsers(required=True)
    verb(devices, "start", do_devices_start, lock=True)
    verb(devices, "restart", do_devices_restart, lock=True)
    verb(devices, "stop", do_devices_stop, lock=True)
    verb(devices, "show", do_devices_show)

    pod = verbs.add_parser("pod").add_subparsers(required=True)
    one = verb(pod, "start", do_pod_start, "name", lock=True)
    one.add_argument("--qos-class", "--qos", dest="qos", choices=("guaranteed", "burstable", "besteffort"), default="guaranteed")
    one.add_argument("--cpus", type=int, default=2)
    one.add_argument("--cpuset")
    one.add_argument("--cpu-limit")
    one.add_argument("--uid")
    one.add_argument("--container", default="instance")
    one.add_argument("--memory")
    one.add_argument("--pids", type=int)
    one.add_argument("--container-pids", type=int)
    one.add_argument("--mems")
    one.add_argument("--pod-cpus", type=int)
    one.add_argument("--pod-memory")
    for repeatable in ("env", "mount", "cap", "device", "device-plugin", "resource", "hugepages", "unified", "pod-shares"):
        one.add_argument(f"--{repeatable}", action="append", default=[])
    one.add_argument("--user", default="0")
    one.add_argument("--in", dest="beside")
    one.add_argument("--runtime", choices=RUNTIMES)
    for flag in ("host-pid", "privileged", "readonly", "no-socket", "userns", "netns", "restricted", "share-pid", "shared", "cgroup-writable"):
        one.add_argument(f"--{flag}", action="store_true")
    one.add_argument("--gap", type=float, default=0.04)
    one.add_argument("--json", action="store_true")
    verb(pod, "apply", do_pod_apply, "file", lock=True).add_argument("--runtime", choices=RUNTIMES)
    verb(pod, "exec", do_pod_exec, "name")
    verb(pod, "kill", do_pod_kill, "name")
    verb(pod, "restart", do_pod_restart, "name", lock=True)
    one = verb(pod, "resize", do_pod_resize, "name", lock=True)
    one.add_argument("--cpuset")
    one.add_argument("--memory")
    one.add_argument("--cpu-limit")
    one.add_argument("--delay", type=float, default=0)
    one.add_argument("--gap", type=float, default=0.04)
    verb(pod, "exchange", do_pod_exchange, lock=True).add_argument("set", nargs="+")
    one = verb(pod, "delete", do_pod_delete, "name", lock=True)
    one.add_argument("--grace", type=float, default=30)
    one.add_argument("--gap", type=float, default=0.04)
    verb(pod, "wait", do_pod_wait, "name").add_argument("--timeout", type=float, default=300)
    verb(pod, "list", do_pod_list).add_argument("--json", action="store_true")
    verb(pod, "show", do_pod_show, "name").add_argument("--json", action="store_true")
    verb(pod, "logs", do_pod_logs, "name")
    return top


PARSER = parser()


def command(argv):
    """One command line; answers the exit code."""
    if not argv or argv[0] in ("help", "--help", "-h"):
        print(HELP, end="")
        return 0
    cut = argv.index("--") if "--" in argv else len(argv)
    args = PARSER.parse_args(argv[:cut])
    args.command = argv[cut + 1 :]
    try:
        if args.lock:  # changes one after the other, as kubelet makes them
            RUN.mkdir(parents=True, exist_ok=True)
            lock = os.open(RUN / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX)
        return args.do(args) or 0
    except Problem as problem:
        print(f"kubelet-standin: {problem}", file=sys.stderr)
        return 1


# --- the process -------------------------------------------------------------------------------------------------------


def answer(conn):
    """In a fork: do what the caller asks, in its folder and with its files, and send the exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    words, files, _, _ = socket.recv_fds(conn, 1 << 20, 3)
    folder, *argv = os.fsdecode(words).split("\0")
    journal, started = os.dup(2), time.monotonic()
    for std, fd in enumerate(files):
        os.dup2(fd, std)
        os.close(fd)
    try:
        os.chdir(folder)
        code = command(argv)
    except SystemExit as done:  # argparse's
        code = done.code
    except Exception:  # noqa: BLE001 - whatever it is, the caller is told
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    conn.send(bytes([code & 0xFF]))
    os.write(journal, f"{' '.join(argv[:3])}: {code} after {time.monotonic() - started:.2f} s\n".encode())


def serve():
    RUN.mkdir(parents=True, exist_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(SOCKET))
    listener.listen(64)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks
    while True:
        conn, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            try:
                answer(conn)
            finally:
                os._exit(0)
        conn.close()


if __name__ == "__main__":
    serve()
