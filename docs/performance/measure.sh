#!/bin/bash
# Measures what docs/performance.md describes, and writes data (.json), tables (.md) and pictures (.svg) beside this script.
#
#     docs/performance/measure.sh [NAME...]
#
# NAME: micro, policies, prefetch, mlbs, fabric, nodes, nodes-fig5, nodes-fig6, cliffs, hermes-fig4 to -fig6,
# hermes-fig8 to -fig11, data-elevator-analysis, data-elevator-fig5 to -fig8, nvm-model, nvm-adapter, nvm-fig4 to -fig11, peers; all of these without one. Wants a quiet machine: the load at the
# start stands in each table. DIR, in the environment, is where the store's files are (on
# a disk, by default /var/tmp); FOREBAY the command (by default the release build, which is made);
# ROUNDS how often everything is run (by default until medians are known).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
dir=${DIR:-/var/tmp}
if [ -z "${FOREBAY:-}" ]; then
    cargo build --release --package forebay
    FOREBAY=${CARGO_TARGET_DIR:-../../target}/release/forebay
fi
[ $# -gt 0 ] || set -- micro policies prefetch mlbs fabric nodes nodes-fig{5,6} cliffs hermes-fig{4,5,6,8,9,10,11} \
    data-elevator-{analysis,fig5,fig6,fig7,fig8} nvm-{model,adapter} nvm-fig{4,5,6,7,8,9,10,11} peers

title() {
    case $1 in
    micro) echo "The hot path" ;;
    policies) echo "Placement policies" ;;
    prefetch) echo "Reading ahead" ;;
    mlbs) echo "Computing out of core" ;;
    fabric) echo "Links between node managers" ;;
    nodes) echo "Several nodes" ;;
    nodes-fig5) echo "Figure 5 between nodes: metadata operations" ;;
    nodes-fig6) echo "Figure 6 between nodes: messages" ;;
    cliffs) echo "Ordinary operations" ;;
    hermes-fig4) echo "Figure 4: memory operations" ;;
    hermes-fig5) echo "Figure 5: metadata operations" ;;
    hermes-fig6) echo "Figure 6: messages" ;;
    hermes-fig8) echo "Figure 8: alternating compute and I/O" ;;
    hermes-fig9) echo "Figure 9: repetitive reads" ;;
    hermes-fig10) echo "Figure 10: VPIC-IO" ;;
    hermes-fig11) echo "Figure 11: HACC-IO" ;;
    data-elevator-analysis) echo "Analyses in transit" ;;
    data-elevator-fig5) echo "Data Elevator, Figure 5: what each part gives" ;;
    data-elevator-fig6) echo "Data Elevator, Figure 6: VPIC" ;;
    data-elevator-fig7) echo "Data Elevator, Figure 7: CAMR" ;;
    data-elevator-fig8) echo "Data Elevator, Figure 8: analysis in transit" ;;
    nvm-model) echo "Collective and independent I/O" ;;
    nvm-adapter) echo "The choice of the mode, for programs" ;;
    nvm-fig4) echo "NVM, Figure 4: HACC-IO and memory" ;;
    nvm-fig5) echo "NVM, Figure 5: MADbench2 and memory" ;;
    nvm-fig6) echo "NVM, Figure 6: S3aSim and memory" ;;
    nvm-fig7) echo "NVM, Figure 7: POSIX and MPI on one node" ;;
    nvm-fig8) echo "NVM, Figure 8: POSIX and MPI over a network" ;;
    nvm-fig9) echo "NVM, Figure 9: collective I/O, one process a node" ;;
    nvm-fig10) echo "NVM, Figure 10: collective I/O, four processes a node" ;;
    nvm-fig11) echo "NVM, Figure 11: the trade-off of the model" ;;
    peers) echo "Other systems that buffer" ;;
    esac
}

table=$(mktemp)
trap 'rm -f "$table"' EXIT
for name; do
    options=(--json "$name.json" ${ROUNDS:+--rounds "$ROUNDS"})
    case $name in
    hermes-fig8 | hermes-fig9 | hermes-fig10 | hermes-fig11)
        # Their table is what they print.
        {
            echo '```text'
            "$FOREBAY" bench "$name" "${options[@]}" --svg "$name.svg"
            echo '```'
        } | tee "$table"
        options=()
        ;;
    micro | prefetch | cliffs | fabric | nodes) options+=(--dir "$dir") ;;
    mlbs | data-elevator-* | nvm-*) ;;
    peers) options+=(--dir "$dir" --install) ;;
    nodes-fig*) options+=(--dir "$dir" --svg "$name.svg") ;;
    *) options+=(--svg "$name.svg") ;;
    esac
    [ ${#options[@]} -eq 0 ] || "$FOREBAY" bench "$name" "${options[@]}" --markdown "$table"
    {
        echo "# $(title "$name"), measured"
        echo
        echo "Made by \`docs/performance/measure.sh $name\`; what is measured, and why, is in" \
            "[the page on performance](../performance.md)."
        echo
        cat "$table"
    } >"$name.md"
done
