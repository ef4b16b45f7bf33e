"use strict";
// This run against another: what became faster or slower, and which nodes moved.

(() => {
  if (!V.other) return;
  const now = V.doc, before = V.other;

  /** Dispatches of both runs that cover common nodes, together: fusion may have changed between them. */
  function groups() {
    const parent = new Map();
    const find = (k) => {
      while (parent.get(k) !== k) parent.set(k, parent.get(parent.get(k))), (k = parent.get(k));
      return k;
    };
    const join = (a, b) => parent.set(find(a), find(b));
    const keys = (doc, d, which, k) => (d.nodes.length ? d.nodes.map((n) => `n:${doc.nodes[n].name}`) : [`${d.label}:${d.kernel}`]);
    for (const [which, doc] of [["now", now], ["before", before]]) {
      doc.dispatches.forEach((d, k) => {
        const own = keys(doc, d, which, k);
        for (const key of own) if (!parent.has(key)) parent.set(key, key);
        for (const key of own) join(own[0], key);
      });
    }
    const made = new Map();
    for (const [which, doc] of [["now", now], ["before", before]]) {
      doc.dispatches.forEach((d, k) => {
        const key = find(keys(doc, d, which, k)[0]);
        if (!made.has(key)) made.set(key, { now: [], before: [] });
        made.get(key)[which].push(k);
      });
    }
    return [...made.values()].map((group) => {
      const sum = (doc, list) => list.reduce((total, k) => total + (doc.dispatches[k].ns ?? 0), 0);
      return { ...group, nowNs: sum(now, group.now), beforeNs: sum(before, group.before) };
    });
  }

  const total = (doc) => doc.dispatches.reduce((sum, d) => sum + (d.ns ?? 0), 0);
  const latency = (doc) => [...doc.runs].map((r) => r.end - r.start).sort((a, b) => a - b)[(doc.runs.length - 1) >> 1];
  const ratio = (a, b) => (a && b ? (a < b ? `${(b / a).toFixed(2)}× faster` : `${(a / b).toFixed(2)}× slower`) : "–");
  const label = (doc, d) => [...new Set(d.nodes.map((n) => doc.nodes[n].op))].join(" + ") || d.label;
  const kernels = (doc, list) => [...new Set(list.map((k) => doc.dispatches[k].candidate || doc.dispatches[k].kernel))].join(", ") || "–";

  function moved() {
    const places = new Map(before.nodes.map((n) => [n.name, n]));
    const rows = [];
    now.nodes.forEach((node, k) => {
      const old = places.get(node.name);
      if (!old || old.where !== node.where) rows.push([V.el("button", { class: "link", click: () => V.open("graph", () => V.graph.choose(k)) }, `${node.op} ${V.short(node.name)}`),
        old ? V.badge(old.where) : "not there", V.badge(node.where), node.reason ?? ""]);
      places.delete(node.name);
    });
    for (const old of places.values()) rows.push([`${old.op} ${V.short(old.name)}`, V.badge(old.where), "not there", ""]);
    return rows;
  }

  function changes() {
    const found = groups().sort((a, b) => Math.abs(b.nowNs - b.beforeNs) - Math.abs(a.nowNs - a.beforeNs)).slice(0, 200);
    const most = Math.max(...found.map((g) => Math.abs(g.nowNs - g.beforeNs)), 1);
    return V.table(["nodes", "kernel before", "kernel now", "#before", "#now", "#change", "#"], found.map((g) => {
      const change = g.nowNs - g.beforeNs;
      const name = g.now.length ? label(now, now.dispatches[g.now[0]]) : label(before, before.dispatches[g.before[0]]);
      return [g.now.length ? V.el("button", { class: "link", click: () => V.select({ dispatch: g.now[0] }) }, name) : name, V.el("code", {}, kernels(before, g.before)), V.el("code", {}, kernels(now, g.now)),
        V.time(g.beforeNs), V.time(g.nowNs), V.measure(Math.abs(change) / most, `${change > 0 ? "+" : "−"}${V.time(Math.abs(change))}`, change > 0 ? "slower" : "faster"), ratio(g.nowNs, g.beforeNs)];
    }));
  }

  function page() {
    const peak = (doc) => doc.memory.slabs.reduce((sum, s) => sum + s.bytes, 0), weights = (doc) => doc.memory.weights.reduce((sum, w) => sum + w.bytes, 0);
    const rows = moved();
    const numbers = [
      ["a run", latency, V.time], ["GPU time", total, V.time], ["dispatches", (d) => d.dispatches.length, V.count], ["barriers", (d) => d.dispatches.filter((x) => x.barrier).length, V.count],
      ["slabs", peak, V.bytes], ["weights", weights, V.bytes], ["CPU nodes", (d) => d.nodes.filter((n) => n.where === "cpu").length, V.count]];
    return V.el("div", { class: "page" },
      V.el("h2", {}, "Now against before"),
      V.table(["", "#before", "#now", "#"], [
        ["model", before.title, now.title, ""], ["device", before.device, now.device, ""], ["made", `${before.made} vkep ${before.vkep}`, `${now.made} vkep ${now.vkep}`, ""],
        ...numbers.map(([name, of, write]) => [name, of(before) === undefined ? "–" : write(of(before)), of(now) === undefined ? "–" : write(of(now)), name === "a run" || name === "GPU time" ? V.el("strong", {}, ratio(of(now), of(before))) : ""])]),
      V.el("h2", {}, rows.length ? `${V.plural(rows.length, "node")} moved` : "No node moved"),
      rows.length ? V.table(["node", "before", "now", "reason"], rows.slice(0, 200)) : null,
      V.el("h2", {}, "Dispatches, the largest change first"), changes());
  }
  const element = V.el("section", { class: "pane" });
  V.tabs.compare = { title: "Compare", element, show: () => element.firstChild || element.append(page()) };
})();
