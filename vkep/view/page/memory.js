"use strict";
// Where a run's results lie, and what of the device's memory is held.

(() => {
  const { memory, dispatches } = V.doc;
  const state = { slab: 0, hover: null };
  const box = V.el("div", { class: "fill" });
  const made = V.canvas("The slab: dispatches from left to right, addresses from bottom to top.", paint).attach(box);
  const chart = V.el("div", { class: "chart" });
  const LEFT = 66, BOTTOM = 22;
  const slab = () => memory.slabs[state.slab];

  const own = (label) => label.split(" + ").map(V.ownName).join(" + ");
  const hue = (label) => {
    let hash = 0;
    for (const c of label) hash = (hash * 31 + c.charCodeAt(0)) | 0;
    return `hsl(${((hash % 360) + 360) % 360} 50% ${V.dark() ? 45 : 66}%)`;
  };
  const offset = () => dispatches.findIndex((d) => d.island === slab().island);
  const geometry = () => ({ sx: (made.width - LEFT - 8) / Math.max(1, slab().dispatches), sy: (made.height - BOTTOM - 8) / Math.max(1, slab().bytes) });

  function paint(context, width, height) {
    if (!slab()) return;
    const { sx, sy } = geometry(), low = height - BOTTOM;
    context.fillStyle = V.colour("faint");
    context.fillRect(LEFT, 8, width - LEFT - 8, low - 8);
    const chosen = new Set(V.selectedDispatches().map((d) => d - offset()));
    for (const b of slab().buffers) {
      const x = LEFT + b.first * sx, y = low - (b.offset + b.nbytes) * sy, w = Math.max(1, (b.last - b.first + 1) * sx), h = Math.max(1, b.nbytes * sy);
      context.fillStyle = hue(b.label);
      context.globalAlpha = chosen.size && !chosen.has(b.first) ? 0.35 : 0.92;
      context.fillRect(x, y, w - (w > 3 ? 0.7 : 0), h - (h > 3 ? 0.7 : 0));
      context.globalAlpha = 1;
      if (chosen.has(b.first) || b === state.hover) {
        context.strokeStyle = V.colour("text");
        context.lineWidth = 2;
        context.strokeRect(x, y, w, h);
      }
      if (w > 60 && h > 13) {
        context.fillStyle = V.colour("text");
        context.font = "10px system-ui, sans-serif";
        context.fillText(V.fit(context, own(b.label), w - 8), x + 4, y + Math.min(h - 3, 12));
      }
    }
    context.fillStyle = V.colour("dim");
    context.font = "11px system-ui, sans-serif";
    context.textAlign = "right";
    for (const share of [0, 0.5, 1]) context.fillText(V.bytes(slab().bytes * share), LEFT - 8, low - (low - 8) * share + (share === 1 ? 9 : 0));
    context.textAlign = "left";
    context.fillText(`dispatches 0 to ${slab().dispatches - 1}`, LEFT, height - 6);
  }

  function bufferAt(px, py) {
    const { sx, sy } = geometry(), at = (px - LEFT) / sx, address = (made.height - BOTTOM - py) / sy;
    return slab()?.buffers.find((b) => b.first <= at && at < b.last + 1 && b.offset <= address && address < b.offset + b.nbytes) ?? null;
  }
  const still = { x: 0, y: 0, scale: 1 };
  V.movable(made, still, {
    axes: "x",
    limits: () => ({ scale: [1, 1] }),
    click: (px, py) => {
      const b = bufferAt(px, py);
      V.select(b ? { dispatch: offset() + b.first } : {});
    },
    hover: (px, py) => {
      const b = px < 0 ? null : bufferAt(px, py);
      if (b !== state.hover) (state.hover = b), made.draw();
      V.hint(made, px, py, b && [b.label, `${V.bytes(b.nbytes)} at +0x${b.offset.toString(16)}`, `dispatches ${b.first} to ${b.last}`]);
    },
  });

  let plot = null;
  function live() {
    plot?.destroy();
    plot = null;
    if (!slab() || !chart.clientWidth) return;
    const bytes = V.live(slab());
    const line = { stroke: () => V.colour("dim"), grid: { stroke: () => V.colour("line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    plot = new uPlot({
      width: chart.clientWidth, height: 130, legend: { show: true, live: true }, cursor: { drag: { x: false } }, scales: { x: { time: false }, y: { range: (u, min, max) => [0, Math.max(max, slab().bytes) * 1.05] } },
      axes: [{ ...line, size: 26, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000] }, { ...line, size: LEFT, values: (u, splits) => splits.map(V.bytes) }],
      series: [{ label: "dispatch" }, { label: "needed at once", points: { show: false }, stroke: V.colour("vulkan"), fill: `${V.colour("vulkan")}33`, width: 1.5, paths: uPlot.paths.stepped({ align: 1 }), value: (u, v) => V.bytes(v) },
        { label: "slab", points: { show: false }, stroke: V.colour("dim"), dash: [5, 4], width: 1, value: (u, v) => V.bytes(v) }],
    }, [bytes.map((_, k) => k), bytes, bytes.map(() => slab().bytes)], chart);
  }

  const regionBar = (region) => V.el("div", { class: "region", title: `region ${region.id} (${region.kind}), ${V.bytes(region.size)}` },
    region.chunks.map(([at, size, requested, used]) => V.el("i", { class: used ? "used" : "", title: `+0x${at.toString(16)}: ${V.bytes(size)} ${used ? `in use, asked ${V.bytes(requested)}` : "free"}`,
      style: `left:${(100 * at) / region.size}%;width:${(100 * size) / region.size}%` })));

  function arena(one) {
    const { stats } = one;
    if (!one.regions.length && !stats.num_allocs) return V.el("div", { class: "card" }, V.el("h3", {}, one.what), V.el("p", { class: "note" }, "not used"));
    return V.el("div", { class: "card" }, V.el("h3", {}, `${one.what}: ${V.bytes(stats.bytes_in_use)} in use of ${V.bytes(stats.total_allocated_bytes)}`),
      V.facts([["high water", V.bytes(stats.max_bytes_in_use)], ["limit", stats.bytes_limit ? V.bytes(stats.bytes_limit) : "none"], ["allocations", V.count(stats.num_allocs)],
        ["largest", V.bytes(stats.max_alloc_size)], ["fragmentation", V.percent(one.fragmentation)], ["lost to rounding", V.bytes(one.wasted)]]),
      one.regions.map((region) => V.el("div", { class: "region-row" }, V.el("span", {}, `${region.kind} ${region.id}`), regionBar(region), V.el("span", {}, V.bytes(region.size)))));
  }

  function rest() {
    const weights = [...memory.weights].sort((a, b) => b.bytes - a.bytes), total = weights.reduce((sum, w) => sum + w.bytes, 0);
    const most = weights[0]?.bytes || 1;
    return [
      V.el("h2", {}, "Arenas"), V.el("div", { class: "cards" }, memory.arenas.map(arena)),
      V.el("h2", {}, `Weights: ${V.bytes(total)} in ${V.plural(weights.length, "constant")}`),
      weights.length ? V.table(["weight", "#users", "#size"], weights.slice(0, 60).map((w) => [V.el("code", {}, w.name || "(packed)"), w.users ?? "", V.measure(w.bytes / most, V.bytes(w.bytes))])) : null,
      weights.length > 60 ? V.el("p", { class: "note" }, `and ${weights.length - 60} smaller ones`) : null,
      memory.heaps.length ? [V.el("h2", {}, "Heaps"), V.table(["heap", "#used", "#budget", "#size"], memory.heaps.map((h) =>
        [`${h.index} ${h.device_local ? "device" : "host"}`, h.exact ? V.bytes(h.used) : "not told", V.bytes(h.budget), V.bytes(h.size)]))] : null,
    ].flat(Infinity).filter(Boolean);
  }

  const picker = memory.slabs.length > 1 ? V.el("select", { "aria-label": "island", change: (event) => { state.slab = +event.target.value; made.draw(); live(); } },
    memory.slabs.map((s, k) => V.el("option", { value: k }, `island ${s.island}: ${V.bytes(s.bytes)}`))) : null;
  const head = slab() ? V.el("h2", {}, `Slab: ${V.bytes(slab().bytes)}, needed at once ${V.bytes(slab().live_peak)} `, picker, V.pictures("slab", made, () => {
    const context = new V.SvgContext();
    paint(context, made.width, made.height);
    return context.file(made.width, made.height);
  })) : null;
  const page = V.el("div", { class: "page memory" }, head, slab() ? [V.el("div", { class: "slab" }, box), chart] : V.el("p", { class: "note" }, "No plan, no slab."));
  let filled = false;
  V.tabs.memory = {
    title: "Memory",
    element: V.el("section", { class: "pane" }, page),
    show: () => {
      if (!filled) page.append(...rest());
      filled = true;
      made.draw();
    },
  };
  let width = 0;
  new ResizeObserver(() => {  // the window, or the panel beside it
    if (page.clientWidth === width) return;
    width = page.clientWidth;
    if (width) live();
  }).observe(page);
})();
