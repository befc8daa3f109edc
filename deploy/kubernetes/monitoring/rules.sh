#!/usr/bin/env bash
# The rule files of deploy/prometheus/ as a PrometheusRule each, for the Prometheus operator:
#   bash deploy/kubernetes/monitoring/rules.sh | kubectl apply -n llm -f -
set -euo pipefail
cd "$(dirname "$0")/../../prometheus"
for file in *-rules.yml; do
    cat <<END
---
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: queuescope-$(basename "$file" .yml)
spec:
END
    sed 's/^/  /' "$file"
done
