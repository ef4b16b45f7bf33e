"use strict";
// The documents, how numbers are written, what is selected. Everything of the page hangs on `V`.

const V = { documents: JSON.parse(document.getElementById("documents").textContent) };
V.doc = V.documents[0];
V.other = V.documents[1] ?? null;

/** Who runs a node, in the order in which it matters; each has a colour `--<name>` in style.css. */
V.PLACES = ["cpu", "deferred", "unplanned", "control", "vgf", "kompute", "vulkan", "inlined", "folded"];

V.index = (() => {
  const { nodes, dispatches, values } = V.doc;
  const producer = new Int32Array(values.length).fill(-1), consumers = values.map(() => []);
  const dispatchesOf = nodes.map(() => []), ns = new Float64Array(nodes.length);
  nodes.forEach((node, n) => {
    for (const value of node.outputs) producer[value] = n;
    for (const value of node.inputs) consumers[value].push(n);
  });
  dispatches.forEach((dispatch, d) => {
    for (const node of dispatch.nodes) {
      dispatchesOf[node].push(d);
      ns[node] += (dispatch.ns ?? 0) / dispatch.nodes.length;
    }
  });
  return { producer, consumers, dispatchesOf, ns };
})();
// ---- repeated measurements

/** The lower of the two middle numbers, as in the documents; undefined of none. */
V.median = (list) => [...list].sort((a, b) => a - b)[(list.length - 1) >> 1];
/** {median, low, high, count} of repeated measurements; null of none. */
V.spread = (list) => (list.length ? { median: V.median(list), low: Math.min(...list), high: Math.max(...list), count: list.length } : null);
/** "± 4 %": half the range, as a share of the median. */
V.plusMinus = (list) => {
  const s = V.spread(list ?? []);
  return s && s.count > 1 && s.median ? `± ${V.percent((s.high - s.low) / 2 / s.median)}` : "";
};
/** The time in which at least one span of a list runs. */
V.union = (spans) => {
  let total = 0, end = -Infinity;
  for (const span of [...spans].sort((a, b) => a.start - b.start)) {
    total += Math.max(0, span.end - Math.max(span.start, end));
    end = Math.max(end, span.end);
  }
  return total;
};
V.wall = (run) => run.end - run.start;
/** The run whose time is the median of a document's runs. */
V.medianRun = (doc) => {
  const median = V.median(doc.runs.map(V.wall));
  return doc.runs.find((run) => V.wall(run) === median);
};
/** The time of each region of other delegates in each run: on the GPU where it is timed there, else of the host's steps. */
V.doc.regions.forEach((region, k) => {
  region.samples = V.doc.runs.map((run) => (region.kind === "cpu" ? run.host.filter((s) => s.name.startsWith("cpu: ")) : run.gpu.filter((s) => s.region === k)))
    .filter((spans) => spans.length).map(V.union);
  region.ns = V.median(region.samples);
  for (const n of region.nodes) V.index.ns[n] += (region.ns ?? 0) / region.nodes.length;
});

V.timed = V.doc.dispatches.some((d) => d.ns !== undefined);
V.totalNs = V.doc.dispatches.reduce((sum, d) => sum + (d.ns ?? 0), 0);

// ---- elements

/** An element; attributes that are functions are listeners, null children are left out. */
V.el = (tag, attributes = {}, ...children) => {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(name, value);
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return made;
};
V.badge = (place) => V.el("span", { class: `badge place-${place}` }, place);
/** A bar with a number beside it; numbers of a column lie below each other. */
V.measure = (share, text, kind = "") => V.el("span", { class: "measure" }, V.bar(share, kind), V.el("span", {}, text));
V.bar = (share, kind = "") => V.el("span", { class: `bar ${kind}` }, V.el("i", { style: `width:${Math.max(0, Math.min(1, share)) * 100}%` }));
V.table = (headers, rows) =>
  V.el("div", { class: "scroll" }, V.el("table", {},
    V.el("thead", {}, V.el("tr", {}, headers.map((h) => V.el("th", h.startsWith("#") ? { class: "number" } : {}, h.replace("#", ""))))),
    V.el("tbody", {}, rows.map((row) => V.el("tr", {}, row.map((cell, k) => V.el("td", headers[k].startsWith("#") ? { class: "number" } : {}, cell)))))));
V.facts = (entries) =>
  V.el("dl", {}, entries.filter(([, value]) => value !== null && value !== undefined && value !== "").map(([name, value]) => [V.el("dt", {}, name), V.el("dd", {}, value)]));

// ---- numbers

V.time = (ns) => {
  if (ns === undefined || ns === null) return "–";
  const size = Math.abs(ns);
  if (size < 1e3) return `${ns.toFixed(0)} ns`;
  if (size < 1e6) return `${(ns / 1e3).toFixed(size < 1e5 ? 1 : 0)} µs`;
  if (size < 1e9) return `${(ns / 1e6).toFixed(size < 1e8 ? 2 : 1)} ms`;
  return `${(ns / 1e9).toFixed(2)} s`;
};
V.bytes = (n) => {
  if (n === undefined || n === null) return "–";
  let unit = 0;
  for (; Math.abs(n) >= 1024 && unit < 4; unit++) n /= 1024;
  return `${unit && Math.abs(n) < 100 ? n.toFixed(1) : Math.round(n)} ${["B", "KiB", "MiB", "GiB", "TiB"][unit]}`;
};
V.count = (n) => Math.round(n).toLocaleString("en");
/** A large count in a few digits: 67.1 M. */
V.amount = (n) => {
  let unit = 0;
  for (; Math.abs(n) >= 1000 && unit < 4; unit++) n /= 1000;
  return unit ? `${n.toPrecision(3)} ${["", "k", "M", "G", "T"][unit]}` : V.count(n);
};
V.percent = (x) => `${(100 * x).toFixed(x < 0.1 ? 1 : 0)} %`;
V.plural = (n, one, many = `${one}s`) => `${V.count(n)} ${n === 1 ? one : many}`;
V.kind = (value) => (value.shape ? `${value.dtype} ${value.shape.length ? value.shape.join("×") : "scalar"}` : "");
/** A rate in units of 10^9 a second, which is one a nanosecond. */
V.rate = (amount, ns, unit) => {
  const rate = ns ? amount / ns : 0;
  return rate >= 1000 ? `${(rate / 1000).toFixed(1)} T${unit}/s` : `${rate.toFixed(rate < 10 ? 2 : 1)} G${unit}/s`;
};
V.date = (iso) => iso.replace("T", " ").replace(/(\+00:00|Z)$/, " UTC");
V.ofLimit = (d) => (d.ns ? (d.limit_ns ?? 0) / d.ns : 0);
V.short = (text, most = 60) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
/** A dispatch by the operators that it covers. */
V.covers = (d) => {
  const counts = new Map();
  for (const n of d.nodes) counts.set(V.doc.nodes[n].op, (counts.get(V.doc.nodes[n].op) ?? 0) + 1);
  return [...counts].map(([op, n]) => (n > 1 ? `${op} ×${n}` : op)).join(" + ") || d.label;
};

/** The names of a dispatch's nodes, and the module that all of them are in. */
V.names = (d) => (d.nodes.length ? d.nodes.map((n) => V.doc.nodes[n].name) : [d.label]);
V.moduleOf = (d) => d.nodes.map((n) => V.doc.nodes[n].module ?? "").reduce(V.common, null) ?? "";
V.common = (a, b) => {
  if (a === null || a === b) return b;
  const left = a.split("/"), right = b.split("/");
  const at = left.findIndex((part, k) => part !== right[k]);
  return (at < 0 ? left : left.slice(0, at)).join("/");
};
/** A node's name without its module. */
V.ownName = (name) => name.slice(name.lastIndexOf("/") + 1) || name;
/** The operators, nodes and module of a dispatch, a line each. */
V.coversCell = (d) => {
  const names = V.names(d), module = V.moduleOf(d);
  return V.el("span", { class: "covers", title: names.join("\n") }, V.covers(d), V.el("small", {}, V.short(names.map(V.ownName).join(" + "), 90)),
    module ? V.el("small", {}, V.moduleCell(module)) : null);
};
V.moduleCell = (module) => V.el("span", { class: "module", title: module }, module.split("/").flatMap((part, k) => (k ? ["/", V.el("wbr"), part] : [part])));

// ---- modules

/** The modules as a tree: path, name, depth, children by name, and all nodes within. */
V.modules = { path: "", name: "", depth: -1, parent: null, children: new Map(), nodes: [] };
/** The innermost module of each node. */
V.moduleAt = V.doc.nodes.map((node, n) => {
  let at = V.modules;
  at.nodes.push(n);
  for (const name of node.module ? node.module.split("/") : []) {
    if (!at.children.has(name)) at.children.set(name, { path: at.path ? `${at.path}/${name}` : name, name, depth: at.depth + 1, parent: at, children: new Map(), nodes: [] });
    at = at.children.get(name);
    at.nodes.push(n);
  }
  return at;
});

// ---- memory

/** Bytes of a slab that are needed at each dispatch. */
V.live = (one) => {
  const change = new Float64Array(one.dispatches + 1);
  for (const b of one.buffers) (change[b.first] += b.nbytes), (change[b.last + 1] -= b.nbytes);
  let sum = 0;
  return Array.from(change.subarray(0, one.dispatches), (c) => (sum += c));
};

// ---- what is selected: {node: 3}, {dispatch: 5} or {module: "encoder/layers.0"}, or {}

V.selected = {};
V.listeners = [];
V.select = (what) => {
  V.selected = what ?? {};
  for (const listener of V.listeners) listener(V.selected);
};
/** The nodes that belong to the selection. */
V.selectedNodes = () => {
  const { node, dispatch, module } = V.selected;
  if (dispatch !== undefined) return V.doc.dispatches[dispatch].nodes;
  if (module !== undefined) return V.folding.all.get(module).nodes;
  return node !== undefined ? [node] : [];
};
/** The dispatches that belong to the selection. */
V.selectedDispatches = () => {
  const { dispatch } = V.selected;
  if (dispatch !== undefined) return [dispatch];
  return [...new Set(V.selectedNodes().flatMap((n) => V.index.dispatchesOf[n]))];
};
/** Tabs by name: {title, element, show(), key(event)}; main.js arranges them. */
V.tabs = {};
/** Shows a tab; main.js replaces it. */
V.open = () => {};
