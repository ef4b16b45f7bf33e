"use strict";
// Every dispatch as a row, and the totals of those of an operator, a kernel or a module.

(() => {
  const { dispatches } = V.doc;
  const all = dispatches.map((_, k) => k);
  const longest = dispatches.reduce((most, d) => Math.max(most, d.ns ?? 0), 1);
  const timed = (...columns) => (V.timed ? columns : []);
  const spreadOf = (d) => (d.ns ? (Math.max(...d.samples) - Math.min(...d.samples)) / 2 / d.ns : 0);
  const of = (field) => (k) => dispatches[k][field];
  const state = { by: "", only: null, open: new Set() };

  /** The text of a group of dispatches, by what totals are made of. */
  const GROUPS = { operators: (k) => V.covers(dispatches[k]), kernel: of("kernel") };
  const sum = (list, field) => list.reduce((total, k) => total + (dispatches[k][field] ?? 0), 0);

  const each = V.sortable({
    title: "dispatches",
    sort: V.timed ? "#time" : "dispatch",
    attributes: (k) => ({ "data-dispatch": k }),
    choose: (k) => V.select({ dispatch: k }),
    columns: [
      ["dispatch", (k) => k, (k) => `d${k}`],
      ["nodes", (k) => V.names(dispatches[k]).join(" + "), (k) => V.coversCell(dispatches[k])],
      ["operators", (k) => V.covers(dispatches[k]), null],
      ["module", (k) => V.moduleOf(dispatches[k]), null],
      ...timed(
        ["#time", of("ns"), (k) => V.measure(dispatches[k].ns / longest, V.time(dispatches[k].ns))],
        ["#spread", (k) => spreadOf(dispatches[k]), (k) => V.plusMinus(dispatches[k].samples)],
        ["#of limit", (k) => V.ofLimit(dispatches[k]), (k) => V.measure(V.ofLimit(dispatches[k]), V.percent(V.ofLimit(dispatches[k])), "limit")],
        ["#beyond limit", (k) => Math.max(0, dispatches[k].ns - (dispatches[k].limit_ns ?? 0)), (k) => V.time(Math.max(0, dispatches[k].ns - (dispatches[k].limit_ns ?? 0)))]),
      ["kernel", of("kernel"), (k) => [V.el("code", {}, dispatches[k].kernel), dispatches[k].candidate ? V.el("small", {}, dispatches[k].candidate) : null]],
      ["grid", (k) => dispatches[k].grid.join("×"), null],
      ["#flop", of("flops"), (k) => V.amount(dispatches[k].flops)],
      ["#bytes", of("bytes"), (k) => V.bytes(dispatches[k].bytes)],
      ...timed(
        ["#GB/s", (k) => dispatches[k].bytes / dispatches[k].ns, (k) => (dispatches[k].bytes / dispatches[k].ns).toFixed(1)],
        ["#GFLOP/s", (k) => dispatches[k].flops / dispatches[k].ns, (k) => (dispatches[k].flops / dispatches[k].ns).toFixed(1)]),
    ],
  });

  // ---- totals

  /** Columns of a total: a row has `name`, `title`, `list` (dispatches) and `ns`. */
  const totals = (what, first, order) => V.sortable({
    order,
    title: `totals-by-${what}`,
    sort: V.timed ? "#time" : "#dispatches",
    choose: (row) => narrow(row),
    columns: [
      [what, (row) => row.title, first],
      ["#dispatches", (row) => row.list.length],
      ...timed(
        ["#time", (row) => row.ns, (row) => V.measure(row.ns / (V.totalNs || 1), V.time(row.ns))],
        ["#share", (row) => row.ns / (V.totalNs || 1), (row) => V.percent(row.ns / (V.totalNs || 1))],
        ["#of limit", (row) => sum(row.list, "limit_ns") / (sum(row.list, "ns") || 1), (row) => V.percent(sum(row.list, "limit_ns") / (sum(row.list, "ns") || 1))]),
      ["#flop", (row) => sum(row.list, "flops"), (row) => V.amount(sum(row.list, "flops"))],
      ["#bytes", (row) => sum(row.list, "bytes"), (row) => V.bytes(sum(row.list, "bytes"))],
    ],
  });
  function grouped(of) {
    const groups = new Map();
    for (const k of all) groups.has(of(k)) ? groups.get(of(k)).push(k) : groups.set(of(k), [k]);
    return [...groups].map(([title, list]) => ({ title, list, ns: sum(list, "ns") }));
  }
  /** The modules of all depths, those inside a closed one left out. */
  function moduleRows(module = V.modules, rows = []) {
    for (const child of module.children.values()) {
      const list = [...new Set(child.nodes.flatMap((n) => V.index.dispatchesOf[n]))];
      if (list.length) rows.push({ title: child.path, module: child, list, ns: child.nodes.reduce((total, n) => total + V.index.ns[n], 0) });
      if (state.open.has(child.path)) moduleRows(child, rows);
    }
    return rows;
  }
  /** Modules sorted within their parent. */
  function asTree(rows, compare) {
    const inside = Map.groupBy(rows, (row) => row.module.parent);
    const below = (module) => (inside.get(module) ?? []).sort(compare).flatMap((row) => [row, ...below(row.module)]);
    return below(V.modules);
  }
  function moduleName(row) {
    const inner = row.module.children.size, open = state.open.has(row.title);
    const toggle = V.el("button", { class: "twist", "aria-expanded": String(open), "aria-label": open ? "close" : "open", click: (event) => {
      event.stopPropagation();
      open ? state.open.delete(row.title) : state.open.add(row.title);
      fill();
    } }, open ? "▾" : "▸");
    return V.el("span", { class: "tree", style: `padding-left:${16 * row.module.depth}px` }, inner ? toggle : V.el("span", { class: "twist" }), V.el("span", { title: row.title }, row.module.name));
  }
  const kinds = { operators: totals("operators", (row) => row.title), kernel: totals("kernel", (row) => V.el("code", {}, row.title)), module: totals("module", moduleName, asTree) };

  /** Shows the dispatches of a total alone. */
  function narrow(row) {
    state.only = { title: row.title, list: row.list };
    state.by = "";
    picker.value = "";
    fill();
  }

  const picker = V.el("select", { "aria-label": "rows", change: () => { state.by = picker.value; state.only = null; fill(); } },
    [["", "each dispatch"], ["operators", "totals by operators"], ["kernel", "totals by kernel"], ...(V.modules.children.size ? [["module", "totals by module"]] : [])]
      .map(([value, text]) => V.el("option", { value }, text)));
  const chip = V.el("span", {}), body = V.el("div", {});
  function fill() {
    chip.replaceChildren(...(state.only ? [V.el("button", { class: "chip", title: "show all dispatches", click: () => { state.only = null; fill(); } }, `${V.short(state.only.title)} ×`)] : []));
    const table = kinds[state.by] ?? each;
    table.fill(state.by === "module" ? moduleRows() : state.by ? grouped(GROUPS[state.by]) : state.only?.list ?? all);
    body.replaceChildren(table);
  }
  const openUntilBranches = (module) => {
    for (const child of module.children.values()) {
      state.open.add(child.path);
      if (module.children.size === 1) openUntilBranches(child);
    }
  };
  if (V.modules.children.size === 1) openUntilBranches(V.modules);

  function markRows() {
    const chosen = new Set(V.selectedDispatches().map(String));
    for (const row of each.querySelectorAll("tr[data-dispatch]")) row.classList.toggle("chosen", chosen.has(row.dataset.dispatch));
  }
  V.listeners.push(() => V.tabs.dispatches.element.hidden || markRows());
  V.tabs.dispatches = {
    title: "Dispatches",
    element: V.el("section", { class: "pane" }, V.el("div", { class: "page" },
      V.el("p", { class: "tools" }, dispatches.length ? picker : null, chip, V.el("span", { class: "note" }, V.plural(dispatches.length, "dispatch", "dispatches"),
        V.timed ? `, ${V.time(V.totalNs)} ${V.doc.tokens ? "together: time is the median of the answer's steps" : `when each has the GPU alone: time is the median of ${V.plural(dispatches[0].samples.length, "run")}`}` : "")), body)),
    show: () => {
      if (!body.firstChild && dispatches.length) fill();
      markRows();
    },
  };
  V.dispatches = { state, each, kinds, fill, picker };
})();
