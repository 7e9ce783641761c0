#!/bin/bash
# Without a batch system: several runs over one node manager, and a look at what they did.
set -euo pipefail
: "${FOREBAY_PROJECT:?set it to the directory that is to be buffered}"

forebay up --backing "$FOREBAY_PROJECT"
trap 'forebay down --backing "$FOREBAY_PROJECT"' EXIT
forebay run --backing "$FOREBAY_PROJECT" -- "$@"
forebay wait "$FOREBAY_PROJECT"
forebay report
