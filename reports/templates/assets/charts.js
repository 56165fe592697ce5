"use strict";
(() => {
  const AXIS = 62;
  const LEGEND_COLUMN = 170;

  function rows(columns) {
    const names = Object.keys(columns);
    return columns[names[0]].map((_, i) => Object.fromEntries(names.map((n) => [n, columns[n][i]])));
  }

  function config() {
    const text = { labelColor: "var(--muted)", titleColor: "var(--muted)", titleFontWeight: 400, labelFontSize: 11, titleFontSize: 11 };
    const line = { gridColor: "var(--line)", domainColor: "var(--line)", tickColor: "var(--line)" };
    return {
      font: getComputedStyle(document.body).fontFamily,
      view: { stroke: null },
      axis: { ...text, ...line },
      axisY: { minExtent: AXIS - 22, maxExtent: AXIS - 22 },
      legend: { labelColor: "var(--text)", labelFontSize: 12, symbolSize: 90, symbolStrokeWidth: 0, columnPadding: 14, offset: 8 },
    };
  }

  function fitted(spec, width) {
    const copy = structuredClone(spec);
    for (const name of copy.usermeta.columns) copy.datasets[name] = rows(copy.datasets[name]);
    const labelled = copy.encoding && copy.encoding.y && copy.encoding.y.type === "ordinal";
    const inner = Math.max(width - (labelled ? 130 : AXIS), 120);
    for (const part of copy.vconcat || [copy]) part.width = inner;
    const own = copy.config || {};
    const base = config();
    if (labelled) base.axisY = {};
    base.legend.columns = Math.max(Math.floor(inner / LEGEND_COLUMN), 2);
    copy.config = { ...base, ...own };
    copy.background = null;
    copy.padding = { left: 0, right: 8, top: 2, bottom: 2 };
    return copy;
  }

  async function draw(chart) {
    const width = Math.floor(chart.canvas.clientWidth);
    if (!width || width === chart.width) return;
    chart.width = width;
    if (chart.result) chart.result.finalize();
    try {
      chart.result = await vegaEmbed(chart.canvas, fitted(chart.spec, width), {
        mode: "vega-lite", renderer: "svg", ast: true, actions: false, defaultStyle: false,
        tooltip: { disableDefaultStyle: true, theme: "custom" },
        loader: { load: () => Promise.reject(new Error("nothing is loaded")), sanitize: () => Promise.reject(new Error("no links")) },
      });
      chart.canvas.dataset.drawn = "yes";
    } catch (error) {
      chart.canvas.textContent = "This chart could not be drawn: " + error.message;
      chart.canvas.classList.add("failed");
      console.error(error);
    }
  }

  const charts = [...document.querySelectorAll(".chart")].map((figure) => ({
    id: figure.id,
    canvas: figure.querySelector(".canvas"),
    spec: JSON.parse(figure.querySelector("script").textContent),
    width: 0,
  }));
  async function drawAll() {
    for (const chart of charts) await draw(chart);
  }
  // A finding's link zooms the timeline to its slice; the figure is also where the link leads.
  async function zoom(link) {
    const chart = charts.find((c) => "#" + c.id === link.getAttribute("href"));
    const strip = chart && chart.spec.vconcat && chart.spec.vconcat.at(-1);
    if (!strip) return;
    strip.params[0].value = { x: link.dataset.zoom.split(",").map(Number) };
    chart.width = 0;
    await draw(chart);
    chart.canvas.dataset.zoomed = link.dataset.zoom;
  }
  for (const link of document.querySelectorAll("a[data-zoom]")) link.addEventListener("click", () => zoom(link));
  let timer = 0;
  addEventListener("resize", () => { clearTimeout(timer); timer = setTimeout(drawAll, 150); });
  drawAll().then(() => { document.documentElement.dataset.charts = "drawn"; });
})();
