"use strict";
// One run on one clock: the host's steps, the GPU's dispatches, and how near each comes to the device's limit.

(() => {
  const { runs, opening, dispatches } = V.doc;
  const ROW = 24, LEFT = 92, AXIS = 26, GAP = 26;
  const view = { x: 0, y: 0, scale: 1 };
  const state = { run: 0, bars: [], lanes: [], hover: null, span: 1, fitted: 0, marked: null };
  const first = new Map(); // of each island's dispatches, the first one's position
  dispatches.forEach((d, k) => first.has(d.island) || first.set(d.island, k));
  const at = (island, dispatch) => (island < 0 || dispatch < 0 ? undefined : first.get(island) + dispatch);
  const measured = V.el("p", { class: "note measured", hidden: true });
  const labels = dispatches.map((d) => `${V.covers(d)} · ${V.names(d).map(V.ownName).join(" + ")}`);
  const choices = [...runs.map((run, k) => ({ name: `run ${k + 1}`, ns: V.wall(run), run })),
    ...(opening.length ? [{ name: "opening", run: { start: opening[0].start, end: Math.max(...opening.map((s) => s.end)), host: opening, gpu: [], uncertainty: 0 } }] : [])];
  const box = V.el("div", { class: "fill" });
  const made = V.canvas("Timeline of a run. Left and right step through the dispatches, plus and minus zoom.", paint).attach(box);
  made.canvas.dataset.wheel = "zoom";
  const picker = V.el("div", { class: "chips" });
  const note = V.el("p", { class: "note" });

  /** Rows and bars of a run; spans that overlap lie in rows of their own. */
  function load(choice) {
    const { run } = choices[choice];
    state.run = choice;
    mark(null);
    state.span = run.end - run.start || 1;
    state.bars = [];
    state.lanes = [];
    const row = (name) => state.lanes.push(name) - 1;
    const depths = [...new Set(run.host.map((s) => s.depth))].sort((a, b) => a - b);
    for (const depth of depths) place(run.host.filter((s) => s.depth === depth), ["run", "steps", "parts"][depth] ?? "", "host");
    if (run.gpu.length) place(run.gpu, "GPU", "gpu");
    function place(spans, name, kind) {
      const ends = [], rows = [];
      for (const span of [...spans].sort((a, b) => a.start - b.start || b.end - a.end)) {
        let lane = ends.findIndex((end) => end <= span.start + 1);
        if (lane < 0) {
          lane = ends.push(0) - 1;
          rows.push(row(lane ? "" : name));
        }
        ends[lane] = span.end;
        state.bars.push({ start: span.start - run.start, end: span.end - run.start, row: rows[lane], kind, name: span.name, region: V.doc.regions[span.region], dispatch: kind === "gpu" ? at(span.island, span.dispatch) : undefined });
      }
    }
    picker.replaceChildren(...choices.map((c, k) => V.el("button", { class: "chip", "aria-pressed": String(k === choice), click: () => { load(k); fit(); } },
      c.name + (c.ns ? ` · ${V.time(c.ns)}` : ""))));
    const busy = V.union(run.gpu);
    note.textContent = run.gpu.length
      ? `GPU busy ${V.time(busy)} of ${V.time(state.span)} (${V.percent(busy / state.span)}). Dispatches without a barrier between them begin together. ` +
        `Vertical lines are barriers. The GPU's clock fits the host's within ± ${V.time(run.uncertainty)}.`
      : "";
  }

  // ---- a span that is measured

  /** Marks a span of the run, in nanoseconds since its start; null: none. Says what is in it. */
  function mark(span) {
    state.marked = span;
    measured.hidden = !span;
    made.draw();
    if (!span) return;
    const inside = state.bars.filter((bar) => bar.kind === "gpu" && bar.end > span.start && bar.start < span.end)
      .map((bar) => ({ ...bar, start: Math.max(bar.start, span.start), end: Math.min(bar.end, span.end) }));
    const totals = new Map(), busy = V.union(inside), whole = span.end - span.start;
    for (const bar of inside) {
      const what = bar.dispatch === undefined ? bar.name : V.covers(dispatches[bar.dispatch]);
      totals.set(what, (totals.get(what) ?? 0) + bar.end - bar.start);
    }
    const most = [...totals].sort((a, b) => b[1] - a[1]).slice(0, 3).map(([what, ns]) => `${V.short(what, 40)} ${V.time(ns)}`).join(", ");
    measured.textContent = `Marked: ${V.time(whole)} from ${V.time(span.start)} to ${V.time(span.end)}; GPU busy ${V.time(busy)} (${V.percent(busy / (whole || 1))}), ${V.plural(inside.length, "span")}${most ? `: ${most}` : ""}`;
  }
  const marker = V.el("button", { "aria-pressed": "false", title: "drag to measure a span (or drag with Shift; m: the chosen dispatch)", click: () => {
    const on = marker.getAttribute("aria-pressed") !== "true";
    marker.setAttribute("aria-pressed", String(on));
    if (!on) mark(null);
  } }, "measure");
  function paintMark(context, height, toX) {
    const x = toX(state.marked.start), w = toX(state.marked.end) - x;
    context.fillStyle = V.colour("mark");
    context.fillRect(x, AXIS - 6, w, height);
    context.fillStyle = V.colour("accent");
    for (const edge of [x, x + w]) context.fillRect(edge - 0.75, AXIS - 6, 1.5, height);
    context.font = "600 12px system-ui, sans-serif";
    context.textAlign = "center";
    context.fillText(V.time(state.marked.end - state.marked.start), Math.max(LEFT + 30, Math.min(made.width - 30, x + w / 2)), AXIS - 12);
    context.textAlign = "left";
  }

  const usable = () => Math.max(50, made.width - LEFT - 12);
  function fit() {
    view.scale = usable() / state.span;
    view.x = -LEFT / view.scale;
    state.fitted = made.width;
    made.draw();
  }
  const moves = V.movable(made, view, {
    axes: "x",
    changed: () => (state.fitted = null),
    spans: () => marker.getAttribute("aria-pressed") === "true",
    span: (from, to) => {
      const at = (px) => Math.max(0, Math.min(state.span, view.x + px / view.scale));
      mark({ start: at(from), end: at(to) });
    },
    limits: () => ({ scale: [usable() / state.span / 1.5, 2] }),
    click: (px, py) => {
      const bar = barAt(px, py) ?? below(px, py);
      V.select(bar?.dispatch !== undefined ? { dispatch: bar.dispatch } : bar?.region ? { node: bar.region.nodes[0] } : {});
    },
    hover: (px, py) => {
      const bar = px < 0 ? null : barAt(px, py) ?? below(px, py);
      if (bar !== state.hover) (state.hover = bar), made.draw();
      const d = bar && dispatches[bar.dispatch];
      V.hint(made, px, py, bar && [d ? labels[bar.dispatch] : bar.name || "copy", V.time(bar.end - bar.start),
        ...(bar.region ? [V.short(bar.region.nodes.map((n) => V.doc.nodes[n].name).join(", "), 200), bar.region.about] : []),
        ...(d ? [V.moduleOf(d), d.kernel, d.ns !== undefined ? `alone ${V.time(d.ns)}, ${V.percent(V.ofLimit(d))} of the limit` : "", `${V.rate(d.bytes, d.ns, "B")}, ${V.rate(d.flops, d.ns, "FLOP")}`].filter(Boolean) : [])]);
    },
  });
  const rowY = (row) => AXIS + row * ROW;
  function barAt(px, py) {
    const row = Math.floor((py - AXIS) / ROW), at = view.x + px / view.scale, slack = 2 / view.scale;
    return state.bars.find((bar) => bar.row === row && bar.start - slack <= at && bar.end + slack >= at) ?? null;
  }

  /** The dispatch whose strips are there. */
  function below(px, py) {
    const at = view.x + px / view.scale;
    return (py > rowY(state.lanes.length) && state.bars.find((bar) => bar.dispatch !== undefined && bar.start <= at && at <= bar.end)) || null;
  }

  function paint(context, width, height) {
    if (!state.bars.length) return;
    if (state.fitted !== null && state.fitted !== width) return fit(); // the window, or the panel beside it, changed
    const toX = (ns) => (ns - view.x) * view.scale;
    axis(context, width, height, toX);
    context.save();
    context.beginPath();
    context.rect(LEFT, 0, width - LEFT, height);
    context.clip();
    const bottom = rowY(state.lanes.length);
    context.fillStyle = V.colour("barrier");
    const top = rowY(gpuRow());
    let line = -Infinity;
    for (const bar of state.bars) {
      if (bar.dispatch === undefined || !dispatches[bar.dispatch].barrier || toX(bar.start) < line + 1) continue;
      line = toX(bar.start);
      context.fillRect(line, top - 3, 1, bottom - top + 6);
    }
    const chosen = new Set(V.selectedDispatches());
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    const few = chosen.size < 100;
    const painted = state.lanes.map(() => -Infinity); // the right end of what is painted in each row
    for (const bar of state.bars) {
      const x = toX(bar.start), w = Math.max(1, toX(bar.end) - x - (toX(bar.end) - x > 3 ? 0.6 : 0));
      const marked = chosen.has(bar.dispatch) || bar === state.hover;
      if (x > width || x + w < LEFT || (x + w < painted[bar.row] + 0.5 && !(marked && few))) continue;
      painted[bar.row] = x + w;
      const y = rowY(bar.row) + 2, h = ROW - 4;
      context.fillStyle = colourOf(bar);
      context.globalAlpha = chosen.size && bar.kind === "gpu" && !chosen.has(bar.dispatch) ? 0.5 : 1;
      if (w > 4) {
        context.beginPath();
        context.roundRect(x, y, w, h, 3);
        context.fill();
      } else context.fillRect(x, y, w, h);
      context.globalAlpha = 1;
      if (marked) {
        context.strokeStyle = V.colour("text");
        context.lineWidth = 1.6;
        context.strokeRect(x - 0.5, y - 0.5, w + 1, h + 1);
      }
      if (w > 34) {
        const plain = bar.kind === "gpu" && (!chosen.size || chosen.has(bar.dispatch));
        context.fillStyle = V.colour(plain ? "on-bar" : "text");
        const shown = Math.max(x, LEFT);
        context.fillText(V.fit(context, bar.dispatch === undefined ? bar.name : labels[bar.dispatch], x + w - shown - 10), shown + 6, y + h / 2 + 0.5);
      }
    }
    if (strips(bottom).length) paintStrips(context, toX, bottom, width, chosen);
    if (state.marked) paintMark(context, height, toX);
    context.restore();
    names(context, bottom);
  }

  const gpuRow = () => state.lanes.indexOf("GPU");
  function colourOf(bar) {
    if (bar.kind === "host") return V.colour(bar.name === "wait" ? "wait" : bar.name.startsWith("cpu") ? "cpu" : "host");
    return bar.dispatch === undefined ? V.colour("vgf") : V.limitColour(V.ofLimit(dispatches[bar.dispatch]));
  }

  const most = (of) => dispatches.reduce((top, d) => Math.max(top, of(d) || 0), 0);
  const live = new Map(V.doc.memory.slabs.map((slab) => [slab.island, V.live(slab)]));
  const dispatchInIsland = (k) => k - first.get(dispatches[k].island);
  const needed = (k) => live.get(dispatches[k].island)?.[dispatchInIsland(k)] ?? 0;
  const limits = V.doc.limits;
  /** What is drawn below the bars: a height for each dispatch, from 0 to `top`. */
  const STRIPS = [
    { name: "of the limit", top: 1, of: (k) => Math.min(1, V.ofLimit(dispatches[k])), write: V.percent, colour: (k) => V.limitColour(V.ofLimit(dispatches[k])), there: V.timed },
    { name: "GB/s", top: Math.max(limits?.copy_rate ?? 0, most((d) => d.bytes / d.ns)), of: (k) => dispatches[k].bytes / dispatches[k].ns, write: (v) => v.toPrecision(3), mark: limits?.copy_rate, colour: () => V.colour("vulkan"), there: V.timed },
    { name: "GFLOP/s", top: Math.max(limits?.float32_flops ?? 0, most((d) => d.flops / d.ns)), of: (k) => dispatches[k].flops / dispatches[k].ns, write: (v) => v.toPrecision(3), mark: limits?.float32_flops, colour: () => V.colour("vgf"), there: V.timed },
    { name: "slab in use", top: Math.max(...V.doc.memory.slabs.map((s) => s.bytes), 1), of: needed, write: V.bytes, colour: () => V.colour("kompute"), there: true },
  ].filter((strip) => strip.there && dispatches.some((d, k) => strip.of(k) > 0));
  /** Top and height of each strip; a run without dispatches has none. */
  const strips = (bottom) => {
    if (!state.bars.some((bar) => bar.dispatch !== undefined)) return [];
    const height = Math.max(34, Math.min(120, (made.height - bottom - 8) / STRIPS.length - GAP));
    return STRIPS.map((strip, k) => ({ ...strip, y: bottom + GAP + k * (height + GAP), height }));
  };

  function paintStrips(context, toX, bottom, width, chosen) {
    for (const strip of strips(bottom)) {
      context.fillStyle = V.colour("faint");
      context.fillRect(LEFT, strip.y, width, strip.height);
      const few = chosen.size < 100;
      let painted = -Infinity;
      for (const bar of state.bars) {
        if (bar.dispatch === undefined) continue;
        const x = toX(bar.start), w = Math.max(1, toX(bar.end) - x);
        if (w <= 1 && x < painted + 0.5 && !(few && chosen.has(bar.dispatch))) continue; // several in one pixel
        painted = x;
        const h = strip.height * Math.min(1, strip.of(bar.dispatch) / strip.top);
        if (x > width || x + w < LEFT) continue;
        context.globalAlpha = chosen.size && !chosen.has(bar.dispatch) ? 0.35 : 0.85;
        context.fillStyle = strip.colour(bar.dispatch);
        context.fillRect(x, strip.y + strip.height - h, w, h);
      }
      context.globalAlpha = 1;
      if (strip.mark) {
        const y = strip.y + strip.height * (1 - strip.mark / strip.top) + 0.5;
        context.strokeStyle = V.colour("dim");
        context.lineWidth = 1;
        context.setLineDash([4, 4]);
        context.beginPath();
        context.moveTo(LEFT, y);
        context.lineTo(width, y);
        context.stroke();
        context.setLineDash([]);
      }
    }
  }

  function names(context, bottom) {
    context.fillStyle = V.colour("dim");
    context.font = "11px system-ui, sans-serif";
    context.textAlign = "right";
    context.textBaseline = "middle";
    state.lanes.forEach((name, row) => context.fillText(name, LEFT - 10, rowY(row) + ROW / 2));
    for (const strip of strips(bottom)) {
      context.fillText(strip.name, LEFT - 10, strip.y + strip.height / 2);
      context.fillText(strip.write(strip.top), LEFT - 10, strip.y + 5);
    }
    context.textAlign = "left";
  }

  function axis(context, width, height, toX) {
    const want = 110 / view.scale, power = 10 ** Math.floor(Math.log10(want));
    const step = [1, 2, 5, 10].map((k) => k * power).find((s) => s >= want);
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "alphabetic";
    for (let t = Math.max(0, Math.ceil((view.x + LEFT / view.scale) / step)) * step; toX(t) < width; t += step) {
      context.fillStyle = V.colour("line");
      context.fillRect(toX(t), 4, 1, height);
      context.fillStyle = V.colour("dim");
      context.fillText(t ? V.time(t) : "0", toX(t) + 4, 14);
    }
  }

  /** The next dispatch on the GPU. */
  function step(by) {
    const gpu = state.bars.filter((b) => b.dispatch !== undefined);
    if (!gpu.length) return;
    const now = gpu.findIndex((b) => b.dispatch === V.selectedDispatches()[0]);
    const next = gpu[Math.max(0, Math.min(gpu.length - 1, now < 0 ? 0 : now + by))];
    const px = (next.start - view.x) * view.scale;
    if (px < LEFT || px > made.width - 40) view.x = next.start - made.width / 2 / view.scale;
    V.select({ dispatch: next.dispatch });
  }

  V.tabs.timeline = {
    title: "Timeline",
    element: V.el("section", { class: "stage" },
      V.el("div", { class: "tools", hidden: !choices.length }, picker, V.el("span", { class: "grow" }), V.el("span", { class: "scale-key" }, "share of the limit 0", V.el("i"), "1"),
        marker, V.pictures("timeline", made, () => {
          const context = new V.SvgContext();
          paint(context, made.width, made.height);
          return context.file(made.width, made.height);
        }), V.el("button", { click: fit }, "whole"), V.el("button", { "aria-label": "zoom in", click: () => moves.zoom(1.6, made.width / 2, 0) }, "+"),
        V.el("button", { "aria-label": "zoom out", click: () => moves.zoom(1 / 1.6, made.width / 2, 0) }, "−")),
      V.el("div", { class: "canvas-box" }, choices.length ? box : V.el("p", { class: "empty" }, "Nothing was run: there is no timeline.")), measured, note),
    show: () => made.draw(),
    key: (event) => {
      if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
        step(event.key === "ArrowRight" ? 1 : -1);
        event.preventDefault();
      } else if (event.key === "f") fit();
      else if (event.key === "m") {
        const bars = state.bars.filter((bar) => V.selectedDispatches().includes(bar.dispatch));
        mark(bars.length ? { start: Math.min(...bars.map((b) => b.start)), end: Math.max(...bars.map((b) => b.end)) } : null);
      }
    },
  };
  if (choices.length) {
    load(Math.max(0, runs.indexOf(V.medianRun(V.doc))));
  }
  V.timeline = { state, view, made, mark, measured, strips: () => strips(0).map((strip) => strip.name) };
})();
