"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const main = document.getElementById("main");

/* An element with attributes, and children that are elements or text: never HTML of the data. */
function element(name, attributes, ...children) {
  const svg = ["svg", "g", "rect", "path", "text", "title", "line"].includes(name);
  const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key === "click") made.addEventListener("click", value);
    else made.setAttribute(key, value);
  }
  for (const child of children.flat()) made.append(child);
  return made;
}

const number = (value, digits = 1) => value == null ? "–" : Number(value).toLocaleString("en", { maximumFractionDigits: digits });
const micro = value => value == null ? "–" : value >= 1000 ? `${number(value / 1000, 2)} ms` : `${number(value, 1)} µs`;
const bytes = value => value >= 1e6 ? `${number(value / 1e6, 1)} MB` : value >= 1e3 ? `${number(value / 1e3, 1)} kB` : `${number(value, 0)} B`;
const percent = value => value == null ? "–" : `${number(100 * value, 0)} %`;

function table(headings, rows) {
  return element("table", {},
    element("thead", {}, element("tr", {}, headings.map(h => element("th", {}, h)))),
    element("tbody", {}, rows.map(row => element("tr", {}, row.map(cell => element("td", {}, cell instanceof Node ? cell : String(cell)))))));
}

function card(value, label) {
  return element("div", { class: "card" }, element("b", {}, value), element("span", {}, label));
}

function summary() {
  const sum = data.kernels.reduce((total, k) => total + k.microseconds, 0);
  const bounds = data.kernels.reduce((total, k) => total + Math.min(k.bound == null ? k.microseconds : k.bound, k.microseconds), 0);
  return [
    element("div", { class: "cards" },
      card(micro(data.call), "a call"), card(String(data.kernels.length), "steps"),
      card(percent(data.attributed), "of a call's time is attributed to steps"),
      card(percent(sum ? bounds / sum : 1), "of the steps' time is their roofline bound"),
      Object.entries(data.memory).map(([name, size]) => card(bytes(size), name))),
    element("h2", {}, "Inputs and outputs"),
    table(["", ""], [...data.inputs.map(t => ["input", t]), ...data.outputs.map(t => ["output", t])]),
    element("h2", {}, "By template"),
    table(["template", "steps", "time", "share"], byTemplate(sum)),
  ];
}

function byTemplate(sum) {
  const found = new Map();
  for (const k of data.kernels) {
    const own = found.get(k.template || "step") || [0, 0];
    found.set(k.template || "step", [own[0] + 1, own[1] + k.microseconds]);
  }
  return [...found].sort((a, b) => b[1][1] - a[1][1]).map(([name, [count, time]]) => [name, count, micro(time), percent(time / sum)]);
}

function kernels() {
  const most = Math.max(...data.kernels.map(k => k.microseconds), 1e-9);
  const list = element("div", {});
  const order = element("select", { "aria-label": "order" }, element("option", { value: "time" }, "longest first"),
    element("option", { value: "lost" }, "most above its bound first"), element("option", { value: "call" }, "in the order of a call"));
  const draw = () => {
    const rows = [...data.kernels];
    if (order.value === "time") rows.sort((a, b) => b.microseconds - a.microseconds);
    if (order.value === "lost") rows.sort((a, b) => (b.microseconds - (b.bound ?? 0)) - (a.microseconds - (a.bound ?? 0)));
    list.replaceChildren(...rows.flatMap(k => kernelRow(k, most)));
  };
  order.addEventListener("change", draw);
  draw();
  return [
    element("div", { class: "tools" }, order, element("span", { class: "legend" },
      colour("--bar"), "time", colour("--bound"), "roofline bound: no less is possible at this machine's measured rates")),
    list,
  ];
}

function colour(name) {
  const made = element("i", {});
  made.style.background = `var(${name})`;
  return made;
}

function kernelRow(kernel, most) {
  const bar = element("i", {}), least = element("u", {});
  bar.style.width = `${100 * kernel.microseconds / most}%`;
  least.style.width = `${100 * Math.min(kernel.bound ?? 0, kernel.microseconds) / most}%`;
  const row = element("button", { class: "row", "aria-expanded": "false", title: kernel.group },
    element("span", { class: "what" }, kernel.node || kernel.kernel), element("span", { class: "track" }, bar, least),
    element("span", { class: "time" }, `${micro(kernel.microseconds)}, ${percent(kernel.reached)}`));
  let detail = null;
  row.addEventListener("click", () => {
    row.setAttribute("aria-expanded", String(!detail));
    if (detail) { detail.remove(); detail = null; return; }
    detail = kernelDetail(kernel);
    row.after(detail);
  });
  return [row];
}

function kernelDetail(kernel) {
  const facts = [["computes", kernel.group], ["kernel", kernel.kernel], ["template", kernel.template],
    ["choice", Object.entries(kernel.choice).map(([k, v]) => `${k} ${v}`).join(", ") + (kernel.recorded ? " (tuned)" : "")],
    ["layouts", Object.entries(kernel.layouts).map(([k, v]) => `${k}: ${v}`).join(", ")],
    ["operations", number(kernel.flops, 0)], ["least bytes", number(kernel.moved, 0)],
    ["bound", kernel.bound == null ? "–" : `${micro(kernel.bound)} of ${kernel.resource}`], ["expected to be slow", kernel.slow]];
  const stages = data.stages[kernel.kernel] || [];
  return element("div", { class: "detail" }, table(["", ""], facts.filter(f => f[1])), kernel.search ? search(kernel.search) : [],
    stages.map(stage => [element("h2", {}, stage.name), element("pre", {}, stage.text)]).flat());
}

/* Candidates in the order of their trials, and the best so far; on a logarithmic scale. */
function search(found) {
  const times = found.microseconds.filter(t => t != null), least = Math.min(...times), most = Math.max(...times);
  const width = 640, height = 160, x = n => 4 + (width - 8) * n / Math.max(1, found.microseconds.length - 1);
  const y = t => height - 6 - (height - 12) * Math.log(t / least) / Math.max(Math.log(most / least), 1e-9);
  const drawing = element("svg", { class: "search", viewBox: `0 0 ${width} ${height}`, role: "img" },
    element("title", {}, "microseconds of candidates by trial"));
  let best = Infinity, line = "";
  found.microseconds.forEach((time, trial) => {
    if (time == null) return;
    drawing.append(element("rect", { x: x(trial) - 1.5, y: y(time) - 1.5, width: 3, height: 3 },
      element("title", {}, `trial ${trial + 1}: ${micro(time)}, ${found.templates[trial]}`)));
    line += line ? ` H ${x(trial)} V ${y(Math.min(best, time))}` : `M ${x(trial)} ${y(time)}`;
    best = Math.min(best, time);
  });
  drawing.append(element("path", { d: line }));
  const counts = Object.entries(found.outcomes).map(([name, count]) => `${count} ${name}`).join(", ");
  return [element("h2", {}, `Tuning: ${found.microseconds.length} candidates, ${counts}`), times.length ? drawing : [],
    element("p", {}, times.length ? `from ${micro(found.microseconds.find(t => t != null))} to ${micro(least)}` : "none could run")];
}

function graph() {
  const box = element("div", { class: "canvas" });
  const choice = element("select", { "aria-label": "pass" }, data.passes.map((p, i) =>
    element("option", { value: String(i) }, `${i}. ${p.name}: ${p.nodes.length} nodes, ${number(1000 * p.seconds, 1)} ms`)));
  const draw = () => box.replaceChildren(drawing(Number(choice.value)));
  choice.value = String(data.passes.length - 1);
  choice.addEventListener("change", draw);
  if (data.passes.length) draw();
  return [element("div", { class: "tools" }, choice, element("span", { class: "legend" }, colour("--new"),
    "not in the pass before; drag to move, wheel or pinch to zoom, click a node for its neighbours")), box];
}

const HIGH = 30, STEP = 46;

function drawing(index) {
  const nodes = data.passes[index].nodes;
  const before = new Set((data.passes[index - 1]?.nodes || []).map(n => JSON.stringify([n.op, n.inputs, n.outputs, n.attributes])));
  const place = new Map();
  nodes.forEach((node, i) => node.outputs.forEach(name => place.set(name, i)));
  const lanes = [], edges = [];
  nodes.forEach((node, i) => node.inputs.forEach(name => {
    const from = place.get(name);
    if (from !== undefined && from < i) edges.push([from, i]);
  }));
  edges.sort((a, b) => (a[1] - a[0]) - (b[1] - b[0]));
  const paths = edges.map(([from, to]) => {
    let lane = 0;
    if (to - from > 1) {
      lane = 1;
      while ((lanes[lane] || []).some(([a, b]) => a < to && from < b)) lane++;
      (lanes[lane] = lanes[lane] || []).push([from, to]);
    }
    return [from, to, lane];
  });
  const left = 24 + 12 * Math.max(1, lanes.length);
  const svg = element("svg", { role: "img", "aria-label": "graph" });
  const lines = paths.map(([from, to, lane]) => {
    const y1 = from * STEP + HIGH, y2 = to * STEP + 4, x = left - 12 * lane;
    const way = lane ? `M${left} ${y1 - HIGH / 2}C${x} ${y1} ${x} ${y1} ${x} ${y1 + 8}L${x} ${y2 - 4}C${x} ${y2 + 8} ${x} ${y2 + 8} ${left} ${y2 + 10}` : `M${left + 20} ${y1}L${left + 20} ${y2}`;
    return element("path", { class: "edge", d: way });
  });
  const boxes = nodes.map((node, i) => {
    const fresh = index && !before.has(JSON.stringify([node.op, node.inputs, node.outputs, node.attributes]));
    return element("g", { class: `node${fresh ? " fresh" : ""}`, transform: `translate(${left} ${i * STEP + 2})`, click: () => near(i) },
      element("title", {}, `${node.outputs.join(", ")} = ${node.op}(${[...node.inputs, ...node.attributes].join(", ")})`),
      element("rect", { width: 560, height: HIGH, rx: 5 }), element("text", { x: 8, y: 19 }, `${node.op}  ${shortened(node.outputs[0], 36)}`),
      element("text", { x: 552, y: 19, "text-anchor": "end", class: "type" }, shortened(node.types, 30)));
  });
  function near(i) {
    boxes.forEach((b, j) => b.classList.toggle("near", j === i || paths.some(([f, t]) => (f === i && t === j) || (t === i && f === j))));
    lines.forEach((l, k) => l.classList.toggle("near", paths[k][0] === i || paths[k][1] === i));
  }
  svg.append(...lines, ...boxes);
  moving(svg, left + 580, Math.max(1, nodes.length) * STEP);
  return svg;
}

const shortened = (text, most) => text.length > most ? `${text.slice(0, most - 1)}…` : text;

/* Drag, wheel and pinch: the part of a drawing that is seen. */
function moving(svg, width, height) {
  const view = { x: 0, y: 0, w: width, h: Math.min(height, 900) };
  const show = () => svg.setAttribute("viewBox", `${view.x} ${view.y} ${view.w} ${view.h}`);
  svg.setAttribute("preserveAspectRatio", "xMinYMin meet");
  const zoom = (factor, x, y) => {
    const box = svg.getBoundingClientRect(), scale = Math.max(view.w / box.width, view.h / box.height);
    const px = view.x + (x - box.left) * scale, py = view.y + (y - box.top) * scale;
    const next = Math.min(Math.max(view.w * factor, 120), 20 * width);
    const by = next / view.w;
    view.x = px - (px - view.x) * by; view.y = py - (py - view.y) * by; view.w *= by; view.h *= by;
    show();
  };
  const held = new Map();
  let moved = 0;
  svg.addEventListener("pointerdown", e => { held.set(e.pointerId, e); moved = 0; });
  svg.addEventListener("pointermove", e => {
    const last = held.get(e.pointerId);
    if (!last) return;
    const box = svg.getBoundingClientRect(), scale = Math.max(view.w / box.width, view.h / box.height);
    if (held.size === 1) {
      view.x -= (e.clientX - last.clientX) * scale; view.y -= (e.clientY - last.clientY) * scale;
      moved += Math.abs(e.clientX - last.clientX) + Math.abs(e.clientY - last.clientY);
      show();
    } else {
      const other = [...held.values()].find(o => o.pointerId !== e.pointerId);
      const far = o => Math.hypot(o.clientX - other.clientX, o.clientY - other.clientY);
      if (far(e) > 0) zoom(far(last) / far(e), (e.clientX + other.clientX) / 2, (e.clientY + other.clientY) / 2);
    }
    held.set(e.pointerId, e);
  });
  for (const end of ["pointerup", "pointercancel", "pointerleave"]) svg.addEventListener(end, e => held.delete(e.pointerId));
  svg.addEventListener("click", e => { if (moved > 6) e.stopPropagation(); }, true);
  svg.addEventListener("wheel", e => { e.preventDefault(); zoom(e.deltaY > 0 ? 1.15 : 1 / 1.15, e.clientX, e.clientY); }, { passive: false });
  show();
}

function memory() {
  const steps = Math.max(1, data.kernels.length), top = data.memory.arena || 1, width = 1000, height = 380;
  const svg = element("svg", { viewBox: `-70 -10 ${width + 90} ${height + 50}`, role: "img", "aria-label": "memory over time" });
  const x = step => step * width / steps, y = offset => height - offset * height / top;
  for (const b of data.buffers) {
    svg.append(element("rect", { class: "buffer", x: x(b.first), width: Math.max(1, x(b.last + 1) - x(b.first)), y: y(b.offset + b.nbytes),
      height: Math.max(1, b.nbytes * height / top) }, element("title", {}, `${bytes(b.nbytes)} at ${number(b.offset, 0)}, steps ${b.first} to ${b.last}`)));
  }
  for (let i = 0; i <= 4; i++) svg.append(element("text", { class: "axis", x: -8, y: y(top * i / 4) + 4, "text-anchor": "end" }, bytes(top * i / 4)));
  svg.append(element("text", { class: "axis", x: width, y: height + 30, "text-anchor": "end" }, `step ${steps}`), element("text", { class: "axis", x: 0, y: height + 30 }, "first step"));
  return [element("p", { class: "legend" }, data.plan || "The arena, in which values share memory: each rectangle is one value, from the step that writes it to the last that reads it."), svg];
}

function substitutions() {
  const found = data.rewrites;
  const parts = [];
  if (!found) parts.push(element("p", {}, "Substitutions were not looked for."));
  else {
    parts.push(element("div", { class: "cards" }, card(String(found.applied.length), "applied in the best graph found"),
      card(found.kept ? "kept" : "not kept", found.error || found.outcome || "what was compiled"), card(number(found.graphs, 0), "graphs looked at"),
      card(`${number(found.predicted_us[0], 1)} → ${number(found.predicted_us[1], 1)} µs`, "predicted"),
      card(found.measured == null ? "–" : JSON.stringify(found.measured), "measured gain"), card(String(found.stop_reason), "why the search ended")));
    if (found.applied.length) parts.push(table(["substitution"], found.applied.map(a => [typeof a === "string" ? a : JSON.stringify(a)])));
    parts.push(element("p", { class: "legend" }, "Each rule is proved before it is used: `burnish rewrite list` names them, `burnish rewrite verify` proves them again."));
  }
  if (data.choices) parts.push(element("h2", {}, "Algorithms timed where predictions are close"), element("pre", {}, JSON.stringify(data.choices, null, 1)));
  return parts;
}

function accuracy() {
  if (!data.errors) return [element("p", {}, "Not compared with the reference: `burnish report --check` does, kernel by kernel.")];
  return [element("p", { class: "legend" }, "The largest difference from the definitions in float64, relative to the largest value."),
    table(["kernel", "computes", "error", "allowed"], data.errors.map(e => [e.kernel, e.nodes,
      element("span", { class: e.error <= e.allowed ? "" : "bad" }, Number(e.error).toExponential(1)), Number(e.allowed).toExponential(0)]))];
}

const TABS = { Summary: summary, Kernels: kernels, Graph: graph, Memory: memory, Substitutions: substitutions, Accuracy: accuracy };
document.getElementById("facts").textContent = `${data.target.split("/").slice(0, 2).join(", ")}; ${data.threads} threads`;
const tabs = document.getElementById("tabs");
function show(name) {
  for (const tab of tabs.children) tab.setAttribute("aria-selected", String(tab.textContent === name));
  main.replaceChildren(...TABS[name]().flat());
}
for (const name of Object.keys(TABS)) {
  tabs.append(element("button", { role: "tab", "aria-selected": "false", click: () => { location.hash = name; } }, name));
}
/* An address such as report.html#Kernels/0 opens a tab, and the first kernel in it. */
function follow() {
  const [name, row] = decodeURIComponent(location.hash.slice(1)).split("/");
  show(name in TABS ? name : "Summary");
  if (row !== undefined) main.querySelectorAll(".row")[Number(row)]?.click();
}
window.addEventListener("hashchange", follow);
follow();
