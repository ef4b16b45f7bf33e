"use strict";
// Arranges the tabs, searches, follows keys and the theme.

(() => {
  const { nodes, dispatches } = V.doc;
  const root = document.documentElement;

  // ---- theme

  V.dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches);
  /** From cold (0) to hot (1). */
  V.heat = (share) => `hsl(${210 - 200 * share} ${40 + 45 * share}% ${V.dark() ? 38 + 14 * share : 80 - 26 * share}%)`;
  /** Red far from the limit, green at it. */
  V.limitColour = (share) => `hsl(${8 + 140 * Math.min(1, share)} ${V.dark() ? 48 : 58}% ${V.dark() ? 40 : 46}%)`;
  const theme = V.el("button", { "aria-label": "light or dark", title: "light or dark (t)", click: () => {
    root.dataset.theme = V.dark() ? "light" : "dark";
    V.repaint();
  } }, "◐");
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", V.repaint);

  // ---- search

  const results = V.el("div", { class: "results", hidden: true });
  const search = V.el("input", { type: "search", placeholder: "search nodes, operators, reasons  ( / )", "aria-label": "search", autocomplete: "off", spellcheck: "false",
    input: () => look(search.value), keydown: searchKey });
  const MOST = 30;
  let texts = null; // made for the first search
  /** What names a node, and what else is said of it: nodes that are found by the first come first. */
  const textOf = (n, k) => [[n.op, n.name, n.module], [n.where, n.reason, ...Object.values(n.declined ?? {}), n.domain, ...V.index.dispatchesOf[k].map((d) => dispatches[d].kernel)]]
    .map((parts) => parts.filter(Boolean).join(" ").toLowerCase());
  const found = { list: [], at: -1 };

  function look(query) {
    const words = query.toLowerCase().split(/\s+/).filter(Boolean);
    texts ??= nodes.map(textOf);
    const named = [], other = [];
    if (words.length) {
      texts.forEach(([name, rest], n) => {
        if (words.every((word) => name.includes(word))) named.push(n);
        else if (words.every((word) => name.includes(word) || rest.includes(word))) other.push(n);
      });
    }
    found.list = [...named, ...other];
    found.at = -1;
    V.graph.match(found.list);
    results.hidden = !words.length;
    results.replaceChildren(V.el("p", { class: "note" }, found.list.length ? V.plural(found.list.length, "node") + (found.list.length > MOST ? `, the first ${MOST}:` : "") : "nothing found"),
      ...found.list.slice(0, MOST).map((n) => V.el("button", { class: "result", click: () => { choose(n); results.hidden = true; } },
        V.el("strong", {}, nodes[n].op), ` ${V.short(V.ownName(nodes[n].name), 44)} `, V.badge(nodes[n].where), nodes[n].module ? V.el("small", {}, V.moduleCell(nodes[n].module)) : null, nodes[n].reason ? V.el("small", {}, V.short(nodes[n].reason, 90)) : null)));
  }
  const choose = (n) => V.open("graph", () => V.graph.choose(n));
  function searchKey(event) {
    if (event.key === "Enter" && found.list.length) {
      found.at = (found.at + (event.shiftKey ? found.list.length - 1 : 1)) % found.list.length;
      results.hidden = true;
      choose(found.list[found.at]);
    } else if (event.key === "Escape") {
      search.value = "";
      look("");
      search.blur();
    }
    event.stopPropagation();
  }

  // ---- tabs

  const names = ["overview", "graph", "timeline", "dispatches", "memory", "contexts", "model", "compare"].filter((name) => V.tabs[name]);
  const buttons = {}, main = V.el("main", {});
  const bar = V.el("nav", { role: "tablist", "aria-label": "views" });
  names.forEach((name, k) => {
    const { title, element } = V.tabs[name];
    buttons[name] = V.el("button", { role: "tab", id: `tab-${name}`, title: `${title} (${k + 1})`, click: () => V.open(name) }, title);
    element.setAttribute("role", "tabpanel");
    element.setAttribute("aria-labelledby", `tab-${name}`);
    element.hidden = true;
    bar.append(buttons[name]);
    main.append(element);
  });
  let shown = null;
  V.open = (name, then) => {
    V.hint(null, 0, 0, null);
    if (shown !== name) {
      for (const other of names) {
        V.tabs[other].element.hidden = other !== name;
        buttons[other].setAttribute("aria-selected", String(other === name));
      }
      shown = name;
      try {
        history.replaceState(null, "", `#${name}`);
      } catch {
        // a frame without an address of its own, as in Jupyter
      }
    }
    buttons[name].scrollIntoView({ block: "nearest", inline: "center" });
    V.tabs[name].show();
    then?.();
  };

  // ---- keys

  const help = V.el("dialog", { class: "help" }, V.el("h2", {}, "Keys"), V.facts([["1 … 8", "views"], ["/", "search; Enter and Shift+Enter go through what was found"],
    ["arrows, + −", "move and zoom the graph; in the timeline the next dispatch"], ["j k", "the next or last node of the graph"], ["double click", "opens a module of the graph"], ["m", "measure the chosen dispatch in the timeline; drag with Shift: a span"], ["f", "show everything"], ["t", "light or dark"], ["Esc", "close details"]]),
    V.el("form", { method: "dialog" }, V.el("button", {}, "close")));
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || /INPUT|SELECT|TEXTAREA/.test(event.target.tagName)) return;
    if (event.key === "/") {
      search.focus();
      event.preventDefault();
    } else if (/^[1-9]$/.test(event.key) && names[event.key - 1]) V.open(names[event.key - 1]);
    else if (event.key === "t") theme.click();
    else if (event.key === "?") help.showModal();
    else if (event.key === "Escape") V.select({});
    else V.tabs[shown].key?.(event);
  });
  document.addEventListener("pointerdown", (event) => {
    if (!event.target.closest?.(".search")) results.hidden = true;
  });

  // ---- all together

  const file = V.doc.title.split(/[\\/]/).pop();
  document.body.append(
    V.el("header", {}, V.el("div", { class: "brand" }, V.el("b", {}, "vkep"), V.el("span", { class: "model", title: V.doc.title }, file), V.el("span", { class: "device" }, V.doc.device)),
      V.el("div", { class: "search" }, search, results), theme, V.el("button", { "aria-label": "keys", title: "keys (?)", click: () => help.showModal() }, "?")),
    bar, V.el("div", { class: "work" }, main, V.details), help,
    V.el("footer", {}, `${V.date(V.doc.made)} · vkep ${V.doc.vkep} · context ${V.doc.context}`));
  const asked = location.hash.slice(1);
  V.open(names.includes(asked) ? asked : V.other ? "compare" : "overview");
  V.ready = true;
})();
