"use strict";
// The panel that tells everything about what is selected.

(() => {
  const { nodes, values, dispatches } = V.doc;
  const MOST = 40;
  const body = V.el("div", { class: "details-body" });
  V.details = V.el("aside", { class: "details", "aria-label": "details", hidden: true },
    V.el("button", { class: "close", "aria-label": "close details", click: () => V.select({}) }, "×"), body);

  const link = (text, go, title) => V.el("button", { class: "link", click: go, title }, text);
  const toNode = (n) => link(`${nodes[n].op} ${V.short(V.ownName(nodes[n].name), 48)}`, () => V.open("graph", () => V.graph.choose(n)), nodes[n].name);
  const toDispatch = (d) => link(`d${d} ${V.short(dispatches[d].kernel, 40)}`, () => V.select({ dispatch: d }));

  function valueLine(v) {
    const value = values[v], from = V.index.producer[v];
    return V.el("li", {}, V.el("code", {}, V.short(value.name, 60)), " ", V.el("span", { class: "kind" }, V.kind(value) || "shape not known"),
      value.kind ? ` ${value.kind}` : "", from >= 0 ? [" from ", toNode(from)] : null, V.statistics(value));
  }

  function aboutNode(n) {
    const node = nodes[n], mine = V.index.dispatchesOf[n];
    const users = [...new Set(node.outputs.flatMap((v) => V.index.consumers[v]))];
    return [
      V.el("h2", {}, node.domain ? `${node.domain}.${node.op}` : node.op, " ", V.badge(node.where)),
      V.el("p", { class: "name" }, node.name),
      node.module ? V.el("p", { class: "name" }, "module ", path(V.moduleAt[n])) : null,
      node.reason ? V.el("p", { class: "reason" }, node.reason) : null,
      Object.entries(node.declined ?? {}).map(([who, why]) => V.el("p", { class: "reason" }, V.el("strong", {}, `declined by ${who}: `), why)),
      mine.length ? [V.el("h3", {}, V.plural(mine.length, "dispatch", "dispatches")), V.el("ul", {}, mine.map((d) => V.el("li", {}, toDispatch(d), " ", V.time(dispatches[d].ns))))] : null,
      V.el("h3", {}, "Inputs"), V.el("ul", {}, node.inputs.map(valueLine)),
      V.el("h3", {}, "Outputs"), V.el("ul", {}, node.outputs.map((v) => V.el("li", {}, V.el("code", {}, V.short(values[v].name, 60)), " ", V.el("span", { class: "kind" }, V.kind(values[v]) || "shape not known")))),
      users.length ? V.el("p", {}, "read by ", users.slice(0, 12).map((u, k) => [k ? ", " : "", toNode(u)]), users.length > 12 ? ` and ${users.length - 12} more` : "") : null,
      node.attributes ? [V.el("h3", {}, "Attributes"), V.facts(Object.entries(node.attributes))] : null,
    ];
  }

  /** The modules from the outermost on, each a link. */
  const path = (module) => (module.parent?.parent ? [path(module.parent), " / "] : []).concat(toModule(module));
  const toModule = (module) => link(module.name, () => V.open("graph", () => V.graph.chooseModule(module)));

  function aboutModule(name) {
    const module = V.folding.all.get(name), closed = V.graph.state.closed?.has(name), totals = new Map();
    for (const n of module.nodes) {
      const total = totals.get(nodes[n].op) ?? { count: 0, ns: 0 };
      totals.set(nodes[n].op, { count: total.count + 1, ns: total.ns + V.index.ns[n] });
    }
    const ns = [...totals.values()].reduce((sum, total) => sum + total.ns, 0);
    return [
      V.el("h2", {}, module.name),
      V.el("p", { class: "name" }, "module ", path(module)),
      V.el("p", {}, V.el("button", { click: () => V.open("graph", () => (closed ? V.graph.open(module) : V.graph.close(module))) }, closed ? "open in the graph" : "close to one box in the graph")),
      V.facts([["nodes", V.count(module.nodes.length)], ["modules in it", V.count(module.children.size)], ["time", ns ? `${V.time(ns)} (${V.percent(ns / (V.totalNs || ns))} of the dispatches' sum)` : null]]),
      module.children.size ? [V.el("h3", {}, "Modules"), V.el("ul", {}, [...module.children.values()].slice(0, MOST).map((child) => V.el("li", {}, toModule(child), ` ${V.plural(child.nodes.length, "node")}`))),
        module.children.size > MOST ? V.el("p", { class: "note" }, `and ${V.count(module.children.size - MOST)} more`) : null] : null,
      V.el("h3", {}, "Operators"),
      V.table(["operator", "#nodes", "#time"], [...totals].sort((a, b) => b[1].ns - a[1].ns || b[1].count - a[1].count).map(([op, total]) => [op, total.count, total.ns ? V.time(total.ns) : ""])),
    ];
  }

  function aboutDispatch(d) {
    const one = dispatches[d], limit = V.ofLimit(one);
    const text = (map) => Object.entries(map ?? {}).map(([k, v]) => [k, typeof v === "object" && v ? JSON.stringify(v) : String(v)]);
    return [
      V.el("h2", {}, `d${d} `, V.covers(one)),
      V.el("p", { class: "name" }, one.kernel),
      V.moduleOf(one) ? V.el("p", { class: "name" }, "module ", V.moduleCell(V.moduleOf(one))) : null,
      one.ns === undefined ? null : [
        V.el("div", { class: "meter" }, V.bar(limit, "limit"), V.el("span", {}, one.limit_ns ? `${V.percent(limit)} of the device's limit` : "no limit known")),
        V.facts([["time", `${V.time(one.ns)} ${V.plusMinus(one.samples)} alone (${V.percent(one.ns / (V.totalNs || 1))} of the dispatches' sum)`], ["limit", V.time(one.limit_ns)],
          ["arithmetic", `${V.count(one.flops)} flop, ${V.rate(one.flops, one.ns, "FLOP")}`], ["traffic", `${V.bytes(one.bytes)}, ${V.rate(one.bytes, one.ns, "B")}`]])],
      V.el("h3", {}, `Covers ${V.plural(one.nodes.length, "node")}`),
      V.el("ul", {}, one.nodes.map((n) => V.el("li", {}, toNode(n)))),
      V.el("h3", {}, "Kernel"),
      V.facts([["candidate", one.candidate], ["grid", one.grid.join(" × ")], ["workgroup", one.workgroup.join(" × ")], ["subgroup", one.subgroup_size],
        ["barrier", one.barrier ? "waits for the dispatches before it" : "none: may overlap the dispatch before it"], ["arguments", `${one.argument_bytes} bytes in ${one.arguments_in}`]]),
      one.rejected.length ? [V.el("h3", {}, "Turned down before it"), V.facts(one.rejected.map((t) => [t.candidate, t.reason]))] : null,
      V.el("h3", {}, "Operands"), V.facts(text(one.operands)),
      Object.keys(one.spec).length ? [V.el("h3", {}, "Specialization"), V.facts(text(one.spec))] : null,
      Object.keys(one.params).length ? [V.el("h3", {}, "Parameters"), V.facts(text(one.params))] : null,
      Object.keys(one.defines).length ? [V.el("details", {}, V.el("summary", {}, "Defines"), V.facts(text(one.defines)))] : null,
    ];
  }

  V.listeners.push(({ node, dispatch, module }) => {
    const nothing = (node ?? dispatch ?? module) === undefined || node < 0;
    V.details.hidden = nothing;
    if (!nothing) body.replaceChildren(...[dispatch !== undefined ? aboutDispatch(dispatch) : module !== undefined ? aboutModule(module) : aboutNode(node)].flat(Infinity).filter(Boolean));
    body.scrollTop = 0;
  });
})();
