"""Forebay from Python, over its C library libforebay.so.0.

Under `forebay run` files are buffered; without it all of this works on plain files, and what only
Forebay can answer raises `NotRunning`.
"""

from ._actions import Action, action, actions, analyse, operate, remove_action
from ._files import (
    Pin, RawFile, Session, flush, is_buffered, is_safe, open, pin, placement, prefetch, session,
    unpin, wait, wait_async,
)
from ._library import HandleClosed, NotBuffered, NotRunning
from .mlbs import ForebayError

__all__ = [
    "Action", "ForebayError", "HandleClosed", "NotBuffered", "NotRunning", "Pin", "RawFile",
    "Session", "action", "actions", "analyse", "flush", "is_buffered", "is_safe", "open", "operate",
    "pin", "placement", "prefetch", "remove_action", "session", "unpin", "wait", "wait_async",
]
