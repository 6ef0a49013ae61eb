//! What `--help` and the man page say below the options.

pub(crate) const ENVIRONMENT: &str = "\
Environment:
  RUST_LOG           what is logged (info)
  STELIA_LOG_FORMAT  as --log-format
  STELIA_STATE_DIR   as --state-dir";

pub(crate) const RUN: &str = "\
With QEMU the guest executes nothing before its CPUs are verified to be its own: QEMU is started with -S, and continued when
the daemon says isolated or contained. Cloud Hypervisor and Firecracker cannot start paused: the guest boots, is paused as soon
as the API takes that, and resumed when the daemon says so. How long its vCPUs ran on shared CPUs before the pause is logged, and
in the state (window). With -incoming ADDRESS, QEMU waits (-incoming defer) and is given the address when its
vCPUs are in place; with -incoming defer, whoever drives the migration waits for readiness. The runner continues neither.

--fd: a file or device opened for reading and writing (/dev/vhost-net, /dev/vfio/N, a macvtap's /dev/tapN), a connection to a
UNIX stream socket, or a queue of a tap interface with virtio headers. The VMM alone inherits it, under the number that takes
the place of {fd:NAME}: --fd net=tap:tap0 --fd vhost=/dev/vhost-net … -netdev tap,id=n,fd={fd:net},vhostfd={fd:vhost}. It is
opened when the helpers that start before the VMM are ready.

--qos, --cpus and the policies are for a node whose cpu-source is steliad; elsewhere the daemon refuses them. What is not given
is the node's default. A VM of class LS or BE has no CPUs of its own: on its pool it is whole.

--resource-spec and --resource-status are Koordinator's annotations of the pod, as files of a downward API volume. An empty file
asks nothing; one that cannot be read, is not understood or contradicts the command line ends the runner (71) before anything is
started. The CPUs that koord-scheduler chose are followed, or the registration is refused with the reason (69).

--require-isolation=yes: a registration that fails ends the runner (69, 75); vCPUs that cannot be attached leave the guest
paused and not ready, and are tried again every 5 s. no: the guest runs all the same, degraded, and the runner goes on
trying. A guest that was let run is never paused again, whatever becomes of the daemon.

A helper starts before the VMM, or when the VMM answers; it is started again when it ends (0.5 s later, then ever more seldom, 30 s
at most), or its end shuts the guest down (exit code 70), or is ignored. wait-for=PATH: the VMM starts when PATH is there. What
helpers print is logged under their names.

SIGTERM, SIGINT, SIGQUIT: power the guest down (Firecracker: Ctrl+Alt+Del); the VMM is told to quit after --grace (at once if
the guest does not run), and killed 3 s later. Helpers end after the VMM. SIGHUP, SIGUSR1, SIGUSR2 are ignored.

Exit codes:
  0..255   the VMM's own; 128 + N when signal N ended it
  2        wrong usage: also options of the VMM and of the runner that do not go together
  69       registration refused by the daemon (the D-Bus error's name and text are on stderr)
  70       a helper with on-exit=fatal ended, or one did not get ready
  71       the runner failed: anchor, control socket, --fd, helpers file, annotation, system call
  75       the daemon was not reachable within --register-timeout
  126      the VMM cannot be executed
  127      the VMM not found
  128+N    signal N came before the VMM was started";

pub(crate) const ATTACH: &str = "\
There is no paused start: the guest ran before, and the state says so (paused-start: false).

Without --qmp, vCPUs are told by the names of their threads: QEMU needs -name NAME,debug-threads=on (libvirt gives it), Cloud
Hypervisor and Firecracker name theirs always. One
process in this container may have such threads, or --pid picks it.

As PID 1, SIGTERM shuts the guest down as in `run` (without --qmp by SIGTERM to QEMU). Else the container is deregistered and
QEMU left to whoever started it.

KubeVirt's virt-launcher is not supported: its handler edits the cgroup it finds QEMU in.

Exit codes: 0 when QEMU ended or was left; else as in `run`.";

pub(crate) const PROBE: &str = "\
Exit code 0 is yes; the reason is on standard output. A process that the container's runtime starts for a probe runs on
shared CPUs, like everything in the container but the vCPUs.

Liveness fails only when the runner does not answer: restarting the container would cost the guest its life.";
