"use strict";
// The model's graph: nodes coloured by who runs them or by the time that they take.

(() => {
  const { nodes, values } = V.doc;
  const BOX = { h: 36, least: 84, most: 190 };
  const HIDDEN = new Set(["folded"]);
  const view = { x: 0, y: 0, scale: 1 };
  const state = { colour: "place", hidden: new Set(HIDDEN), layout: null, matches: new Set(), hover: -1, ids: [], worker: null };
  const status = V.el("div", { class: "layout-status" });
  const legend = V.el("div", { class: "legend" });
  const box = V.el("div", { class: "fill" });
  const made = V.canvas("Graph of the model. Arrow keys move, plus and minus zoom, Enter selects the node in the middle.", paint).attach(box);
  made.canvas.dataset.wheel = "zoom";

  // ---- layout

  const measure = document.createElement("canvas").getContext("2d"), LETTER = 6.2;
  const widths = new Map();
  /** The width of a text that many nodes have. */
  const widthOf = (text) => {
    if (!widths.has(text)) widths.set(text, measure.measureText(text).width);
    return widths.get(text);
  };
  measure.font = "600 12px system-ui, sans-serif";
  const boxOf = (width) => ({ w: Math.ceil(Math.max(BOX.least, Math.min(BOX.most, width)) / 10) * 10, h: BOX.h });
  /** Items of the layout: a node by its position, a value of the model's inputs and outputs as ~position. Names are not measured: that is slow. */
  function sizeOf(item) {
    if (item < 0) return boxOf(26 + LETTER * Math.max(values[~item].name.length, V.kind(values[~item]).length));
    return boxOf(20 + Math.max(widthOf(nodes[item].op) + 34, LETTER * V.ownName(nodes[item].name).length));
  }

  function arrange() {
    state.layout = null;
    status.textContent = "laying out…";
    const shown = nodes.map((_, n) => n).filter((n) => !state.hidden.has(nodes[n].where));
    const ends = values.map((_, v) => v).filter((v) => values[v].kind === "input" || values[v].kind === "output");
    const given = ends.filter((v) => V.index.producer[v] < 0), produced = ends.filter((v) => V.index.producer[v] >= 0);
    state.ids = [...given.map((v) => ~v), ...shown, ...produced.map((v) => ~v)];
    const position = new Map(state.ids.map((item, k) => [item, k]));
    const edges = [];
    const join = (from, to) => from !== undefined && to !== undefined && from !== to && edges.push([from, to]);
    for (const n of shown) {
      for (const value of nodes[n].inputs) {
        const from = V.index.producer[value];
        join(position.get(from < 0 ? ~value : from), position.get(n));
      }
    }
    for (const value of produced) join(position.get(V.index.producer[value]), position.get(~value));
    const graph = { nodes: state.ids.map(sizeOf), edges };
    const start = performance.now();
    state.worker?.terminate();
    const text = (id) => document.getElementById(id).textContent;
    const url = URL.createObjectURL(new Blob([text("library-d3-dag"), "\n", text("script-layout")], { type: "text/javascript" }));
    state.worker = new Worker(url);
    state.worker.onmessage = (message) => {
      URL.revokeObjectURL(url);
      state.layout = { ...message.data, boxes: graph.nodes, position, ms: performance.now() - start };
      prepare();
      status.textContent = "";
      state.reveal ? reveal(state.reveal) : overview();
      made.draw();
    };
    state.worker.onerror = (error) => {
      status.textContent = `the layout failed: ${error.message}`;
    };
    state.worker.postMessage(graph);
  }

  /** Paths of each piece's lines, so that a frame strokes one path a piece. */
  function prepare() {
    for (const piece of state.layout.pieces) {
      piece.path = new Path2D();
      for (const line of piece.lines) trace(piece.path, line.points);
    }
  }

  function trace(path, p) {
    path.moveTo(p[0], p[1]);
    for (let k = 2; k + 3 < p.length; k += 2) path.quadraticCurveTo(p[k], p[k + 1], (p[k] + p[k + 2]) / 2, (p[k + 1] + p[k + 3]) / 2);
    path.lineTo(p[p.length - 2], p[p.length - 1]);
  }

  // ---- moving

  const moves = V.movable(made, view, {
    limits: () => ({ scale: [Math.min(0.02, fitted()), 3] }),
    click: (px, py) => {
      const found = at(px, py);
      V.select(found < 0 ? {} : { node: found });
    },
    hover: (px, py) => {
      const found = px < 0 ? -1 : at(px, py);
      if (found !== state.hover) {
        state.hover = found;
        made.draw();
      }
      const node = nodes[found];
      V.hint(made, px, py, node && [`${node.op} ${node.name}`, node.where + (node.reason ? `: ${node.reason}` : ""),
        ...node.outputs.map((v) => V.kind(values[v])).filter(Boolean).map((kind) => `→ ${kind}`),
        ...(V.index.ns[found] ? [V.time(V.index.ns[found])] : [])]);
      made.canvas.style.cursor = found < 0 ? "grab" : "pointer";
    },
  });
  made.canvas.addEventListener("dblclick", (event) => moves.zoom(2, event.offsetX, event.offsetY));

  const fitted = () => (state.layout ? Math.min(made.width / (state.layout.width + 60), made.height / (state.layout.height + 60)) : 1);
  function overview() {
    const layout = state.layout;
    view.scale = Math.max(Math.min(1, made.width / (layout.width + 80)), 0.35);
    if (layout.height * view.scale < made.height) view.scale = Math.min(1, fitted());
    view.x = layout.left + layout.width / 2 - made.width / 2 / view.scale;
    view.y = Math.min(0, layout.height / 2 - made.height / 2 / view.scale) - 24 / view.scale * (layout.height * view.scale >= made.height);
    made.draw();
  }
  function whole() {
    view.scale = fitted();
    view.x = state.layout.left + state.layout.width / 2 - made.width / 2 / view.scale;
    view.y = state.layout.height / 2 - made.height / 2 / view.scale;
    made.draw();
  }
  /** Brings nodes into the middle. */
  function reveal(wanted) {
    state.reveal = state.layout ? null : wanted;
    const shown = state.layout ? wanted.map((n) => state.layout.position.get(n)).filter((k) => k !== undefined) : [];
    if (!shown.length) return;
    const room = made.canvas.parentElement.getBoundingClientRect(); // the details may just have opened
    if (room.width) (made.width = room.width), (made.height = room.height);
    view.scale = Math.max(view.scale, 0.8);
    const mid = (list) => (Math.min(...list) + Math.max(...list)) / 2;
    view.x = mid(shown.map((k) => state.layout.x[k])) - made.width / 2 / view.scale;
    view.y = mid(shown.map((k) => state.layout.y[k])) - made.height / 2 / view.scale;
    made.draw();
  }

  /** The node at a place of the canvas, or -1. */
  function at(px, py) {
    if (!state.layout) return -1;
    const x = view.x + px / view.scale, y = view.y + py / view.scale;
    for (const piece of visible()) {
      if (y < piece.y0 || y > piece.y1) continue;
      for (const k of piece.nodes) {
        const { w, h } = state.layout.boxes[k];
        if (state.ids[k] >= 0 && Math.abs(state.layout.x[k] - x) <= w / 2 && Math.abs(state.layout.y[k] - y) <= h / 2) return state.ids[k];
      }
    }
    return -1;
  }

  // ---- painting

  function visible() {
    const x1 = view.x + made.width / view.scale, y1 = view.y + made.height / view.scale;
    return state.layout.pieces.filter((p) => p.x1 >= view.x && p.x0 <= x1 && p.y1 >= view.y && p.y0 <= y1);
  }

  const most = V.index.ns.reduce((a, b) => Math.max(a, b), 0);
  function fillOf(n) {
    if (n < 0) return V.colour("dim");
    if (state.colour === "time") return V.heat(most ? Math.sqrt(V.index.ns[n] / most) : 0);
    if (state.colour === "dispatch") {
      const d = V.index.dispatchesOf[n][0];
      return d === undefined ? V.colour("faint") : `hsl(${(d * 137.5) % 360} 55% ${V.dark() ? 42 : 68}%)`;
    }
    return V.colour(nodes[n].where);
  }

  function paint(context, width, height) {
    const layout = state.layout;
    if (!layout) return;
    const pieces = visible(), near = view.scale > 0.32, labels = view.scale > 0.62;
    context.setTransform(context.getTransform().scale(view.scale, view.scale).translate(-view.x, -view.y));
    context.lineWidth = Math.max(1.1, 0.8 / view.scale);
    context.strokeStyle = V.colour(near ? "edge" : "edge-far");
    for (const piece of pieces) context.stroke(piece.path);
    const chosen = new Set(V.selectedNodes());
    if (chosen.size) highlight(context, pieces, chosen);
    if (near) pieces.forEach((piece) => piece.nodes.forEach((k) => card(context, k, chosen, labels)));
    else dots(context, pieces, chosen);
    if (labels) pieces.forEach((piece) => kinds(context, piece));
  }

  /** Far away: one rectangle a node, sorted by colour. */
  function dots(context, pieces, chosen) {
    const { x, y, boxes } = state.layout, by = new Map();
    for (const piece of pieces) {
      for (const k of piece.nodes) {
        const fill = fillOf(state.ids[k]);
        if (!by.has(fill)) by.set(fill, []);
        by.get(fill).push(k);
      }
    }
    for (const [fill, group] of by) {
      context.fillStyle = fill;
      for (const k of group) context.fillRect(x[k] - boxes[k].w / 2, y[k] - boxes[k].h / 2, boxes[k].w, boxes[k].h);
    }
    const marked = new Set([...chosen, ...state.matches]);
    context.lineWidth = 3 / view.scale;
    context.strokeStyle = V.colour("accent");
    for (const n of marked) {
      const k = state.layout.position.get(n);
      if (k !== undefined) context.strokeRect(x[k] - boxes[k].w / 2, y[k] - boxes[k].h / 2, boxes[k].w, boxes[k].h);
    }
  }

  function pill(context, k) {
    const value = values[~state.ids[k]], { w, h } = state.layout.boxes[k], x = state.layout.x[k] - w / 2, y = state.layout.y[k] - h / 2;
    context.beginPath();
    context.roundRect(x, y, w, h, h / 2);
    context.fillStyle = V.colour("faint");
    context.fill();
    context.lineWidth = 1;
    context.strokeStyle = V.colour("dim");
    context.stroke();
    context.fillStyle = V.colour("text");
    context.font = "600 11px system-ui, sans-serif";
    context.fillText(V.fit(context, value.name, w - 24), x + 13, y + 15);
    context.font = "10px ui-monospace, monospace";
    context.fillStyle = V.colour("dim");
    context.fillText(V.fit(context, V.kind(value), w - 22), x + 13, y + 28);
  }

  function card(context, k, chosen, labels) {
    if (state.ids[k] < 0) return pill(context, k);
    const n = state.ids[k], node = nodes[n], { w, h } = state.layout.boxes[k];
    const x = state.layout.x[k] - w / 2, y = state.layout.y[k] - h / 2;
    const dimmed = (state.matches.size && !state.matches.has(n)) || (chosen.size > 1 && !chosen.has(n));
    context.globalAlpha = dimmed ? 0.45 : 1;
    context.beginPath();
    context.roundRect(x, y, w, h, 7);
    context.fillStyle = V.colour("panel");
    context.fill();
    context.globalAlpha *= state.colour === "place" ? 0.16 : 0.55;
    context.fillStyle = fillOf(n);
    context.fill();
    context.globalAlpha = dimmed ? 0.45 : 1;
    const marked = chosen.has(n) || state.matches.has(n);
    context.lineWidth = marked ? 2.6 : n === state.hover ? 2 : 1;
    context.strokeStyle = marked ? V.colour("accent") : fillOf(n);
    context.stroke();
    context.save();
    context.clip();
    context.fillStyle = fillOf(n);
    context.fillRect(x, y, 5, h);
    context.restore();
    context.fillStyle = V.colour("text");
    context.textBaseline = "alphabetic";
    const tag = V.index.dispatchesOf[n].length ? `d${V.index.dispatchesOf[n][0]}` : "";
    context.font = "600 12px system-ui, sans-serif";
    const room = w - 20 - (labels && tag ? 26 : 0);
    context.fillText(V.fit(context, node.op, room), x + 13, y + (labels ? 15 : 22));
    if (labels) {
      context.fillStyle = V.colour("dim");
      context.font = "11px system-ui, sans-serif";
      context.fillText(V.fit(context, V.ownName(node.name), w - 20), x + 13, y + 29);
      if (tag) {
        context.textAlign = "right";
        context.font = "10px system-ui, sans-serif";
        context.fillText(tag, x + w - 8, y + 14);
        context.textAlign = "left";
      }
    }
    context.globalAlpha = 1;
  }

  /** Types and shapes below the nodes that make values. */
  function kinds(context, piece) {
    context.font = "10px ui-monospace, monospace";
    context.fillStyle = V.colour("dim");
    for (const k of piece.nodes) {
      const node = nodes[state.ids[k]], value = values[node?.outputs[0]];
      if (value?.shape && value.kind !== "output") context.fillText(V.kind(value), state.layout.x[k] + 5, state.layout.y[k] + BOX.h / 2 + 11);
    }
  }

  /** The lines to and from the chosen nodes. */
  function highlight(context, pieces, chosen) {
    const { position } = state.layout, to = new Set([...chosen].map((n) => position.get(n)));
    const from = new Set(to);
    for (const n of chosen) for (const v of nodes[n].inputs) from.add(position.get(V.index.producer[v]));
    const path = new Path2D();
    for (const piece of pieces) {
      for (const line of piece.lines) {
        const mine = to.has(line.from) || to.has(line.to) || (line.to < 0 && from.has(line.from));
        if (mine) trace(path, line.points);
      }
    }
    context.lineWidth = Math.max(2.2, 1.6 / view.scale);
    context.strokeStyle = V.colour("accent");
    context.stroke(path);
  }

  // ---- the tab

  function choose(node) {
    V.select({ node });
    if (state.hidden.delete(nodes[node].where)) {
      fillLegend();
      arrange();
    }
    reveal([node]);
  }

  function fillLegend() {
    const counts = new Map();
    for (const node of nodes) counts.set(node.where, (counts.get(node.where) ?? 0) + 1);
    legend.replaceChildren(...V.PLACES.filter((place) => counts.has(place)).map((place) => {
      const shown = !state.hidden.has(place);
      return V.el("button", {
        class: "chip", "aria-pressed": String(shown), title: shown ? "shown: press to hide" : "hidden: press to show",
        click: () => {
          shown ? state.hidden.add(place) : state.hidden.delete(place);
          fillLegend();
          arrange();
        },
      }, V.el("i", { style: `background:var(--${place})` }), `${place} ${V.count(counts.get(place))}`);
    }));
  }

  const colourBy = V.el("select", { "aria-label": "colour by", change: (event) => {
    state.colour = event.target.value;
    made.draw();
  } }, [["place", "colour: who runs it"], ["time", "colour: time"], ["dispatch", "colour: dispatch"]]
    .map(([value, text]) => V.el("option", { value, disabled: value === "time" && !V.timed }, text)));

  V.tabs.graph = {
    title: "Graph",
    element: V.el("section", { class: "stage" },
      V.el("div", { class: "tools" }, legend, V.el("span", { class: "grow" }), colourBy,
        V.el("button", { click: overview, title: "the start, in a readable size" }, "start"),
        V.el("button", { click: () => state.layout && whole(), title: "everything (f)" }, "whole"),
        V.el("button", { click: () => moves.zoom(1.4, made.width / 2, made.height / 2), "aria-label": "zoom in" }, "+"),
        V.el("button", { click: () => moves.zoom(1 / 1.4, made.width / 2, made.height / 2), "aria-label": "zoom out" }, "−")),
      V.el("div", { class: "canvas-box" }, box, status)),
    show: () => {
      if (!state.layout && !state.worker) arrange();
      made.draw();
    },
    key: (event) => {
      if (event.key === "f" && state.layout) whole();
      else if (event.key === "Enter" && event.target === made.canvas) V.select({ node: at(made.width / 2, made.height / 2) });
      else if (event.key === "j" || event.key === "k") step(event.key === "j" ? 1 : -1);
    },
  };
  /** The next or last node, in order. */
  function step(by) {
    const shown = state.ids.filter((item) => item >= 0), found = shown.indexOf(V.selectedNodes()[0] ?? -1);
    const next = shown[Math.max(0, Math.min(shown.length - 1, found + by))];
    if (next !== undefined) choose(next);
  }
  fillLegend();
  V.graph = { choose, reveal, state, view, made, arrange,
    match: (found) => {
      state.matches = new Set(found);
      made.draw();
    } };
})();
