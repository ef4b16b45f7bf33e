"use strict";
// Tables that any column sorts, and that are saved as CSV.

(() => {
  const MOST = 200;

  /**
   * A table whose rows are sorted by a click on a column's name. `columns`: [name, value of a row, its cell (default: the value; null: the
   * column is in the file alone)]; a name with "#" is of numbers. `sort`: the name of the column that sorts first; `order(rows, compare)`
   * sorts; `attributes(row)`: of its <tr>; `choose(row)` is called for a click or Enter. It shows `MOST` rows until asked for all; the file
   * has all. Returns the element, with `fill(rows)`.
   */
  V.sortable = ({ title, columns: every, sort, order = (rows, compare) => [...rows].sort(compare), attributes = () => ({}), choose }) => {
    const columns = every.filter(([, , cell]) => cell !== null);
    const state = { column: Math.max(0, columns.findIndex(([name]) => name === sort)), down: true, all: false, rows: [] };
    state.down = columns[state.column][0].startsWith("#");
    const holder = V.el("div", { class: "sorted" });
    const number = (name) => (name.startsWith("#") ? "number" : "");
    const heads = () => columns.map(([name], k) => V.el("th", { class: number(name), "aria-sort": k === state.column ? (state.down ? "descending" : "ascending") : "none" },
      V.el("button", { click: () => { state.down = k === state.column ? !state.down : name.startsWith("#"); state.column = k; show(); } }, name.replace("#", ""), k === state.column ? (state.down ? " ↓" : " ↑") : "")));
    function ordered() {
      const value = columns[state.column][1], keys = new Map(state.rows.map((row) => [row, value(row)]));
      return order(state.rows, (a, b) => {
        const left = keys.get(a), right = keys.get(b);
        const by = typeof left === "string" ? (left < right ? -1 : left > right ? 1 : 0) : (left ?? -Infinity) - (right ?? -Infinity);
        return state.down ? -by : by;
      });
    }
    function show() {
      const rowsInOrder = ordered(), shown = state.all ? rowsInOrder : rowsInOrder.slice(0, MOST);
      const rows = shown.map((row) => V.el("tr", { ...attributes(row), tabindex: choose ? 0 : null, click: choose && (() => choose(row)), keydown: choose && ((event) => event.key === "Enter" && choose(row)) },
        columns.map(([name, value, cell = value]) => V.el("td", { class: number(name) }, cell(row) ?? ""))));
      holder.replaceChildren(
        V.el("div", { class: "scroll" }, V.el("table", { class: choose ? "sortable chooses" : "sortable" }, V.el("thead", {}, V.el("tr", {}, heads())), V.el("tbody", {}, rows))),
        V.el("p", { class: "tools" },
          shown.length < rowsInOrder.length ? V.el("button", { click: () => { state.all = true; show(); } }, `show all ${V.count(rowsInOrder.length)}`) : null,
          V.el("button", { class: "save", title: "save every row as a file", click: () => V.save(`${title}.csv`, "text/csv", holder.csv()) }, "CSV")));
    }
    holder.csv = () => V.csv([every.map(([name]) => name.replace("#", "")), ...ordered().map((row) => every.map(([, value]) => value(row)))]);
    holder.fill = (rows) => {
      state.rows = rows;
      show();
    };
    return holder;
  };

  /** Rows as RFC 4180 writes them. A text that spreadsheets would run as a formula begins with an apostrophe. */
  V.csv = (rows) => rows.map((row) => row.map((value) => {
    const text = typeof value === "string" && /^[=+\-@\t\r]/.test(value) ? `'${value}` : String(value ?? "");
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  }).join(",")).join("\r\n") + "\r\n";

  /** Saves a file: `content` is a text, a list of texts, or a Blob. */
  V.save = (name, type, content) => {
    const url = URL.createObjectURL(new Blob([content].flat(), { type }));
    V.el("a", { href: url, download: `${V.doc.title.replace(/\.[^.]*$/, "").replace(/[^\w.-]+/g, "_")}-${name}` }).click();
    setTimeout(() => URL.revokeObjectURL(url), 60_000);
  };
})();
