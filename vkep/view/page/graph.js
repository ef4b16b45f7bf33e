"use strict";
// The model's graph: nodes coloured by who runs them or by the time that they take.

(() => {
  const { nodes, values } = V.doc;
  const BOX = { h: 36, least: 84, most: 190 };
  const HIDDEN = new Set(["folded"]);
  const view = { x: 0, y: 0, scale: 1 };
  const state = { colour: "place", hidden: new Set(HIDDEN), closed: null, groups: [], boxOf: new Map(), layout: null, found: [], matches: new Set(), hover: null, ids: [], worker: null };
  const FIRST_GROUP = nodes.length;
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
  /** Items of the layout: a node by its position, a value of the model's inputs and outputs as ~position, a box of a module as FIRST_GROUP + position. */
  const groupOf = (item) => (item >= FIRST_GROUP ? state.groups[item - FIRST_GROUP] : null);
  const isNode = (item) => item >= 0 && item < FIRST_GROUP;
  /** The nodes of an item. */
  const within = (item) => groupOf(item)?.nodes ?? (item >= 0 ? [item] : []);
  const titleOf = (group) => group.module.name + (group.parts > 1 ? ` (${group.part} of ${group.parts})` : "");
  const timeOf = (item) => within(item).reduce((sum, n) => sum + V.index.ns[n], 0);
  function sizeOf(item) {  // names are not measured: that is slow
    if (item < 0) return boxOf(26 + LETTER * Math.max(values[~item].name.length, V.kind(values[~item]).length));
    const group = groupOf(item);
    if (group) return { ...boxOf(60 + 1.2 * LETTER * titleOf(group).length), h: BOX.h + 8 };
    return boxOf(20 + Math.max(widthOf(nodes[item].op) + 34, LETTER * V.ownName(nodes[item].name).length));
  }

  function foldAtFirst(shown) {
    if (state.closed) return;
    fold.value = V.folding.readable(shown);
    state.closed = V.folding.atDepth(+fold.value);
  }
  const shownNodes = () => nodes.map((_, n) => n).filter((n) => !state.hidden.has(nodes[n].where));
  function arrange() {
    state.layout = null;
    status.textContent = "laying out…";
    const shown = shownNodes();
    foldAtFirst(shown);
    state.groups = [];
    const folded = V.folding.boxes(shown, state.closed);
    const boxes = folded.boxes.map((one) => (typeof one === "number" ? one : FIRST_GROUP + state.groups.push(one) - 1));
    state.boxOf = new Map(boxes.flatMap((item) => within(item).map((n) => [n, item])));
    match();
    const ends = values.map((_, v) => v).filter((v) => values[v].kind === "input" || values[v].kind === "output");
    const given = ends.filter((v) => V.index.producer[v] < 0), produced = ends.filter((v) => V.index.producer[v] >= 0);
    state.ids = [...given.map((v) => ~v), ...boxes, ...produced.map((v) => ~v)];
    state.most = boxes.reduce((most, item) => Math.max(most, timeOf(item)), 0);
    const position = new Map(state.ids.map((item, k) => [item, k]));
    const edges = [], joined = new Set();
    const join = (from, to) => {
      const key = from * state.ids.length + to;
      if (from !== undefined && to !== undefined && from !== to && !joined.has(key)) joined.add(key), edges.push([from, to]);
    };
    const place = (value) => position.get(V.index.producer[value] < 0 ? ~value : state.boxOf.get(V.index.producer[value]));
    for (const n of shown) {
      for (const value of nodes[n].inputs) {
        const from = V.index.producer[value];
        if (from < 0 || folded.forward(from, n)) join(place(value), position.get(state.boxOf.get(n)));
      }
    }
    for (const value of produced) join(place(value), position.get(~value));
    const graph = { nodes: state.ids.map(sizeOf), edges };
    const start = performance.now();
    state.worker?.terminate();
    const text = (id) => document.getElementById(id).textContent;
    const url = URL.createObjectURL(new Blob([text("library-d3-dag"), "\n", text("script-layout")], { type: "text/javascript" }));
    state.worker = new Worker(url);
    state.worker.onmessage = (message) => {
      URL.revokeObjectURL(url);
      state.layout = { ...message.data, boxes: graph.nodes, position, ms: performance.now() - start };
      map.forget();
      status.textContent = "";
      state.reveal ? reveal(state.reveal) : overview();
      made.draw();
    };
    state.worker.onerror = (error) => {
      status.textContent = `the layout failed: ${error.message}`;
    };
    const room = box.getBoundingClientRect();
    state.worker.postMessage({ graph, aspect: room.width ? room.height / room.width : 0.6 });
  }

  /** Strokes the lines of a piece; the path is made once. */
  function lines(context, piece) {
    if (context instanceof V.SvgContext) {
      context.beginPath();
      for (const line of piece.lines) trace(context, line.points);
      context.stroke();
      return;
    }
    if (!piece.path) {
      piece.path = new Path2D();
      for (const line of piece.lines) trace(piece.path, line.points);
    }
    context.stroke(piece.path);
  }

  function trace(path, p) {
    path.moveTo(p[0], p[1]);
    for (let k = 2; k + 3 < p.length; k += 2) path.quadraticCurveTo(p[k], p[k + 1], (p[k] + p[k + 2]) / 2, (p[k + 1] + p[k + 3]) / 2);
    path.lineTo(p[p.length - 2], p[p.length - 1]);
  }

  // ---- moving

  const moves = V.movable(made, view, {
    limits: () => ({ scale: [Math.min(0.02, fitted()), 3] }),
    click: (px, py) => select(at(px, py)),
    hover: (px, py) => {
      const found = px < 0 ? null : at(px, py);
      if (found !== state.hover) {
        state.hover = found;
        made.draw();
      }
      V.hint(made, px, py, found === null ? null : about(found));
      made.canvas.style.cursor = found === null ? "grab" : "pointer";
    },
  });
  made.canvas.addEventListener("dblclick", (event) => {
    const group = groupOf(at(event.offsetX, event.offsetY) ?? -1);
    group ? open(group.module) : moves.zoom(2, event.offsetX, event.offsetY);
  });

  const select = (item) => V.select(item === null ? {} : groupOf(item) ? { module: groupOf(item).module.path } : { node: item });
  function about(item) {
    const group = groupOf(item), time = timeOf(item), node = nodes[item];
    if (group) return [group.module.path, V.plural(group.nodes.length, "node"), ...(time ? [V.time(time)] : []), "double click: open"];
    return [`${node.op} ${node.name}`, node.where + (node.reason ? `: ${node.reason}` : ""), ...node.outputs.map((v) => V.kind(values[v])).filter(Boolean).map((kind) => `→ ${kind}`), ...(time ? [V.time(time)] : [])];
  }

  // ---- modules

  /** Opens a module: the modules within it are closed. Keeps it in the middle. */
  function open(module) {
    state.closed.delete(module.path);
    for (const child of module.children.values()) if (child.nodes.length > 1) state.closed.add(child.path);
    state.reveal = module.nodes;
    refold();
  }
  function close(module) {
    state.closed.add(module.path);
    state.reveal = module.nodes;
    refold();
  }
  function refold() {
    fold.value = "";
    arrange();
  }
  function chooseModule(module) {
    V.select({ module: module.path });
    reveal(module.nodes);
  }
  /** Opens the modules around a node. */
  function openAround(n) {
    for (let module = V.folding.closedAround(n, state.closed); module; module = V.folding.closedAround(n, state.closed)) {
      state.closed.delete(module.path);
      for (const child of module.children.values()) if (child.nodes.length > 1 && !child.nodes.includes(n)) state.closed.add(child.path);
    }
    refold();
  }

  const fitted = () => (state.layout ? Math.min(made.width / (state.layout.width + 60), made.height / (state.layout.height + 60)) : 1);
  /** The width beside the small map. */
  const free = () => made.width - (state.layout.height * view.scale > made.height ? map.element.offsetWidth : 0);
  function overview() {
    const layout = state.layout, wide = layout.column ?? layout.width;
    view.scale = Math.max(Math.min(1, made.width / (wide + 80)), 0.35);
    if (layout.height * view.scale < made.height && !layout.column) view.scale = Math.min(1, fitted());
    view.x = layout.left + wide / 2 - free() / 2 / view.scale;
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
    const shown = state.layout ? wanted.map((n) => state.layout.position.get(state.boxOf.get(n))).filter((k) => k !== undefined) : [];
    if (!shown.length) return;
    const room = made.canvas.parentElement.getBoundingClientRect(); // the details may just have opened
    if (room.width) (made.width = room.width), (made.height = room.height);
    view.scale = Math.max(view.scale, 0.8);
    const mid = (list) => (Math.min(...list) + Math.max(...list)) / 2;
    view.x = mid(shown.map((k) => state.layout.x[k])) - made.width / 2 / view.scale;
    view.y = mid(shown.map((k) => state.layout.y[k])) - made.height / 2 / view.scale;
    made.draw();
  }

  /** The node or box at a place of the canvas, or null. */
  function at(px, py) {
    if (!state.layout) return null;
    const x = view.x + px / view.scale, y = view.y + py / view.scale;
    for (const piece of visible()) {
      if (y < piece.y0 || y > piece.y1) continue;
      for (const k of piece.nodes) {
        const { w, h } = state.layout.boxes[k];
        if (state.ids[k] >= 0 && Math.abs(state.layout.x[k] - x) <= w / 2 && Math.abs(state.layout.y[k] - y) <= h / 2) return state.ids[k];
      }
    }
    return null;
  }

  // ---- painting

  function visible() {
    const x1 = view.x + made.width / view.scale, y1 = view.y + made.height / view.scale;
    return state.layout.pieces.filter((p) => p.x1 >= view.x && p.x0 <= x1 && p.y1 >= view.y && p.y0 <= y1);
  }

  function fillOf(item) {
    if (item < 0) return V.colour("dim");
    if (state.colour === "time") return V.heat(state.most ? Math.sqrt(timeOf(item) / state.most) : 0);
    if (state.colour === "dispatch") {
      const d = groupOf(item) ? undefined : V.index.dispatchesOf[item][0];
      return d === undefined ? V.colour("faint") : `hsl(${(d * 137.5) % 360} 55% ${V.dark() ? 42 : 68}%)`;
    }
    const places = within(item).map((n) => nodes[n].where);
    return V.colour(V.PLACES.find((place) => places.includes(place)) ?? places[0]);
  }

  function paint(context, width, height) {
    const layout = state.layout;
    if (!layout) return;
    const pieces = visible(), near = view.scale > 0.32, labels = view.scale > 0.62;
    context.setTransform(context.getTransform().scale(view.scale, view.scale).translate(-view.x, -view.y));
    context.lineWidth = Math.max(1.1, 0.8 / view.scale);
    context.strokeStyle = V.colour(near ? "edge" : "edge-far");
    for (const piece of pieces) lines(context, piece);
    const chosen = new Set(V.selectedNodes().map((n) => state.boxOf.get(n)));
    map.draw();
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
    const marked = new Set([...chosen, ...state.matches]); // items
    context.lineWidth = 3 / view.scale;
    context.strokeStyle = V.colour("accent");
    for (const item of marked) {
      const k = state.layout.position.get(item);
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
    const n = state.ids[k], node = nodes[n], group = groupOf(n), { w, h } = state.layout.boxes[k];
    const x = state.layout.x[k] - w / 2, y = state.layout.y[k] - h / 2;
    if (group) stacked(context, x, y, w, h);
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
    if (group) return module(context, n, group, x, y, w, labels);
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

  /** The edges of a second box behind a module's. */
  function stacked(context, x, y, w, h) {
    context.beginPath();
    context.roundRect(x + 4, y + 4, w, h, 7);
    context.fillStyle = V.colour("faint");
    context.fill();
    context.lineWidth = 1;
    context.strokeStyle = V.colour("edge");
    context.stroke();
  }
  function module(context, item, group, x, y, w, labels) {
    context.font = "600 12px system-ui, sans-serif";
    context.fillText(V.fit(context, titleOf(group), w - 20), x + 13, y + (labels ? 19 : 26));
    if (labels) {
      const time = timeOf(item);
      context.fillStyle = V.colour("dim");
      context.font = "11px system-ui, sans-serif";
      context.fillText(V.fit(context, V.plural(group.nodes.length, "node") + (time ? ` · ${V.time(time)}` : ""), w - 20), x + 13, y + 35);
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

  /** The lines to and from the chosen items. */
  function highlight(context, pieces, chosen) {
    const { position } = state.layout, to = new Set([...chosen].map((item) => position.get(item)));
    const from = new Set(to);
    for (const item of chosen) for (const n of within(item)) for (const v of nodes[n].inputs) from.add(position.get(state.boxOf.get(V.index.producer[v])));
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
    foldAtFirst(shownNodes());
    if (state.hidden.delete(nodes[node].where)) {
      fillLegend();
      state.layout = null;
    }
    if (V.folding.closedAround(node, state.closed)) openAround(node);
    else if (!state.layout) arrange();
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
    map.forget();
    made.draw();
  } }, [["place", "colour: who runs it"], ["time", "colour: time"], ["dispatch", "colour: dispatch"]]
    .map(([value, text]) => V.el("option", { value, disabled: value === "time" && !V.timed }, text)));

  const fold = V.el("select", { "aria-label": "modules", change: () => {
    state.closed = V.folding.atDepth(+fold.value);
    arrange();
  } }, V.el("option", { value: "", hidden: true }, "modules: some open"), V.el("option", { value: -1 }, "modules: all open"),
  Array.from({ length: V.folding.depths }, (_, depth) => V.el("option", { value: depth }, `modules: closed at level ${depth + 1}`)));
  const map = V.minimap({ view, made, layout: () => state.layout, fill: (k) => fillOf(state.ids[k]) });
  box.append(map.element);

  /** The whole graph, in its own size; piece by piece, so that the page stays responsive. */
  async function drawing() {
    const layout = state.layout, context = new V.SvgContext(), margin = 30;
    if (!layout) return [];
    const parts = [(piece) => {
      context.lineWidth = 1.1;
      context.strokeStyle = V.colour("edge");
      lines(context, piece);
    }, (piece) => {
      for (const k of piece.nodes) card(context, k, new Set(), true);
      kinds(context, piece);
    }];
    for (const part of parts) {
      for (const [number, piece] of layout.pieces.entries()) {
        part(piece);
        if (number % 8 < 7) continue;
        context.settle();
        await new Promise((done) => setTimeout(done));
      }
    }
    return context.file(layout.width + 2 * margin, layout.height + 2 * margin, layout.left - margin, -margin);
  }

  V.tabs.graph = {
    title: "Graph",
    element: V.el("section", { class: "stage" },
      V.el("div", { class: "tools" }, legend, V.el("span", { class: "grow" }), V.folding.depths ? fold : null, colourBy, V.pictures("graph", made, drawing),
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
      else if (event.key === "Enter" && event.target === made.canvas) select(at(made.width / 2, made.height / 2));
      else if (event.key === "j" || event.key === "k") step(event.key === "j" ? 1 : -1);
    },
  };
  /** Marks the boxes of the nodes that were found, as far as the graph shows them. */
  function match() {
    state.matches = new Set(state.found.map((n) => state.boxOf.get(n)).filter((item) => item !== undefined));
  }

  /** The next or last node, in order. */
  function step(by) {
    const shown = state.ids.filter((item) => item >= 0), found = shown.indexOf(state.boxOf.get(V.selectedNodes()[0]));
    const next = shown[Math.max(0, Math.min(shown.length - 1, found + by))];
    if (next === undefined) return;
    select(next);
    reveal(within(next));
  }
  fillLegend();
  V.graph = { choose, chooseModule, reveal, state, view, made, arrange, open, close, drawing, within,
    match: (found) => {
      state.found = found;
      match();
      made.draw();
    } };
})();
