#!/usr/bin/env python3
"""runner.py QMP-SOCKET QEMU [ARGUMENT]...: the first process of a VM's container, in Python with jeepney (write-a-runner.md)."""
import json, os, signal, socket, subprocess, sys, time
from jeepney import DBusAddress, DBusErrorResponse, Properties, new_method_call
from jeepney.io.blocking import DBusConnection
from jeepney.wrappers import unwrap_msg

NAME, OBJECT = "io.stelia.Isolation1", "/io/stelia/Isolation1"
DAEMON = os.environ.get("STELIA_SOCKET", "/run/stelia/runner/socket")
GRACE_S = 25
EXIT_REFUSED = 69

def connected(path):
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(path)
        return connection
    except OSError as error:
        connection.close()
        raise ConnectionError(f"connect to {path}: {error.strerror}") from error

def uid_outside():
    """This user's uid outside its user namespace, where the daemon is."""
    for inner, outer, count in (map(int, line.split()) for line in open("/proc/self/uid_map")):
        if inner <= os.geteuid() < inner + count:
            return outer + os.geteuid() - inner

def dbus():
    connection = connected(DAEMON)
    for line in (f"\0AUTH EXTERNAL {str(uid_outside()).encode().hex()}", "NEGOTIATE_UNIX_FD"):
        connection.sendall(line.encode() + b"\r\n")
        answer = connection.recv(1024)
        if not answer.startswith((b"OK", b"AGREE")):
            connection.close()
            raise ConnectionError(f"authenticate on {DAEMON}: {answer}")
    connection.sendall(b"BEGIN\r\n")
    return DBusConnection(connection, enable_fds=True)

def qmp(path, *commands):
    """The answer to the last of these commands."""
    with connected(path) as connection, connection.makefile("rw") as stream:
        connection.settimeout(GRACE_S)
        stream.readline()  # the greeting
        for command in ("qmp_capabilities", *commands):
            stream.write(json.dumps({"execute": command}) + "\n")
            stream.flush()
            answer = {}
            while not answer.keys() & {"return", "error"}:  # the others are events
                answer = json.loads(stream.readline())
            if "error" in answer:
                raise ValueError(f"QEMU refuses {command}: {answer['error']['desc']}")
        return answer["return"]

def vcpus(path, qemu):
    """The vCPUs as AttachVcpus takes them. QEMU makes the socket while it starts."""
    deadline = time.monotonic() + 30
    while not os.path.exists(path) and qemu.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    return [(cpu["cpu-index"], cpu["thread-id"], {name: ("u", number) for name, number in cpu["props"].items()})
            for cpu in qmp(path, "query-cpus-fast")]

def pause(error, age, attaching):
    """The seconds after which the steps are repeated, this long after the first failure; None: they are not."""
    name = error.name.rpartition(".")[2] if isinstance(error, DBusErrorResponse) else "connection"
    if name == "CpusetConflict" and attaching:
        return 5
    if name == "UnknownObject" and age < 2:
        return 0.2
    return 1 if name in ("connection", "Busy", "KubeletStateUnusable") and age < 60 else None

def text(error):
    return f"{error.name}: {' '.join(map(str, error.data))}" if isinstance(error, DBusErrorResponse) else str(error)

def has_ended(child):
    """Whether it has ended, or does so within a second."""
    try:
        return child is not None and child.wait(1) is not None
    except subprocess.TimeoutExpired:
        return False

def main(qmp_socket, *command):
    def isolated():
        """Steps 2 to 6; the VM's state. It may be repeated: QEMU is started once."""
        nonlocal qemu
        with dbus() as daemon:
            call = lambda address, *method: unwrap_msg(daemon.send_and_get_reply(new_method_call(address, *method), timeout=120))
            options = {"anchor": ("h", anchor_fd)}
            path, _ = call(DBusAddress(OBJECT, NAME, NAME + ".Manager"), "RegisterInstance", "ssa{sv}", ("", "", options))
            if qemu is None:
                qemu = subprocess.Popen([*command, "-S", "-qmp", f"unix:{qmp_socket},server=on,wait=off"])
                pidfds.append(os.pidfd_open(qemu.pid))
            instance = DBusAddress(path, NAME, NAME + ".Instance")
            call(instance, "AttachVcpus", "ha(uia{sv})a{sv}", (pidfds[0], vcpus(qmp_socket, qemu), {}))
            return unwrap_msg(daemon.send_and_get_reply(Properties(instance).get("State"), timeout=120))[0][1]

    def stop(*_):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.alarm(GRACE_S)
        try:
            qmp(qmp_socket, "system_powerdown")
        except (OSError, ValueError) as error:
            print(f"power down: {error}", file=sys.stderr)

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # PID 1 gets no signal without a handler
    signal.signal(signal.SIGALRM, lambda *_: qemu.kill())
    anchor, qemu, pidfds = subprocess.Popen(["sleep", "infinity"]), None, []
    anchor_fd = os.pidfd_open(anchor.pid)
    try:
        state, failing_since = None, None
        while state is None:
            try:
                state = isolated()
            except (ConnectionError, TimeoutError, DBusErrorResponse) as error:
                failing_since = failing_since or time.monotonic()
                seconds = pause(error, time.monotonic() - failing_since, qemu is not None)
                if seconds is None or qemu is not None and qemu.poll() is not None:
                    raise
                if seconds == 5:
                    failing_since = None  # this lasts as long as the other pod does
                print(f"{text(error)}; repeated after {seconds} s", file=sys.stderr, flush=True)
                time.sleep(seconds)
        if state not in ("isolated", "pinned"):
            sys.exit(f"the VM is {state}")
        qmp(qmp_socket, "cont")
        signal.signal(signal.SIGTERM, stop)
        print(f"guest running, {state}", file=sys.stderr, flush=True)
        while (ended := os.wait())[0] != qemu.pid:  # PID 1 reaps orphans too
            pass
        code = os.waitstatus_to_exitcode(ended[1])
    except Exception:
        if not has_ended(qemu):
            raise
        code = qemu.returncode  # it is the reason for the error
    finally:
        for child in filter(None, (qemu, anchor)):
            child.kill()  # QEMU has not executed an instruction, or has ended
    return code if code >= 0 else 128 - code

if __name__ == "__main__":
    try:
        sys.exit(main(*sys.argv[1:]))
    except (ConnectionError, TimeoutError, ValueError, DBusErrorResponse) as error:
        print(text(error), file=sys.stderr)
        sys.exit(EXIT_REFUSED)
