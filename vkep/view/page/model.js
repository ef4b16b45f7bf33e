"use strict";
// What the model's file says of itself, its inputs and outputs, and its weights with their statistics.

(() => {
  const { model, values } = V.doc;
  const weights = values.map((_, v) => v).filter((v) => values[v].kind === "weight");
  const text = (value) => (typeof value === "object" ? V.facts(Object.entries(value).map(([k, v]) => [k, String(v)])) : String(value));
  const digits = (x) => (x === undefined ? "–" : typeof x === "string" ? x : Math.abs(x) >= 1e5 || (x && Math.abs(x) < 1e-3) ? x.toExponential(2) : String(+x.toPrecision(4)));
  const SIZES = { float64: 8, int64: 8, uint64: 8, float32: 4, int32: 4, uint32: 4, float16: 2, bfloat16: 2, int16: 2, uint16: 2, int4: 0.5, uint4: 0.5 };
  const bytes = (value) => Math.ceil((value.shape ?? []).reduce((a, b) => a * b, 1) * (SIZES[value.dtype] ?? 1));

  /** A histogram as bars; the title has the range. */
  function histogram({ histogram: counts, min, max }) {
    const most = counts.reduce((a, b) => Math.max(a, b), 1);
    return V.el("span", { class: "histogram", role: "img", "aria-label": `histogram from ${digits(min)} to ${digits(max)}`, title: `from ${digits(min)} to ${digits(max)}` },
      counts.map((n) => V.el("i", { style: `height:${n ? Math.max(4, (100 * n) / most) : 0}%` })));
  }
  /** The statistics of a weight as facts, for the details of a node. */
  V.statistics = ({ stats, shape }) => {
    if (!stats?.elements) return null;
    const all = shape.reduce((a, b) => a * b, 1);
    return V.el("div", { class: "statistics" }, stats.histogram ? histogram(stats) : null,
      ` ${digits(stats.min)} to ${digits(stats.max)}, mean ${digits(stats.mean)}, deviation ${digits(stats.std)}, ${V.percent(stats.zeros ?? 0)} zeros`,
      stats.nonfinite ? V.el("strong", {}, `, ${V.plural(stats.nonfinite, "element is", "elements are")} NaN or infinite`) : null,
      stats.elements < all ? ` (of ${V.count(stats.elements)} elements of ${V.count(all)})` : "");
  };

  function ends(kind) {
    const found = values.filter((value) => value.kind === kind);
    return found.length ? [V.el("h2", {}, `${kind === "input" ? "Inputs" : "Outputs"}`), V.table(["name", "type and shape"], found.map((value) => [V.el("code", {}, value.name), V.kind(value) || "not known"]))] : null;
  }
  const of = (name) => (v) => values[v].stats?.[name];
  const shown = (name) => [`#${name}`, of(name), (v) => digits(of(name)(v))];
  function weightTable() {
    const table = V.sortable({
      title: "weights",
      sort: "#bytes",
      choose: (v) => V.index.consumers[v].length && V.open("graph", () => V.graph.choose(V.index.consumers[v][0])),
      columns: [
        ["weight", (v) => values[v].name, (v) => V.el("code", {}, V.short(values[v].name, 80))],
        ["type and shape", (v) => V.kind(values[v])],
        ["#bytes", (v) => bytes(values[v]), (v) => V.bytes(bytes(values[v]))],
        shown("min"), shown("max"), shown("mean"), shown("std"),
        ["#zeros", of("zeros"), (v) => (of("zeros")(v) === undefined ? "–" : V.percent(of("zeros")(v)))],
        ["#not finite", of("nonfinite"), (v) => (of("nonfinite")(v) ? V.el("strong", {}, V.count(of("nonfinite")(v))) : "")],
        ["histogram", (v) => (of("histogram")(v) ?? []).join(" "), (v) => (of("histogram")(v) ? histogram(values[v].stats) : "")],
        ["elements read", of("elements"), null],
      ],
    });
    table.fill(weights);
    return [V.el("h2", {}, `${V.plural(weights.length, "weight")}, ${V.bytes(weights.reduce((sum, v) => sum + bytes(values[v]), 0))}`), table,
      V.el("p", { class: "note" }, "Of a weight of more than 65,536 elements a sample of so many is read.")];
  }

  if (!Object.keys(model).length && !weights.length) return;
  const element = V.el("section", { class: "pane" });
  V.tabs.model = {
    title: "Model",
    element,
    show: () => element.firstChild || element.append(V.el("div", { class: "page" }, V.el("h2", {}, V.doc.title), V.facts(Object.entries(model).map(([name, value]) => [name, text(value)])),
      ends("input"), ends("output"), weights.length ? weightTable() : null)),
  };
})();
