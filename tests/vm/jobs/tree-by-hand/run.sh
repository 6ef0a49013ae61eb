# Two instance trees with isolated partitions, built by hand with busctl and echo, then grown, shrunk, overlapped and one
# killed. It holds the kernel and systemd to what the daemon's design rests on. The order of the writes is the point.
set -uo pipefail
C=/sys/fs/cgroup
S=$C/stelia.slice
failed=0

check() { # what, expected, seen
  if [ "$2" = "$3" ]; then echo "ok      $1: $3"; else echo "FAILED  $1: expected '$2', seen '$3'"; failed=1; fi
}
file() { check "$1" "$2" "$(cat "$3" 2>&1)"; } # what, expected content, path
accepted() { if echo "$2" > "$3"; then echo "ok      $1 accepted"; else echo "FAILED  $1: refused"; failed=1; fi; }
refused() { if (echo "$2" > "$3") 2> /dev/null; then echo "FAILED  $1: accepted"; failed=1; else echo "ok      $1 refused"; fi; }
scope() { echo "$S/stelia-instance-$1.scope"; }

mk() { # name, pid: the scope, and two threaded groups two levels below it
  busctl -q call org.freedesktop.systemd1 /org/freedesktop/systemd1 org.freedesktop.systemd1.Manager StartTransientUnit \
    'ssa(sv)a(sa(sv))' "stelia-instance-$1.scope" fail 4 PIDs au 1 "$2" Slice s stelia.slice Delegate b true \
    CollectMode s inactive-or-failed 0
  local i; i=$(scope "$1")
  for _ in $(seq 100); do grep -qx "$2" "$i/cgroup.procs" 2> /dev/null && break; sleep 0.1; done
  mkdir "$i/instance"
  echo "$2" > "$i/instance/cgroup.procs"
  echo "+cpuset +cpu" > "$i/cgroup.subtree_control"
  mkdir "$i/instance/float" "$i/instance/vcpu"
  echo threaded > "$i/instance/float/cgroup.type"
  echo threaded > "$i/instance/vcpu/cgroup.type"
  echo "+cpuset +cpu" > "$i/instance/cgroup.subtree_control"
  echo 0-1,4-5 > "$i/instance/float/cpuset.cpus"
  echo "$2" > "$i/instance/float/cgroup.procs"
  check "$1's process is in float" "0::/stelia.slice/stelia-instance-$1.scope/instance/float" "$(cat "/proc/$2/cgroup")"
}
exclusive() { # name, cpus: outer levels first
  for l in "$(scope "$1")" "$(scope "$1")/instance" "$(scope "$1")/instance/vcpu"; do
    accepted "exclusive $2 on ${l#"$S/"}" "$2" "$l/cpuset.cpus.exclusive"
  done
}

sleep 10000 & a=$!
sleep 10000 & b=$!
mk a $a
mk b $b
A=$(scope a)/instance B=$(scope b)/instance

echo "## A becomes a partition while vcpu/ is empty"
accepted "slice exclusive" 2-3 $S/cpuset.cpus.exclusive
echo 2-3 > "$A/vcpu/cpuset.cpus"
exclusive a 2-3
accepted "A isolated" isolated "$A/vcpu/cpuset.cpus.partition"
file "A's partition" isolated "$A/vcpu/cpuset.cpus.partition"
file "A's CPUs" 2-3 "$A/vcpu/cpuset.cpus.effective"
file "isolated" 2-3 $C/cpuset.cpus.isolated
file "everyone else's" 0-1,4-7 $C/cpuset.cpus.effective

echo "## B joins, A is not disturbed"
accepted "slice widened" 2-3,6-7 $S/cpuset.cpus.exclusive
file "A's partition" isolated "$A/vcpu/cpuset.cpus.partition"
echo 6-7 > "$B/vcpu/cpuset.cpus"
exclusive b 6-7
accepted "B isolated" isolated "$B/vcpu/cpuset.cpus.partition"
file "B's partition" isolated "$B/vcpu/cpuset.cpus.partition"
file "B's CPUs" 6-7 "$B/vcpu/cpuset.cpus.effective"
file "isolated" 2-3,6-7 $C/cpuset.cpus.isolated
file "everyone else's" 0-1,4-5 $C/cpuset.cpus.effective
file "system.slice's" 0-1,4-5 $C/system.slice/cpuset.cpus.effective

echo "## A grows to 2-4: floats first, then outer levels, then inner"
echo 0-1,5 > "$A/float/cpuset.cpus"
echo 0-1,5 > "$B/float/cpuset.cpus"
accepted "slice" 2-4,6-7 $S/cpuset.cpus.exclusive
accepted "scope" 2-4 "$(scope a)/cpuset.cpus.exclusive"
accepted "instance" 2-4 "$A/cpuset.cpus.exclusive"
accepted "vcpu" 2-4 "$A/vcpu/cpuset.cpus"
accepted "vcpu exclusive" 2-4 "$A/vcpu/cpuset.cpus.exclusive"
file "A's partition" isolated "$A/vcpu/cpuset.cpus.partition"
file "A's CPUs" 2-4 "$A/vcpu/cpuset.cpus.effective"
file "B's CPUs" 6-7 "$B/vcpu/cpuset.cpus.effective"
file "isolated" 2-4,6-7 $C/cpuset.cpus.isolated

echo "## A shrinks to 2: inner levels first"
accepted "vcpu" 2 "$A/vcpu/cpuset.cpus"
accepted "vcpu exclusive" 2 "$A/vcpu/cpuset.cpus.exclusive"
accepted "instance" 2 "$A/cpuset.cpus.exclusive"
accepted "scope" 2 "$(scope a)/cpuset.cpus.exclusive"
accepted "slice" 2,6-7 $S/cpuset.cpus.exclusive
file "A's partition" isolated "$A/vcpu/cpuset.cpus.partition"
file "A's CPUs" 2 "$A/vcpu/cpuset.cpus.effective"
file "isolated" 2,6-7 $C/cpuset.cpus.isolated
file "everyone else's" 0-1,3-5 $C/cpuset.cpus.effective

echo "## B may not take A's CPU"
refused "B's scope over A's CPU" 2,6-7 "$(scope b)/cpuset.cpus.exclusive"
file "A's partition" isolated "$A/vcpu/cpuset.cpus.partition"
file "B's partition" isolated "$B/vcpu/cpuset.cpus.partition"
file "isolated" 2,6-7 $C/cpuset.cpus.isolated

echo "## a task in B's vcpu/, the CPUs of which go offline and come back"
accepted "the thread" $b "$B/vcpu/cgroup.threads"
taskset -pc 6 $b > /dev/null
allowed() { sed -n 's/^Cpus_allowed_list:\t//p' /proc/$b/status; }
check "pinned" 6 "$(allowed)"
echo 0 > /sys/devices/system/cpu/cpu6/online
echo 0 > /sys/devices/system/cpu/cpu7/online
sleep 1
file "B's partition without a CPU" "isolated invalid (No cpu available due to hotplug)" "$B/vcpu/cpuset.cpus.partition"
file "A's partition" isolated "$A/vcpu/cpuset.cpus.partition"
echo 1 > /sys/devices/system/cpu/cpu6/online
echo 1 > /sys/devices/system/cpu/cpu7/online
sleep 1
check "coming back does not mend it" invalid "$(grep -o invalid "$B/vcpu/cpuset.cpus.partition")"
accepted "writing it again does" isolated "$B/vcpu/cpuset.cpus.partition"
file "B's partition" isolated "$B/vcpu/cpuset.cpus.partition"
check "pinned as before" 6 "$(allowed)"

echo "## systemd leaves it alone"
systemctl daemon-reload
systemctl daemon-reexec
systemctl set-property --runtime system.slice AllowedCPUs=0-1
sleep 1
file "A's partition" isolated "$A/vcpu/cpuset.cpus.partition"
file "B's partition" isolated "$B/vcpu/cpuset.cpus.partition"
file "isolated" 2,6-7 $C/cpuset.cpus.isolated

echo "## A dies by itself: systemd removes its scope, its CPUs return, the slice's list stays behind"
kill $a
for _ in $(seq 100); do [ -e "$(scope a)" ] || break; sleep 0.1; done
check "A's scope" gone "$([ -e "$(scope a)" ] && echo there || echo gone)"
file "isolated" 6-7 $C/cpuset.cpus.isolated
file "everyone else's" 0-5 $C/cpuset.cpus.effective
file "the slice's list" 2,6-7 $S/cpuset.cpus.exclusive
accepted "slice narrowed" 6-7 $S/cpuset.cpus.exclusive
file "B's partition" isolated "$B/vcpu/cpuset.cpus.partition"

kill $b
exit $failed
