#!/usr/bin/env bash
# Makes what is installed without a compiler, in dist/: a static binary and an archive of it, a Python wheel, an OCI image.
#
# bash scripts/package.sh [archive] [wheel] [image]   (default: all; `root` makes the image's files only)
#
# It is built for musl. (zig as the C compiler would need nothing installed, but takes an hour for what takes musl-gcc seconds.) Into the
# system go only what the build itself lacks (cmake), musl-tools and, for the image, buildah, which needs no daemon.
# `scripts/package-check.sh` tries what was made.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/needs.sh
[ $# -gt 0 ] || set -- archive wheel image
need_build_tools
need musl-gcc musl-tools
triple=$(uname -m)-unknown-linux-musl
tools=.tools/package-1
if [ ! -e $tools/complete ]; then
    python_venv $tools maturin==1.16.0
    touch $tools/complete
fi
export PATH=$PWD/$tools/bin:$PATH
if ! [ -d "$(rustc --print target-libdir --target "$triple")" ]; then
    command -v rustup >/dev/null || { echo "error: no rustup: add Rust's standard library for $triple by hand" >&2; exit 1; }
    rustup target add "$triple"
fi
export "CC_${triple//-/_}=musl-gcc"
version=$(grep -m 1 -oP '^version = "\K[^"]+' Cargo.toml)
# pyproject.toml names it too.
target=target
export CARGO_TARGET_DIR=$PWD/$target
built=$target/$triple/dist/queuescope
# What stands beside the binary in the archive and in the wheel.
data=$target/wheel-data/data scripts=$target/wheel-data/scripts
# The image: its files, and the folder that its user may write to.
image=$target/image

# wheel_in FOLDER: builds the binary, if need be, and a wheel of it.
wheel_in() {
    maturin build --target "$triple" --compatibility manylinux2014 musllinux_1_1 --out "$1"
}

archive() {
    local name=queuescope-$version-$triple folder
    folder=$target/$name
    rm -rf "$folder"
    mkdir -p "$folder/bin"
    cp "$built" "$scripts"/* "$folder/bin/"
    cp -r "$data/share" LICENSE README.md config.toml "$folder/"
    tar --create --gzip --owner=0 --group=0 --file "dist/$name.tar.gz" -C "$target" "$name"
    cp "$built" dist/queuescope
}

wheel() { wheel_in dist; }

root() {
    local root=$image/root
    [ -f /etc/ssl/certs/ca-certificates.crt ] || apt_install ca-certificates
    rm -rf "$image"
    mkdir -p "$root/var/lib" "$root/tmp" "$image/data/queuescope"
    chmod 1777 "$root/tmp"
    install -D "$built" "$root/usr/local/bin/queuescope"
    install -D -m 644 /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
    install -D -m 644 LICENSE "$root/usr/share/doc/queuescope/LICENSE"
}

# The last stage of deploy/Dockerfile, from the files that its first stage would have made.
image() {
    need buildah buildah
    root
    local archive=dist/queuescope-$version.oci.tar
    rm -f "$archive"
    sed -n '/^FROM scratch/,$ { s| --from=build||; s|/src/target/image/|./|; p }' deploy/Dockerfile >"$target/Dockerfile"
    buildah build --quiet --isolation chroot --format oci --layers=false --file "$target/Dockerfile" \
        --tag "oci-archive:$archive:queuescope:$version" "$image" >/dev/null
}

[ -x "$built" ] || echo "building for $triple: about 15 minutes from nothing on two cores" >&2
rm -rf "$target/wheel-data"
mkdir -p dist "$scripts" "$data/share/man/man1"
cat >"$scripts/queuescope-traffic" <<'END'
#!/bin/sh
[ "$1" = --version ] || set -- traffic "$@"
exec "$(dirname "$0")/queuescope" "$@"
END
chmod 755 "$scripts/queuescope-traffic"
wheel_in "$target/first-wheel"
"$built" man "$data/share/man/man1"
completions() {
    mkdir -p "$(dirname "$data/share/$2")"
    "$built" completions "$1" >"$data/share/$2"
}
completions bash bash-completion/completions/queuescope
completions zsh zsh/site-functions/_queuescope
completions fish fish/vendor_completions.d/queuescope.fish
for part in "$@"; do
    case $part in
        archive | wheel | root | image) "$part" ;;
        *) echo "error: $part: give archive, wheel or image" >&2; exit 2 ;;
    esac
done
ls -l dist
