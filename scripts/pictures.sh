#!/usr/bin/env bash
# Takes the pictures of docs/images anew: the live page of `scripts/keep-running.sh`, right after its burst at 65 s; the page of
# `queuescope routing` (its built-in example); where Grafana is installed, the first dashboard after two of the demo's days.
# Load and seeds are fixed, times are this machine's. Takes 5 minutes, with Grafana 13.
#
# bash scripts/pictures.sh [FOLDER]   the folder with `queuescope` (default: target/release)
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/needs.sh
queuescope=${1:-target/release}/queuescope
[ -x "$queuescope" ] || { echo "error: no $queuescope: build it, or name its folder" >&2; exit 1; }
need_browser
bash scripts/router.sh smg
images=$PWD/docs/images
scratch=$(mktemp -d)
job=
# end: the job under way, and waits for it.
end() {
    [ -z "$job" ] || kill "$job" 2>/dev/null || true
    wait
    job=
}
trap 'end; rm -rf "$scratch"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# shoot URL NAME WIDTH HEIGHT
shoot() {
    timeout 120 node - "$1" "$images/$2" "$3" "$4" <<'END'
const { launch } = require("./scripts/browser.js");
const [url, path, width, height] = process.argv.slice(2);
(async () => {
  const browser = await launch();
  const page = await browser.newPage({ viewport: { width: +width, height: +height } });
  await page.goto(url);
  await page.waitForTimeout(3000);
  await page.screenshot({ path });
  await browser.close();
})();
END
    echo "docs/images/$2"
}

timeout 300 bash scripts/keep-running.sh "$queuescope" "$scratch/demo" .tools/smg-1.13.0/bin/smg \
    >"$scratch/demo.txt" 2>"$scratch/demo.log" &
job=$!
live=$(word "$scratch/demo.txt" '^live page +(http[^ ]*)' "$scratch/demo.log")

sleep 73
shoot "$live" live.png 1200 1240
end

if timeout 600 "$queuescope" routing --output-dir "$scratch/routing" >"$scratch/routing.txt" 2>"$scratch/routing.log"; then
    shoot "file://$scratch/routing/report.html" report.png 1200 1240
else
    echo "routing ended with $? (3: a run is INVALID, this machine is too busy): docs/images/report.png stays as it is"
fi

if command -v grafana >/dev/null 2>&1 || command -v grafana-server >/dev/null 2>&1; then
    need_prometheus
    build_release
    timeout 900 bash scripts/observe.sh >"$scratch/observe.txt" 2>"$scratch/observe.log" &
    job=$!
    grafana=$(word "$scratch/observe.txt" '^Grafana +(http[^ ]*)/dashboards' "$scratch/observe.log")
    sleep 490
    shoot "$grafana/d/queuescope-where?kiosk&theme=dark&from=now-8m&to=now" where-requests-wait.png 1400 925
    end
else
    echo "Grafana is not installed: docs/images/where-requests-wait.png stays as it is"
fi
