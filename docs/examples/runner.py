#!/usr/bin/env python3
"""runner.py QMP-SOCKET QEMU [ARGUMENT]...: the first process of a VM's container, in Python with jeepney (write-a-runner.md)."""
import json, os, signal, socket, subprocess, sys, time
from jeepney import DBusAddress, DBusErrorResponse, Properties, new_method_call
from jeepney.io.blocking import DBusConnection
from jeepney.wrappers import unwrap_msg

NAME, OBJECT = "io.stelia.Isolation1", "/io/stelia/Isolation1"
DAEMON = os.environ.get("STELIA_SOCKET", "/run/stelia/runner/socket")
GRACE_S = 25

def connected(path, alive=lambda: True):
    """A connection to this socket: for 30 s, because the daemon may be restarting and QEMU starting."""
    deadline = time.monotonic() + 30
    while True:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(path)
            return connection
        except OSError as error:
            connection.close()
            if time.monotonic() > deadline or not alive():
                sys.exit(f"connect to {path}: {error.strerror}")
            time.sleep(0.1)

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
            sys.exit(f"authenticate on {DAEMON}: {answer}")
    connection.sendall(b"BEGIN\r\n")
    return DBusConnection(connection, enable_fds=True)

def qmp(path, *commands, alive=lambda: True):
    """The answer to the last of these commands."""
    with connected(path, alive) as connection, connection.makefile("rw") as stream:
        stream.readline()  # the greeting
        for command in ("qmp_capabilities", *commands):
            stream.write(json.dumps({"execute": command}) + "\n")
            stream.flush()
            answer = {}
            while not answer.keys() & {"return", "error"}:  # the others are events
                answer = json.loads(stream.readline())
        return answer["return"]

def main(qmp_socket, *command):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # PID 1 gets no signal without a handler
    anchor = subprocess.Popen(["sleep", "infinity"])
    daemon = dbus()
    call = lambda address, *method: unwrap_msg(daemon.send_and_get_reply(new_method_call(address, *method), timeout=120))
    manager = DBusAddress(OBJECT, NAME, NAME + ".Manager")
    options = {"anchor": ("h", os.pidfd_open(anchor.pid))}
    path, _ = call(manager, "RegisterInstance", "ssa{sv}", ("", "", options))
    qemu = subprocess.Popen([*command, "-S", "-qmp", f"unix:{qmp_socket},server=on,wait=off"])
    try:
        cpus = qmp(qmp_socket, "query-cpus-fast", alive=lambda: qemu.poll() is None)
        vcpus = [(cpu["cpu-index"], cpu["thread-id"], {name: ("u", number) for name, number in cpu["props"].items()})
                 for cpu in cpus]
        instance = DBusAddress(path, NAME, NAME + ".Instance")
        call(instance, "AttachVcpus", "ha(uia{sv})a{sv}", (os.pidfd_open(qemu.pid), vcpus, {}))
        (_, state), = unwrap_msg(daemon.send_and_get_reply(Properties(instance).get("State")))
        if state not in ("isolated", "contained"):
            sys.exit(f"the VM is {state}")
        qmp(qmp_socket, "cont")
    except BaseException:
        qemu.kill()  # it has not executed an instruction
        raise
    daemon.close()
    print(f"guest running, {state}", file=sys.stderr, flush=True)

    def stop(*_):
        signal.alarm(GRACE_S)
        qmp(qmp_socket, "system_powerdown")
    signal.signal(signal.SIGALRM, lambda *_: qemu.kill())
    signal.signal(signal.SIGTERM, stop)
    while (ended := os.wait())[0] != qemu.pid:  # PID 1 reaps orphans too
        pass
    anchor.kill()
    code = os.waitstatus_to_exitcode(ended[1])
    return code if code >= 0 else 128 - code

if __name__ == "__main__":
    try:
        sys.exit(main(*sys.argv[1:]))
    except DBusErrorResponse as error:
        print(f"{error.name}: {' '.join(map(str, error.data))}", file=sys.stderr)
        sys.exit(69)
