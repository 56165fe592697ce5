"""Properties that are worked out when they are first asked for, and kept."""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock
from typing import Any, Generic, TypeVar, overload

Kept = TypeVar("Kept")


class cached_property(Generic[Kept]):  # noqa: N801 - a decorator, named as the library's
    """As :class:`functools.cached_property`, but with a lock an object.

    The library's has one lock for all objects of a class before Python 3.12, so that threads which each work on an
    object of their own wait for each other; and none since, so that two threads may work out the same.
    """

    def __init__(self, make: Callable[[Any], Kept]) -> None:
        self.make = make
        self.__doc__ = make.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name, self._lock = name, f"{name} is being worked out"

    @overload
    def __get__(self, instance: None, owner: type) -> cached_property[Kept]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> Kept: ...
    def __get__(self, instance: object | None, owner: type) -> cached_property[Kept] | Kept:
        if instance is None:
            return self
        values = instance.__dict__  # what is there is found before this is called
        with values.setdefault(self._lock, RLock()):
            if self._name not in values:
                values[self._name] = self.make(instance)
            kept: Kept = values[self._name]
        return kept
