#!/usr/bin/env python3
"""Index and query of particles, as in Data Elevator's example, in transit.

A file of particles has records of eight 32-bit floats (x, y, z, i, ux, uy, uz, energy), as VPIC-IO's
eight properties. `index` reads the whole file once and writes to its standard output which blocks
have particles of an energy above the threshold; `query` reads that index and only these blocks.

    forebay analyse --match '*.particles' --name energy --drain after -- \
        examples/analyse/energy.py index --above 0.97 {file}
    examples/analyse/energy.py query FILE FILE.energy.out
"""

import argparse
import json
import os
import struct
import sys
from array import array

FIELDS = 8
RECORD = 4 * FIELDS
ENERGY = 7
BLOCK = 1 << 20


def blocks(path):
    """The blocks of a file with their number, each as an array of floats."""
    with open(path, "rb", buffering=0) as file:
        number = 0
        while data := file.read(BLOCK):
            if len(data) % RECORD:
                raise SystemExit(f"{path}: a record is {RECORD} bytes, and the file ends within one")
            floats = array("f")
            floats.frombytes(data)
            yield number, floats
            number += 1


def index(path, above):
    """Which blocks have such particles, and how many."""
    found = []
    for number, floats in blocks(path):
        count = sum(1 for energy in floats[ENERGY::FIELDS] if energy > above)
        if count:
            found.append([number, count])
    return {"above": above, "block": BLOCK, "bytes": os.path.getsize(path), "blocks": found}


def query(path, found):
    """The particles that the index is of, read from the blocks that have some."""
    if os.path.getsize(path) != found["bytes"]:
        raise SystemExit(f"{path} is not the file that was indexed")
    with open(path, "rb", buffering=0) as file:
        for number, count in found["blocks"]:
            data = os.pread(file.fileno(), found["block"], number * found["block"])
            seen = [r for r in struct.iter_unpack(f"{FIELDS}f", data) if r[ENERGY] > found["above"]]
            if len(seen) != count:
                raise SystemExit(f"{path}: block {number} has {len(seen)} of {count} particles")
            yield from seen


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("index")
    one.add_argument("--above", type=float, default=0.97)
    one.add_argument("file")
    one = commands.add_parser("query")
    one.add_argument("file")
    one.add_argument("index")
    given = parser.parse_args()
    if given.command == "index":
        json.dump(index(given.file, given.above), sys.stdout)
        print()
    else:
        with open(given.index, encoding="utf-8") as text:
            particles = list(query(given.file, json.load(text)))
        print(len(particles))


if __name__ == "__main__":
    main()
