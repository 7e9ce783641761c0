"""Marks of phases, which ``forebay trace`` shows beside reads and writes.

    from forebay import trace

    with trace.phase("forward"):
        compute()

    @trace.phase("step")
    def step(): ...

Where the process does not run under Forebay, or the C library ``libforebay.so.0`` is not found, marks
do nothing: a program keeps them. ``FOREBAY_LIBRARY`` names the C library; otherwise the loader
finds it, or it is looked for beside the preload library. All threads may use it; a phase ends in
the thread in which it began. No other packages are needed.
"""

import contextlib
import ctypes
import os

__all__ = ["begin", "end", "is_on", "phase"]

_NAME = "libforebay.so.0"


def _candidates():
    named = os.environ.get("FOREBAY_LIBRARY")
    if named:
        yield named
        return
    yield _NAME
    # An installation has it in lib, and the preload library in lib/forebay.
    for library in os.environ.get("LD_PRELOAD", "").replace(":", " ").split():
        folder, name = os.path.split(library)
        if name == "libforebay_preload.so":
            yield os.path.join(folder, os.pardir, _NAME)
            yield os.path.join(folder, "libforebay_capi.so")


def _load():
    """The library and a session of it, or nothing."""
    for path in _candidates():
        try:
            library = ctypes.CDLL(path)
            begin, end = library.forebay_phase_begin, library.forebay_phase_end
        except (OSError, AttributeError):
            continue
        begin.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
        end.argtypes = [ctypes.c_void_p]
        library.forebay_is_active.argtypes = [ctypes.c_void_p]
        session = ctypes.c_void_p()
        if library.forebay_start(ctypes.c_uint(0), ctypes.byref(session)) == 0:
            return library, session
    return None, None


_library, _session = _load()


def is_on():
    """Whether the process runs under Forebay, and marks reach it."""
    return _library is not None and _library.forebay_is_active(_session) == 1


def begin(name):
    """Begins a phase of the calling thread; the first 63 bytes of its name are kept."""
    if _library is not None:
        # Behind a zero there is nothing for C.
        text = str(name).encode("utf-8", "replace").split(b"\0")[0]
        _library.forebay_phase_begin(_session, text)


def end():
    """Ends the innermost phase of the calling thread."""
    if _library is not None:
        _library.forebay_phase_end(_session)


class phase(contextlib.ContextDecorator):
    """A phase, as a context or as a decorator."""

    def __init__(self, name):
        self.name = name

    def __enter__(self):
        begin(self.name)
        return self

    def __exit__(self, *_):
        end()
        return False
