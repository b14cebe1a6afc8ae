"""Faults of libraries in Rust that end a call without an exception of any kind that is meant to be caught."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


class Panicked(Exception):
    """What a library in Rust broke off with, in its own words."""


def without_panic(work: Callable[[], Result]) -> Result:
    """Call `work`; raises Panicked where a library in Rust gives up in the middle of it.

    pyo3 raises a BaseException then, past every `except Exception`: a thread would end, and a connection be
    closed without an answer. Each library has a class of its own, which none gives away.
    """
    try:
        return work()
    except BaseException as error:
        if type(error).__module__ != "pyo3_runtime":
            raise
        raise Panicked(str(error)) from error
