"use strict";
// Places the nodes of a graph. Runs in a worker, and so refers to nothing but d3-dag (`d3`).
//
// A layered layout of thousands of nodes at once takes minutes, so the graph is cut where few values pass, into pieces of some
// dozens of nodes in topological order. d3-dag lays each piece out; values that enter or leave a piece are nodes without size in
// its first and last layer, which the next piece's are joined to. Pieces of the same structure (the layers of a transformer) are
// laid out once.

const PIECE = { least: 16, most: 72, gapX: 26, gapY: 28, joint: 40, sway: 240, hurry: 3000, column: 600 };

/**
 * @param {{nodes: {w: number, h: number}[], edges: [number, number][]}} graph  edges from producer to consumer
 * @returns {{x: Float32Array, y: Float32Array, width: number, height: number, column?: number,
 *   pieces: {x0: number, y0: number, x1: number, y1: number, nodes: number[],
 *            lines: {from: number, to: number, points: number[]}[]}[]}}
 *   centres of the nodes; `column`: the width of a column, where there are several; each line belongs to the value of node `from`, and ends at node `to` (-1: at the piece's border)
 */
function layoutGraph(graph, d3) {
  const order = topological(graph);
  const position = new Int32Array(graph.nodes.length);
  order.forEach((node, at) => (position[node] = at));
  const sources = graph.nodes.map(() => []);
  const last = Int32Array.from(order, (_, node) => position[node]);
  for (const [from, to] of graph.edges) {
    sources[to].push(from);
    if (position[to] > last[from]) last[from] = position[to];
  }
  const x = new Float32Array(graph.nodes.length), y = new Float32Array(graph.nodes.length);
  const known = new Map(), pieces = [];
  let top = 0, passing = new Map(), entering = [];
  let begin = 0;
  for (const end of cuts(order, last)) {
    const nodes = order.slice(begin, end);
    const leaving = [...entering, ...nodes].filter((node) => last[node] >= end);
    const local = pieceLayout(graph, nodes, sources, entering, leaving, known, d3);
    const shift = alignment(local, entering, passing);
    const joint = pieces.length ? PIECE.joint : 0;
    const piece = { x0: Infinity, x1: -Infinity, y0: top, y1: top + joint + local.height, nodes, lines: [] };
    nodes.forEach((node, k) => {
      x[node] = local.x[k] + shift;
      y[node] = local.y[k] + top + joint;
      piece.x0 = Math.min(piece.x0, x[node] - graph.nodes[node].w / 2);
      piece.x1 = Math.max(piece.x1, x[node] + graph.nodes[node].w / 2);
    });
    const names = [...nodes, ...entering, ...leaving];
    for (const line of local.lines) {
      const points = line.points.map((value, k) => value + (k % 2 ? top + joint : shift));
      piece.lines.push({ from: names[line.from], to: line.to < nodes.length ? nodes[line.to] : -1, points });
      for (let k = 0; k < points.length; k += 2) {
        piece.x0 = Math.min(piece.x0, points[k]);
        piece.x1 = Math.max(piece.x1, points[k]);
      }
    }
    entering.forEach((node, k) => {
      const to = local.enter[k] + shift;
      piece.lines.push({ from: node, to: -1, points: [passing.get(node), top, passing.get(node), top + joint * 0.3, to, top + joint * 0.7, to, top + joint] });
    });
    passing = new Map(leaving.map((node, k) => [node, local.leave[k] + shift]));
    entering = leaving;
    top = piece.y1;
    begin = end;
    pieces.push(piece);
  }
  let left = Infinity, right = -Infinity;
  for (const piece of pieces) {
    left = Math.min(left, piece.x0);
    right = Math.max(right, piece.x1);
  }
  return { x, y, left: pieces.length ? left : 0, width: pieces.length ? right - left : 0, height: top, pieces };
}

/**
 * A long graph in columns, whose whole has about the given ratio of height to width: pieces are shifted, and what passes from the end of a
 * column to the start of the next is drawn from there.
 */
function inColumns(layout, aspect) {
  const { pieces, x, y, width, height } = layout, gap = PIECE.joint * 3;
  const count = Math.round(Math.sqrt(height / aspect / (width + gap)));
  if (count < 2 || pieces.length < 2) return layout;
  let column = 0, top = 0, tallest = 0, end = null;
  for (const piece of pieces) {
    const opens = piece.y1 - top > (1.12 * height) / count && piece.y0 > top;
    if (opens) {
      end = [column * (width + gap), piece.y0 - top];
      (column += 1), (top = piece.y0);
    }
    const dx = column * (width + gap);
    for (const k of piece.nodes) (x[k] += dx), (y[k] -= top);
    for (const line of piece.lines) {
      const starts = opens && line.points[1] === piece.y0 ? [line.points[0] + end[0], end[1]] : [];
      line.points = [...starts, ...line.points.map((value, k) => (k % 2 ? value - top : value + dx))];
    }
    (piece.x0 += dx), (piece.x1 += dx), (piece.y0 -= top), (piece.y1 -= top);
    tallest = Math.max(tallest, piece.y1);
  }
  return { ...layout, width: width + column * (width + gap), height: tallest, column: width };
}

/** Topological order that stays close to the nodes' own. */
function topological(graph) {
  const waits = new Int32Array(graph.nodes.length), targets = graph.nodes.map(() => []);
  for (const [from, to] of graph.edges) {
    waits[to]++;
    targets[from].push(to);
  }
  const order = [], heap = [];
  const push = (value) => {
    let at = heap.push(value) - 1;
    while (at && heap[(at - 1) >> 1] > value) {
      heap[at] = heap[(at - 1) >> 1];
      at = (at - 1) >> 1;
    }
    heap[at] = value;
  };
  const pop = () => {
    const first = heap[0], value = heap.pop();
    let at = 0;
    while (heap.length && 2 * at + 1 < heap.length) {
      let child = 2 * at + 1;
      if (child + 1 < heap.length && heap[child + 1] < heap[child]) child++;
      if (heap[child] >= value) break;
      heap[at] = heap[child];
      at = child;
    }
    if (heap.length) heap[at] = value;
    return first;
  };
  waits.forEach((count, node) => count || push(node));
  while (heap.length) {
    const node = pop();
    order.push(node);
    for (const to of targets[node]) if (--waits[to] === 0) push(to);
  }
  return order;
}

/** Where pieces end: positions in the order at which the fewest values pass. */
function cuts(order, last) {
  const live = new Int32Array(order.length + 1), change = new Int32Array(order.length + 2);
  order.forEach((node, at) => {
    change[at + 1]++;
    change[last[node] + 1]--;
  });
  for (let at = 0, count = 0; at <= order.length; at++) live[at] = count += change[at];
  const found = [];
  for (let begin = 0; begin < order.length; ) {
    let best = Math.min(begin + PIECE.most, order.length);
    if (order.length - begin > PIECE.most) {
      for (let end = begin + PIECE.most; end >= begin + PIECE.least; end--) if (live[end] < live[best]) best = end;
    }
    found.push(best);
    begin = best;
  }
  return found;
}

/** One piece, from the origin; lines name nodes by position in [...nodes, ...entering, ...leaving]. */
function pieceLayout(graph, nodes, sources, entering, leaving, known, d3) {
  const index = new Map();
  entering.forEach((node, k) => index.set(node, nodes.length + k));
  nodes.forEach((node, k) => index.set(node, k));
  const edges = [];
  nodes.forEach((node, k) => {
    for (const from of new Set(sources[node])) if (index.has(from)) edges.push([index.get(from), k]);
  });
  leaving.forEach((node, k) => edges.push([index.get(node), nodes.length + entering.length + k]));
  const sizes = nodes.map((node) => `${graph.nodes[node].w}x${graph.nodes[node].h}`);
  const signature = `${nodes.length},${entering.length},${leaving.length};${sizes};${edges.join(" ")}`;
  if (!known.has(signature)) known.set(signature, lay(nodes.map((n) => graph.nodes[n]), entering.length, leaving.length, edges, graph.nodes.length > PIECE.hurry, d3));
  return known.get(signature);
}

function lay(boxes, enters, leaves, edges, fast, d3) {
  const count = boxes.length, all = count + enters + leaves;
  const dag = d3.graph();
  const made = Array.from({ length: all }, (_, k) => dag.node(k));
  edges.forEach(([from, to]) => made[from].child(made[to], [from, to]));
  const exit = (k) => k >= count + enters;
  const longest = d3.layeringLongestPath();
  const layering = (part, separation) => {
    const height = longest(part, separation);
    let lowest = 0;
    for (const node of part.nodes()) lowest = Math.max(lowest, node.y);
    for (const node of part.nodes()) if (exit(node.data)) node.y = lowest;
    return height;
  };
  const x = new Array(count), y = new Array(count), enter = new Array(enters), leave = new Array(leaves), lines = [];
  let left = 0, height = 0;
  const size = (node) => (node.data < count ? [boxes[node.data].w, boxes[node.data].h] : [6, 2]);
  const parts = [...dag.split()].map((part) => [...part.nodes()].map((node) => node.data));
  for (const members of parts) {
    const graphPart = d3.graph(), own = new Map(members.map((k) => [k, graphPart.node(k)]));
    for (const [from, to] of edges) if (own.has(from)) own.get(from).child(own.get(to), [from, to]);
    const coord = fast ? d3.coordGreedy() : d3.coordSimplex();
    const layout = d3.sugiyama().layering(layering).nodeSize(size).gap([PIECE.gapX, PIECE.gapY])
      .decross(d3.decrossTwoLayer().order(d3.twolayerAgg()).passes(4)).coord(coord);
    const box = layout(graphPart);
    for (const node of graphPart.nodes()) {
      const k = node.data, at = node.x + left;
      if (k < count) (x[k] = at), (y[k] = node.y);
      else if (k < count + enters) enter[k - count] = at;
      else leave[k - count - enters] = at;
    }
    for (const link of graphPart.links()) {
      const [from, to] = link.data;
      const points = link.points.flatMap(([px, py]) => [px + left, py]);
      if (from < count) points[1] += boxes[from].h / 2;
      if (to < count) points[points.length - 1] -= boxes[to].h / 2;
      lines.push({ from, to, points });
    }
    left += box.width + PIECE.gapX;
    height = Math.max(height, box.height);
  }
  for (const line of lines) {  // from and to the borders, wherever d3-dag put the layers of nodes without size
    const points = line.points;
    if (line.from >= count) points[1] = 0;
    if (line.to >= count) points.push(points[points.length - 2], height);
  }
  return { x, y, enter, leave, lines, height };
}

/** By how much a piece moves sideways so that what enters it comes from above, without wandering far from the middle. */
function alignment(local, entering, passing) {
  let low = Infinity, high = -Infinity;
  for (const at of local.x) (low = Math.min(low, at)), (high = Math.max(high, at));
  const centred = low <= high ? -(low + high) / 2 : 0;
  if (!entering.length) return centred;
  const shifts = entering.map((node, k) => passing.get(node) - local.enter[k]).sort((a, b) => a - b);
  return centred + Math.max(-PIECE.sway, Math.min(PIECE.sway, shifts[shifts.length >> 1] - centred));
}

if (typeof window === "undefined" && typeof self !== "undefined") {
  self.onmessage = ({ data: { graph, aspect } }) => {
    const made = layoutGraph(graph, self.d3);
    self.postMessage(graph.nodes.length > PIECE.column ? inColumns(made, aspect) : made);
  };
}
