#!/bin/bash
# Measures everything that docs/performance.md shows, and puts data, tables and pictures in their places.
#
#     docs/performance/measure.sh [NAME...]
#
# NAME: micro, hermes-fig4, -fig5, -fig6, peers; all of these without one. Wants a quiet machine: the
# load at the start stands in each table. DIR, in the environment, is where the store's files are (on
# a disk, by default /var/tmp); FOREBAY the command (by default the release build, which is made).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
page=../performance.md
dir=${DIR:-/var/tmp}
if [ -z "${FOREBAY:-}" ]; then
    cargo build --release --package forebay
    FOREBAY=${CARGO_TARGET_DIR:-../../target}/release/forebay
fi
[ $# -gt 0 ] || set -- micro hermes-fig4 hermes-fig5 hermes-fig6 peers

table=$(mktemp)
trap 'rm -f "$table"' EXIT
for name; do
    options=(--json "$name.json" --markdown "$table")
    case $name in
    micro) options+=(--dir "$dir") ;;
    peers) options+=(--dir "$dir" --install) ;;
    *) options+=(--svg "$name.svg") ;;
    esac
    "$FOREBAY" bench "$name" "${options[@]}"
    # The table stands between two comments of the page.
    awk -v name="$name" -v table="$table" '
        $0 == "<!-- end " name " -->" { skip = 0 }
        !skip { print }
        $0 == "<!-- begin " name " -->" {
            print ""
            while ((getline line < table) > 0) print line
            print ""
            skip = 1
        }' "$page" >"$page.new"
    mv "$page.new" "$page"
done
