"""The report in a real Chromium: it draws, it obeys its policy, it fits, it prints, and hostile text stays text."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from report_page import analysis_of_export, empty, hostile

from nsysparse.report import render_report

pytestmark = pytest.mark.browser

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
DRAWN = "document.documentElement.dataset.charts === 'drawn'"
TRACES = ("state_checkpoint", "llama_default", "train_item", "p2p", "pinned_overlap_lossy")


@pytest.fixture(scope="module")
def browser():
    if not CHROMIUM.exists() and not os.environ.get("CI"):
        pytest.skip(f"no {CHROMIUM}")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=str(CHROMIUM), args=ARGUMENTS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def reports(analysis_of, tmp_path_factory):
    """``reports(name)``: the file of a report, made once."""
    folder = tmp_path_factory.mktemp("reports")
    builders = {"empty": empty, "hostile": hostile}

    def make(name):
        file = folder / f"{name}.html"
        if not file.exists():
            made = builders.get(name)
            analysis = analysis_of_export(made(), folder) if made else analysis_of(name)
            file.write_text(render_report(analysis), "utf-8")
        return file

    return make


class Visit:
    """A page that was opened offline, with everything that it complained of or asked for."""

    def __init__(self, browser, file, width=1400, **options):
        self.context = browser.new_context(viewport={"width": width, "height": 900}, offline=True, **options)
        self.page = self.context.new_page()
        self.said, self.asked = [], []
        self.page.on("console", lambda message: self.said.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.said.append(f"error: {error}"))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("dialog", lambda dialog: (self.said.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        self.url = file.as_uri()
        self.page.goto(self.url)
        if options.get("java_script_enabled", True) and self.page.locator(".chart").count():
            self.page.wait_for_function(DRAWN, timeout=30_000)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.context.close()

    def check_quiet(self):
        assert self.said == []
        assert self.asked == [self.url]

    def style(self, selector, what):
        return self.page.evaluate(f"getComputedStyle(document.querySelector('{selector}')).{what}")


@pytest.mark.parametrize("name", [*TRACES, "empty", "hostile"])
def test_it_draws_without_a_complaint_or_a_request(browser, reports, name):
    with Visit(browser, reports(name)) as visit:
        charts = visit.page.locator(".chart").count()
        assert visit.page.locator(".canvas[data-drawn] svg").count() == charts
        assert charts >= (0 if name == "empty" else 2)
        visit.check_quiet()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1400])
@pytest.mark.parametrize("name", ["state_checkpoint", "p2p", "hostile", "empty"])
def test_it_fits_and_follows_the_scheme(browser, reports, name, width, scheme):
    with Visit(browser, reports(name), width, color_scheme=scheme) as visit:
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= width
        shade = sum(int(n) for n in visit.style("body", "backgroundColor").removeprefix("rgb(").rstrip(")").split(","))
        assert shade > 700 if scheme == "light" else shade < 100
        visit.check_quiet()


def test_tables_do_without_javascript(browser, reports):
    with Visit(browser, reports("state_checkpoint"), java_script_enabled=False) as visit:
        tables = visit.page.locator("figure.table table")
        assert tables.count() > 10
        assert all(tables.nth(i).is_visible() for i in range(tables.count()))
        assert visit.page.get_by_text("This chart needs JavaScript").first.is_visible()
        assert visit.page.locator("svg.split rect").count() >= 3


def test_hostile_text_does_not_run(browser, reports):
    with Visit(browser, reports("hostile")) as visit:
        assert visit.page.evaluate("window.pwned") is None
        for kind in ("#content img", "#content script:not([type='application/json'])", "[onerror]", "[onmouseover]"):
            assert visit.page.locator(kind).count() == 0
        visit.page.locator("summary").first.click()
        visit.page.locator("figure.chart svg").first.hover()
        assert visit.page.evaluate("window.pwned") is None
        visit.check_quiet()


def test_a_script_that_is_not_the_reports_own_cannot_run(browser, reports, tmp_path):
    file = tmp_path / "changed.html"
    html = reports("empty").read_text("utf-8")
    file.write_text(html.replace("</main>", "<script>window.pwned = 1</script></main>"), "utf-8")
    with Visit(browser, file) as visit:
        assert visit.page.evaluate("window.pwned") is None
        assert any("Content Security Policy" in line for line in visit.said)


def test_it_prints(browser, reports, tmp_path):
    with Visit(browser, reports("state_checkpoint"), color_scheme="dark") as visit:
        pdf = visit.page.pdf(prefer_css_page_size=True, print_background=True)
        assert pdf.startswith(b"%PDF")
        assert len(pdf) > 50_000
        visit.page.emulate_media(media="print", color_scheme="dark")
        assert visit.style("body", "backgroundColor") == "rgb(255, 255, 255)"
        assert visit.page.locator("nav.contents").is_hidden()
        for tables in (visit.page.locator("figure.table table"), visit.page.locator(".canvas svg")):
            assert tables.count() > 2
            assert all(tables.nth(i).is_visible() for i in range(tables.count()))
        assert visit.style(".scroll", "overflowX") == "visible"


def domain(page):
    """The labels of the timeline's time axis."""
    return sorted(page.locator("#timeline .canvas svg .role-axis-label text").all_text_contents())


def test_dragging_on_the_strip_zooms_the_timeline(browser, reports):
    with Visit(browser, reports("llama_default")) as visit:
        chart = visit.page.locator("#timeline .canvas svg").first
        chart.scroll_into_view_if_needed()
        box = chart.bounding_box()
        before = domain(visit.page)
        y = box["y"] + box["height"] - 35
        visit.page.mouse.move(box["x"] + box["width"] * 0.4, y)
        visit.page.mouse.down()
        visit.page.mouse.move(box["x"] + box["width"] * 0.5, y, steps=8)
        visit.page.mouse.up()
        visit.page.wait_for_timeout(300)
        assert domain(visit.page) != before
        visit.page.mouse.dblclick(box["x"] + box["width"] * 0.45, y)
        visit.page.wait_for_timeout(300)
        assert domain(visit.page) == before
        visit.check_quiet()


def test_a_findings_link_zooms_the_timeline_to_its_slice(browser, reports, analysis_of):
    finding = analysis_of("state_checkpoint").findings[0]
    with Visit(browser, reports("state_checkpoint")) as visit:
        before = domain(visit.page)
        visit.page.locator("article.finding a[data-zoom]").first.click()
        visit.page.wait_for_function("document.querySelector('#timeline .canvas').dataset.zoomed")
        assert domain(visit.page) != before
        at = [float(text.replace(",", "")) for text in domain(visit.page) if text.replace(",", "").strip("0.")]
        low, high = (t / 1e6 for t in finding.slice_ns)  # the axis is in ms of session time, as the instances are
        times = [t for t in at if t > 100]  # the other labels are percent and rates
        assert len(times) >= 3
        assert all(low - 1 <= t <= high + 1 for t in times)
        visit.check_quiet()


def test_charts_fit_again_after_the_window_changed(browser, reports):
    with Visit(browser, reports("state_checkpoint")) as visit:
        wide = visit.page.locator(".canvas svg").first.bounding_box()["width"]
        visit.page.set_viewport_size({"width": 390, "height": 800})
        visit.page.wait_for_function("document.querySelector('.canvas svg').getBoundingClientRect().width <= 390")
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= 390
        assert visit.page.locator(".canvas svg").first.bounding_box()["width"] < wide
        visit.check_quiet()


def test_a_term_leads_to_its_definition_and_a_number_tells_its_exact_value(browser, reports, analysis_of):
    with Visit(browser, reports("state_checkpoint")) as visit:
        visit.page.locator("thead a.term", has_text="Held up").first.click()
        assert visit.page.url.endswith("#def-held-up")
        assert visit.page.locator("#def-held-up").is_visible()
        titles = visit.page.locator("#kernels td.num").evaluate_all("cells => cells.map(c => c.title)")
        assert f"{analysis_of('state_checkpoint').devices[0].tables['kernels']['time_ns'][0]:,} ns" in titles
