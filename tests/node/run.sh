#!/bin/sh
# What only an old kernel shows is shown on the old kernel, and what needs many CPUs on a node that has them.
# What needs an older release's package (STELIA_FROM) is shown where there is one.
# FILTER: names of tests, or parts of them. SHARD=K/N: one of N shares of the tests without the DEAR, of about the same length.
noise=noise::of_eight_vms_under_a_minute_of_noise_none_sees_anybody_on_its_cpus
# Boots a Linux from the examples' disks: run where it is asked for.
linux=first_vm::a_linux_in_the_examples
# What libvirt does to a VM, verb by verb: many minutes, so it is run where it is asked for.
libvirt=libvirt::verbs
# in_place::here: neither runc nor crun of trixie copes with threaded cgroups in a container.
# What was seen to hold on Debian unstable; the other tests of trixie were not tried there yet (FILTER runs them). conformance is known
# to differ: kernel 7.2 lets cpuset.cpus and cpuset.mems of a cgroup with processes be emptied, which 6.12 refuses.
unstable="sid:: runner::a_plugged runner::an_io_thread crun:: in_place:: trial:: isolation:: movers:: doors::a_pod limits::memory libvirt:: drift::a_cpu allocator::bounds::where allocator::life::a_container_that_dies"
case ${STELIA_FROM:+upgrade.}$NODE_IMAGE.$(nproc) in
  upgrade.*) set -- ${FILTER:-upgrade::} ;;
  bookworm.*) set -- bookworm:: ;;
  *.16) set -- ${FILTER:-$noise cost::on_many_cpus} ;;
  *.32) set -- ${FILTER:-scale::of_many} ;;
  sid.*) set -- --skip bookworm:: --skip $noise --skip scale::of_many --skip cost::on_many_cpus --skip upgrade:: ${FILTER:-$unstable} ;;
  *) set -- --skip bookworm:: --skip sid:: --skip in_place::here:: --skip $noise --skip scale::of_many --skip cost::on_many_cpus --skip upgrade:: $FILTER
    case $FILTER in *$linux*) ;; *) set -- --skip $linux "$@" ;; esac ;;
esac
case $FILTER in *$libvirt*) ;; *) set -- --skip $libvirt "$@" ;; esac
if [ -n "$SHARD" ]; then
  for name in $DEAR; do set -- --skip "$name" "$@"; done
  # The longest first, each to the share that has least so far. The first one has bookworm's before.
  set -- --exact $(/job/node-tests --list --format terse --include-ignored "$@" | sed -n 's/: test$//p' |
    awk 'NR == FNR { took[$2] = $1; next } { print ($1 in took ? took[$1] : 5), $1 }' /job/seconds - | sort -k 1,1rn -k 2 |
    awk -v k="${SHARD%/*}" -v n="${SHARD#*/}" 'BEGIN { sum[1] = 90 } { least = 1; for (at = 2; at <= n; at++) if (sum[at] < sum[least]) least = at; sum[least] += $1; if (least == k) print $2 }')
fi
echo "guests run on $NODE_GUEST"
exec /job/node-tests --test-threads=1 --nocapture --include-ignored "$@"
