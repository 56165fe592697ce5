"use strict";
// The flame graph: one canvas, drawn from a tree of weighed frames. Frames narrower than a pixel are drawn together, so
// that the work of a redraw is bounded by the size of the canvas, not by the number of frames.
(() => {
  const $ = (id) => document.getElementById(`flame-${id}`);
  if (!$("data")) return;
  const data = JSON.parse($("data").textContent);
  const two = data.sides.length === 2;
  const ROW = 19, NARROW = 1, GAP = 1, PAD = 4;
  const canvas = $("canvas"), pen = canvas.getContext("2d"), tip = $("tip"), said = $("said");
  const state = { weight: 0, hidden: new Set(), zoom: 0, focus: -1, hover: null, match: null, term: "", at: -1 };
  let tree = null, boxes = [], width = 0, css = {};

  // --- numbers ---
  const grouped = (n) => n.toLocaleString("en-US", { maximumFractionDigits: 3 });
  const scaled = (n, steps) => {
    for (const [size, unit] of steps) if (Math.abs(n) >= size) return `${Number((n / size).toPrecision(4))} ${unit}`;
    return `${Number(n.toPrecision(4))} ${steps[steps.length - 1][1]}`;
  };
  const TIME = [[1e9, "s"], [1e6, "ms"], [1e3, "us"], [1, "ns"]];
  const SIZE = [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "B"]];
  const short = (n, unit) => unit === "ns" ? scaled(n, TIME) : unit === "bytes" ? scaled(n, SIZE) : grouped(n);
  const exact = (n, unit) => `${grouped(n)} ${unit === "bytes" ? "bytes" : unit}`;
  const percent = (part, whole) => {
    if (!(whole > 0)) return "n/a";
    const p = 100 * part / whole;
    return p > 0 && p < 0.05 ? "<0.1%" : `${p.toFixed(1)}%`;
  };
  const weight = () => data.weights[state.weight];

  // --- the tree: hidden levels are left out, and what then begins alike is merged ---
  function build() {
    const { parent, label, lost } = data.nodes, level = data.labels.level, n = parent.length, L = data.labels.text.length;
    const map = new Int32Array(n), known = new Map(), up = [0], name = [-1], gone = [lost[0]];
    for (let i = 1; i < n; i++) {
      const above = map[parent[i]];
      if (state.hidden.has(level[label[i]])) { map[i] = above; gone[above] += lost[i]; continue; }
      const key = above * L + label[i];
      let node = known.get(key);
      if (node === undefined) { node = up.length; known.set(key, node); up.push(above); name.push(label[i]); gone.push(0); }
      gone[node] += lost[i];
      map[i] = node;
    }
    tree = { parent: Int32Array.from(up), label: Int32Array.from(name), lost: gone, map };
    weigh();
  }

  function weigh() {
    const n = tree.parent.length, key = weight().key;
    tree.total = data.sides.map(() => new Float64Array(n));
    tree.span = new Float64Array(n);
    data.own[key].forEach((side, s) => {
      for (let i = 0; i < side.node.length; i++) tree.total[s][tree.map[side.node[i]]] += side.value[i] * data.scale[s];
    });
    for (let i = 0; i < n; i++) tree.span[i] = Math.max(...tree.total.map((t) => t[i]));
    for (let i = n - 1; i > 0; i--) {
      tree.span[tree.parent[i]] += tree.span[i];
      for (const t of tree.total) t[tree.parent[i]] += t[i];
    }
    const order = new Int32Array(n - 1).map((_, i) => i + 1);
    const text = data.labels.text;
    order.sort((a, b) => tree.parent[a] - tree.parent[b] || tree.span[b] - tree.span[a]
      || (text[tree.label[a]] < text[tree.label[b]] ? -1 : 1));
    tree.kids = order;
    tree.first = new Int32Array(n + 1);
    for (const i of order) tree.first[tree.parent[i] + 1]++;
    for (let i = 0; i < n; i++) tree.first[i + 1] += tree.first[i];
    tree.depth = new Int32Array(n);
    for (let i = 1; i < n; i++) tree.depth[i] = tree.depth[tree.parent[i]] + 1;
    if (state.term) search(state.term); else state.match = null;
  }

  const textOf = (node) => node === 0 ? (two ? "both recordings" : "all") : data.labels.text[tree.label[node]];

  // --- layout and drawing ---
  function layout() {
    boxes = [];
    const put = (row, box) => { (boxes[row] ||= []).push(box); };
    const chain = [];
    for (let node = state.zoom; ; node = tree.parent[node]) { chain.unshift(node); if (node === 0) break; }
    chain.slice(0, -1).forEach((node, row) => put(row, { node, x: 0, w: width, dim: true }));
    const scale = tree.span[state.zoom] > 0 ? width / tree.span[state.zoom] : 0;
    const stack = [{ node: state.zoom, x: 0, row: chain.length - 1 }];
    while (stack.length) {
      const { node, x, row } = stack.pop(), w = tree.span[node] * scale;
      put(row, { node, x, w });
      let at = x;
      for (let i = tree.first[node]; i < tree.first[node + 1]; i++) {
        const kid = tree.kids[i], wide = tree.span[kid] * scale;
        if (wide < NARROW) {
          // Children are in order of their width: all that follow are narrower still.
          let sum = 0, count = 0;
          const total = data.sides.map(() => 0);
          for (let j = i; j < tree.first[node + 1]; j++) {
            const one = tree.kids[j];
            if (!(tree.span[one] > 0)) break;
            sum += tree.span[one]; count++;
            tree.total.forEach((t, s) => { total[s] += t[one]; });
          }
          if (sum > 0) put(row + 1, { node: -1, under: node, count, x: at, w: Math.max(sum * scale, 0.5), total });
          break;
        }
        stack.push({ node: kid, x: at, row: row + 1 });
        at += wide;
      }
    }
    for (const row of boxes) row.sort((a, b) => a.x - b.x);
  }

  const host = new Set(["page", "panel", "text", "muted", "line", "soft"]);
  function readColours() {
    const style = getComputedStyle(document.documentElement);
    for (const name of ["page", "panel", "text", "muted", "line", "soft", "match", "small", "process", "nvtx", "python",
      "native", "pseudo", "kernel-mode", "device", "kernel", "htod", "dtoh", "other-copy", "migration", "memset", "sync",
      "call", "copy-call", "allocate", "grew", "shrank", "same"]) {
      css[name] = style.getPropertyValue(host.has(name) ? `--${name}` : `--flame-${name}`).trim();
    }
  }

  const COLOURS = {
    HtoD: "htod", DtoH: "dtoh", kernel: "kernel", memset: "memset", sync: "sync", migration: "migration",
    process: "process", thread: "process", nvtx: "nvtx", python: "python", native: "native", pseudo: "pseudo",
    "kernel-mode": "kernel-mode", device: "device", call: "call", "copy call": "copy-call", allocate: "allocate",
  };
  const parts = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
  const mixed = (from, to, ratio) => {
    const [a, b] = [parts(from), parts(to)];
    return `#${a.map((v, i) => Math.round(v + (b[i] - v) * ratio).toString(16).padStart(2, "0")).join("")}`;
  };
  // Dark letters or light ones, whichever stand out more (relative luminance, as WCAG defines it).
  const inks = new Map();
  const inkOn = (fill) => {
    if (!inks.has(fill)) {
      const [r, g, b] = parts(fill).map((v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
      inks.set(fill, 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.18 ? "#16191c" : "#ffffff");
    }
    return inks.get(fill);
  };

  // Grew and shrank: how much of the frame's larger side the change is.
  const change = (total) => {
    const larger = Math.max(total[0], total[1]);
    return larger > 0 ? (total[1] - total[0]) / larger : 0;
  };

  function colourOf(box) {
    if (two) {
      const total = box.node < 0 ? box.total : tree.total.map((t) => t[box.node]);
      const c = change(total);
      return mixed(css.same, c > 0 ? css.grew : css.shrank, Math.min(1, Math.abs(c)));
    }
    if (box.node < 0) return css.small;
    if (box.node === 0) return css.process;
    return css[COLOURS[data.labels.colour[tree.label[box.node]]] || "other-copy"];
  }

  const fits = (text, room) => {
    if (pen.measureText(text).width <= room) return text;
    let low = 0, high = text.length;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (pen.measureText(`${text.slice(0, middle)}…`).width <= room) low = middle; else high = middle - 1;
    }
    return low > 1 ? `${text.slice(0, low)}…` : "";
  };

  function draw() {
    if (boxes.length > 1500) boxes.length = 1500;  // beyond what a canvas can hold
    const wide = Math.floor(canvas.parentElement.clientWidth), high = boxes.length * ROW + 2;
    const ratio = Math.min(window.devicePixelRatio || 1, 32000 / high);
    if (wide !== width) { width = wide; layout(); return draw(); }
    canvas.style.height = `${high}px`;
    canvas.width = Math.floor(wide * ratio);
    canvas.height = Math.floor(high * ratio);
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, wide, high);
    pen.font = `12px ${getComputedStyle(document.body).fontFamily}`;
    pen.textBaseline = "middle";
    boxes.forEach((row, r) => row.forEach((box) => drawBox(box, r * ROW)));
  }

  function drawBox(box, y) {
    const w = Math.max(box.w - (box.w > 3 ? GAP : 0), 0.5), fill = colourOf(box), ink = inkOn(fill);
    const found = !state.match || state.under[box.node < 0 ? box.under : box.node];
    pen.globalAlpha = box.dim ? 0.55 : found ? 1 : 0.35;
    pen.fillStyle = fill;
    pen.fillRect(box.x, y, w, ROW - 1);
    pen.globalAlpha = 1;
    const total = two ? (box.node < 0 ? box.total : tree.total.map((t) => t[box.node])) : null;
    const oneSided = two && (total[0] === 0) !== (total[1] === 0);
    const text = w > 26 ? fits(caption(box, total), w - 2 * PAD) : "";
    if (box.node < 0 || oneSided) {  // the hatching begins behind the letters
      const begin = text ? pen.measureText(text).width + 2 * PAD : 0;
      hatch(box.x + begin, y, w - begin, found ? ink : css.text);
    }
    if (state.match && box.node > 0 && state.match[box.node]) {
      pen.fillStyle = css.match;
      pen.fillRect(box.x, y + ROW - 4, w, 3);
    }
    if (text) {
      pen.fillStyle = found ? ink : css.text;
      pen.fillText(text, box.x + PAD, y + (ROW - 1) / 2 + 0.5);
    }
    if (box.node >= 0 && box.node === state.focus) {
      pen.strokeStyle = css.text;
      pen.lineWidth = 2;
      pen.strokeRect(box.x + 1, y + 1, Math.max(w - 2, 1), ROW - 3);
    }
  }

  function caption(box, total) {
    if (box.node < 0) return `${grouped(box.count)} smaller`;
    const text = textOf(box.node);
    if (!two) return text;
    const mark = total[1] === 0 && total[0] > 0 ? "gone" : total[0] === 0 && total[1] > 0 ? "new"
      : Math.abs(change(total)) < 0.005 ? "=" : total[1] > total[0] ? "▲" : "▼";
    return `${mark} ${text}`;
  }

  function hatch(x, y, w, colour) {
    pen.save();
    pen.beginPath();
    pen.rect(x, y, w, ROW - 1);
    pen.clip();
    pen.strokeStyle = colour;
    pen.globalAlpha = 0.3;
    pen.lineWidth = 1;
    pen.beginPath();
    for (let i = x - ROW; i < x + w; i += 6) { pen.moveTo(i, y + ROW); pen.lineTo(i + ROW, y); }
    pen.stroke();
    pen.restore();
  }

  // --- what a frame says ---
  function describe(box) {
    const unit = weight().unit, node = box.node;
    const total = node < 0 ? box.total : tree.total.map((t) => t[node]);
    const lines = [];
    if (two) {
      lines.push([data.sides[0].name, `${short(total[0], unit)}${data.per} (${exact(total[0], unit)})`]);
      lines.push([data.sides[1].name, `${short(total[1], unit)}${data.per} (${exact(total[1], unit)})`]);
      const by = total[0] > 0 ? ` (${total[1] >= total[0] ? "+" : "-"}${percent(Math.abs(total[1] - total[0]), total[0])})` : "";
      const what = total[0] === total[1] ? "no change" : total[1] === 0 ? "gone" : total[0] === 0 ? "new"
        : total[1] > total[0] ? "grew" : "shrank";
      lines.push(["change", `${what}: ${total[1] >= total[0] ? "+" : "-"}${short(Math.abs(total[1] - total[0]), unit)}${by}`]);
    } else {
      lines.push([weight().title, `${short(total[0], unit)} (${exact(total[0], unit)})`]);
      if (unit === "ns") lines.push(["of the window", percent(total[0], data.window_ns)]);
    }
    data.sides.forEach((side, s) => {
      const of = two ? `of ${side.name}` : "of all";
      lines.push([of, percent(total[s], tree.total[s][0])]);
    });
    if (node > 0 && !two) lines.push(["of its parent", percent(total[0], tree.total[0][tree.parent[node]])]);
    return lines;
  }

  function headline(box) {
    if (box.node < 0) return [`${grouped(box.count)} frames narrower than a pixel`, "drawn as one; zoom in to tell them apart"];
    if (box.node === 0) return ["everything", weight().meaning];
    const label = tree.label[box.node], [full, place] = data.labels.detail[label].split("\n");
    const level = data.levels[data.labels.level[label]];
    const more = [level, place].filter(Boolean).join(", ");
    return [data.labels.text[label], full && full !== data.labels.text[label] ? `${more}\n${full}` : more];
  }

  function showTip(box, x, y) {
    tip.replaceChildren();
    const add = (tag, text, parent = tip) => { const e = document.createElement(tag); e.textContent = text; parent.append(e); return e; };
    const [title, more] = headline(box);
    add("strong", title);
    add("p", more);
    const list = add("dl", "");
    for (const [k, v] of describe(box)) { add("dt", k, list); add("dd", v, list); }
    if (box.node >= 0 && tree.lost[box.node]) add("p", `${grouped(tree.lost[box.node])} frames below were too small for this page and count as its own`);
    tip.hidden = false;
    const room = document.documentElement.clientWidth;
    tip.style.left = `${Math.max(4, Math.min(x + 14, room - tip.offsetWidth - 8))}px`;
    tip.style.top = `${y + 18 + tip.offsetHeight > window.innerHeight ? Math.max(4, y - tip.offsetHeight - 10) : y + 18}px`;
  }

  const boxAt = (event) => {
    const area = canvas.getBoundingClientRect(), x = event.clientX - area.left;
    const row = boxes[Math.floor((event.clientY - area.top) / ROW)] || [];
    let found = null;
    for (const box of row) if (box.x <= x && x < box.x + Math.max(box.w, 1)) found = box;
    return found;
  };
  const boxOf = (node) => boxes.flat().find((box) => box.node === node);

  // --- zoom, focus, search ---
  function zoom(node) {
    state.zoom = node;
    state.focus = node;
    layout(); draw(); say(boxOf(node));
    $("reset").disabled = node === 0;
  }

  function say(box) {
    if (!box) return;
    said.textContent = `${headline(box)[0]}: ${describe(box).map(([k, v]) => `${k} ${v}`).join("; ")}`;
  }

  function focus(node) {
    if (node < 0) return;
    state.focus = node;
    if (!boxOf(node)) {  // too narrow to see here: zoom to where it can be seen
      state.zoom = tree.parent[node];
      layout();
      $("reset").disabled = state.zoom === 0;
    }
    draw();
    const box = boxOf(node);
    say(box || { node });
    canvas.parentElement.scrollTop = Math.max(0, tree.depth[node] * ROW - canvas.parentElement.clientHeight / 2);
  }

  function search(term) {
    state.term = term;
    state.match = null;
    $("found").textContent = "";
    if (!term) return;
    let test;
    const whole = /^\/(.+)\/$/.exec(term);
    try {
      const pattern = whole && new RegExp(whole[1], "i"), lower = term.toLowerCase();
      test = (text) => pattern ? pattern.test(text) : text.toLowerCase().includes(lower);
    } catch { $("found").textContent = "no regular expression"; return; }
    const hit = data.labels.text.map(test), n = tree.parent.length, match = new Uint8Array(n), under = new Uint8Array(n);
    const sums = data.sides.map(() => 0);
    let count = 0;
    for (let i = 1; i < n; i++) {
      under[i] = under[tree.parent[i]];
      if (!hit[tree.label[i]] || !(tree.span[i] > 0)) continue;
      match[i] = 1; count++;
      if (!under[i]) tree.total.forEach((t, s) => { sums[s] += t[i]; });  // a match inside a match counts once
      under[i] = 1;
    }
    state.match = match;
    state.under = under;
    const unit = weight().unit;
    const shown = sums.map((sum, s) => `${two ? `${data.sides[s].name} ` : ""}${short(sum, unit)}, ${percent(sum, tree.total[s][0])} of all`);
    $("found").textContent = count ? `${grouped(count)} ${count === 1 ? "frame" : "frames"}: ${shown.join("; ")}` : "no match";
  }

  function step(forward) {
    if (!state.match) return;
    const n = tree.parent.length;
    for (let i = 1; i <= n; i++) {
      const node = ((state.at < 0 ? 0 : state.at) + (forward ? i : n - i)) % n;
      if (state.match[node]) { state.at = node; state.zoom = 0; layout(); focus(node); return; }
    }
  }

  function move(key) {
    const node = state.focus < 0 ? state.zoom : state.focus;
    const above = tree.parent[node], first = tree.first[above], last = tree.first[above + 1];
    const place = tree.kids.subarray(first, last).indexOf(node);
    if (key === "ArrowUp") return focus(above);
    if (key === "ArrowDown") {
      const kid = tree.first[node] < tree.first[node + 1] ? tree.kids[tree.first[node]] : -1;
      return kid > 0 && tree.span[kid] > 0 ? focus(kid) : undefined;
    }
    if (node === 0) return undefined;
    const next = place + (key === "ArrowRight" ? 1 : -1);
    return next >= 0 && first + next < last && tree.span[tree.kids[first + next]] > 0 ? focus(tree.kids[first + next]) : undefined;
  }

  function refresh() {
    state.zoom = 0; state.focus = -1; state.at = -1;
    $("reset").disabled = true;
    layout(); draw();
    const unit = weight().unit;
    $("total").textContent = data.sides.map((side, s) => {
      const total = tree.total[s][0], share = unit === "ns" && !two ? `, ${percent(total, data.window_ns)} of the window` : "";
      return `${two ? `${side.name}: ` : ""}${short(total, unit)}${two ? data.per : ""}${share}`;
    }).join("  ·  ");
    $("meaning").textContent = weight().meaning;
  }

  // --- controls ---
  data.weights.forEach((w, i) => $("weight").append(new Option(w.title, i)));
  $("weight").addEventListener("change", (e) => { state.weight = Number(e.target.value); weigh(); refresh(); });
  const used = new Set(data.nodes.label.map((l) => data.labels.level[l]));
  data.levels.forEach((name, i) => {
    if (!used.has(i)) return;
    const label = document.createElement("label"), box = document.createElement("input");
    box.type = "checkbox"; box.checked = true; box.dataset.level = name;
    box.addEventListener("change", () => { if (box.checked) state.hidden.delete(i); else state.hidden.add(i); build(); refresh(); });
    label.append(box, data.level_titles[i]);
    $("levels").append(label);
  });
  let waiting = 0;
  $("search").addEventListener("input", (e) => {
    clearTimeout(waiting);
    waiting = setTimeout(() => { state.at = -1; search(e.target.value.trim()); draw(); }, 120);
  });
  $("search").addEventListener("keydown", (e) => {
    if (e.key === "Enter") { clearTimeout(waiting); search(e.target.value.trim()); step(!e.shiftKey); }
    if (e.key === "Escape") { e.target.value = ""; search(""); draw(); canvas.focus(); }
  });
  $("reset").addEventListener("click", () => zoom(0));
  canvas.addEventListener("mousemove", (e) => {
    const box = boxAt(e);
    canvas.style.cursor = box ? "pointer" : "default";
    if (box) showTip(box, e.clientX, e.clientY); else tip.hidden = true;
  });
  canvas.addEventListener("mouseleave", () => { tip.hidden = true; });
  canvas.addEventListener("click", (e) => { const box = boxAt(e); if (box) zoom(box.node < 0 ? box.under : box.node); });
  canvas.addEventListener("keydown", (e) => {
    if (e.ctrlKey || e.metaKey || e.altKey) return;
    if (e.key.startsWith("Arrow")) move(e.key);
    else if (e.key === "Enter" && state.focus >= 0) zoom(state.focus);
    else if (e.key === "Escape" || e.key === "Backspace") zoom(tree.parent[state.zoom]);
    else if (e.key === "Home" || e.key === "0") zoom(0);
    else if (e.key === "n" || e.key === "N") step(e.key === "n");
    else return;
    e.preventDefault();
  });
  document.addEventListener("keydown", (e) => {
    if (e.key === "/" && !/^(INPUT|SELECT)$/.test(document.activeElement.tagName)) { e.preventDefault(); $("search").focus(); }
  });
  new ResizeObserver(() => { if (Math.floor(canvas.parentElement.clientWidth) !== width) draw(); }).observe(canvas.parentElement);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readColours(); draw(); });
  readColours();
  build();
  refresh();
})();
