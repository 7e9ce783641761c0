"""Commands and operations that run on files while these are in the tiers."""

import ctypes
import os
from typing import NamedTuple

from ._files import _usual
from ._library import ActionInfo, Analysis, Operation, call

__all__ = ["Action", "action", "actions", "analyse", "operate", "remove_action"]

_ON = {"close": 0, "step": 1}
_DRAIN = {"with": 0, "after": 1}
_NAME = 64


class Action(NamedTuple):
    """How it stands with an action: how many runs wait, run, have ended well, and have not."""

    name: str
    match: str
    is_operation: bool
    is_configured: bool
    waiting: int
    running: int
    done: int
    failed: int
    failure: str


def _text(value, what):
    """The bytes of a text or a path for C; none for None."""
    if value is None:
        return None
    encoded = os.fsencode(value)
    if b"\0" in encoded:
        raise ValueError(f"embedded null byte in {what}")
    return encoded


def _texts(values, what):
    values = [_text(value, what) for value in values]
    return (ctypes.c_char_p * (len(values) + 1))(*values, None)


def _one_of(names, name, what):
    if name not in names:
        raise ValueError(f"{what} is {name!r}, and has to be one of {', '.join(names)}")
    return names[name]


def _ms(seconds):
    """For C, where 0 says nothing."""
    if seconds is None:
        return 0
    return int(seconds * 1000) or (1 if seconds >= 0 else -1)


def analyse(
    match, command, *, name=None, on="close", drain="with", may_drop=False, results=None,
    timeout=None, result_max=None,
):
    """Has `command` run on files of the pattern `match`, as `forebay analyse` does.

    `command` is a list of words; `{file}`, `{step}` and `{name}` in all but the first stand for
    what they say. It belongs to the node manager: it outlives this process, and ends with that.
    `timeout` is in seconds.
    """
    if isinstance(command, (str, bytes, os.PathLike)):
        raise TypeError("command has to be a list of words: [program, argument, ...]")
    one = Analysis(
        size=ctypes.sizeof(Analysis), match=_text(match, "match"),
        command=_texts(command, "command"), name=_text(name, "name"),
        results=_text(results, "results"), timeout_ms=_ms(timeout), result_max=result_max or 0,
        on=_one_of(_ON, on, "on"), drain=_one_of(_DRAIN, drain, "drain"), may_drop=bool(may_drop),
    )
    call("analyse", _usual()._handle, ctypes.byref(one))


def operate(
    match, operation, *, name=None, drain="with", replace=False, results=None, suffix=None,
    scratch=None, timeout=None, patience=None, result_max=None, **options,
):
    """Has an operation of docs/active.md done on files of the pattern `match`.

    `options` are those of the operation: `operate("*.bin", "sort", record=32, key="f64@24:desc")`.
    Times are in seconds.
    """
    words = [f"{key}={str(value).lower() if value is True else value}" for key, value in
             options.items() if value is not None and value is not False]
    one = Operation(
        size=ctypes.sizeof(Operation), match=_text(match, "match"),
        operation=_text(operation, "operation"), options=_texts(words, "options"),
        name=_text(name, "name"), results=_text(results, "results"),
        suffix=_text(suffix, "suffix"), scratch=_text(scratch, "scratch"),
        timeout_ms=_ms(timeout), patience_ms=_ms(patience), result_max=result_max or 0,
        drain=_one_of(_DRAIN, drain, "drain"), replace=bool(replace),
    )
    call("operate", _usual()._handle, ctypes.byref(one))


def remove_action(name):
    """Removes an analysis or an operation that was registered, by whichever process."""
    call("action_remove", _usual()._handle, _text(name, "name"))


def actions():
    """The names of all analyses and operations of the node manager."""
    room = 64
    while True:
        names = (ctypes.c_char * _NAME * room)()
        count = call("actions", _usual()._handle, names, room)
        if count <= room:
            return [names[at].value.decode() for at in range(count)]
        room = count


def action(name):
    """How it stands with the one of this name: an `Action`."""
    info = ActionInfo(size=ctypes.sizeof(ActionInfo))
    call("action", _usual()._handle, _text(name, "name"), ctypes.byref(info))
    return Action(
        info.name.decode(), info.match.decode(), info.kind == 1, info.is_configured == 1,
        info.waiting, info.running, info.done, info.failed, info.failure.decode(errors="replace"),
    )
