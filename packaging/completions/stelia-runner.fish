# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_stelia_runner_global_optspecs
    string join \n log-format= h/help V/version
end

function __fish_stelia_runner_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_stelia_runner_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_stelia_runner_using_subcommand
    set -l cmd (__fish_stelia_runner_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c stelia-runner -n "__fish_stelia_runner_needs_command" -l log-format -d 'Format of the messages on standard error, one message per line' -r -f -a "text\t'Time, level and message'
json\t'One JSON object'"
complete -c stelia-runner -n "__fish_stelia_runner_needs_command" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c stelia-runner -n "__fish_stelia_runner_needs_command" -s V -l version -d 'Print version'
complete -c stelia-runner -n "__fish_stelia_runner_needs_command" -f -a "run" -d 'Register the container, run its VMM, and exit when the VMM ends'
complete -c stelia-runner -n "__fish_stelia_runner_needs_command" -f -a "attach" -d 'Register and isolate a VM that another program started'
complete -c stelia-runner -n "__fish_stelia_runner_needs_command" -f -a "probe" -d 'Query the runner of this container; exit code 0 means yes'
complete -c stelia-runner -n "__fish_stelia_runner_needs_command" -f -a "stop" -d 'Stop the runner of this container and wait for its end'
complete -c stelia-runner -n "__fish_stelia_runner_needs_command" -f -a "install" -d 'Copy this program to a directory, for images that lack it'
complete -c stelia-runner -n "__fish_stelia_runner_needs_command" -f -a "anchor" -d 'Sleep until killed; used by `run` and `attach`'
complete -c stelia-runner -n "__fish_stelia_runner_needs_command" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand run" -l qmp -d 'QEMU: a QMP socket that only the runner uses. Adds -qmp to QEMU\'s arguments unless they already name this path' -r -F
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand run" -l api-socket -d 'Cloud Hypervisor, Firecracker: the API socket. Adds --api-socket or --api-sock to the VMM\'s arguments unless they have it' -r -F
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand run" -l vmm -d 'The kind of VMM. Default: by the name of the program file, if it begins with qemu, cloud-hypervisor or firecracker' -r -f -a "qemu\t''
cloud-hypervisor\t''
firecracker\t''"
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand run" -l fd -d 'Pass an open descriptor to the VMM as {fd:NAME} in its arguments: NAME=/PATH, NAME=socket:/PATH or NAME=tap:INTERFACE' -r
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand run" -l helper -d 'Run a program beside the VMM: name=NAME[,start=before|after][,on-exit=restart|fatal|ignore][,wait-for=PATH],command=LINE' -r
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand run" -l helpers -d 'A TOML file with [[helper]] tables that have the keys of --helper' -r -F
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand run" -l socket -d 'The daemon\'s socket. Mount its directory into the container' -r -F
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand run" -l require-isolation -d 'yes: the runner is not ready until the CPUs are exclusive, and keeps a guest that it starts paused until then. no: the guest runs on shared CPUs meanwhile, and the state says so' -r
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand run" -l iothread-cpus -d 'Give each I/O thread one of the exclusive CPUs that the vCPUs do not use. yes needs a container with more CPUs than vCPUs' -r
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand run" -l resize -d 'Plug and unplug vCPUs when the number of the container\'s exclusive CPUs changes, as far as the VMM and the guest can' -r
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand run" -l resize-memory -d 'Change the guest\'s memory with the VM\'s memory limit, by virtio-mem or a balloon if the VMM has one that no other program uses' -r
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand run" -l memory-limit -d 'With --resize-memory: file of a downward API volume with limits.memory of the container, in bytes. The guest gives up memory as soon as that is lower, before kubelet lowers the limit' -r -F
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand run" -l guest-agent -d 'QEMU: the socket of its guest agent, which only the runner uses. The guest takes vCPUs offline by it before they are unplugged' -r -F
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand run" -l grace -d 'How long the guest may take to power down, such as 5 or 5s. Must be at least 5 s less than the pod\'s terminationGracePeriodSeconds' -r
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand run" -l register-timeout -d 'How long to wait for the daemon, and in `attach` for QEMU, before giving up or going on without it, such as 60 or 60s' -r
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand run" -l state-dir -d 'Directory of the socket for `probe` and `stop`. Default: the directory of --qmp or --api-socket' -r -F
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand run" -l pod-uid -d 'The pod\'s UID, which the daemon checks. Not needed, because the daemon determines it' -r
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand run" -l cpuset -d 'The container\'s exclusive CPUs, which the daemon checks. Not needed, because the daemon determines them' -r
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand run" -l latency -d 'Wake-up latency of the VM\'s CPUs, as far as the node\'s administrator allows it' -r -f -a "default\t''
low\t''
polling\t''"
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand run" -l cache-class -d 'Class of L3 cache and memory bandwidth for the VM, as the node defines it' -r
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand run" -l qos -d 'QoS class. LSE: exclusive CPUs. LSR: exclusive CPUs on which BE may run. LS: the shared pool. BE: the BE shared pool' -r -f -a "LSE\t''
LSR\t''
LS\t''
BE\t''"
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand run" -l cpus -d 'Number of CPUs for LSE and LSR, at most the container\'s CPU limit. Default: the CPU limit' -r
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand run" -l cpu-bind-policy -d 'How CPUs are spread over cores. ConstrainedBurst, for LS only, uses the shared pool of one NUMA node' -r -f -a "Default\t''
FullPCPUs\t''
SpreadByPCPUs\t''
ConstrainedBurst\t''"
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand run" -l required-cpu-bind-policy -d 'Like --cpu-bind-policy, but the request fails if the policy cannot be met (LSE and LSR)' -r -f -a "Default\t''
FullPCPUs\t''
SpreadByPCPUs\t''
ConstrainedBurst\t''"
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand run" -l cpu-limit -d 'The pod\'s CPU limit for ConstrainedBurst, such as 2, 2.5 or 2500m' -r
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand run" -l cpu-exclusive-policy -d 'Avoid sharing cores (PCPULevel) or NUMA nodes (NUMANodeLevel) with instances of the same policy, if possible' -r -f -a "Default\t''
None\t''
PCPULevel\t''
NUMANodeLevel\t''"
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand run" -l numa-allocate-strategy -d 'Which NUMA nodes are preferred' -r -f -a "MostAllocated\t''
LeastAllocated\t''
DistributeEvenly\t''"
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand run" -l numa-topology-alignment-policy -d 'The constraint on the number of NUMA nodes from which the CPUs come' -r -f -a "None\t''
BestEffort\t''
Restricted\t''
SingleNUMANode\t''"
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand run" -l resource-spec -d 'File of a downward API volume with the pod\'s annotation scheduling.koordinator.sh/resource-spec. An empty file requests nothing' -r -F
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand run" -l resource-status -d 'File of a downward API volume with the pod\'s annotation scheduling.koordinator.sh/resource-status: the CPUs that koord-scheduler chose' -r -F
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand run" -l log-format -d 'Format of the messages on standard error, one message per line' -r -f -a "text\t'Time, level and message'
json\t'One JSON object'"
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand run" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand attach" -l qmp -d 'A QMP socket of QEMU that no other program uses. Without it, vCPUs are identified by the names of the threads' -r -F
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand attach" -l pid -d 'QEMU\'s process. Default: the process that listens on --qmp, or the only process with named vCPU threads' -r
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand attach" -l socket -d 'The daemon\'s socket. Mount its directory into the container' -r -F
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand attach" -l require-isolation -d 'yes: the runner is not ready until the CPUs are exclusive, and keeps a guest that it starts paused until then. no: the guest runs on shared CPUs meanwhile, and the state says so' -r
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand attach" -l iothread-cpus -d 'Give each I/O thread one of the exclusive CPUs that the vCPUs do not use. yes needs a container with more CPUs than vCPUs' -r
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand attach" -l resize -d 'Plug and unplug vCPUs when the number of the container\'s exclusive CPUs changes, as far as the VMM and the guest can' -r
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand attach" -l resize-memory -d 'Change the guest\'s memory with the VM\'s memory limit, by virtio-mem or a balloon if the VMM has one that no other program uses' -r
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand attach" -l memory-limit -d 'With --resize-memory: file of a downward API volume with limits.memory of the container, in bytes. The guest gives up memory as soon as that is lower, before kubelet lowers the limit' -r -F
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand attach" -l guest-agent -d 'QEMU: the socket of its guest agent, which only the runner uses. The guest takes vCPUs offline by it before they are unplugged' -r -F
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand attach" -l grace -d 'How long the guest may take to power down, such as 5 or 5s. Must be at least 5 s less than the pod\'s terminationGracePeriodSeconds' -r
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand attach" -l register-timeout -d 'How long to wait for the daemon, and in `attach` for QEMU, before giving up or going on without it, such as 60 or 60s' -r
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand attach" -l state-dir -d 'Directory of the socket for `probe` and `stop`. Default: the directory of --qmp or --api-socket' -r -F
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand attach" -l pod-uid -d 'The pod\'s UID, which the daemon checks. Not needed, because the daemon determines it' -r
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand attach" -l cpuset -d 'The container\'s exclusive CPUs, which the daemon checks. Not needed, because the daemon determines them' -r
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand attach" -l latency -d 'Wake-up latency of the VM\'s CPUs, as far as the node\'s administrator allows it' -r -f -a "default\t''
low\t''
polling\t''"
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand attach" -l cache-class -d 'Class of L3 cache and memory bandwidth for the VM, as the node defines it' -r
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand attach" -l qos -d 'QoS class. LSE: exclusive CPUs. LSR: exclusive CPUs on which BE may run. LS: the shared pool. BE: the BE shared pool' -r -f -a "LSE\t''
LSR\t''
LS\t''
BE\t''"
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand attach" -l cpus -d 'Number of CPUs for LSE and LSR, at most the container\'s CPU limit. Default: the CPU limit' -r
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand attach" -l cpu-bind-policy -d 'How CPUs are spread over cores. ConstrainedBurst, for LS only, uses the shared pool of one NUMA node' -r -f -a "Default\t''
FullPCPUs\t''
SpreadByPCPUs\t''
ConstrainedBurst\t''"
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand attach" -l required-cpu-bind-policy -d 'Like --cpu-bind-policy, but the request fails if the policy cannot be met (LSE and LSR)' -r -f -a "Default\t''
FullPCPUs\t''
SpreadByPCPUs\t''
ConstrainedBurst\t''"
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand attach" -l cpu-limit -d 'The pod\'s CPU limit for ConstrainedBurst, such as 2, 2.5 or 2500m' -r
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand attach" -l cpu-exclusive-policy -d 'Avoid sharing cores (PCPULevel) or NUMA nodes (NUMANodeLevel) with instances of the same policy, if possible' -r -f -a "Default\t''
None\t''
PCPULevel\t''
NUMANodeLevel\t''"
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand attach" -l numa-allocate-strategy -d 'Which NUMA nodes are preferred' -r -f -a "MostAllocated\t''
LeastAllocated\t''
DistributeEvenly\t''"
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand attach" -l numa-topology-alignment-policy -d 'The constraint on the number of NUMA nodes from which the CPUs come' -r -f -a "None\t''
BestEffort\t''
Restricted\t''
SingleNUMANode\t''"
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand attach" -l resource-spec -d 'File of a downward API volume with the pod\'s annotation scheduling.koordinator.sh/resource-spec. An empty file requests nothing' -r -F
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand attach" -l resource-status -d 'File of a downward API volume with the pod\'s annotation scheduling.koordinator.sh/resource-status: the CPUs that koord-scheduler chose' -r -F
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand attach" -l log-format -d 'Format of the messages on standard error, one message per line' -r -f -a "text\t'Time, level and message'
json\t'One JSON object'"
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand attach" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand probe" -l state-dir -d 'The runner\'s --state-dir' -r -F
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand probe" -l qmp -d 'The runner\'s --qmp, if the runner has no --state-dir: the runner\'s socket is in the same directory' -r -F
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand probe" -l api-socket -d 'The runner\'s --api-socket, if the runner has no --state-dir: the runner\'s socket is in the same directory' -r -F
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand probe" -l log-format -d 'Format of the messages on standard error, one message per line' -r -f -a "text\t'Time, level and message'
json\t'One JSON object'"
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand probe" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand stop" -l state-dir -d 'The runner\'s --state-dir' -r -F
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand stop" -l qmp -d 'The runner\'s --qmp, if the runner has no --state-dir: the runner\'s socket is in the same directory' -r -F
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand stop" -l api-socket -d 'The runner\'s --api-socket, if the runner has no --state-dir: the runner\'s socket is in the same directory' -r -F
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand stop" -l log-format -d 'Format of the messages on standard error, one message per line' -r -f -a "text\t'Time, level and message'
json\t'One JSON object'"
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand stop" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand install" -l log-format -d 'Format of the messages on standard error, one message per line' -r -f -a "text\t'Time, level and message'
json\t'One JSON object'"
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand install" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand anchor" -l parent -d 'The runner\'s PID. Exits at once if the runner is no longer the parent' -r
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand anchor" -l log-format -d 'Format of the messages on standard error, one message per line' -r -f -a "text\t'Time, level and message'
json\t'One JSON object'"
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand anchor" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand help; and not __fish_seen_subcommand_from run attach probe stop install anchor help" -f -a "run" -d 'Register the container, run its VMM, and exit when the VMM ends'
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand help; and not __fish_seen_subcommand_from run attach probe stop install anchor help" -f -a "attach" -d 'Register and isolate a VM that another program started'
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand help; and not __fish_seen_subcommand_from run attach probe stop install anchor help" -f -a "probe" -d 'Query the runner of this container; exit code 0 means yes'
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand help; and not __fish_seen_subcommand_from run attach probe stop install anchor help" -f -a "stop" -d 'Stop the runner of this container and wait for its end'
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand help; and not __fish_seen_subcommand_from run attach probe stop install anchor help" -f -a "install" -d 'Copy this program to a directory, for images that lack it'
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand help; and not __fish_seen_subcommand_from run attach probe stop install anchor help" -f -a "anchor" -d 'Sleep until killed; used by `run` and `attach`'
complete -c stelia-runner -n "__fish_stelia_runner_using_subcommand help; and not __fish_seen_subcommand_from run attach probe stop install anchor help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
