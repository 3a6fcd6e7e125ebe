"""Ends an overlong call, in its own thread."""

from __future__ import annotations

import ctypes
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

AGAIN_S = 1.0
"""Time after which a call that went on regardless is ended again."""


class Overtime(BaseException):
    """The time of the call is over; no Exception, so that `except Exception` in the call does not keep it."""


@contextmanager
def at_most(limit_s: float) -> Iterator[None]:
    """Raise `Overtime` inside the block after `limit_s` of real time.

    In the main thread a signal also ends waiting and sleeping; in another one (a worker of Dask) the block ends at its
    next Python instruction.
    """
    with _by_signal(limit_s) if threading.current_thread() is threading.main_thread() else _by_thread(limit_s):
        yield


def _over(_number: int, _frame: object) -> None:
    raise Overtime


@contextmanager
def _by_signal(limit_s: float) -> Iterator[None]:
    usual = signal.signal(signal.SIGALRM, _over)
    left_s, every_s = signal.setitimer(signal.ITIMER_REAL, limit_s, AGAIN_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, left_s, every_s)
        signal.signal(signal.SIGALRM, usual)


@contextmanager
def _by_thread(limit_s: float) -> Iterator[None]:
    caller, done = threading.get_ident(), threading.Event()

    def watch() -> None:
        wait_s = limit_s
        while not done.wait(wait_s):
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(caller), ctypes.py_object(Overtime))
            wait_s = AGAIN_S

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield
    finally:
        done.set()
        watching.join()
