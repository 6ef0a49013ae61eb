#!/bin/sh
# The node tests, on the node: those that `sections` has for the node's system and its number of CPUs.
# FILTER: names of tests, or parts of them, instead. SHARD=K/N: one of N shares of about the same length, without the
# sections that `make check` leaves to check-long.
section() { sed -n "s/^$1 //p" /job/sections; }
# Tests with these parts in their names, unless FILTER asks for them.
skip() {
  for name in "$@"; do
    case $FILTER in *"$name"*) ;; *) skipped="$skipped --skip $name" ;; esac
  done
}

skip $(section libvirt) $(section real) $(section vfio)
case $NODE_IMAGE.$(nproc) in
  trixie-vfio.*) set -- ${FILTER:-$(section vfio)}; skipped='' ;;
  bookworm.*) set -- ${FILTER:-$(section bookworm)} ;;
  trixie-arm64.*)
    skip $(section bookworm) $(section cpus-16) $(section cpus-32)
    set -- ${FILTER:-$(section arm64)} ;;
  *.16) set -- ${FILTER:-$(section cpus-16)} ;;
  *.32) set -- ${FILTER:-$(section cpus-32)} ;;
  sid.*)
    skip $(section bookworm) $(section cpus-16) $(section cpus-32)
    set -- ${FILTER:-$(section sid)} ;;
  *)
    skip $(section bookworm) $(section cpus-16) $(section cpus-32) $(section linux) $(section in-place-on-sid) sid::
    set -- $FILTER ;;
esac
[ -z "$SHARD" ] || skip $(section slow) $(section breadth) $(section breadth-bookworm) $(section resize) $(section allocator) $(section ledger) $(section crash) $(section soak) $(section fair)
set -- $skipped "$@"
if [ -n "$SHARD" ]; then
  # The longest first, each to the share that has least so far. The first share runs beside bookworm's tests.
  set -- --exact $(/job/node-tests --list --format terse --include-ignored "$@" | sed -n 's/: test$//p' |
    awk 'NR == FNR { took[$2] = $1; next } { print ($1 in took ? took[$1] : 5), $1 }' /job/seconds - | sort -k 1,1rn -k 2 |
    awk -v k="${SHARD%/*}" -v n="${SHARD#*/}" 'BEGIN { sum[1] = 90 } { least = 1; for (at = 2; at <= n; at++) if (sum[at] < sum[least]) least = at; sum[least] += $1; if (least == k) print $2 }')
fi
echo "guests run on $NODE_GUEST"
exec /job/node-tests --test-threads=1 --nocapture --include-ignored "$@"
