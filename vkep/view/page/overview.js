"use strict";
// What matters first: what runs on the CPU and why, then what takes the most time. And the contexts.

(() => {
  const { nodes, dispatches, runs, memory, contexts } = V.doc;
  const jump = (text, go) => V.el("button", { class: "link", click: go }, text);

  function places() {
    const counts = new Map(V.PLACES.map((place) => [place, 0]));
    for (const node of nodes) counts.set(node.where, (counts.get(node.where) ?? 0) + 1);
    const there = [...counts].filter(([, n]) => n).sort((a, b) => b[1] - a[1]);
    return V.el("div", { class: "card wide" }, V.el("h3", {}, V.plural(nodes.length, "node")),
      V.el("div", { class: "stack", role: "img", "aria-label": there.map(([p, n]) => `${n} ${p}`).join(", ") },
        there.map(([place, n]) => V.el("i", { class: `place-${place}`, style: `flex:${n}`, title: `${n} ${place}` }))),
      V.el("p", { class: "keys" }, there.map(([place, n]) => V.el("span", {}, V.el("i", { class: `place-${place}` }), `${place} ${V.count(n)}`))));
  }

  function number(value, what, go) {
    return V.el("button", { class: "card figure", click: go }, V.el("strong", {}, value), V.el("span", {}, what));
  }

  function attention() {
    const asked = nodes.map((node, n) => [node, n]).filter(([node]) => ["cpu", "deferred", "unplanned", "control"].includes(node.where) || node.declined);
    const order = ([node]) => V.PLACES.indexOf(node.where);
    asked.sort((a, b) => order(a) - order(b));
    if (!asked.length) return V.el("p", { class: "good" }, "Every node runs on the device, or was folded into constants.");
    return [V.table(["node", "where", "reason"], asked.slice(0, 40).map(([node, n]) =>
      [jump(`${node.op} ${V.short(node.name)}`, () => V.open("graph", () => V.graph.choose(n))), V.badge(node.where),
        [node.reason, ...Object.entries(node.declined ?? {}).map(([who, why]) => `declined by ${who}: ${why}`)].filter(Boolean).join("; ")])),
      asked.length > 40 ? V.el("p", { class: "note" }, `and ${V.count(asked.length - 40)} more: search for a reason in the graph`) : null];
  }

  function slowest() {
    const order = dispatches.map((d, k) => [d, k]).sort((a, b) => b[0].ns - a[0].ns).slice(0, 12);
    const most = order[0]?.[0].ns || 1;
    return V.table(["dispatch", "operators and nodes", "#time", "#of limit", "kernel"], order.map(([d, k]) =>
      [jump(`d${k}`, () => V.select({ dispatch: k })), V.coversCell(d), V.measure(d.ns / most, V.time(d.ns)), V.measure(V.ofLimit(d), V.percent(V.ofLimit(d)), "limit"), V.el("code", {}, d.kernel)]));
  }

  /** The host's spans in plain words. */
  const HOST = { run: "between the steps", wait: "starting the GPU's work and waking after it", submit: "submitting", "write inputs": "writing inputs", "read outputs": "reading outputs" };
  const kindOf = (span) => (span.region >= 0 ? V.doc.regions[span.region].kind : span.dispatch >= 0 ? "Vulkan" : "other");
  /** How the time of a run is divided: at each moment what the GPU runs counts, else the innermost of the host's spans. Their sum is the run. */
  function divided(run) {
    const spans = [...run.gpu.map((s) => ({ ...s, part: `GPU: ${kindOf(s)}`, rank: Infinity })),
      ...run.host.map((s) => ({ ...s, part: `host, the GPU idle: ${HOST[s.name] ?? (/^(vulkan|vgf|deferred|\d+ regions)/.test(s.name) ? "staging and submitting a step, waking after it" : V.short(s.name))}`, rank: s.depth }))];
    const events = spans.flatMap((s) => [[s.start, s], [s.end, s]]).sort((a, b) => a[0] - b[0]);
    const active = new Set(), parts = new Map();
    let before = run.start;
    for (const [time, span] of events) {
      let owner = null;
      for (const one of active) if (!owner || one.rank > owner.rank) owner = one;
      const now = Math.min(time, run.end);
      if (owner && now > before) parts.set(owner.part, (parts.get(owner.part) ?? 0) + now - before);
      before = Math.max(before, now);
      active.delete(span) || active.add(span);
    }
    return parts;
  }

  function shares() {
    const run = V.medianRun(V.doc), whole = V.wall(run), busy = V.union(run.gpu);
    const ratio = V.totalNs / busy;
    const why = ratio > 1.25 ? " In the run they take less: those without a barrier between them overlap, and none waits for the host."
      : ratio < 0.8 ? " In the run they take longer: they wait for each other's results, and share memory with the host's work." : "";
    return [
      V.table(["part of the median run", "#share", "#time"], [...divided(run)].sort((a, b) => b[1] - a[1]).map(([name, ns]) => [name, V.measure(ns / whole, V.percent(ns / whole)), V.time(ns)])),
      V.timed && busy && !V.doc.tokens ? V.el("p", { class: "note" }, `The GPU is busy for ${V.time(busy)} of this run. Alone, with a wait after each, the dispatches take ${V.time(V.totalNs)} together: the times of the view Dispatches are these.${why}`) : null];
  }

  function otherDelegates() {
    return V.table(["delegate", "nodes", "about", "#time in a run"], V.doc.regions.map((region) => [V.badge(region.kind),
      [region.nodes.length ? jump(V.plural(region.nodes.length, "node"), () => V.open("graph", () => V.graph.choose(region.nodes[0]))) : "–", V.el("small", {}, V.short(region.nodes.map((n) => V.ownName(nodes[n].name)).join(", "), 90))],
      region.about, [V.time(region.ns), V.el("small", {}, V.plusMinus(region.samples))]]));
  }

  function limitFacts() {
    const { limits } = V.doc, age = limits.measured ? (Date.parse(V.doc.made) - Date.parse(limits.measured)) / 1000 : NaN;
    const beyond = dispatches.filter((d) => V.ofLimit(d) > 1).length;
    const when = !limits.measured ? "at an unknown time" : `${V.date(limits.measured)}${age > 900 ? `: ${V.plural(Math.round(age / 3600), "hour")} before this page, so they may be old` : ""}`;
    return [V.facts([["copy", `${limits.copy_rate.toFixed(1)} GB/s`], ["float32", `${limits.float32_flops.toFixed(0)} GFLOP/s`], ["float16", `${limits.float16_flops.toFixed(0)} GFLOP/s`], ["int8", `${limits.int8_ops.toFixed(0)} G/s`], ["measured", when]]),
      beyond ? V.el("p", { class: "note" }, `${V.plural(beyond, "dispatch is", "dispatches are")} faster than the limit: data in a cache moves faster than the copy's, and Winograd's convolutions compute less than is counted.`) : null];
  }

  /** Of a language model's answer: how long each token took. */
  function tokens() {
    const all = V.doc.tokens ?? [];
    if (all.length < 2) return null;
    const ms = all.map((t) => (t.end - t.start) / 1e6), later = ms.slice(1), sum = later.reduce((a, b) => a + b, 0);
    const text = V.el("p", { class: "answer" }, all.map((t, k) => V.el("span", { title: `${k ? `token ${k + 1}` : "the prompt, and token 1"}: ${ms[k].toFixed(2)} ms`,
      style: `background:color-mix(in srgb, var(--cpu) ${(75 * ms[k]) / Math.max(...(k ? later : ms))}%, transparent)` }, t.text || ` ${t.token} `)));
    const chart = V.el("div", { class: "chart" });
    const line = { stroke: () => V.colour("dim"), grid: { stroke: () => V.colour("line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    requestAnimationFrame(() => new uPlot({
      width: chart.clientWidth, height: 150, scales: { x: { time: false, range: (u, first, last) => [first - 0.5, last + 0.5] }, y: { range: (u, low, high) => [0, high * 1.1] } }, axes: [{ ...line, size: 26, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000] }, { ...line, size: 56, values: (u, at) => at.map((v) => `${v} ms`) }],
      series: [{ label: "token" }, { label: "time", stroke: V.colour("vulkan"), fill: `${V.colour("vulkan")}33`, width: 1.5, points: { show: false }, paths: uPlot.paths.bars(), value: (u, v) => (v === null ? "–" : `${v.toFixed(2)} ms`) }],
    }, [later.map((_, k) => k + 2), later], chart));
    return [V.el("h2", {}, `Answer: first token after ${ms[0].toFixed(1)} ms, then ${((1000 * later.length) / sum).toFixed(1)} tokens a second`), text, chart];
  }

  function page() {
    const ran = runs.length > 0 || nodes.some((n) => n.where !== "vgf");  // a VGF file is shown without being planned
    const wall = V.spread(runs.map(V.wall)), busy = runs.length ? V.union(V.medianRun(V.doc).gpu) : 0;
    const best = dispatches.reduce((sum, d) => sum + (d.limit_ns ?? 0), 0);
    const slabs = memory.slabs.reduce((sum, s) => sum + s.bytes, 0), weights = memory.weights.reduce((sum, w) => sum + w.bytes, 0);
    return V.el("div", { class: "page" },
      V.doc.notes.map((text) => V.el("p", { class: "note" }, text)),
      V.el("div", { class: "cards" }, places(),
        wall && number(V.time(wall.median), wall.count > 1 ? `a run: the median of ${wall.count}, from ${V.time(wall.low)} to ${V.time(wall.high)}` : "a run", () => V.open("timeline")),
        busy ? number(V.time(busy), `of it the GPU is busy: ${V.percent(busy / wall.median)}`, () => V.open("timeline")) : null,
        ran && number(V.count(dispatches.length), `${dispatches.length === 1 ? "dispatch" : "dispatches"}, ${V.plural(dispatches.filter((d) => d.barrier).length, "barrier")}` +
          (V.timed ? `; ${V.doc.tokens ? "of one step" : "alone"} ${V.time(V.totalNs)}, by the limits ${V.time(best)}` : ""), () => V.open("dispatches")),
        number(V.bytes(weights), ran ? `weights; slab ${V.bytes(slabs)}` : "weights", () => V.open("memory"))),
      tokens(),
      ran ? [V.el("h2", {}, "Nodes off the GPU, or declined by a delegate"), attention()] : null,
      V.timed ? [V.el("h2", {}, "Slowest dispatches"), slowest()] : null,
      runs.length ? [V.el("h2", {}, "Where a run's time goes"), shares()] : null,
      V.doc.regions.length ? [V.el("h2", {}, "Other delegates"), otherDelegates()] : null,
      V.doc.limits ? [V.el("h2", {}, "The device's limits"), limitFacts()] : null);
  }

  function contextPage() {
    const plain = (value) => (Array.isArray(value) ? value.map((v) => (typeof v === "object" ? JSON.stringify(v) : v)).join(", ") : typeof value === "object" && value ? JSON.stringify(value) : String(value));
    const bytes = (name, value) => (/bytes|_size$|range$/.test(name) && typeof value === "number" && value > 4096 ? V.bytes(value) : plain(value));
    const live = Object.entries(contexts.live_objects ?? {});
    return V.el("div", { class: "page" },
      (contexts.contexts ?? []).map((one) => V.el("div", { class: "card wide" }, V.el("h3", {}, `Context ${one.label}`),
        V.facts([["sync mode", one.sync_mode], ["owns", one.owns.join(", ") || "nothing: it is the application's"], ["queue family", String(one.queue_family)],
          ["timeline", `submitted ${one.timeline.submitted}, completed ${one.timeline.completed}`], ["validation messages", String(one.validation_messages)]]),
        V.el("h3", {}, "Users"), V.el("ul", {}, one.users.map((user) => V.el("li", {}, V.el("code", {}, user)))))),
      V.el("h2", {}, "Registered contexts"), V.el("p", {}, (contexts.registered ?? []).join(", ") || "none"),
      live.length ? [V.el("h2", {}, "Live Vulkan objects of the process"), V.table(["kind", "#count"], live.map(([kind, n]) => [kind, V.count(n)]))] : null,
      contexts.device ? [V.el("h2", {}, "Device"), V.facts(Object.entries(contexts.device).map(([name, value]) => [name.replaceAll("_", " "), bytes(name, value)]))] : null);
  }

  const lazily = (build) => {
    const element = V.el("section", { class: "pane" });
    return { element, show: () => element.firstChild || element.append(build()) };
  };
  V.tabs = { overview: { title: "Overview", ...lazily(page) }, ...V.tabs };
  V.tabs.contexts = { title: "Contexts", ...lazily(contextPage) };
})();
