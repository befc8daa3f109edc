# Sourced by the other scripts: brings what a bare Debian lacks, by name, with its own package manager; builds; waits.

as_root=""
[ "$(id -u)" -eq 0 ] || as_root=sudo

# need COMMAND PACKAGE...: installs the packages unless the command is there.
need() {
    local command=$1
    shift
    command -v "$command" >/dev/null 2>&1 && return
    apt_install "$@"
}

# apt_install PACKAGE...: with apt, as root or by sudo.
apt_install() {
    if ! command -v apt-get >/dev/null 2>&1 || { [ -n "$as_root" ] && ! command -v sudo >/dev/null 2>&1; }; then
        echo "error: please install $* with your package manager, then run this again" >&2
        exit 1
    fi
    echo "installing $* with apt (up to a few minutes)" >&2
    # A list of packages that is missing or old makes the first try fail.
    DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y --no-install-recommends "$@" >/dev/null 2>&1 ||
        { $as_root apt-get update >/dev/null &&
            DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y --no-install-recommends "$@" >/dev/null; }
}

# need_prometheus: the programs alone. Its package would run it as a service, now and at every boot.
need_prometheus() {
    command -v prometheus >/dev/null 2>&1 && return
    local mask=/run/systemd/system/prometheus.service
    # Where systemd runs, it starts nothing that is masked.
    [ ! -d /run/systemd/system ] || $as_root ln -sf /dev/null $mask || true
    (apt_install prometheus) || { $as_root rm -f $mask; exit 1; }
    $as_root env DPKG_MAINTSCRIPT_PACKAGE=prometheus deb-systemd-helper disable prometheus.service >/dev/null
    $as_root rm -f $mask
}

# python_venv FOLDER PACKAGE==VERSION...: a fresh venv in FOLDER with these packages.
python_venv() {
    local folder=$1
    shift
    need python3 python3 python3-venv
    rm -rf "$folder"
    mkdir -p "$(dirname "$folder")"
    python3 -m venv "$folder" >/dev/null 2>&1 || { apt_install python3-venv && rm -rf "$folder" && python3 -m venv "$folder"; }
    "$folder/bin/pip" install --quiet "$@"
}

# need_browser: Chromium, and what drives it in .tools/browser.
need_browser() {
    need chromium chromium fonts-dejavu-core
    need node nodejs npm
    export NODE_PATH=.tools/browser/node_modules
    [ -d $NODE_PATH/playwright-core ] || npm install --silent --no-save --prefix .tools/browser playwright-core@1.65.1
}

# word FILE PATTERN [LOG...]: the pattern's group in FILE, once it is there. If not within a minute, shows FILE and the logs, and fails.
word() {
    local file=$1 pattern=$2 found
    shift 2
    for _ in $(seq 300); do
        found=$(sed -nE "s|.*$pattern.*|\1|p" "$file" | head -1)
        [ -z "$found" ] || { echo "$found" && return; }
        sleep 0.2
    done
    cat "$file" "$@" >&2
    echo "error: nothing like $pattern in $file" >&2
    return 1
}

# What `cargo build` needs beside Rust: a C compiler, and cmake for Pingora's zlib.
need_build_tools() {
    if ! command -v cargo >/dev/null 2>&1; then
        if [ -f "${HOME:-}/.cargo/env" ]; then
            . "${HOME:-}/.cargo/env"
        else
            echo "error: Rust is missing: install it with rustup, then run this again" >&2
            exit 1
        fi
    fi
    need cc gcc libc6-dev
    need make make
    need cmake cmake
}

# build_release: with cargo's own progress, after saying how long it takes where nothing has been built.
build_release() {
    if [ ! -x "${CARGO_TARGET_DIR:-target}/release/queuescope" ]; then
        echo "building queuescope: 5 to 7 minutes from nothing on two cores, seconds from then on" >&2
    fi
    cargo build --release --locked --bin queuescope
}

# need_queuescope: exports QUEUESCOPE, the program: a release build, unless the caller names one.
need_queuescope() {
    if [ -z "${QUEUESCOPE:-}" ]; then
        need_build_tools
        build_release
        QUEUESCOPE=${CARGO_TARGET_DIR:-target}/release/queuescope
    fi
    export QUEUESCOPE
}
