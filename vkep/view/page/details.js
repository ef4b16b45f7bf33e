"use strict";
// The panel that tells everything about what is selected.

(() => {
  const { nodes, values, dispatches } = V.doc;
  const body = V.el("div", { class: "details-body" });
  V.details = V.el("aside", { class: "details", "aria-label": "details", hidden: true },
    V.el("button", { class: "close", "aria-label": "close details", click: () => V.select({}) }, "×"), body);

  const link = (text, go, title) => V.el("button", { class: "link", click: go, title }, text);
  const toNode = (n) => link(`${nodes[n].op} ${V.short(V.ownName(nodes[n].name), 48)}`, () => V.open("graph", () => V.graph.choose(n)), nodes[n].name);
  const toDispatch = (d) => link(`d${d} ${V.short(dispatches[d].kernel, 40)}`, () => V.select({ dispatch: d }));

  function valueLine(v) {
    const value = values[v], from = V.index.producer[v];
    return V.el("li", {}, V.el("code", {}, V.short(value.name, 60)), " ", V.el("span", { class: "kind" }, V.kind(value) || "shape not known"),
      value.kind ? ` ${value.kind}` : "", from >= 0 ? [" from ", toNode(from)] : null);
  }

  function aboutNode(n) {
    const node = nodes[n], mine = V.index.dispatchesOf[n];
    const users = [...new Set(node.outputs.flatMap((v) => V.index.consumers[v]))];
    return [
      V.el("h2", {}, node.domain ? `${node.domain}.${node.op}` : node.op, " ", V.badge(node.where)),
      V.el("p", { class: "name" }, node.name),
      node.module ? V.el("p", { class: "name" }, "module ", V.moduleCell(node.module)) : null,
      node.reason ? V.el("p", { class: "reason" }, node.reason) : null,
      Object.entries(node.declined ?? {}).map(([who, why]) => V.el("p", { class: "reason" }, V.el("strong", {}, `declined by ${who}: `), why)),
      mine.length ? [V.el("h3", {}, V.plural(mine.length, "dispatch", "dispatches")), V.el("ul", {}, mine.map((d) => V.el("li", {}, toDispatch(d), " ", V.time(dispatches[d].ns))))] : null,
      V.el("h3", {}, "Inputs"), V.el("ul", {}, node.inputs.map(valueLine)),
      V.el("h3", {}, "Outputs"), V.el("ul", {}, node.outputs.map((v) => V.el("li", {}, V.el("code", {}, V.short(values[v].name, 60)), " ", V.el("span", { class: "kind" }, V.kind(values[v]) || "shape not known")))),
      users.length ? V.el("p", {}, "read by ", users.slice(0, 12).map((u, k) => [k ? ", " : "", toNode(u)]), users.length > 12 ? ` and ${users.length - 12} more` : "") : null,
      node.attributes ? [V.el("h3", {}, "Attributes"), V.facts(Object.entries(node.attributes))] : null,
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
      one.turned_down.length ? [V.el("h3", {}, "Turned down before it"), V.facts(one.turned_down.map((t) => [t.candidate, t.reason]))] : null,
      V.el("h3", {}, "Operands"), V.facts(text(one.operands)),
      Object.keys(one.spec).length ? [V.el("h3", {}, "Specialization"), V.facts(text(one.spec))] : null,
      Object.keys(one.params).length ? [V.el("h3", {}, "Parameters"), V.facts(text(one.params))] : null,
      Object.keys(one.defines).length ? [V.el("details", {}, V.el("summary", {}, "Defines"), V.facts(text(one.defines)))] : null,
    ];
  }

  V.listeners.push(({ node, dispatch }) => {
    const nothing = node === undefined && dispatch === undefined || node < 0;
    V.details.hidden = nothing;
    if (!nothing) body.replaceChildren(...[dispatch !== undefined ? aboutDispatch(dispatch) : aboutNode(node)].flat(Infinity).filter(Boolean));
    body.scrollTop = 0;
  });
})();
