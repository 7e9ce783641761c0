import io
import os
from collections.abc import Iterable
from typing import IO, Any, Literal, NamedTuple, Protocol, overload

from .mlbs import ForebayError as ForebayError

_Level = Literal["durable", "store"]
_Path = str | bytes | os.PathLike[str] | os.PathLike[bytes]

class _HasDescriptor(Protocol):
    def fileno(self) -> int: ...

class NotRunning(ForebayError): ...
class NotBuffered(ForebayError): ...
class HandleClosed(ForebayError): ...

class Session:
    def __init__(self, require: bool = False) -> None: ...
    @property
    def is_active(self) -> bool: ...
    @overload
    def open(
        self,
        path: _Path,
        mode: str,
        buffering: Literal[0],
        encoding: None = None,
        errors: None = None,
        newline: None = None,
    ) -> RawFile: ...
    @overload
    def open(
        self,
        path: _Path,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
    ) -> IO[Any]: ...
    def flush(self, level: _Level = "store") -> None: ...
    def wait(self, level: _Level = "store", timeout: float | None = None) -> None: ...
    async def wait_async(self, level: _Level = "store", timeout: float | None = None) -> None: ...
    def close(self) -> None: ...
    def __enter__(self) -> Session: ...
    def __exit__(self, *_: object) -> None: ...

class RawFile(io.RawIOBase):
    name: _Path
    mode: str
    def __init__(self, path: _Path, mode: str = "rb", session: Session | None = None) -> None: ...
    def size(self) -> int: ...
    def readinto_at(self, buffer: Any, offset: int) -> int: ...
    def write_at(self, buffer: Any, offset: int) -> int: ...
    def readinto(self, buffer: Any) -> int: ...
    def write(self, buffer: Any) -> int: ...

class Pin:
    def __init__(self, file: _HasDescriptor, offset: int, length: int) -> None: ...
    def release(self) -> None: ...
    def __enter__(self) -> Pin: ...
    def __exit__(self, *_: object) -> None: ...

def session(require: bool = False) -> Session: ...
@overload
def open(
    path: _Path,
    mode: str,
    buffering: Literal[0],
    encoding: None = None,
    errors: None = None,
    newline: None = None,
    *,
    session: Session | None = None,
) -> RawFile: ...
@overload
def open(
    path: _Path,
    mode: str = "r",
    buffering: int = -1,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
    *,
    session: Session | None = None,
) -> IO[Any]: ...
def flush(file: _HasDescriptor, level: _Level = "store") -> None: ...
def wait(file: _HasDescriptor, level: _Level = "store", timeout: float | None = None) -> None: ...
async def wait_async(
    file: _HasDescriptor, level: _Level = "store", timeout: float | None = None
) -> None: ...
def is_safe(file: _HasDescriptor, level: _Level = "store") -> bool: ...
def is_buffered(file: _HasDescriptor) -> bool: ...
def pin(file: _HasDescriptor, offset: int = 0, length: int = 0, tier: int = 0) -> Pin: ...
def unpin(file: _HasDescriptor, offset: int = 0, length: int = 0) -> int: ...
def prefetch(file: _HasDescriptor, ranges: Iterable[tuple[int, int]] | None = None) -> None: ...
def placement(
    file: _HasDescriptor, offset: int = 0, length: int = ...
) -> list[tuple[int, int, int, bool]]: ...

class Action(NamedTuple):
    name: str
    match: str
    is_operation: bool
    is_configured: bool
    waiting: int
    running: int
    done: int
    failed: int
    failure: str

def analyse(
    match: _Path,
    command: Iterable[_Path],
    *,
    name: str | None = None,
    on: Literal["close", "step"] = "close",
    drain: Literal["with", "after"] = "with",
    may_drop: bool = False,
    results: _Path | None = None,
    timeout: float | None = None,
    result_max: int | None = None,
) -> None: ...
def operate(
    match: _Path,
    operation: str,
    *,
    name: str | None = None,
    drain: Literal["with", "after"] = "with",
    replace: bool = False,
    results: _Path | None = None,
    suffix: str | None = None,
    scratch: _Path | None = None,
    timeout: float | None = None,
    patience: float | None = None,
    result_max: int | None = None,
    **options: str | int | bool | None,
) -> None: ...
def remove_action(name: str) -> None: ...
def actions() -> list[str]: ...
def action(name: str) -> Action: ...
