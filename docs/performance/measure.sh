#!/bin/bash
# Measures what docs/performance.md describes, and writes data (.json), tables (.md) and pictures (.svg) beside this script.
#
#     docs/performance/measure.sh [NAME...]
#
# NAME: micro, cliffs, hermes-fig4, -fig5, -fig6, peers; all of these without one. Wants a quiet machine: the
# load at the start stands in each table. DIR, in the environment, is where the store's files are (on
# a disk, by default /var/tmp); FOREBAY the command (by default the release build, which is made).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
dir=${DIR:-/var/tmp}
if [ -z "${FOREBAY:-}" ]; then
    cargo build --release --package forebay
    FOREBAY=${CARGO_TARGET_DIR:-../../target}/release/forebay
fi
[ $# -gt 0 ] || set -- micro cliffs hermes-fig4 hermes-fig5 hermes-fig6 peers

title() {
    case $1 in
    micro) echo "The hot path" ;;
    cliffs) echo "Ordinary operations" ;;
    hermes-fig4) echo "Figure 4: memory operations" ;;
    hermes-fig5) echo "Figure 5: metadata operations" ;;
    hermes-fig6) echo "Figure 6: messages" ;;
    peers) echo "Other systems that buffer" ;;
    esac
}

table=$(mktemp)
trap 'rm -f "$table"' EXIT
for name; do
    options=(--json "$name.json" --markdown "$table")
    case $name in
    micro | cliffs) options+=(--dir "$dir") ;;
    peers) options+=(--dir "$dir" --install) ;;
    *) options+=(--svg "$name.svg") ;;
    esac
    "$FOREBAY" bench "$name" "${options[@]}"
    {
        echo "# $(title "$name"), measured"
        echo
        echo "Made by \`docs/performance/measure.sh $name\`; what is measured, and why, is in" \
            "[the page on performance](../performance.md)."
        echo
        cat "$table"
    } >"$name.md"
done
