# Starts VMs that end up in every state an instance rests in, and writes down the tree that the installed package made of them:
# node run --deb OLD.deb tests/vm/jobs/record-tree. What it finds is in results/ then, for tests/data/tree-VERSION/.
set -euo pipefail

# $1: a setting for the instances to come.
setting() {
  mkdir -p /run/stelia/steliad.toml.d
  echo "$1" > /run/stelia/steliad.toml.d/90-record.toml
  systemctl reload steliad
}
vm() { # NAME CPUS VCPUS "RUNNER'S OPTIONS" QEMU'S…
  local name=$1 cpus=$2 vcpus=$3 runner=$4
  shift 4
  # shellcheck disable=SC2086
  kubelet-standin pod start "$name" --cpus "$cpus" --memory 512Mi --pids 300 --runtime runc -- \
    stelia-runner run --qmp /run/qmp $runner -- \
    qemu-system-x86_64 -accel tcg,thread=multi -m 64 -display none -nodefaults -name vm,debug-threads=on -smp "$vcpus" "$@"
}
state() { # NAME STATE
  local uid
  uid=$(kubelet-standin pod show "$1" --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["uid"])')
  for _ in $(seq 60); do
    # Every release answers this alike.
    busctl --json=short call io.stelia.Isolation1 /io/stelia/Isolation1 io.stelia.Isolation1.Manager ListInstances \
      | grep -q "\"$uid\",\"[^\"]*\",\"[^\"]*\",\"$2\"" && return
    sleep 0.2
  done
  echo "$1 is not $2:"; steliactl list
  cat "$(kubelet-standin pod show "$1" --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["log"])')"
  exit 1
}

kubelet-standin init --reserved 0
# Two vCPUs that are a core's threads, and an I/O thread on the CPU they leave over.
vm io 3 2,sockets=1,cores=1,threads=2 --iothread-cpus=yes -object iothread,id=disk
state io isolated
# Registered, and nothing attached: what it starts never answers on QMP.
kubelet-standin pod start registered --cpus 1 --runtime runc -- stelia-runner run --qmp /run/qmp -- sh -c "exec sleep infinity"
state registered floating
setting 'partition = "member"'
vm beside 1 1 ""
state beside contained
# More vCPUs than CPUs: not pinned, and a partition that balances.
setting 'partition = "isolated"'
vm crowded 1 2 ""
state crowded isolated
rm /run/stelia/steliad.toml.d/90-record.toml
systemctl reload steliad
steliactl reconcile
steliactl list
steliactl verify || true
python3 record.py "$NODE_RESULTS"
