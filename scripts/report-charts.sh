#!/usr/bin/env bash
# The charts' library as the report's page holds it: checks that it is what npm's registry has, unchanged. To renew it, name another
# version: bash scripts/report-charts.sh 6.1.0
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/needs.sh
need npm npm
version=${1:-6.1.0}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# npm checks the package against the registry's own digest.
npm pack --silent --pack-destination "$work" "echarts@$version" >/dev/null
tar xzf "$work"/echarts-*.tgz -C "$work"
place=src/report/page
if [ $# -gt 0 ]; then
    cp "$work/package/dist/echarts.common.min.js" "$place/"
    cp "$work/package/LICENSE" "$place/echarts.LICENSE"
    cp "$work/package/NOTICE" "$place/echarts.NOTICE"
    sed -i "s/^version=.*/version=\${1:-$version}/" scripts/report-charts.sh
fi
cmp "$work/package/dist/echarts.common.min.js" "$place/echarts.common.min.js"
cmp "$work/package/LICENSE" "$place/echarts.LICENSE"
echo "echarts $version, as published"
