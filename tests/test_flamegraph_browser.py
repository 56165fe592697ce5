"""The page in a real browser: nothing is requested, nothing fails, and it does what it says."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from stack_cases import flame_of, shares_of, sum_where

from nsysparse.accounting.callpaths import WEIGHTS
from nsysparse.flamegraph.difference import compare
from nsysparse.flamegraph.flame import LEVELS, Flame
from nsysparse.report.flamegraph import render_difference, render_page
from nsysparse.stacks.chains import Lists

pytestmark = pytest.mark.browser
ROW = 19


@pytest.fixture(scope="module")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api")
    program = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no Chromium on this machine")
    with sync_api.sync_playwright() as playwright:
        options = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        running = playwright.chromium.launch(executable_path=program, args=options)
        yield running
        running.close()


@pytest.fixture
def show(browser, tmp_path):
    """``show(text)``: the page, opened; at the end of the test it must have been quiet."""
    said, pages = [], []

    def opened(text: str, **options):
        file = Path(tmp_path) / f"{len(pages)}.html"
        file.write_text(text, "utf-8")
        page = browser.new_page(viewport={"width": 1200, "height": 900}, **options)
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: said.append(request.url) if request.url != file.as_uri() else None)
        page.goto(file.as_uri())
        pages.append(page)
        return page

    yield opened
    for page in pages:
        page.close()
    assert said == []


def text_of(page, name):
    return page.locator(f"#flame-{name}").inner_text()


def wait_for(page, name, pattern):
    """Until an element's text matches; the page's own policy forbids waiting by a script."""
    from playwright.sync_api import expect

    expect(page.locator(f"#flame-{name}")).to_have_text(re.compile(pattern))


def test_page_shows_the_total_and_its_share(show):
    flame = flame_of("state_checkpoint")
    page = show(render_page(flame, shares_of("state_checkpoint")))
    assert text_of(page, "total") == f"526.3 ms, {100 * flame.total('busy_ns') / flame.window_ns:.1f}% of the window"
    titles = page.locator("#flame-weight option").all_inner_texts()
    assert titles == [w.title for w in flame.weights]
    page.select_option("#flame-weight", label="Bytes copied")
    assert text_of(page, "total") == "707.1 MB"
    # Something was drawn: the canvas is as tall as the deepest stack and holds more than one colour.
    weighed = flame.values[:, flame.column("bytes")] > 0
    tall = int(flame.paths.length[weighed].max()) + 1
    assert page.locator("#flame-canvas").bounding_box()["height"] == tall * ROW + 2
    colours = page.evaluate(
        """() => { const c = document.getElementById('flame-canvas'), seen = new Set();
        const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
        for (let i = 0; i < d.length; i += 4) seen.add(d.slice(i, i + 4).join()); return seen.size }"""
    )
    assert colours > 5


def test_search_sums_what_it_finds(show):
    flame = flame_of("llama_default")
    page = show(render_page(flame, shares_of("llama_default")))
    page.select_option("#flame-weight", label="Bytes copied")
    page.fill("#flame-search", "create_checkpoint")
    wait_for(page, "found", r".")
    total = sum_where(flame, "bytes", "server_context_impl::create_checkpoint")
    assert text_of(page, "found") == f"1 frame: 825.4 MB, {100 * total / flame.total('bytes'):.1f}% of all"
    page.press("#flame-search", "Enter")
    assert f"({total:,} bytes)" in text_of(page, "said")
    page.fill("#flame-search", "/create_checkpoint|prompt_save/")
    wait_for(page, "found", r"^3 frames")
    assert "1.444 GB" in text_of(page, "found")
    page.fill("#flame-search", "/(/")
    wait_for(page, "found", r"^no regular expression$")


def test_keys_zoom_and_tooltip(show):
    flame = flame_of("state_checkpoint")
    page = show(render_page(flame, shares_of("state_checkpoint")))
    canvas = page.locator("#flame-canvas")
    box = canvas.bounding_box()
    path = ["all", "python3", "python3", "request:#", "state_save", "<module> (workloads.py:178)"]
    page.mouse.move(box["x"] + 40, box["y"] + ROW * 4 + 5)
    tip = page.locator("#flame-tip")
    assert tip.is_visible()
    saved = sum_where(flame, "busy_ns", "state_save")
    told = tip.inner_text()
    assert "state_save" in told
    assert f"({saved:,} ns)" in told
    assert f"{100 * saved / flame.window_ns:.1f}%" in told
    page.mouse.click(box["x"] + 40, box["y"] + ROW * 4 + 5)
    assert text_of(page, "said").startswith("state_save: ")
    assert not page.locator("#flame-reset").is_disabled()
    canvas.focus()
    for _ in range(4):
        page.keyboard.press("Escape")
    assert page.locator("#flame-reset").is_disabled()
    for name in path[1:]:
        page.keyboard.press("ArrowDown")
        assert text_of(page, "said").startswith(f"{name}: ")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowRight")
    assert text_of(page, "said").startswith("decode: ")
    page.keyboard.press("Enter")
    assert not page.locator("#flame-reset").is_disabled()
    page.keyboard.press("0")
    assert page.locator("#flame-reset").is_disabled()
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "flame-search"


def test_levels_can_be_switched_off(show):
    flame = flame_of("state_checkpoint")
    page = show(render_page(flame, shares_of("state_checkpoint")))
    before = text_of(page, "total")
    page.fill("#flame-search", "cudaMemcpyAsync")
    wait_for(page, "found", r".")
    found = text_of(page, "found")
    height = page.locator("#flame-canvas").bounding_box()["height"]
    page.uncheck("input[data-level=native]")
    page.uncheck("input[data-level=python]")
    assert text_of(page, "total") == before
    assert page.locator("#flame-canvas").bounding_box()["height"] < height
    assert text_of(page, "found").split(":", 1)[1] == found.split(":", 1)[1]  # the same sum, in fewer frames
    page.uncheck("input[data-level=api]")
    assert text_of(page, "found") == "no match"


def test_difference_in_the_browser(show):
    difference = compare(flame_of("llama_default", lines=False), flame_of("llama_nosave", lines=False))
    page = show(render_difference(difference))
    page.select_option("#flame-weight", label="Bytes copied")
    page.fill("#flame-search", "create_checkpoint")
    wait_for(page, "found", r".")
    page.press("#flame-search", "Enter")
    said = text_of(page, "said")
    assert "change gone" in said
    per_second = 825_360_384 / difference.base_number
    assert f" {float(f'{per_second / 1e6:.4g}'):g} MB a second ({per_second:,.3f} bytes)" in said
    assert page.locator("table").count() >= 3


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_letters_stand_out(show, scheme):
    """Every colour a frame can have, against the ink chosen for it: at least 4.5 to 1."""
    page = show(render_page(flame_of("train_item"), shares_of("train_item")), color_scheme=scheme)
    worst = page.evaluate(
        """() => { const style = getComputedStyle(document.documentElement);
        const names = ['small', 'process', 'nvtx', 'python', 'native', 'pseudo', 'kernel-mode', 'device', 'kernel',
            'htod','dtoh','other-copy','migration','memset','sync','call','copy-call','allocate','grew','shrank','same'];
        const light = (hex) => { const [r, g, b] = [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16) / 255)
            .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
            return 0.2126 * r + 0.7152 * g + 0.0722 * b };
        return Math.min(...names.map((n) => { const l = light(style.getPropertyValue('--flame-' + n).trim());
            return Math.max((l + 0.05) / (light('#16191c') + 0.05), 1.05 / (l + 0.05)) })) }"""
    )
    assert worst >= 4.5


def many_stacks(count: int) -> Flame:
    """A flame graph of many distinct paths, without a recording."""
    rng = np.random.default_rng(7)
    depth = rng.integers(6, 18, count)
    start = np.concatenate(([0], np.cumsum(depth)))
    place = np.arange(start[-1]) - np.repeat(start[:-1], depth)
    value = rng.integers(0, 9, start[-1]) + 9 * np.minimum(place, 15)
    last = start[1:] - 1
    value[last] = 200 + np.arange(count)  # a leaf of its own
    labels = pl.DataFrame({"text": [f"function_{i}" for i in range(200 + count)]}).with_columns(
        level=pl.lit(LEVELS.index("native"), pl.Int64), colour=pl.lit("native"), detail=pl.lit("")
    )
    weights = tuple(w for w in WEIGHTS if w.key == "cpu_samples")
    values = np.minimum(rng.zipf(1.5, count), 10_000).reshape(-1, 1).astype(np.int64)
    coverage = pl.DataFrame(schema={"kind": pl.String, "stack": pl.String})
    return Flame(
        *("many.sqlite", labels, Lists(start, value), values, weights, ()),
        *((0, 10**9), 10**9, "made for a test", None, coverage, {"CPU samples": 1}),
    )


def test_a_hundred_thousand_stacks(show):
    """Frames narrower than a pixel are drawn as one and say so; what is drawn is bounded by the canvas."""
    flame = many_stacks(100_000)
    page = show(render_page(flame, pl.DataFrame(), max_nodes=10**7))
    assert text_of(page, "total") == f"{flame.total('cpu_samples'):,}"
    box = page.locator("#flame-canvas").bounding_box()
    told = set()
    for row in range(1, int(box["height"] // ROW)):
        for x in range(2, int(box["width"]), 61):
            page.mouse.move(box["x"] + x, box["y"] + row * ROW + 5)
            if page.locator("#flame-tip").is_visible():
                told.add(page.locator("#flame-tip strong").inner_text())
    narrow = [t for t in told if re.fullmatch(r"[\d,]+ frames? narrower than a pixel", t)]
    assert narrow
    assert len(told) > len(narrow)  # and wide ones by name
