#!/bin/bash
# Installs a tarball of nlac into an empty project with one package manager, sets up, and trains.
# Prints the seconds of each step.
# usage: scripts/try-tarball.sh TARBALL [npm|pnpm|yarn|bun] [RECIPE SETTING…]
set -euo pipefail
tarball=$(realpath "$1")
client=${2:-npm}
settings=("${@:3}")
project=$(mktemp -d)
trap 'rm -rf "$project"' EXIT
cd "$project"
echo '{ "name": "project", "private": true, "type": "module" }' >package.json

step() {
  local name=$1 started=$SECONDS
  shift
  "$@"
  echo "== $name: $((SECONDS - started)) s"
}
install() {
  case $client in
    npm) npm install --no-audit --no-fund "$tarball" ;;
    pnpm) npx --yes pnpm@10 add "$tarball" ;;
    yarn) npx --yes yarn@1 add "file:$tarball" ;;
    bun) npx --yes bun@1 add "$tarball" ;;
    *) echo "unknown client $client" >&2 && exit 2 ;;
  esac
}
nlac() { node node_modules/nlac/bin/nlac.js "$@"; }

step "$client install" install
step setup nlac setup
step doctor nlac doctor
step import node --eval 'import("nlac").then(({ trainNlac }) => trainNlac ?? process.exit(1))'
step "require" node --input-type=commonjs --eval 'if (typeof require("nlac").trainNlac !== "function") process.exit(1)'
step train nlac train quickstart "${settings[@]}"
