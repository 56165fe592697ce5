"""Independent work side by side: the libraries that compute let other threads run."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import polars as pl

Given = TypeVar("Given")
Made = TypeVar("Made")
WORTH_A_THREAD = 50_000  # rows of an item: of smaller ones the threads would spend their time taking turns
MANY_PIECES = 16  # from which on they are worked on by several threads

MANY = 2_000_000  # rows an item from which on the memory that one takes counts for more than a free core
LARGE_AT_ONCE = 2  # of such items are worked on, however many cores there are


def cores() -> int:
    """Cores that this process may use: those of its affinity or its container, as Polars counts them."""
    return pl.thread_pool_size()


def large(items: int, rows: int) -> bool:
    """Whether items with so many rows in all take so much memory that few are worked on at a time."""
    return rows > items * MANY


def worth_at_once(items: int, rows: int, most: int) -> int:
    """How many items are worth working on at a time.

    Args:
        items: How many there are.
        rows: Rows of all of them together.
        most: How many may be worked on at a time.
    """
    return most if rows >= items * WORTH_A_THREAD else 1


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
    threads = min(len(items), cores(), most)
    if threads < 2:
        return [work(item) for item in items]
    with _pool(threads) as pool:
        return list(pool.map(work, items))


def by_piece(work: Callable[[slice], Made], rows: int, piece: int) -> list[Made]:
    """Do the same for every piece of long columns, on a thread a core where they are worth it.

    Args:
        work: What to do to some rows; what it holds meanwhile is a piece.
        rows: How many there are.
        piece: Rows a piece.
    """
    pieces = [slice(low, low + piece) for low in range(0, rows, piece)]
    return side_by_side(work, pieces, cores() if rows >= MANY_PIECES * piece else 1)


def in_order(work: Callable[[Given], Made], items: Iterable[Given], most: int) -> Iterator[Made]:
    """Do the same for several items, a few ahead of what is asked for; results come in the order of the items.

    Args:
        work: What to do.
        items: What to do it to.
        most: Results held at most.
    """
    threads = min(cores(), most)
    if threads < 2:
        yield from map(work, items)
        return
    with _pool(threads) as pool:
        begun: deque[Future[Made]] = deque()
        for item in items:
            begun.append(pool.submit(work, item))
            if len(begun) == threads:
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()


@contextmanager
def aside(most: int) -> Iterator[Callable[[Callable[[], Any]], Callable[[], Any]]]:
    """Begin work whose result is asked for later.

    Args:
        most: Threads at most; with one, or one core, work is done when it is begun.

    Yields:
        A function that takes the work, and returns a function that waits for its result or raises its error.
    """
    threads = min(cores(), most)
    if threads < 2:

        def now(work: Callable[[], Any]) -> Callable[[], Any]:
            result = work()
            return lambda: result

        yield now
        return
    with _pool(threads) as pool:
        yield lambda work: pool.submit(work).result


@contextmanager
def _pool(threads: int) -> Iterator[ThreadPoolExecutor]:
    """Threads; after an error what they have not begun is not begun, and an interrupt does not wait for the rest."""
    pool, wait = ThreadPoolExecutor(threads), True
    try:
        yield pool
    except BaseException as error:
        wait = isinstance(error, Exception)
        raise
    finally:
        pool.shutdown(wait, cancel_futures=True)
