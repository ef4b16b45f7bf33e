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
      const nowNs = samples(now, group.now), beforeNs = samples(before, group.before);
      return { ...group, nowNs, beforeNs, change: (V.median(nowNs) ?? 0) - (V.median(beforeNs) ?? 0), verdict: verdict(nowNs, beforeNs) };
    });
  }

  /** The sum of some dispatches in each run. */
  const samples = (doc, list) => (doc.dispatches[list[0]]?.samples ?? []).map((_, run) => list.reduce((sum, k) => sum + doc.dispatches[k].samples[run], 0));

  // ---- what is a change, and what is noise

  const FEWEST = 3;
  /** How much faster the device itself was now: a fixed kernel was timed beside each run. */
  const pace = now.pace.length && before.pace.length ? V.median(now.pace) / V.median(before.pace) : 1;
  const half = (s) => (s.high - s.low) / 2 / s.median;
  /**
   * {ratio, noise, changed} of two lists of repeated measurements, null where one is empty. `ratio`: of the medians. `noise`: the factor by
   * which they may differ without a change: half the range of each, and how much the pace of the device differs. `changed`: the ratio is
   * beyond it, and no measurement of one is within the other's range.
   */
  function verdict(nowNs, beforeNs) {
    const a = V.spread(nowNs), b = V.spread(beforeNs);
    if (!a?.median || !b?.median) return null;
    const ratio = a.median / b.median, noise = (1 + half(a)) * (1 + half(b)) * Math.max(pace, 1 / pace);
    const apart = a.low > b.high || b.low > a.high;
    return { ratio, noise, changed: Math.min(a.count, b.count) >= FEWEST && apart && Math.max(ratio, 1 / ratio) > noise };
  }
  function ratio(nowNs, beforeNs) {
    const found = verdict(nowNs, beforeNs);
    if (!found) return "–";
    const noise = `(noise ${found.noise.toFixed(2)}×)`;
    if (!found.changed) return V.el("span", { class: "note" }, Math.min(nowNs.length, beforeNs.length) < FEWEST ? "too few runs to tell" : `within the noise ${noise}`);
    return [V.el("strong", {}, found.ratio < 1 ? `${(1 / found.ratio).toFixed(2)}× faster` : `${found.ratio.toFixed(2)}× slower`), V.el("small", {}, noise)];
  }

  const everything = (doc) => samples(doc, doc.dispatches.map((_, k) => k));
  const walls = (doc) => doc.runs.map(V.wall);
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

  const first = (g) => (g.now.length ? [now, now.dispatches[g.now[0]]] : [before, before.dispatches[g.before[0]]]);
  const changed = (g) => (g.verdict ? g.verdict.changed : !g.now.length || !g.before.length);
  function changes() {
    const found = groups(), most = found.reduce((top, g) => Math.max(top, Math.abs(g.change)), 1);
    const name = (g) => label(...first(g));
    const table = V.sortable({
      title: "compared",
      sort: "#change",
      order: (rows, compare) => [...rows].sort((a, b) => changed(b) - changed(a) || compare(a, b)),
      choose: (g) => g.now.length && V.select({ dispatch: g.now[0] }),
      columns: [
        ["nodes", (g) => names(g).join(" + "), (g) => [name(g), V.el("small", {}, V.short(names(g).map(V.ownName).join(" + "), 90))]],
        ["kernel before", (g) => kernels(before, g.before), (g) => V.el("code", {}, kernels(before, g.before))],
        ["kernel now", (g) => kernels(now, g.now), (g) => V.el("code", {}, kernels(now, g.now))],
        ["#before", (g) => V.median(g.beforeNs), (g) => [V.time(V.median(g.beforeNs)), V.el("small", {}, V.plusMinus(g.beforeNs))]],
        ["#now", (g) => V.median(g.nowNs), (g) => [V.time(V.median(g.nowNs)), V.el("small", {}, V.plusMinus(g.nowNs))]],
        ["#change", (g) => Math.abs(g.change), (g) => V.measure(Math.abs(g.change) / most, `${g.change > 0 ? "+" : "−"}${V.time(Math.abs(g.change))}`, !changed(g) ? "" : g.change > 0 ? "slower" : "faster")],
        ["#ratio", (g) => g.verdict?.ratio, (g) => ratio(g.nowNs, g.beforeNs)],
        ["noise", (g) => g.verdict?.noise, null],
      ],
    });
    table.fill(found);
    const real = found.filter(changed).length;
    return [V.el("p", { class: "note" }, real ? `${V.plural(real, "change is", "changes are")} beyond the noise; they come first.` : "No dispatch changed by more than the noise."), table];
  }
  const names = (g) => {
    const [doc, d] = first(g);
    return d.nodes.length ? d.nodes.map((n) => doc.nodes[n].name) : [d.label];
  };

  function page() {
    const peak = (doc) => doc.memory.slabs.reduce((sum, s) => sum + s.bytes, 0), weights = (doc) => doc.memory.weights.reduce((sum, w) => sum + w.bytes, 0);
    const rows = moved();
    const numbers = [
      ["dispatches", (d) => d.dispatches.length, V.count], ["barriers", (d) => d.dispatches.filter((x) => x.barrier).length, V.count],
      ["slabs", peak, V.bytes], ["weights", weights, V.bytes], ["CPU nodes", (d) => d.nodes.filter((n) => n.where === "cpu").length, V.count]];
    return V.el("div", { class: "page" },
      V.el("h2", {}, "Now against before"),
      V.table(["", "#before", "#now", "#"], [
        ...[["model", (doc) => doc.title], ["device", (doc) => doc.device], ["made", (doc) => `${V.date(doc.made)}, vkep ${doc.vkep}`]].map(([name, of]) => [name, ...[before, now].map((doc) => V.el("span", { class: "wrap" }, of(doc))), ""]),
        ...[["a run", walls], ["its dispatches, each alone", everything]].map(([name, of]) => [name, ...[before, now].map((doc) => of(doc).length ? [V.time(V.median(of(doc))), V.el("small", {}, V.plusMinus(of(doc)))] : "–"), ratio(of(now), of(before))]),
        ...numbers.map(([name, of, write]) => [name, write(of(before)), write(of(now)), ""])]),
      Math.max(pace, 1 / pace) > 1.1 ? V.el("p", { class: "reason" }, `The device itself was ${pace < 1 ? `${(1 / pace).toFixed(2)}× slower` : `${pace.toFixed(2)}× faster`} now than before: a fixed kernel was timed beside each run. Other programs, its clocks or its temperature do that. The noise contains this factor.`) : null,
      V.el("h2", {}, rows.length ? `${V.plural(rows.length, "node")} moved` : "No node moved"),
      rows.length ? V.table(["node", "before", "now", "reason"], rows.slice(0, 200)) : null,
      V.el("h2", {}, "Dispatches, the largest change first"), changes());
  }
  const element = V.el("section", { class: "pane" });
  V.tabs.compare = { title: "Compare", element, show: () => element.firstChild || element.append(page()) };
})();
