"""Sessions and files."""

import asyncio
import atexit
import contextlib
import ctypes
import io
import operator
import os
import threading
import time
import weakref

from ._library import Extent, Range, call, function, level as _level, memory, whole
from .mlbs import _seconds

__all__ = [
    "Pin", "RawFile", "Session", "flush", "is_buffered", "is_safe", "open", "pin", "placement",
    "prefetch", "session", "unpin", "wait", "wait_async",
]

# A wait is made of slices, so that signals and cancellations take effect within one.
_SLICE = 0.25
# Seconds between two looks of one that leaves its thread to others: the first, and the longest.
_LOOKS = (0.001, 0.05)
_RANGES = 64
_WILL_NEED = 3
# What Linux reads or writes in one call at most.
_ONE_CALL = 0x7FFFF000

# Of what follows, and of the files of each session; no child begins while another thread has it.
_making = threading.RLock()
os.register_at_fork(
    before=_making.acquire, after_in_parent=_making.release, after_in_child=_making.release
)
_default = None
_sessions: weakref.WeakSet = weakref.WeakSet()
# Handles of files that other libraries have opened. They are kept, as a handle knows its flushes.
_others: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def _refuse_copies(self, _):
    # A copy would share the handle, and take it away at its end.
    raise TypeError(f"cannot copy or pickle {type(self).__name__!r}: open it again, by its path")


class Session:
    """A group of files that are closed together, at the end of a `with`. All threads may use it.

    With `require` it fails with `NotRunning` where the process runs without Forebay; else all works
    there, too, as plain files.
    """

    def __init__(self, require=False):
        place = ctypes.c_void_p()
        call("start", 1 if require else 0, ctypes.byref(place))
        self._handle = place.value
        self._files = weakref.WeakSet()
        self._end = weakref.finalize(self, function("end"), place.value)
        # Files are written to until the interpreter ends, which ends the session, too.
        self._end.atexit = False
        with _making:
            _sessions.add(self)

    __reduce_ex__ = _refuse_copies

    @property
    def is_active(self):
        """Whether the process runs under Forebay."""
        return call("is_active", self._handle) == 1

    def open(self, path, mode="r", buffering=-1, encoding=None, errors=None, newline=None):
        """A file object, as `forebay.open`."""
        return open(path, mode, buffering, encoding, errors, newline, session=self)

    def flush(self, level="store"):
        """Begins to bring all buffered files, of all programs of the node, to `level`."""
        call("flush_all", self._handle, _level(level))

    def wait(self, level="store", timeout=None):
        """Waits until all of them are there; `TimeoutError` after `timeout` seconds."""
        _sliced(lambda limit: call("wait_all", self._handle, _level(level), limit), timeout)

    async def wait_async(self, level="store", timeout=None):
        """The same, while other tasks of the event loop run."""
        await _sliced_async(
            lambda limit: call("wait_all", self._handle, _level(level), limit), timeout
        )

    def close(self):
        """Closes all of its files."""
        if not self._end.detach():
            return
        # All of it is done, whichever file fails; the last error is raised.
        with contextlib.ExitStack() as stack:
            stack.callback(call, "end", self._handle)
            for file in self._open_files():
                stack.callback(file.close)

    def _open_files(self):
        with _making:
            return [file for file in self._files if not file.closed]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def session(require=False):
    """Begins a session: `with forebay.session() as s: s.open(...)`."""
    return Session(require)


@atexit.register
def _flush_open_files():
    """Writes what files that were never closed have in buffers of Python, as the builtin does."""
    with _making:
        sessions = list(_sessions)
    with contextlib.ExitStack() as stack:
        for each in sessions:
            for file in each._open_files():
                stack.callback(file.flush)


def _usual():
    """The session of files that are opened in none."""
    global _default
    with _making:
        if _default is None:
            _default = Session()
        return _default


_FLAGS = {
    "r": os.O_RDONLY,
    "r+": os.O_RDWR,
    "w": os.O_WRONLY | os.O_CREAT | os.O_TRUNC,
    "w+": os.O_RDWR | os.O_CREAT | os.O_TRUNC,
    "x": os.O_WRONLY | os.O_CREAT | os.O_EXCL,
    "x+": os.O_RDWR | os.O_CREAT | os.O_EXCL,
    "a": os.O_WRONLY | os.O_CREAT | os.O_APPEND,
    "a+": os.O_RDWR | os.O_CREAT | os.O_APPEND,
}


def _kind(mode):
    """The key of `_FLAGS` of a mode, whose letters may have any order, once each."""
    kind = "".join(letter for letter in "rwxa+" if letter in mode)
    if kind not in _FLAGS or len(set(mode)) != len(mode) or set(mode) - set("rwxabt+"):
        raise ValueError(f"mode is {mode!r}, and has to be one of r, w, x, a, with b, t or +")
    return kind


def _length(buffer):
    if isinstance(buffer, (bytes, bytearray)):
        return len(buffer)
    if isinstance(buffer, memoryview):
        return buffer.nbytes
    with memory(buffer, False) as (_, length):
        return length


class RawFile(io.RawIOBase):
    """A file without buffers of Python: what it reads and writes is copied once, by the library.

    Its position is that of the descriptor, which children and other libraries move, too.
    `readinto` and `write` take all that has the buffer protocol, such as NumPy arrays; those
    `..._at` leave the position alone, and threads may call them at once.
    """

    def __init__(self, path, mode="rb", session=None):
        kind = _kind(mode)
        flags = _FLAGS[kind]
        self.name = path
        # As that of io.FileIO.
        self.mode = "rb+" if kind == "w+" else kind[0] + "b" + kind[1:]
        self._reads = flags & os.O_ACCMODE != os.O_WRONLY
        self._writes = flags & os.O_ACCMODE != os.O_RDONLY
        self._appends = bool(flags & os.O_APPEND)
        self._session = session or _usual()
        self._handle = None
        place, encoded = ctypes.c_void_p(), os.fsencode(path)
        if b"\0" in encoded:
            raise ValueError("embedded null byte in the path")
        call(
            "open", self._session._handle, encoded, flags, 0o666, ctypes.byref(place), path=path,
        )
        self._handle = place.value
        if os.path.isdir(path):
            super().close()
            call("close", self._handle)
            raise IsADirectoryError(21, "is a directory", path)
        if self._appends:
            os.lseek(self.fileno(), 0, io.SEEK_END)
        with _making:
            self._session._files.add(self)

    __reduce_ex__ = _refuse_copies

    def _live(self):
        if self.closed:
            raise ValueError("I/O operation on closed file")
        return self._handle

    def _do(self, work, *words):
        """What the kernel does with the descriptor; its errors say which file it was."""
        try:
            return work(self.fileno(), *words)
        except OSError as error:
            error.filename = self.name
            raise

    def size(self):
        """The size in bytes."""
        return call("size", self._live(), path=self.name)

    def fileno(self):
        return call("fd", self._live(), path=self.name)

    def readable(self):
        self._live()
        return self._reads

    def writable(self):
        self._live()
        return self._writes

    def seekable(self):
        self._live()
        return True

    def seek(self, offset, whence=io.SEEK_SET):
        return self._do(os.lseek, operator.index(offset), whence)

    def tell(self):
        return self._do(os.lseek, 0, io.SEEK_CUR)

    def truncate(self, size=None):
        if not self.writable():
            raise io.UnsupportedOperation("the file is not open for writing")
        size = self.tell() if size is None else size
        self._do(os.ftruncate, size)
        return size

    def readinto_at(self, buffer, offset):
        """Reads into a buffer from `offset` on; the number of bytes, fewer at the end."""
        if not self._reads:
            raise io.UnsupportedOperation("the file is not open for reading")
        return self._whole("read", buffer, offset)

    def write_at(self, buffer, offset):
        """Writes a buffer at `offset` (with mode a at the end); the number of bytes."""
        if not self._writes:
            raise io.UnsupportedOperation("the file is not open for writing")
        return self._whole("write", buffer, offset)

    def _whole(self, name, buffer, offset):
        offset = whole(offset)
        with memory(buffer, name == "read") as (address, length):
            done = 0
            while True:
                count = call(
                    name, self._live(), address + done, length - done, offset + done,
                    path=self.name,
                )
                done += count
                if count < _ONE_CALL or done == length:
                    return done

    def readinto(self, buffer):
        if not self._reads:
            raise io.UnsupportedOperation("the file is not open for reading")
        # The call moves the position together with the bytes.
        if _length(buffer) <= _ONE_CALL:
            return self._do(os.readv, [buffer])
        at = self.tell()
        return self.seek(at + self.readinto_at(buffer, at)) - at

    def write(self, buffer):
        if not self._writes:
            raise io.UnsupportedOperation("the file is not open for writing")
        if _length(buffer) <= _ONE_CALL:
            return self._do(os.write, buffer)
        at = self.tell()
        count = self.write_at(buffer, at)
        self.seek(0, io.SEEK_END) if self._appends else self.seek(at + count)
        return count

    def close(self):
        if self.closed:
            return
        super().close()
        # After a failed open there is nothing to give up.
        if getattr(self, "_handle", None) is not None:
            call("close", self._handle, path=self.name)


def open(
    path, mode="r", buffering=-1, encoding=None, errors=None, newline=None, *, session=None
):
    """Opens a file as the builtin `open` does, through the C library.

    With `buffering=0` it is a `RawFile`. It needs a regular file. Errors are those of the builtin.

    >>> import os, tempfile, forebay
    >>> path = os.path.join(tempfile.mkdtemp(dir="."), "field")
    >>> with forebay.open(path, "wb") as file:
    ...     _ = file.write(b"some bytes")
    ...     forebay.wait(file)
    >>> forebay.open(path).read()
    'some bytes'
    """
    binary = "b" in mode
    if binary and "t" in mode:
        raise ValueError("a file is binary or text, not both")
    if binary and (encoding or errors or newline is not None):
        raise ValueError("binary files have no encoding, errors or newline")
    raw = RawFile(path, mode, session)
    try:
        if buffering == 0:
            if not binary:
                raise ValueError("text files cannot be without a buffer")
            return raw
        size = buffering if buffering > 1 else 128 << 10
        if raw.readable() and raw.writable():
            file = io.BufferedRandom(raw, size)
        else:
            file = (io.BufferedReader if raw.readable() else io.BufferedWriter)(raw, size)
        if not binary:
            file = io.TextIOWrapper(file, encoding, errors, newline, buffering == 1)
            file.mode = mode
        # It is closed before the raw file, as it has bytes that are not written yet.
        with _making:
            raw._session._files.discard(raw)
            raw._session._files.add(file)
        return file
    except BaseException:
        raw.close()
        raise


def _handle(file):
    """The handle of a file object; what it has in buffers of Python is given to Forebay first."""
    if not hasattr(file, "fileno"):
        raise TypeError(
            f"{file!r} is no open file: give a file object, as forebay.open or open returns it"
        )
    raw = getattr(file, "buffer", file)
    raw = getattr(raw, "raw", raw)
    if not isinstance(file, io.RawIOBase) and hasattr(file, "flush"):
        # That of fsspec says of mode r+ that it does not write; the file below knows.
        if any(not hasattr(each, "writable") or each.writable() for each in (file, raw)):
            file.flush()
    if isinstance(raw, RawFile):
        return raw._live()
    # That of a closed file is an error, whose number may be another file's by now.
    descriptor = raw.fileno()
    with _making:
        known = _others.get(raw)
    if known is None:
        place = ctypes.c_void_p()
        usual = _usual()
        call("use_fd", usual._handle, descriptor, ctypes.byref(place), path=_name(file))
        known = place.value
        with _making:
            _others[raw] = known
        weakref.finalize(raw, function("close"), known)
    return known


def _name(file):
    """What errors have as `filename`: a path, where the file has one."""
    name = getattr(file, "name", None)
    return name if isinstance(name, (str, bytes, os.PathLike)) else None


def flush(file, level="store"):
    """Begins to bring what was written to `file` to `level`, and returns.

    `level` is "durable" (survives a loss of power) or "store" (other nodes see it). `file` is a
    file object of `forebay.open`, or any that has a descriptor.
    """
    call("flush", _handle(file), _level(level), path=_name(file))


def _over(error, timeout, name):
    """The error of the whole wait instead of that of its last slice."""
    return TimeoutError(
        error.errno, f"it was not flushed within {timeout} s; the flush goes on", name
    )


def _end_of(timeout):
    """When a wait ends that begins now; None: never."""
    seconds = _seconds(timeout)
    return None if seconds is None else time.monotonic() + seconds


def _sliced(wait_for, timeout, name=None):
    end = _end_of(timeout)
    while True:
        left = _SLICE if end is None else min(_SLICE, max(0.0, end - time.monotonic()))
        try:
            return wait_for(int(left * 1000))
        except TimeoutError as error:
            if end is not None and time.monotonic() >= end:
                raise _over(error, timeout, name) from None


async def _sliced_async(wait_for, timeout, name=None):
    # Looks only, with sleeps of the loop: there are few threads, which other tasks need, too.
    end = _end_of(timeout)
    pause, longest = _LOOKS
    while True:
        try:
            return await asyncio.get_running_loop().run_in_executor(None, wait_for, 0)
        except TimeoutError as error:
            left = longest if end is None else end - time.monotonic()
            if left <= 0:
                raise _over(error, timeout, name) from None
        await asyncio.sleep(min(pause, left))
        pause = min(2 * pause, longest)


def wait(file, level="store", timeout=None):
    """Waits until what was written is at `level`; `TimeoutError` after `timeout` seconds.

    Without a `timeout` it waits as long as it takes, also for a node manager that is stopped;
    Ctrl-C interrupts it. The flush goes on after both.
    """
    handle, number = _handle(file), _level(level)
    name = _name(file)
    _sliced(lambda limit: call("wait", handle, number, limit, path=name), timeout, name)


async def wait_async(file, level="store", timeout=None):
    """`wait`, while other tasks of the event loop run. A cancelled one leaves the flush going."""
    handle, number = _handle(file), _level(level)
    name = _name(file)
    await _sliced_async(
        lambda limit: call("wait", handle, number, limit, path=name), timeout, name
    )


def is_safe(file, level="store"):
    """Whether all of the file is at `level` now, and a `flush` or `wait` to it was made before."""
    return call("is_safe", _handle(file), _level(level), path=_name(file)) == 1


def is_buffered(file):
    """Whether Forebay buffers the file."""
    return call("is_buffered", _handle(file), path=_name(file)) == 1


class Pin:
    """Bytes that stay in a tier until `release`, the end of a `with`, or the file is closed."""

    def __init__(self, file, offset, length):
        self._file, self._range = file, (offset, length)

    def release(self):
        """Ends the pin, and others of the same file that lie in its range."""
        file, self._file = self._file, None
        if file is not None and not file.closed:
            unpin(file, *self._range)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.release()


def pin(file, offset=0, length=0, tier=0):
    """Keeps the blocks of a range (`length` 0: up to the end) in `tier`, 0 is RAM, or a faster one.

    Errors: `NotRunning`, `NotBuffered`, `OSError` with EDQUOT or ENOSPC beyond the limits.
    """
    words = [whole(offset), whole(length), whole(tier, 32)]
    call("pin", _handle(file), *words, path=_name(file))
    return Pin(file, offset, length)


def unpin(file, offset=0, length=0):
    """Ends the pins in a range; how many."""
    return call("unpin", _handle(file), whole(offset), whole(length), path=_name(file))


def prefetch(file, ranges=None):
    """Says what will be read next: up to 64 pairs of offset and bytes in their order, else all."""
    handle = _handle(file)
    if ranges is None:
        call("hint", handle, _WILL_NEED, 0, 0, path=_name(file))
        return
    ranges = [(whole(offset), whole(length)) for offset, length in ranges]
    if len(ranges) > _RANGES:
        raise ValueError(f"{len(ranges)} ranges, and at most {_RANGES} are taken")
    read = (Range * len(ranges))(*ranges)
    call("will_read", handle, read, len(ranges), path=_name(file))


def placement(file, offset=0, length=2**62):
    """Where bytes are: tuples of offset, bytes, tier (-1: the store) and whether the store lacks
    them."""
    handle, room, offset, length = _handle(file), 64, whole(offset), whole(length)
    while True:
        found = (Extent * room)()
        count = call("placement", handle, offset, length, found, room, path=_name(file))
        if count <= room:
            return [(e.offset, e.bytes, e.tier, e.is_ahead == 1) for e in found[:count]]
        room = count
