"use strict";
// Which modules of the graph are closed: each is then one box, or several where values leave it and come back.

(() => {
  const { nodes } = V.doc;
  const WANTED = { least: 12, most: 160 };

  /** Modules by path. */
  const all = new Map();
  (function add(module) {
    for (const child of module.children.values()) {
      all.set(child.path, child);
      add(child);
    }
  })(V.modules);
  const depths = [...all.values()].reduce((most, module) => Math.max(most, module.depth + 1), 0);

  /** The outermost closed module around a node, or null. */
  function closedAround(n, closed) {
    let found = null;
    for (let at = V.moduleAt[n]; at; at = at.parent) if (closed.has(at.path)) found = at;
    return found;
  }
  /** The paths of the modules to close so that those of a depth are boxes; of more than one node. */
  const atDepth = (depth) => new Set([...all.values()].filter((m) => m.depth === depth && m.nodes.length > 1).map((m) => m.path));

  /** The depth at which the shown nodes make a graph of a readable size; -1: all are shown. */
  function readable(shown) {
    if (shown.length <= WANTED.most) return -1;
    let best = -1, boxes = 0;
    for (let depth = 0; depth < depths; depth++) {
      const closed = atDepth(depth), here = new Set(shown.map((n) => closedAround(n, closed)?.path ?? n)).size;
      if (here === shown.length || (here > WANTED.most && boxes >= WANTED.least)) break;
      (best = depth), (boxes = here);
    }
    return best;
  }

  /**
   * The shown nodes as boxes without a cycle between them: a node's number, or {module, nodes, part, parts}. Nodes of a module are taken one
   * after the other as long as their inputs are there; where that splits a module, parts are joined again unless a path leads out and back.
   * Gives {boxes, forward}: `forward(from, to)` is false for a node that reads a value before it is written, as a state of a program is.
   */
  function boxes(shown, closed) {
    const keyOf = new Map(shown.map((n) => [n, closedAround(n, closed)]));
    const order = inModules(shown, keyOf), rank = new Map(order.map((n, k) => [n, k]));
    const forward = (from, to) => rank.get(from) < rank.get(to);
    const parts = [];
    for (const n of order) {
      const key = keyOf.get(n), last = parts[parts.length - 1];
      if (key && last?.module === key) last.nodes.push(n);
      else parts.push({ module: key, nodes: [n] });
    }
    const joined = join(parts, forward), counts = new Map();
    for (const part of joined) if (part.module && part.nodes.length > 1) counts.set(part.module, (counts.get(part.module) ?? 0) + 1);
    const seen = new Map();
    const boxes = joined.map((part) => {
      if (!part.module || part.nodes.length === 1) return part.nodes[0];
      seen.set(part.module, (seen.get(part.module) ?? 0) + 1);
      return { ...part, part: seen.get(part.module), parts: counts.get(part.module) };
    });
    return { boxes, forward };
  }

  /** A topological order that stays in a module as long as it can. */
  function inModules(shown, keyOf) {
    const waits = new Map(shown.map((n) => [n, 0])), targets = new Map(shown.map((n) => [n, []]));
    for (const n of shown) {
      for (const value of nodes[n].inputs) {
        const from = V.index.producer[value];
        if (targets.has(from)) targets.get(from).push(n), waits.set(n, waits.get(n) + 1);
      }
    }
    const ready = new Map(), order = [];
    const push = (n) => ready.has(keyOf.get(n)) ? ready.get(keyOf.get(n)).push(n) : ready.set(keyOf.get(n), [n]);
    const take = (key) => {
      const list = ready.get(key);
      let at = 0;
      for (let k = 1; k < list.length; k++) if (list[k] < list[at]) at = k;
      const n = list[at];
      list[at] = list[list.length - 1];
      list.pop();
      if (!list.length) ready.delete(key);
      return n;
    };
    for (const [n, count] of waits) if (!count) push(n);
    let key = null;
    while (order.length < shown.length) {
      if (!ready.size) {  // a value is read before it is written
        const next = shown.find((n) => waits.get(n) > 0);
        waits.set(next, 0);
        push(next);
      }
      if (!key || !ready.has(key)) {
        let first = Infinity;
        for (const [other, list] of ready) for (const n of list) if (n < first) (first = n), (key = other);
      }
      const n = take(key);
      order.push(n);
      for (const to of targets.get(n)) {
        waits.set(to, waits.get(to) - 1);
        if (!waits.get(to)) push(to);
      }
    }
    return order;
  }

  /** Joins parts of a module that no path through other parts connects. */
  function join(parts, forward) {
    const of = new Map(parts.flatMap((part) => part.nodes.map((n) => [n, part])));
    for (const part of parts) part.to = new Set();
    for (const part of parts) {
      for (const n of part.nodes) {
        for (const value of nodes[n].inputs) {
          const from = of.get(V.index.producer[value]);
          if (from && from !== part && forward(V.index.producer[value], n)) from.to.add(part);
        }
      }
    }
    const leads = (start, goal) => {  // by a path of two steps or more
      const seen = new Set([...start.to].filter((part) => part !== goal)), todo = [...seen];
      while (todo.length) {
        for (const next of todo.pop().to) {
          if (next === goal) return true;
          if (!seen.has(next)) seen.add(next), todo.push(next);
        }
      }
      return false;
    };
    const byModule = new Map();
    for (const part of parts) if (part.module) byModule.set(part.module, [...(byModule.get(part.module) ?? []), part]);
    const gone = new Set();
    for (const mine of byModule.values()) {
      for (let k = 1, into = mine[0]; k < mine.length; k++) {
        const part = mine[k];
        if (leads(into, part) || leads(part, into)) {
          into = part;
          continue;
        }
        into.nodes.push(...part.nodes);
        for (const next of part.to) into.to.add(next);
        for (const other of parts) if (other.to.delete(part)) other.to.add(into);
        into.to.delete(into);
        gone.add(part);
      }
    }
    return parts.filter((part) => !gone.has(part));
  }

  V.folding = { all, depths, atDepth, readable, boxes, closedAround };
})();
