# Holds the stand-in to what kubelet and containerd do: paths, namespaces, limits, state file, the pool of the others.
set -uo pipefail
C=/sys/fs/cgroup
k() { kubelet-standin "$@"; }
failed=0
check() { # what, expected, seen
  if [ "$2" = "$3" ]; then echo "ok      $1: $3"; else echo "FAILED  $1: expected '$2', seen '$3'"; failed=1; fi
}
of() { k pod show "$1" | sed -n "s/^$2=//p"; } # pod, field
stage() { echo "## $1 (at $(cut -d. -f1 /proc/uptime) s)"; }

stage "state"
k self-test
k init || exit 1
check "mode" 600 "$(stat -c %a /var/lib/kubelet/cpu_manager_state)"
check "state" '{"policyName":"static","defaultCpuSet":"0-7","checksum":' "$(sed 's/[0-9]*}$//' /var/lib/kubelet/cpu_manager_state)"
check "no newline" 0 "$(wc -l < /var/lib/kubelet/cpu_manager_state)"

stage "three pods"
mkdir -p /run/stelia/runner
# With the package installed the socket may be the real one; without it, a listener of our own.
[ -S /run/stelia/runner/socket ] || socat UNIX-LISTEN:/run/stelia/runner/socket,fork,mode=666 OPEN:/dev/null &
k pod start burst --qos burstable --memory 200M || exit 1
k pod start best --qos besteffort || exit 1
check "burstable on all CPUs" 0-7 "$(cat "$C/$(of burst cgroup)/cpuset.cpus")"
uid=3ceda12c-3ee9-40fa-9f42-61428fe654a6
k pod start vm --uid $uid --cpus 2 --memory 512M --pids 256 --mems 0-1 --env A=b --mount /job:/mnt:ro \
  -- sh -c 'echo started $A; exec sleep 1000' || exit 1

stage "the guaranteed pod"
g=$(of vm cgroup) id=$(of vm id) pid=$(of vm pid)
check "cgroup" "kubepods.slice/kubepods-pod${uid//-/_}.slice/cri-containerd-$id.scope" "$g"
check "init is there" "0::/$g" "$(cat /proc/"$pid"/cgroup)"
check "id's length" 64 "${#id}"
check "inner pid" 1 "$(sed -n 's/^NSpid:.*\t//p' /proc/"$pid"/status)"
check "cpuset.cpus" 0-1 "$(cat "$C/$g/cpuset.cpus")"
check "cpuset.mems" 0-1 "$(cat "$C/$g/cpuset.mems")"
check "container's memory" $((512 << 20)) "$(cat "$C/$g/memory.max")"
check "pod's memory" $((512 << 20)) "$(cat "$C/${g%/*}/memory.max")"
check "pod's pids" 256 "$(cat "$C/${g%/*}/pids.max")"
unit=cri-containerd-$id.scope
check "unit's memory" $((512 << 20)) "$(systemctl show -P MemoryMax "$unit")"
check "unit's device policy" strict "$(systemctl show -P DevicePolicy "$unit")"
check "unit delegated" yes "$(systemctl show -P Delegate "$unit")"
check "/dev/null allowed" 1 "$(systemctl show -P DeviceAllow "$unit" | grep -cE '/dev/(null|char/1:3) rwm')"
config=/run/containerd/io.containerd.runtime.v2.task/k8s.io/$id/config.json
check "name in the runtime's config" instance \
  "$(python3 -c 'import json,sys; print(json.load(open(sys.argv[1]))["annotations"]["io.kubernetes.cri.container-name"])' "$config")"
check "its environment" "started b" "$(k pod logs vm)"
check "list" "best burst vm" "$(k pod list --json | python3 -c 'import json,sys; print(*(p["name"] for p in json.load(sys.stdin)))')"

stage "the pool and the others"
check "pool" 2-7 "$(k pool)"
check "entry" '{"policyName":"static","defaultCpuSet":"2-7","entries":{"'$uid'":{"instance":"0-1"}},"checksum":' "$(k state | sed 's/[0-9]*}$//')"
k self-test /var/lib/kubelet
b=$(of burst cgroup) e=$(of best cgroup)
check "burstable's path" "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" "${b%%pod????????_*}pod"
check "besteffort's path" "kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod" "${e%%pod????????_*}pod"
check "burstable's CPUs" 2-7 "$(cat "$C/$b/cpuset.cpus")"
check "besteffort's CPUs" 2-7 "$(cat "$C/$e/cpuset.cpus")"
check "burstable's memory" $((200 << 20)) "$(cat "$C/$b/memory.max")"

stage "exec"
check "exec" "vm" "$(k pod exec vm -- cat /proc/sys/kernel/hostname)"
k pod exec vm -- sh -c 'exit 7'
check "exec's exit code" 7 $?
check "mount" run.sh "$(k pod exec vm -- sh -c 'cd /mnt && echo run.sh && ! touch x 2> /dev/null || echo writable')"
check "the socket's folder is read-only" no "$(k pod exec vm -- sh -c 'touch /run/stelia/runner/x 2> /dev/null && echo yes || echo no')"
check "connect() works there" 0 "$(k pod exec vm -- socat -u OPEN:/dev/null UNIX-CONNECT:/run/stelia/runner/socket > /dev/null; echo $?)"

stage "QEMU in a pod"
k pod start qemu --cpuset 4,6 -- qemu-system-x86_64 -accel tcg,thread=multi -smp 2 -m 64 -S -display none -nodefaults \
  -qmp unix:/tmp/qmp,server=on,wait=off || exit 1
check "pool" 2-3,5,7 "$(k pool)"
cat > /run/query.py <<'PY'
import json, socket, sys, time
for _ in range(100):
    try:
        s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); break
    except OSError: time.sleep(0.2)
f = s.makefile("rw")
def ask(name):
    f.write(json.dumps({"execute": name}) + "\n"); f.flush()
    while "return" not in (answer := json.loads(f.readline())): pass
    return answer["return"]
f.readline(); ask("qmp_capabilities")
print(*(c["thread-id"] for c in ask("query-cpus-fast")))
PY
pid=$(of qemu pid)
threads=$(python3 /run/query.py "/proc/$pid/root/tmp/qmp")
echo "vCPU threads, as QEMU sees them: $threads"
check "two vCPU threads" 2 "$(wc -w <<< "$threads")"
inner=$(for t in /proc/"$pid"/task/*; do sed -n 's/^NSpid:.*\t//p' "$t/status"; done | sort -n | tr '\n' ' ')
for t in $threads; do check "thread $t has a host thread" 1 "$(grep -wo "$t" <<< "$inner" | wc -l)"; done

stage "ends"
k pod kill vm
check "killed" 137 "$(k pod wait vm)"
check "scope gone" no "$([ -e "$C/$g" ] && echo yes || echo no)"
check "entry stays" 2-3,5,7 "$(k pool)"
k pod restart vm || exit 1
check "another container, the same CPUs" 0-1 "$(cat "$C/$(of vm cgroup)/cpuset.cpus")"
k pod delete vm --grace 1
check "pool" 0-3,5,7 "$(k pool)"
check "pod's slice gone" no "$([ -e "$C/${g%/*}" ] && echo yes || echo no)"
check "besteffort's CPUs" 0-3,5,7 "$(cat "$C/$e/cpuset.cpus")"
k pod delete qemu --grace 5
k pod start short --cpus 1 -- sh -c 'sleep 1; echo bye; exit 3' || exit 1
check "own exit" 3 "$(k pod wait short --timeout 60)"
check "log" bye "$(k pod logs short)"
k pod delete short
check "pool" 0-7 "$(k pool)"

stage "entries without a pod"
k entry add 416de7c2-21de-472d-817c-fa9d4306cb7d instance 2-3
check "pool" 0-1,4-7 "$(k pool)"
check "burstable's CPUs" 0-1,4-7 "$(cat "$C/$b/cpuset.cpus")"
k entry add 416de7c2-21de-472d-817c-fa9d4306cb7d other 3 2> /dev/null
check "overlap refused" 1 $?
k entry remove 416de7c2-21de-472d-817c-fa9d4306cb7d
check "pool" 0-7 "$(k pool)"
k pod delete burst --grace 1
k pod delete best --grace 1

stage "crun alone: the same cgroup, limits and ends"
k pod start quick --runtime direct --cpus 2 --memory 128M -- sh -c 'echo quick; exec sleep 1000' || exit 1
q=$(of quick cgroup) id=$(of quick id) pid=$(of quick pid)
check "init is in the scope itself" "0::/$q" "$(cat /proc/"$pid"/cgroup)"
check "inner pid" 1 "$(sed -n 's/^NSpid:.*\t//p' /proc/"$pid"/status)"
check "cpuset.cpus" 0-1 "$(cat "$C/$q/cpuset.cpus")"
check "container's memory" $((128 << 20)) "$(cat "$C/$q/memory.max")"
check "config.json where containerd has it" 1 "$(ls /run/containerd/io.containerd.runtime.v2.task/k8s.io/"$id"/config.json | wc -l)"
check "exec" quick "$(k pod exec quick -- cat /proc/sys/kernel/hostname)"
check "log" quick "$(k pod logs quick)"
k pod resize quick --cpuset 2-3
check "resized" 2-3 "$(cat "$C/$q/cpuset.cpus")"
k pod kill quick
check "killed" 137 "$(k pod wait quick)"
check "scope gone" no "$([ -e "$C/$q" ] && echo yes || echo no)"
k pod delete quick
k pod start brief --runtime direct -- sh -c 'exit 3' || exit 1
check "own exit" 3 "$(k pod wait brief --timeout 60)"
k pod delete brief
k pod start wrong --runtime direct -- /nonexistent 2> /dev/null
check "a program that is not there" 1 $?
check "pool" 0-7 "$(k pool)"

stage "policy none: a kubelet started anew over a pod with CPUs of its own"
cg() { cat "$C/$1/$2"; } # cgroup, file
k pod start old --cpuset 4-5 || exit 1
k pod start old-burst --qos burstable || exit 1
k init --policy none
check "state" '{"policyName":"none","defaultCpuSet":"","checksum":1353318690}' "$(k state)"
k self-test /var/lib/kubelet
[ -z "$NODE_DEB" ] || check "understood" 0 "$(steliactl doctor --kubelet-state /var/lib/kubelet/cpu_manager_state > /run/state.txt; echo $?)"
[ -z "$NODE_DEB" ] || cat /run/state.txt
check "its CPUs stay" 4-5 "$(cg "$(of old cgroup)" cpuset.cpus)"
k pod start sure --cpus 2 --cpu-limit 2 || exit 1
k pod start whole --cpus 3 || exit 1
k pod start half --cpu-limit 500m || exit 1
k pod start odd --cpu-limit 333m || exit 1
k pod start capped --qos-class burstable --cpu-limit 1500m || exit 1
k pod start loose --qos-class burstable || exit 1
k pod start best --qos-class besteffort || exit 1
for row in "sure 200000 79 " "whole 300000 118 " "half 50000 20 " "capped 150000 4 -burstable" "loose max 4 -burstable" "best max 1 -besteffort"; do
  read -r pod quota weight class <<< "$row"
  g=$(of "$pod" cgroup) uid=$(of "$pod" uid)
  slice=kubepods$class-pod${uid//-/_}.slice
  [ -z "$class" ] || slice=kubepods$class.slice/$slice
  check "$pod's cgroup" "kubepods.slice/$slice" "${g%/*}"
  for dir in "$g" "${g%/*}"; do
    check "cpu.max" "$quota 100000" "$(cg "$dir" cpu.max)"
    check "cpu.weight" "$weight" "$(cg "$dir" cpu.weight)"
    check "cpuset.cpus" "" "$(cg "$dir" cpuset.cpus)"
  done
  check "$pod has no CPUs" "" "$(of "$pod" cpus)"
done
k pod start second --in half --container second --cpu-limit 250m || exit 1
check "the pod's limit is its containers'" "75000 100000" "$(cg "$(dirname "$(of half cgroup)")" cpu.max)"
check "each has its own" "25000 100000" "$(cg "$(of second cgroup)" cpu.max)"
k pod start no --qos-class besteffort --cpu-limit 1 2> /dev/null
check "a limit is not BestEffort" 1 $?
k pod start no --cpuset 2-3 2> /dev/null
check "no CPUs of its own" 1 $?
systemctl daemon-reload
check "a third of a CPU" "33300 100000" "$(cg "$(of odd cgroup)" cpu.max)"
check "systemd rounds it up for the pod" "34000 100000" "$(cg "$(dirname "$(of odd cgroup)")" cpu.max)"
check "a reload changes nothing" "150000 100000" "$(cg "$(of capped cgroup)" cpu.max)"
check "others keep what they had" "0-3,6-7" "$(cg "$(of old-burst cgroup)" cpuset.cpus)"
k pod restart old || exit 1
check "a new container gets none" "200000 100000" "$(cg "$(of old cgroup)" cpuset.cpus)$(cg "$(of old cgroup)" cpu.max)"
for pod in second old old-burst sure whole half odd capped loose best; do k pod delete $pod --grace 1; done
check "state" '{"policyName":"none","defaultCpuSet":"","checksum":1353318690}' "$(k state)"
k init
k pod start fraction --cpu-limit 1500m || exit 1
check "a fraction has no CPUs of its own" "0-7 150000 100000" "$(cg "$(of fraction cgroup)" cpuset.cpus) $(cg "$(of fraction cgroup)" cpu.max)"
k pod start own --cpu-limit 2 || exit 1
check "whole CPUs, and no quota" "0-1 max 100000" "$(cg "$(of own cgroup)" cpuset.cpus) $(cg "$(of own cgroup)" cpu.max)"
k pod delete own --grace 1
k pod delete fraction --grace 1

stage "kubelet's choice of CPUs"
k pod start two --cpus 2 && k pod start four --cpus 4 || exit 1
check "a whole core, then a whole socket" "0-1 4-7" "$(of two cpus) $(of four cpus)"
check "too many" "kubelet-standin: UnexpectedAdmissionError: not enough cpus available to satisfy request: requested=3, available=2" \
  "$(k pod start three --cpus 3 2>&1)"
for pod in two four; do k pod delete $pod --grace 1; done
k init --reserved 0 --option full-pcpus-only=true
check "half a core" "kubelet-standin: SMTAlignmentError: SMT Alignment Error: requested 1 cpus not multiple cpus per core = 2" \
  "$(k pod start half --cpus 1 2>&1)"
k pod start core --cpus 2 || exit 1
check "not the reserved CPU's core" 2-3 "$(of core cpus)"
k pod delete core --grace 1

stage "pods with CPUs and memory of their own, and a device"
k init --schema 2 --reserved 0 --memory-policy Static
k pod start no --pod-cpus 3 2> /dev/null
check "not in schema 2" 1 $?
k pod start plain --cpus 2 --memory 64M --device-plugin nvidia.com/gpu=1:GPU-1f3a || exit 1
check "memory of one NUMA node" 0 "$(cg "$(of plain cgroup)" cpuset.mems)"
check "as schema 2 has it" '"'"$(of plain uid)"'":{"instance":[{"numaAffinity":[0],"type":"memory","size":67108864}]}' \
  "$(grep -o "\"$(of plain uid)\":{.*}\]}" /var/lib/kubelet/memory_manager_state)"
check "the device and its NUMA node" '"ResourceName":"nvidia.com/gpu","DeviceIDs":{"1":["GPU-1f3a"]}' \
  "$(grep -o '"ResourceName.*\]}' /var/lib/kubelet/device-plugins/kubelet_internal_checkpoint | sed 's/,"AllocResp.*//')"
k pod delete plain --grace 0
k upgrade --schema 3
k pod start level --pod-cpus 3 --pod-memory 256M --pod-shares side --cpus 2 --memory 64M || exit 1
uid=$(of level uid)
pod='"entries":{"'$uid'":{"instance":"2-3","side":"1"}}'
own='"podEntries":{"'$uid'":{"cpuSet":"1-3"}}'
check "schema 3" '{"policyName":"static","defaultCpuSet":"0,4-7",'$pod,$own',"checksum":' "$(k state | sed 's/[0-9]*}$//')"
k pod start side --in level --container side --shared || exit 1
check "each on its part" "2-3 1" "$(cg "$(of level cgroup)" cpuset.cpus) $(cg "$(of side cgroup)" cpuset.cpus)"
# The sidecar has no request: the shares and the quota of the pod's limit.
check "requests" "79 max 100000, 118 300000 100000" "$(cg "$(of level cgroup)" cpu.weight) $(cg "$(of level cgroup)" cpu.max), $(cg "$(of side cgroup)" cpu.weight) $(cg "$(of side cgroup)" cpu.max)"
check "the pod's weight and memory" "118 $((256 << 20))" "$(cg "$(dirname "$(of side cgroup)")" cpu.weight) $(cg "$(dirname "$(of side cgroup)")" memory.max)"
k upgrade --schema 4
check "schema 4" '{"policyName":"static","defaultCpuSet":"0,4-7",'$pod,$own'}' \
  "$(python3 -c 'import json,sys; print(json.load(open(sys.argv[1]))["data"])' /var/lib/kubelet/cpu_manager_state)"
k self-test /var/lib/kubelet
check "every file" 0 $?
[ -z "$NODE_DEB" ] || check "all of it understood" 0 "$(steliactl doctor --kubelet-state /var/lib/kubelet/cpu_manager_state > /run/state.txt; echo $?)"
[ -z "$NODE_DEB" ] || cat /run/state.txt
check "no way back" "kubelet-standin: pods have CPUs or memory of their own ($uid): a kubelet of schema 2 does not start" "$(k upgrade --schema 2 2>&1)"
k pod delete level --grace 0
check "the pod's CPUs stay until its last container goes" 0,4-7 "$(k pool)"
k pod delete side --grace 0
check "pool" 0-7 "$(k pool)"
k pod start after --cpus 2 --memory 64M && k pod delete after --grace 0
k upgrade --schema 2
check "and back" '{"policyName":"static","defaultCpuSet":"0-7","checksum":14413152}' "$(k state)"
k init
check "nothing left" "" "$(k pod list)$(ctr -n k8s.io container ls -q)"
stage "end"
exit $failed
