#!/bin/sh
# What only an old kernel shows is shown on the old kernel, and what needs many CPUs on a node that has them.
# FILTER: names of tests, or parts of them. SHARD=K/N: every N-th of the tests, from the K-th on.
many=noise::of_eight_vms_under_a_minute_of_noise_none_sees_anybody_on_its_cpus
case $NODE_IMAGE.$(nproc) in
  bookworm.*) set -- bookworm:: ;;
  *.16) set -- $many ;;
  sid.*) set -- --skip bookworm:: --skip $many $FILTER ;;
  *) set -- --skip bookworm:: --skip sid:: --skip $many $FILTER ;;
esac
if [ -n "$SHARD" ]; then
  set -- --exact $(/job/node-tests --list --format terse --include-ignored "$@" | sed -n 's/: test$//p' | awk -v k="${SHARD%/*}" -v n="${SHARD#*/}" 'NR % n == k % n')
fi
echo "guests run on $NODE_GUEST"
exec /job/node-tests --test-threads=1 --nocapture --include-ignored "$@"
