#!/usr/bin/env bash
# Tries what scripts/package.sh has made as its user would: without Rust, without this checkout.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/needs.sh
dist=$PWD/dist
version=$(grep -m 1 -oP '^version = "\K[^"]+' Cargo.toml)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"

# bare PATH COMMAND...: with nothing of this shell's environment.
bare() { env -i HOME="$scratch" PATH="$1" "${@:2}"; }
# demo PATH: the demo's answer, by the `queuescope` that is found there.
demo() { bare "$1" queuescope demo | tee "$scratch/said" | tail -3 && grep -q "100 ok" "$scratch/said"; }
step() { echo "== $*"; }

step the wheel, in a venv without Rust
need python3 python3 python3-venv
python3 -m venv venv
path=$scratch/venv/bin:/usr/bin:/bin
if bare "$path" sh -c 'command -v cargo'; then echo "error: Rust is on the path" >&2; exit 1; fi
bare "$path" pip install --quiet --no-index "$dist"/queuescope-"$version"-*.whl
demo "$path"
bare "$path" queuescope-traffic --version
ls venv/share/man/man1/queuescope.1 venv/share/bash-completion/completions/queuescope >/dev/null

step the archive
tar -xzf "$dist"/queuescope-"$version"-*.tar.gz
bin=$(echo "$scratch"/queuescope-*-musl/bin)
need readelf binutils
if readelf --dynamic "$bin/queuescope" | grep NEEDED; then echo "error: the binary needs a library" >&2; exit 1; fi
demo "$bin:/usr/bin:/bin"
bare "$bin:/usr/bin:/bin" queuescope-traffic --version

step the image
need buildah buildah
container=$(buildah from "oci-archive:$dist/queuescope-$version.oci.tar")
trap 'buildah rm "$container" >/dev/null; rm -rf "$scratch"' EXIT
buildah inspect --format '{{range .OCIv1.RootFS.DiffIDs}}layer {{.}}{{"\n"}}{{end}}user {{.OCIv1.Config.User}}, entry point {{.OCIv1.Config.Entrypoint}}{{"\n"}}' \
    "$container"
entry=$(buildah inspect --format '{{index .OCIv1.Config.Entrypoint 0}}' "$container")
buildah run --isolation chroot "$container" -- "$entry" demo | tee said | tail -3
grep -q "100 ok" said
echo "package: wheel, archive and image run"
