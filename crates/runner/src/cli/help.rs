//! What `--help` and the man page say below the options.

pub(crate) const ENVIRONMENT: &str = "\
Environment:
  RUST_LOG           log filter, by default info
  STELIA_LOG_FORMAT  as --log-format
  STELIA_STATE_DIR   as --state-dir";

pub(crate) const RUN: &str = "\
QEMU is started paused (-S) and continued when the daemon reports the state
isolated or pinned. The guest executes nothing before its CPUs are verified
to be exclusive. Cloud Hypervisor and Firecracker cannot start paused: the guest
boots, is paused as soon as the API accepts this, and is resumed when the daemon
reports the state. The time for which its vCPUs ran on shared CPUs before the
pause is logged and is part of the runner's state (window).

With -incoming ADDRESS, QEMU is started with -incoming defer and gets the
address when its vCPUs are in place. With -incoming defer, the program that
drives the migration has to wait for readiness. In both cases the runner does
not continue the guest.

--fd opens a file or device for reading and writing (/dev/vhost-net,
/dev/vfio/N, the /dev/tapN of a macvtap), a connection to a UNIX stream socket,
or a queue of a tap interface with virtio headers. Only the VMM inherits the
descriptor. Its number replaces {fd:NAME} in the arguments of the VMM:

  --fd net=tap:tap0 --fd vhost=/dev/vhost-net
  -netdev tap,id=n,fd={fd:net},vhostfd={fd:vhost}

Descriptors are opened when the helpers that start before the VMM are ready.

--qos, --cpus and the policies are for nodes whose cpu-source is steliad; on
other nodes the daemon refuses them. An option that is not given has the node's
default. A VM of the class LS or BE has no exclusive CPUs and counts as complete
on its shared pool.

--resource-spec and --resource-status take annotations of Koordinator as files
of a downward API volume. An empty file requests nothing. If a file cannot be
read or parsed, or contradicts the command line, the runner exits with 71 before
it starts anything. The CPUs that koord-scheduler chose are used, or the
registration is refused with the reason (69).

With --require-isolation=yes, a failed registration ends the runner (69, 75). If
the vCPUs cannot be attached, the guest stays paused and not ready, and the
runner tries again every 5 s. With --require-isolation=no, the guest runs in
both cases, degraded, and the runner keeps trying. A guest that has started to
run is paused again only for new vCPUs, for at most 5 s.

With --resize=yes, vCPUs are plugged when the container is given more exclusive
CPUs, as far as the VMM has room (maxcpus of -smp, max of --cpus). The guest is
paused until they are pinned. When CPUs are to go, the guest is asked to give up
vCPUs. If it does not, all vCPUs share the CPUs that are left, or, where steliad
chose the CPUs, the VM keeps its CPUs. --guest-agent is the socket of a chardev
of org.qemu.guest_agent.0.

With --resize-memory=yes, the guest's memory follows the VM's memory limit, by
the same amount: in QEMU by virtio-mem devices with an id or else by a balloon,
in Cloud Hypervisor by hotplug_size of --memory or else by --balloon. It is not
more than the device has, and not less than the guest was booted with; a guest
that does not follow is not asked again. The runner's state has the outcome.

A helper starts before the VMM, or when the VMM answers. When a helper ends, it
is started again (after 0.5 s, then at growing intervals of at most 30 s), or
the guest is shut down (exit code 70), or nothing happens, as on-exit says. With
wait-for=PATH, the VMM starts when PATH exists. The output of a helper is logged
under the helper's name.

SIGTERM, SIGINT, SIGQUIT and SIGHUP power the guest down (Firecracker:
Ctrl+Alt+Del). After --grace, or at once if the guest does not run, the VMM is
told to quit, and 3 s later it is killed. Helpers end after the VMM. SIGUSR1
and SIGUSR2 are ignored.

Exit codes:
  0..255   exit code of the VMM; 128 + N if signal N ended the VMM
  2        wrong usage, also if options of the VMM and of the runner conflict
  69       the daemon refused the registration (the name and text of the D-Bus
           error are on standard error)
  70       a helper with on-exit=fatal ended, or a helper did not become ready
  71       the runner failed: anchor, control socket, --fd, helpers file,
           annotation, system call
  75       the daemon was not reachable within --register-timeout
  126      the VMM cannot be executed
  127      the VMM was not found
  128+N    signal N arrived before the VMM was started";

pub(crate) const ATTACH: &str = "\
The guest was not started paused and ran before, which the runner's state shows
(paused-start: false).

Without --qmp, vCPU threads are identified by their names. QEMU needs
-name NAME,debug-threads=on, which libvirt sets; Cloud Hypervisor and
Firecracker always name their threads. Either only one process in this container
has such threads, or --pid selects the process.

As PID 1, the runner shuts the guest down on SIGTERM as in `run` (without --qmp,
by sending SIGTERM to QEMU). Otherwise, it deregisters the container on SIGTERM
and leaves QEMU to the program that started it.

attach does not support KubeVirt's virt-launcher, because its handler changes
the cgroup in which it finds QEMU; docs/kubevirt.md describes adoption.

Exit codes: 0 if QEMU ended or was left running, otherwise as in `run`.";

pub(crate) const PROBE: &str = "\
Exit code 0 means yes. The reason is on standard output. A process that the
container runtime starts for a probe runs on shared CPUs, like everything in the
container except the vCPUs.

Liveness fails only if the runner does not answer, because a restart of the
container ends the guest.";
