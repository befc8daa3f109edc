#!/usr/bin/env bash
# Runs the commands of README and of DEPLOY.md's "Other ways to stand" as they stand there, each page's one after another in one shell,
# and looks at what they have left. Only the long ones of "Start here" are left out: CI runs them by themselves.
#
# bash scripts/readme.sh [FOLDER]   the folder with `queuescope` (default: target/release)
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/needs.sh
need python3 python3
need openssl openssl
bin=$(realpath "${1:-target/release}")
checkout=$PWD
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
bash scripts/router.sh
mkdir "$scratch/scripts"
ln -s "$checkout/.tools" "$scratch/.tools"
cp scripts/router.sh scripts/needs.sh "$scratch/scripts/"
# blocks FILE [HEADING]: the `sh` blocks of a page, or of one of its sections.
blocks() {
    python3 - "$@" <<'END'
import re, sys
text = open(sys.argv[1]).read()
if len(sys.argv) > 2:
    text = re.search(rf"^## {re.escape(sys.argv[2])}$(.*?)(?=^## |\Z)", text, re.M | re.S)[1]
found = [block for block in re.findall(r"^```sh\n(.*?)^```", text, re.M | re.S) if "scripts/test.sh" not in block]
assert found, "no commands"
print("".join(found))
END
}
# run NAME: the commands that come, in a shell that ends with the first that fails, and the jobs that they leave.
run() {
    echo "== $1"
    {
        echo "trap 'kill \$(jobs -p) 2>/dev/null || true; wait' EXIT"
        # 3: the generator was late, as all of them share this machine.
        echo 'queuescope() { [ $BASHPID = $$ ] || exec queuescope "$@"; command queuescope "$@" || [ $? = 3 ]; }'
        # The path is that of a release build, which need not be there.
        grep -v '^export PATH='
    } >"$scratch/$1.sh"
    (cd "$scratch" && HOME=$scratch PATH=$bin:$PATH exec bash -euo pipefail "$1.sh") >"$scratch/$1.out" 2>&1 </dev/null ||
        { tail -30 "$scratch/$1.out" && echo "error: a command of $1 failed" >&2 && exit 1; }
}
# rows FILE COUNT COLUMN...: so many rows went well, all with these columns.
rows() {
    python3 - "$scratch/results/$@" <<'END'
import csv, sys
path, count, columns = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
rows = [row for row in csv.DictReader(open(path)) if row["outcome"] == "ok"]
assert len(rows) >= count, f"{path}: {len(rows)} rows went well, not {count}"
for column in columns:
    empty = [row["req_id"] for row in rows if not row[column]]
    assert not empty, f"{path}: {column} is empty in {len(empty)} of {len(rows)} rows"
print(f"{path.rsplit('/results/', 1)[1]}: {len(rows)} rows with {', '.join(columns)}")
END
}

blocks README.md | run readme
rows records.csv 102 host queue_time_in_router pure_queue_time decode_time
# The remote hop served half of them, and the front has its stamps.
rows hop.csv 50 host pure_queue_time
[ "$(grep -c 127.0.0.1:18400 "$scratch/results/records.csv")" -ge 50 ]
[ -z "$(find "$scratch" -iname '*secret*')" ]
rows traffic/latest/requests.csv 100 pure_queue_time schedule_lag
grep -q "100 ok" "$scratch/readme.out"
rm -r "$scratch/results"
mkdir "$scratch/results"
{
    # What the section begins from.
    printf 'queuescope sim --port %s --max-running-requests 8 >/dev/null &\n' 30000 30100
    echo 'until queuescope probe http://127.0.0.1:30100 --output-len 1 >/dev/null 2>&1; do sleep 0.2; done'
    blocks docs/DEPLOY.md "Other ways to stand"
} | run deploy
rows node.csv 40 host pure_queue_time
rows front.csv 1 host queue_time_in_router pure_queue_time hop_clock_offset
rows hop.csv 1 pure_queue_time
rows traffic/latest/requests.csv 40 pure_queue_time
echo "readme: its commands do what it says"
