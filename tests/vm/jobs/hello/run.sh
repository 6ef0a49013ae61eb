# The smallest job: what the node is. Good as a template.
set -euo pipefail
uname -r
systemctl --version | head -n 1
lscpu | grep -E '^(CPU\(s\)|Thread|Core|Socket|NUMA)'
echo "to stderr" > /dev/stderr
[ "$(nproc)" = 8 ]
systemd-analyze > "$NODE_RESULTS/analyze.txt"; systemd-analyze blame --no-pager > "$NODE_RESULTS/blame.txt" || true
systemd-analyze critical-chain --no-pager node-job.service > "$NODE_RESULTS/chain.txt" || true
