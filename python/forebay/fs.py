"""An fsspec file system: `forebay://PATH` is the local file PATH, opened by `forebay.open`.

Installed packages find it by its entry point: `pandas.read_parquet("forebay:///data/x.parquet")`.
"""

import os

from fsspec.implementations.local import LocalFileOpener, LocalFileSystem

import forebay

_HEADS = ("forebay://", "forebay:")


class _File(LocalFileOpener):
    """One of fsspec: it has a `size`, and is pickled while it is read. `f` is of `forebay.open`."""

    def _open(self):
        if self.f is None or self.f.closed:
            self.f = forebay.open(self.path, self.mode)
            if "w" not in self.mode:
                self.size = self.f.size = os.fstat(self.f.fileno()).st_size

    def readable(self):
        return self.f.readable()

    def writable(self):
        return self.f.writable()


class ForebayFileSystem(LocalFileSystem):
    """Local files through Forebay. Relative paths are from where the process is."""

    protocol = "forebay"
    root_marker = "/"

    @classmethod
    def _strip_protocol(cls, path):
        if isinstance(path, (list, tuple)):
            return [cls._strip_protocol(each) for each in path]
        path = os.fspath(path)
        for head in _HEADS:
            if path.startswith(head):
                path = path[len(head):]
                break
        return super()._strip_protocol(path)

    def unstrip_protocol(self, name):
        return "forebay://" + self._strip_protocol(name)

    def _open(self, path, mode="rb", block_size=None, autocommit=True, **kwargs):
        path = self._strip_protocol(path)
        if not autocommit:
            # A transaction writes a temporary file, and moves it at the commit.
            return super()._open(path, mode, block_size, autocommit=False, **kwargs)
        if self.auto_mkdir and any(letter in mode for letter in "wxa"):
            self.makedirs(self._parent(path), exist_ok=True)
        return _File(path, mode, fs=self)

    def wait(self, path, level="store", timeout=None):
        """Waits until what was written to a file is at `level`, see `forebay.wait`."""
        with forebay.open(self._strip_protocol(path), "rb", 0) as file:
            forebay.wait(file, level, timeout)

    def prefetch(self, path):
        """Says that a file will be read soon."""
        with forebay.open(self._strip_protocol(path), "rb", 0) as file:
            forebay.prefetch(file)
