"""Properties that are kept: once an object, whatever the threads; and objects do not wait for each other."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from threading import Barrier

import pytest

from nsysparse.lazy import cached_property

WAIT_S = 20  # for a thread that does not come: only a failing test waits so long


@dataclass(frozen=True)
class Meeting:
    """Its value is there once two threads are working one out."""

    barrier: Barrier

    @cached_property
    def place(self) -> int:
        """Who came."""
        return self.barrier.wait(WAIT_S)


class Counted:
    def __init__(self) -> None:
        self.asked = 0

    @cached_property
    def value(self) -> int:
        """How often it was asked for."""
        self.asked += 1
        time.sleep(0.05)  # so that others come meanwhile
        return self.asked

    @cached_property
    def refused(self) -> int:
        """Nothing the first time."""
        self.asked += 1
        if self.asked == 1:
            raise ValueError("not yet")
        return self.asked


def test_objects_do_not_wait_for_each_other():
    barrier = Barrier(2)
    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(lambda m: m.place, [Meeting(barrier), Meeting(barrier)])) == [0, 1]


def test_many_threads_that_ask_one_object_have_it_worked_out_once():
    one = Counted()
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda _: one.value, range(32))) == [1] * 32
    assert one.asked == 1


def test_what_is_kept_can_be_given_and_forgotten():
    one = Counted()
    one.__dict__["value"] = 7
    assert one.value == 7
    del one.__dict__["value"]
    assert one.value == 1


def test_an_error_is_not_kept():
    one = Counted()
    with pytest.raises(ValueError, match="not yet"):
        _ = one.refused
    assert one.refused == 2


def test_a_changed_copy_works_it_out_anew():
    first = Meeting(Barrier(1))
    assert first.place == 0
    assert "place" not in replace(first, barrier=Barrier(1)).__dict__


def test_the_class_shows_the_property_and_its_text():
    assert isinstance(Counted.value, cached_property)
    assert Counted.value.__doc__ == "How often it was asked for."
