"""Our file in the real speedscope: its own page, from its own package, in a browser, with its own figures."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tarfile
from collections import Counter

import pytest
from stack_cases import flame_of

from nsysparse.flamegraph.difference import compare
from nsysparse.flamegraph.speedscope import difference_to_speedscope, to_speedscope

pytestmark = pytest.mark.browser
PACKAGE = "speedscope@1.25.0"
# A picture of WebGL without a graphics card.
OPTIONS = ["--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--ignore-gpu-blocklist"]
UNITS = {"ns": 1, "µs": 1e3, "ms": 1e6, "s": 1e9}


@pytest.fixture(scope="module")
def start_page(tmp_path_factory):
    """The package's start page; it is no part of this repository."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("no npm here to fetch speedscope's package with")
    folder = tmp_path_factory.mktemp("speedscope")
    command = [npm, "pack", PACKAGE, "--silent", "--pack-destination", str(folder)]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip(f"{PACKAGE} did not come within two minutes")
    archives = list(folder.glob("*.tgz"))
    if not archives:
        pytest.skip(f"{PACKAGE} cannot be fetched here: {done.stderr.strip()[-200:]}")
    with tarfile.open(archives[0]) as archive:
        for member in archive.getmembers():
            if member.isfile() and ".." not in member.name.split("/"):
                archive.extract(member, folder)
    return folder / "package" / "dist" / "release" / "index.html"


@pytest.fixture(scope="module")
def speedscope(start_page):
    """``speedscope(text)``: its page with a file opened in it."""
    sync_api = pytest.importorskip("playwright.sync_api")
    program = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no Chromium on this machine")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=OPTIONS)

        def opened(text):
            file = start_page.parent / "ours.speedscope.json"
            file.write_text(text, "utf-8")
            page = browser.new_page(viewport={"width": 1400, "height": 900})
            page.failures = []
            page.on("pageerror", lambda error: page.failures.append(str(error)))
            page.goto(start_page.as_uri())
            page.set_input_files("input[type=file]", str(file))
            page.get_by_text("Left Heavy").wait_for(timeout=60_000)
            return page

        yield opened
        browser.close()


def in_file(document, number):
    """Weight of each path of one profile, by names; speedscope itself writes when frames open and close."""
    profile, frames = document["profiles"][number], document["shared"]["frames"]
    paths = Counter()
    if profile["type"] == "sampled":
        for sample, weight in zip(profile["samples"], profile["weights"], strict=True):
            paths[tuple(frames[i]["name"] for i in sample)] += weight
        return paths
    stack, last = [], 0
    for event in profile["events"]:
        if event["at"] > last:
            paths[tuple(stack)] += event["at"] - last
            last = event["at"]
        name = frames[event["frame"]]["name"]
        if event["type"] == "O":
            stack.append(name)
        else:
            assert stack.pop() == name
    assert not stack
    return paths


def exported(page):
    """What speedscope writes when asked for the file it holds."""
    with page.expect_download() as waited:
        page.get_by_text("Export").click()
    with open(waited.value.path(), encoding="utf-8") as file:
        return json.load(file)


@pytest.mark.parametrize("name", ["state_checkpoint", "train_item", "llama_default"])
def test_speedscope_shows_the_figures_of_our_file(speedscope, name):
    flame = flame_of(name)
    page = speedscope(to_speedscope(flame))
    assert f"{flame.weights[0].title} (1/{len(flame.weights)})" in page.inner_text("body")
    page.get_by_text("Sandwich").click()
    page.get_by_text("Symbol Name").wait_for()
    rows = page.locator("tr").filter(has_text="%")
    rows.nth(4).wait_for()  # they come after the head of the table
    shown = {}
    for row in rows.all()[:8]:
        total, own, label = (cell.strip() for cell in row.locator("td").all_inner_texts())
        shown[label] = total.partition(" ")[0], own.partition(" ")[0]
    assert len(shown) >= 5
    own, total = Counter(), Counter()
    for path, weight in in_file(json.loads(to_speedscope(flame)), 0).items():
        own[path[-1]] += weight
        for label in set(path):
            total[label] += weight
    for label, texts in shown.items():
        for text, figure in zip(texts, (total[label], own[label]), strict=True):
            unit = text.lstrip("0123456789.")
            assert float(text.removesuffix(unit)) * UNITS[unit] == pytest.approx(figure, abs=0.00501 * UNITS[unit])
    assert page.failures == []
    page.close()


@pytest.mark.parametrize("name", ["state_checkpoint", "train_item"])
def test_speedscope_writes_our_paths_back(speedscope, name):
    ours = json.loads(to_speedscope(flame_of(name)))
    page = speedscope(json.dumps(ours))
    theirs = exported(page)
    assert [p["name"] for p in theirs["profiles"]] == [p["name"] for p in ours["profiles"]]
    assert [p["unit"] for p in theirs["profiles"]] == [p["unit"] for p in ours["profiles"]]
    for number in range(len(ours["profiles"])):
        assert in_file(theirs, number) == in_file(ours, number)
    assert page.failures == []
    page.close()


def test_speedscope_opens_both_recordings_of_a_difference(speedscope):
    difference = compare(flame_of("llama_default", lines=False), flame_of("llama_nosave", lines=False))
    ours = json.loads(difference_to_speedscope(difference))
    page = speedscope(json.dumps(ours))
    assert f"(1/{len(ours['profiles'])})" in page.inner_text("body")
    assert len(exported(page)["profiles"]) == len(ours["profiles"]) == 2 * len(difference.weights)
    assert page.failures == []
    page.close()
