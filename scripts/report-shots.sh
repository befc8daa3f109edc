#!/usr/bin/env bash
# Pictures of a report's page as Chromium draws it: wide and as on a phone, light and dark. Fails where the page says
# anything in the browser's console, asks for anything beside itself, or must be scrolled sideways.
# Usage: bash scripts/report-shots.sh report.html FOLDER
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/needs.sh
page=$(realpath "$1")
folder=${2:-.tools/report-shots}
mkdir -p "$folder" .tools/browser
folder=$(realpath "$folder")
need chromium chromium fonts-dejavu-core
need node nodejs npm
[ -d .tools/browser/node_modules/playwright-core ] ||
    npm install --silent --no-save --prefix .tools/browser playwright-core@1.65.1
NODE_PATH=.tools/browser/node_modules node scripts/report-shots.js "$page" "$folder"
