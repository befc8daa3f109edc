#!/usr/bin/env bash
# An SGLang server for a hop on the same machine.
#   MODEL=Qwen/Qwen3-0.6B PORT=30000 bash deploy/sglang/server.sh [MORE FLAGS OF launch_server]
set -euo pipefail
# 127.0.0.1: only the hop reaches it, so nothing passes unmeasured.
# --enable-metrics: without it nobody knows how long a request was in its queue, and there is no /metrics.
# --enable-cache-report: without it chats do not tell how much of their prompt the cache held.
exec python3 -m sglang.launch_server --model-path "${MODEL:?a model, as in MODEL=Qwen/Qwen3-0.6B}" \
    --host 127.0.0.1 --port "${PORT:-30000}" --enable-metrics --enable-cache-report "$@"
# Its own spans, below the hop's in the same trace (each costs it time): --enable-trace --otlp-traces-endpoint HOST:4317
