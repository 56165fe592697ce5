"""Devices side by side: a device's figures need no other's, and the libraries that compute them let threads run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Given = TypeVar("Given")
Made = TypeVar("Made")


def side_by_side(work: Callable[[Given], Made], items: Iterable[Given], most: int) -> list[Made]:
    """Do the same for several items on several threads; results are in the order of the items.

    Args:
        work: What to do.
        items: What to do it to.
        most: Threads at most: each holds the columns of its device.

    Raises:
        Exception: The first error in that order; what has not begun then is not begun.
    """
    items = list(items)
    threads = min(len(items), os.cpu_count() or 1, most)
    if threads < 2:
        return [work(item) for item in items]
    with ThreadPoolExecutor(threads) as pool:
        try:
            return list(pool.map(work, items))
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
