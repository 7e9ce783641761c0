"""The C library as functions that take Python values and raise errors of the OSError family."""

import contextlib
import ctypes
import errno
import operator
import os
import threading

from . import mlbs

LEVELS = {"durable": 2, "store": 3}

_INT, _NUMBER, _HANDLE = ctypes.c_int, ctypes.c_int64, ctypes.c_void_p
_PLACE = ctypes.POINTER(_HANDLE)


class Range(ctypes.Structure):
    _fields_ = [("offset", _NUMBER), ("bytes", _NUMBER)]


class Extent(ctypes.Structure):
    _fields_ = [
        ("offset", _NUMBER),
        ("bytes", _NUMBER),
        ("tier", ctypes.c_int32),
        ("is_ahead", ctypes.c_uint32),
        ("reserved", ctypes.c_uint64),
    ]


class Analysis(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("match", ctypes.c_char_p),
        ("command", ctypes.POINTER(ctypes.c_char_p)),
        ("name", ctypes.c_char_p),
        ("results", ctypes.c_char_p),
        ("timeout_ms", _NUMBER),
        ("result_max", ctypes.c_uint64),
        ("on", _INT),
        ("drain", _INT),
        ("may_drop", _INT),
        ("reserved", _INT),
    ]


class Operation(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("match", ctypes.c_char_p),
        ("operation", ctypes.c_char_p),
        ("options", ctypes.POINTER(ctypes.c_char_p)),
        ("name", ctypes.c_char_p),
        ("results", ctypes.c_char_p),
        ("suffix", ctypes.c_char_p),
        ("scratch", ctypes.c_char_p),
        ("timeout_ms", _NUMBER),
        ("patience_ms", _NUMBER),
        ("result_max", ctypes.c_uint64),
        ("drain", _INT),
        ("replace", _INT),
    ]


class ActionInfo(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("name", ctypes.c_char * 64),
        ("match", ctypes.c_char * 448),
        ("kind", ctypes.c_uint32),
        ("is_configured", ctypes.c_uint32),
        ("waiting", ctypes.c_uint64),
        ("running", ctypes.c_uint64),
        ("done", ctypes.c_uint64),
        ("failed", ctypes.c_uint64),
        ("failure", ctypes.c_char * 512),
    ]


_TYPES = {
    "last_message": (ctypes.c_char_p, []),
    "start": (_INT, [ctypes.c_uint, _PLACE]),
    "end": (_INT, [_HANDLE]),
    "is_active": (_INT, [_HANDLE]),
    "open": (_INT, [_HANDLE, ctypes.c_char_p, _INT, ctypes.c_uint, _PLACE]),
    "use_fd": (_INT, [_HANDLE, _INT, _PLACE]),
    "fd": (_INT, [_HANDLE]),
    "is_buffered": (_INT, [_HANDLE]),
    "close": (_INT, [_HANDLE]),
    "read": (_NUMBER, [_HANDLE, _HANDLE, _NUMBER, _NUMBER]),
    "write": (_NUMBER, [_HANDLE, _HANDLE, _NUMBER, _NUMBER]),
    "size": (_NUMBER, [_HANDLE]),
    "flush": (_INT, [_HANDLE, _INT]),
    "wait": (_INT, [_HANDLE, _INT, _NUMBER]),
    "is_safe": (_INT, [_HANDLE, _INT]),
    "flush_all": (_INT, [_HANDLE, _INT]),
    "wait_all": (_INT, [_HANDLE, _INT, _NUMBER]),
    "hint": (_INT, [_HANDLE, _INT, _NUMBER, _NUMBER]),
    "will_read": (_INT, [_HANDLE, ctypes.POINTER(Range), _INT]),
    "placement": (_NUMBER, [_HANDLE, _NUMBER, _NUMBER, ctypes.POINTER(Extent), _INT]),
    "pin": (_INT, [_HANDLE, _NUMBER, _NUMBER, _INT]),
    "unpin": (_INT, [_HANDLE, _NUMBER, _NUMBER]),
    "analyse": (_INT, [_HANDLE, ctypes.POINTER(Analysis)]),
    "operate": (_INT, [_HANDLE, ctypes.POINTER(Operation)]),
    "action_remove": (_INT, [_HANDLE, ctypes.c_char_p]),
    "actions": (_INT, [_HANDLE, _HANDLE, _INT]),
    "action": (_INT, [_HANDLE, ctypes.c_char_p, ctypes.POINTER(ActionInfo)]),
}

_functions: dict = {}
_loading = threading.RLock()
os.register_at_fork(
    before=_loading.acquire, after_in_parent=_loading.release, after_in_child=_loading.release
)


class NotRunning(mlbs.ForebayError):
    """Only Forebay can answer, and the process runs without it: start it with `forebay run`."""


class NotBuffered(mlbs.ForebayError):
    """The file is in no directory that Forebay buffers."""


class HandleClosed(mlbs.ForebayError):
    """The file was closed, or its session has ended."""


# With the number that says most to what knows OSError alone.
_OWN = {
    -10001: (NotRunning, errno.EOPNOTSUPP),
    -10002: (NotBuffered, errno.EOPNOTSUPP),
    -10003: (HandleClosed, errno.EBADF),
}


def function(name):
    """A function of the library, which is loaded with the first one."""
    with _loading:
        if not _functions:
            library = mlbs._load()
            for each, (result, arguments) in _TYPES.items():
                # Objects of their own, so that types said elsewhere stay.
                found = library["forebay_" + each]
                found.restype, found.argtypes = result, arguments
                _functions[each] = found
    return _functions[name]


def error(code, path=None):
    """The exception of a code: that of errno (FileNotFoundError, TimeoutError, ...) or an own one."""
    text = os.fsdecode(function("last_message")())
    if -4096 < code < 0:
        if path is not None:
            # OSError says it again, at the end.
            name = os.fsdecode(path)
            text = text.replace(f" {name}: ", " ", 1)
            text = text.replace(f" {name} (descriptor ", " (descriptor ", 1)
        return OSError(-code, text or os.strerror(-code), path)
    kind, number = _OWN.get(code, (mlbs.ForebayError, 0))
    made = kind(code, text)
    made.errno, made.filename = number, path
    return made


def call(name, *arguments, path=None):
    """The result; calls that a signal has interrupted go on once its handler has run (PEP 475)."""
    while True:
        result = function(name)(*arguments)
        if result >= 0:
            return result
        if result != -errno.EINTR:
            raise error(result, path)


def whole(value, bits=64):
    """A number that fits; ctypes takes what is left of it without a word."""
    number = operator.index(value)
    if not -(1 << bits - 1) <= number < 1 << bits - 1:
        raise OverflowError(f"{number} is no number of {bits} bits")
    return number


def level(name):
    if name not in LEVELS:
        raise ValueError(f"level is {name!r}, and has to be one of {', '.join(LEVELS)}")
    return LEVELS[name]


class _PyBuffer(ctypes.Structure):
    # Py_buffer, which is part of the stable ABI.
    _fields_ = [
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", _INT),
        ("ndim", _INT),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    ]


_GET = ctypes.pythonapi.PyObject_GetBuffer
_GET.argtypes, _GET.restype = [ctypes.py_object, ctypes.POINTER(_PyBuffer), _INT], _INT
_RELEASE = ctypes.pythonapi.PyBuffer_Release
_RELEASE.argtypes, _RELEASE.restype = [ctypes.POINTER(_PyBuffer)], None
_WRITABLE = 1


@contextlib.contextmanager
def memory(buffer, writable):
    """Address and bytes of a contiguous buffer, without a copy; it cannot be resized meanwhile."""
    view = _PyBuffer()
    _GET(buffer, ctypes.byref(view), _WRITABLE if writable else 0)
    try:
        yield view.buf or 0, view.len
    finally:
        _RELEASE(ctypes.byref(view))
