"use strict";
// Every dispatch as a row; any column sorts.

(() => {
  const { dispatches } = V.doc;
  const MOST = 400;
  const COLUMNS = [
    ["dispatch", (d, k) => k, (d, k) => `d${k}`],
    ...(V.timed ? [
      ["#time", (d) => d.ns, (d) => V.measure(d.ns / longest, V.time(d.ns))],
      ["#of limit", (d) => V.ofLimit(d), (d) => V.measure(V.ofLimit(d), V.percent(V.ofLimit(d)), "limit")],
      ["#beyond limit", (d) => d.ns - (d.limit_ns ?? 0), (d) => V.time(d.ns - (d.limit_ns ?? 0))],
    ] : []),
    ["covers", (d) => V.covers(d), (d) => V.covers(d)],
    ["kernel", (d) => d.kernel, (d) => [V.el("code", {}, d.kernel), d.candidate ? V.el("small", {}, d.candidate) : null]],
    ["#grid", (d) => d.grid[0] * d.grid[1] * d.grid[2], (d) => d.grid.join("×")],
    ["#flop", (d) => d.flops, (d) => V.count(d.flops)],
    ["#bytes", (d) => d.bytes, (d) => V.bytes(d.bytes)],
    ...(V.timed ? [
      ["#GB/s", (d) => d.bytes / d.ns, (d) => (d.bytes / d.ns).toFixed(1)],
      ["#GFLOP/s", (d) => d.flops / d.ns, (d) => (d.flops / d.ns).toFixed(1)],
    ] : []),
  ];
  const longest = Math.max(...dispatches.map((d) => d.ns ?? 0), 1);
  const state = { column: V.timed ? 1 : 0, down: V.timed, all: false };
  const holder = V.el("div", { class: "page" });

  function fill() {
    const value = COLUMNS[state.column][1];
    const order = dispatches.map((d, k) => [d, k]).sort((a, b) => {
      const [left, right] = [value(...a), value(...b)];
      const by = typeof left === "string" ? left.localeCompare(right) : left - right;
      return state.down ? -by : by;
    });
    const shown = state.all ? order : order.slice(0, MOST);
    const heads = COLUMNS.map(([name], k) => V.el("th", { class: name.startsWith("#") ? "number" : "", "aria-sort": k === state.column ? (state.down ? "descending" : "ascending") : "none" },
      V.el("button", { click: () => { state.down = k === state.column ? !state.down : name.startsWith("#"); state.column = k; fill(); } }, name.replace("#", ""), k === state.column ? (state.down ? " ↓" : " ↑") : "")));
    const rows = shown.map(([d, k]) => V.el("tr", { "data-dispatch": k, tabindex: 0, class: V.selected.dispatch === k ? "chosen" : "",
      click: () => V.select({ dispatch: k }), keydown: (event) => event.key === "Enter" && V.select({ dispatch: k }) },
      COLUMNS.map(([name, , cell]) => V.el("td", { class: name.startsWith("#") ? "number" : "" }, cell(d, k)))));
    holder.replaceChildren(
      V.el("p", { class: "note" }, `${V.plural(dispatches.length, "dispatch", "dispatches")}`, V.timed ? `, ${V.time(V.totalNs)} when each has the GPU alone; the limit is a copy's rate and multiply-adds', measured on this device` : ""),
      V.el("div", { class: "scroll" }, V.el("table", { class: "sortable" }, V.el("thead", {}, V.el("tr", {}, heads)), V.el("tbody", {}, rows))),
      ...(shown.length < order.length ? [V.el("button", { click: () => { state.all = true; fill(); } }, `show all ${V.count(order.length)}`)] : []));
  }
  V.listeners.push(() => {
    const chosen = new Set(V.selectedDispatches().map(String));
    for (const row of holder.querySelectorAll("tr[data-dispatch]")) row.classList.toggle("chosen", chosen.has(row.dataset.dispatch));
  });
  V.tabs.dispatches = {
    title: "Dispatches",
    element: V.el("section", { class: "pane" }, holder),
    show: () => holder.firstChild || fill(),
  };
})();
