#!/usr/bin/env bash
# The router, between the front and the hops. Its workers are the hops, not the servers.
#   bash deploy/sglang/router.sh http://gpu1:9000 http://gpu1:9001 [-- MORE FLAGS OF smg launch]
set -euo pipefail
hops=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    hops+=("$1")
    shift
done
[ "${1:-}" != -- ] || shift
[ ${#hops[@]} -gt 0 ] || { echo "error: give the hops' addresses, as in http://gpu1:9000" >&2; exit 2; }
# 127.0.0.1: the front is on this machine. 29000 has its own metrics.
exec "${SMG:-smg}" launch --host 127.0.0.1 --port "${PORT:-8000}" --policy cache_aware --worker-urls "${hops[@]}" \
    --prometheus-host 127.0.0.1 --prometheus-port "${METRICS_PORT:-29000}" "$@"
