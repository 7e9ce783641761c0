"""Forebay for Spack. There is no archive to fetch: in a checkout of the sources give

    spack dev-build --source-path . forebay@0.1.0

with this file as packages/forebay/package.py of a repository that `spack repo add` has added. For Spack 1.0
and newer.
"""

from spack_repo.builtin.build_systems.generic import Package

from spack.package import *


class Forebay(Package):
    """Buffers the files of unmodified programs in RAM, NVMe and burst buffers in front of a slow
    parallel file system, and drains them to their own paths in the background."""

    license("Apache-2.0")

    version("0.1.0")

    depends_on("c", type="build")
    depends_on("rust@1.88:", type="build")

    conflicts("platform=darwin", msg="Forebay is for Linux")
    conflicts("platform=windows", msg="Forebay is for Linux")

    def install(self, spec, prefix):
        Executable(join_path(self.stage.source_path, "scripts", "install"))(str(prefix))

    def setup_run_environment(self, env):
        env.prepend_path("PYTHONPATH", join_path(self.prefix, "lib", "forebay", "python"))
