#!/bin/sh
# Each image has tests of its own: what only an old kernel shows is shown on the old kernel.
case $NODE_IMAGE in
  bookworm) set -- bookworm:: ;;
  *) set -- --skip bookworm:: $FILTER ;;
esac
exec /job/node-tests --test-threads=1 --nocapture --include-ignored "$@"
