"""A container of records for programs whose data is larger than memory.

`MLBStore` is an array of numbers with `write(id)`, which keeps all of it as a record, and
`read(id)`, which brings a record back. It is an `array.array`, so that NumPy and all else that
knows the buffer protocol sees its elements without a copy::

    field = MLBStore("d", 1_000_000, order="lifo")
    view = numpy.asarray(field)
    for step in range(100):
        compute(view)
        field.write(step)
    for step in reversed(range(100)):
        field.read(step)           # `view` shows the record
        correlate(view)
    field.close()

The library is that of the variable FOREBAY_LIBRARY, else of the installation that this file
belongs to, else what the loader finds. Under `forebay run` records are buffered; without it they
are plain files. Errors are `ForebayError`, an `OSError` with the library's code and text.
"""

import array
import ctypes
import operator
import os
import pathlib
import socket
import weakref

AUTO = 2**64 - 1
HELPERS_MAX = 64
ORDERS = {"fifo": 0, "lifo": 1, "detect": 2}
LAYOUTS = {"packed": 0, "per-record": 1}
CLOSED, ELEMENT = -10003, -10022


class ForebayError(OSError):
    """A call that failed: `code` is that of forebay.h."""

    def __init__(self, code, text):
        super().__init__(-code if -4096 < code < 0 else 0, text)
        self.code = code

    def __str__(self):
        return self.strerror


class _Options(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("memory_bytes", ctypes.c_uint64),
        ("fast_bytes", ctypes.c_uint64),
        ("helpers", ctypes.c_uint32),
        ("order", ctypes.c_int),
        ("layout", ctypes.c_int),
        ("is_kept", ctypes.c_int),
    ]


_COUNTS = (
    "records bytes writes reads hits late loaded wasted spilled window_bytes window_used "
    "is_spill_off"
).split()


class _Info(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t)] + [(name, ctypes.c_uint64) for name in _COUNTS]


def _load():
    given = os.environ.get("FOREBAY_LIBRARY")
    if given:
        return ctypes.CDLL(given)
    # PREFIX/lib/forebay/python/forebay/mlbs.py, and PREFIX/lib/libforebay.so.0
    beside = pathlib.Path(__file__).resolve().parents[3] / "libforebay.so.0"
    library = ctypes.CDLL(str(beside) if beside.is_file() else "libforebay.so.0")
    return library


_library = None


def _functions():
    """The library, with the types of its functions; loaded with the first container."""
    global _library
    if _library is not None:
        return _library
    library = _load()
    handle, number, code = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
    record, place = ctypes.c_uint64, ctypes.POINTER(ctypes.c_void_p)
    types = {
        "last_message": (ctypes.c_char_p, []),
        "start": (code, [ctypes.c_uint, place]),
        "end": (code, [handle]),
        "records_open": (
            code,
            [handle, ctypes.c_char_p, ctypes.c_char_p, ctypes.POINTER(_Options), place],
        ),
        "records_close": (code, [handle]),
        "records_write": (code, [handle, record, handle, number, number]),
        "records_read": (code, [handle, record, handle, number, number]),
        "records_size": (number, [handle, record]),
        "records_sync": (code, [handle, record, number]),
        "records_drop": (code, [handle, record]),
        "records_will_read": (code, [handle, handle, number]),
        "records_ids": (number, [handle, handle, number]),
        "records_check": (number, [handle, handle, number]),
        "records_status": (code, [handle, ctypes.POINTER(_Info)]),
    }
    for name, (result, arguments) in types.items():
        function = getattr(library, "forebay_" + name)
        function.restype, function.argtypes = result, arguments
    _library = library
    return library


def _checked(result):
    if result < 0:
        raise ForebayError(result, os.fsdecode(_functions().forebay_last_message()))
    return result


def _number(value, what, limit=2**64 - 1):
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{what} is {value!r}, and has to be a whole number") from None
    if not 0 <= number <= limit:
        raise ValueError(f"{what} {number} is not in 0 to {limit}")
    return number


def _path(value, what):
    path = os.fsencode(value)
    if b"\0" in path:
        raise ValueError(f"{what} {value!r} has a zero byte")
    return path


def _seconds(timeout):
    """A time-out as a number of seconds, or None: no limit."""
    if timeout is None:
        return None
    try:
        seconds = float(timeout)
    except OverflowError:
        seconds = float("inf")
    except (TypeError, ValueError):
        raise TypeError(f"timeout is {timeout!r}, and has to be seconds or None") from None
    # Neither is NaN.
    if not seconds >= 0:
        raise ValueError(f"timeout is {timeout!r}, and has to be 0 or more seconds, or None")
    # Longer than any process lives.
    return min(seconds, 1e9)


def _milliseconds(timeout):
    seconds = _seconds(timeout)
    return -1 if seconds is None else int(seconds * 1000)


def _end(records, session, process):
    """Ends a container that was opened by this process."""
    if process == os.getpid():
        _functions().forebay_records_close(records)
        _functions().forebay_end(session)


_next = 0


def _own_name():
    global _next
    _next += 1
    host = socket.gethostname().replace("/", "_")
    return f"mlbs-{host[:64]}-{os.getpid()}-{_next}"


class MLBStore(array.array):
    """`count` numbers of type `typecode` (see the module array), and their container.

    `directory`: where its files are; the variable FOREBAY_RECORDS, else the current directory.
    `name`: objects of one name share records, in all processes; by default the object has its own.
    `memory`, `fast`: bytes that are read ahead, and bytes beyond these that the tiers may hold.
    `helpers`: threads that read ahead. `order`: "fifo", "lifo" or "detect". `layout`: "packed" or
    "per-record". `keep`: the records stay when the last object is closed.

    All functions may be called by several threads; not with one object at once.
    """

    def __new__(cls, typecode, count=0, **hints):
        made = super().__new__(cls, typecode)
        count = _number(count, "count")
        if count:
            made.frombytes(bytes(made.itemsize * count))
        return made

    def __init__(
        self,
        typecode,
        count=0,
        *,
        directory=None,
        name=None,
        memory=AUTO,
        fast=AUTO,
        helpers=1,
        order="fifo",
        layout="packed",
        keep=False,
    ):
        self._records = None
        if order not in ORDERS or layout not in LAYOUTS:
            raise ValueError(f"order {order!r} is none of {list(ORDERS)}, or layout {layout!r} none of {list(LAYOUTS)}")
        options = _Options(
            ctypes.sizeof(_Options),
            _number(memory, "memory"),
            _number(fast, "fast"),
            _number(helpers, "helpers", HELPERS_MAX),
            ORDERS[order],
            LAYOUTS[layout],
            bool(keep),
        )
        directory = _path(directory or os.environ.get("FOREBAY_RECORDS") or ".", "directory")
        name = _path(name or _own_name(), "name")
        library = _functions()
        session, records = ctypes.c_void_p(), ctypes.c_void_p()
        _checked(library.forebay_start(0, ctypes.byref(session)))
        try:
            _checked(
                library.forebay_records_open(
                    session,
                    directory,
                    name,
                    ctypes.byref(options),
                    ctypes.byref(records),
                )
            )
        except ForebayError:
            library.forebay_end(session)
            raise
        self._records = records
        # Before the interpreter is gone, and when the object is.
        self._ending = weakref.finalize(self, _end, records, session, os.getpid())

    def close(self):
        """Ends the container; the elements stay."""
        if self._records is not None:
            self._records = None
            self._ending()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _open(self):
        if self._records is None:
            raise ForebayError(CLOSED, "the container was closed")
        return self._records

    def _transfer(self, function, record):
        records, record = self._open(), _number(record, "record")
        # Exported, so that no other thread can move the elements meanwhile.
        with memoryview(self) as view:
            start, count = self.buffer_info()
            _checked(function(records, record, start, view.nbytes, self.itemsize))

    def write(self, record):
        """Keeps all elements as a record. It survives the program when this returns."""
        self._transfer(_functions().forebay_records_write, record)

    def read(self, record):
        """Replaces all elements by those of a record, which has to have as many."""
        self._transfer(_functions().forebay_records_read, record)

    def sync(self, record, timeout=None):
        """Waits until a record survives a loss of power, up to `timeout` seconds."""
        limit = _milliseconds(timeout)
        _checked(_functions().forebay_records_sync(self._open(), _number(record, "record"), limit))

    def drop(self, record):
        """Forgets a record."""
        _checked(_functions().forebay_records_drop(self._open(), _number(record, "record")))

    def record_size(self, record):
        """How many elements a record has."""
        size = _functions().forebay_records_size(self._open(), _number(record, "record"))
        if _checked(size) % self.itemsize:
            text = (
                f"record {record} of {size} bytes has no whole number of elements of "
                f"{self.itemsize} bytes; use the type that it was written with"
            )
            raise ForebayError(ELEMENT, text)
        return size // self.itemsize

    def will_read(self, records):
        """Says which records will be read next, in this order."""
        ids = array.array("Q", [_number(record, "record") for record in records])
        _checked(_functions().forebay_records_will_read(self._open(), ids.buffer_info()[0], len(ids)))

    def _list(self, function):
        ids, count = array.array("Q"), 1
        while count > len(ids):
            ids = array.array("Q", bytes(8 * count))
            count = _checked(function(self._open(), ids.buffer_info()[0], len(ids)))
        return ids[:count].tolist()

    def ids(self):
        """The records that are there."""
        return self._list(_functions().forebay_records_ids)

    def torn(self):
        """The records whose last write is not whole, after a look at all that was written earlier.

        `read` gives their last whole version, if there is one.
        """
        return self._list(_functions().forebay_records_check)

    def info(self):
        """What happened so far, by the names of `struct forebay_records_info`."""
        info = _Info(ctypes.sizeof(_Info))
        _checked(_functions().forebay_records_status(self._open(), ctypes.byref(info)))
        return {name: getattr(info, name) for name in _COUNTS}

    def resize(self, count):
        """Has `count` elements from now on; new ones are zero.

        BufferError as long as the elements are exported, to a NumPy array for instance.
        """
        count = _number(count, "count")
        if count < len(self):
            del self[count:]
        elif count > len(self):
            self.frombytes(bytes((count - len(self)) * self.itemsize))

    def push_back(self, element):
        """One more element; BufferError as `resize`."""
        self.append(element)
