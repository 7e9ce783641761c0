"""Builds the wheel (PEP 517) with cargo and the standard library: docs/design/python.md.

FOREBAY_BINARIES names a directory with the finished command and libraries; then cargo is not run.
"""

import base64
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sysconfig
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
PACKAGES = "forebay forebay-preload forebay-capi forebay-mpiio forebay-mpiio-large forebay-hdf5 forebay-hdf5-later"
# Where scripts/install has them below PREFIX, which is the virtual environment here.
PLACES = {
    "forebay": "scripts/forebay",
    "libforebay_preload.so": "data/lib/forebay/libforebay_preload.so",
    "libforebay_mpiio.so": "data/lib/forebay/libforebay_mpiio.so",
    "libforebay_mpiio_large.so": "data/lib/forebay/libforebay_mpiio_large.so",
    "libforebay_hdf5.so": "data/lib/forebay/libforebay_hdf5.so",
    "libforebay_hdf5_later.so": "data/lib/forebay/libforebay_hdf5_later.so",
    "libforebay_capi.so": "data/lib/libforebay.so.0",
}


def _version():
    text = (ROOT / "Cargo.toml").read_text()
    return re.search(r'^version = "([^"]+)"', text, re.M)[1]


def _binaries():
    given = os.environ.get("FOREBAY_BINARIES")
    if given:
        return pathlib.Path(given)
    packages = [word for name in PACKAGES.split() for word in ("-p", name)]
    subprocess.run(["cargo", "build", "--release", "--locked", *packages], cwd=ROOT, check=True)
    metadata = subprocess.run(
        ["cargo", "metadata", "--format-version", "1", "--no-deps", "--locked"],
        cwd=ROOT, check=True, stdout=subprocess.PIPE,
    )
    return pathlib.Path(json.loads(metadata.stdout)["target_directory"]) / "release"


def get_requires_for_build_wheel(config_settings=None):
    return []


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    version, binaries = _version(), _binaries()
    platform = re.sub(r"[-.]", "_", sysconfig.get_platform())
    tag = f"py3-none-{platform}"
    name, info, data = (
        f"forebay-{version}-{tag}.whl", f"forebay-{version}.dist-info", f"forebay-{version}.data",
    )
    entries = []
    with zipfile.ZipFile(pathlib.Path(wheel_directory) / name, "w", zipfile.ZIP_DEFLATED) as wheel:

        def add(place, content, mode=0o644):
            item = zipfile.ZipInfo(place)
            item.external_attr = (0o100000 | mode) << 16
            item.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(item, content, compresslevel=1)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
            entries.append(f"{place},sha256={digest.decode()},{len(content)}")

        package = ROOT / "python/forebay"
        for path in sorted(package.iterdir()):
            if path.suffix == ".py" or path.name == "py.typed" or path.suffix == ".pyi":
                add(f"forebay/{path.name}", path.read_bytes())
        for file, place in PLACES.items():
            add(f"{data}/{place}", (binaries / file).read_bytes(), 0o755)
        metadata = (
            f"Metadata-Version: 2.1\nName: forebay\nVersion: {version}\n"
            "Summary: Buffers files of programs in the fast tiers of a node\n"
            "Requires-Python: >=3.9\nProvides-Extra: fsspec\n"
            'Requires-Dist: fsspec>=2024.2; extra == "fsspec"\n'
        )
        add(f"{info}/METADATA", metadata.encode())
        add(f"{info}/entry_points.txt",
            b"[fsspec.specs]\nforebay = forebay.fs:ForebayFileSystem\n")
        add(f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: forebay_build\n"
            f"Root-Is-Purelib: false\nTag: {tag}\n".encode())
        add(f"{info}/licenses/LICENSE", (ROOT / "LICENSE").read_bytes())
        wheel.writestr(f"{info}/RECORD", "\n".join([*entries, f"{info}/RECORD,,", ""]))
    return name
