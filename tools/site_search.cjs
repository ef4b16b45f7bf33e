// Asks the search worker of a built site, as the page in a browser does, and prints the pages that it finds.
//     node tools/site_search.cjs SITE WORDS...    one JSON object: by words, the pages in order
const fs = require("fs"), path = require("path"), vm = require("vm");

const [site, ...words] = process.argv.slice(2);
const folder = path.join(site, "assets", "javascripts", "workers");
const worker = path.join(folder, fs.readdirSync(folder).find((name) => /^search\..*\.js$/.test(name)));
const listeners = [], waiting = [];
const scope = {
  console, performance, setTimeout, clearTimeout, URL,
  addEventListener: (kind, listener) => listeners.push([kind, listener]),
  postMessage: (message) => waiting.shift()(message),
  importScripts: () => {},
  location: { href: "http://localhost/" },
};
scope.self = scope.globalThis = scope;
vm.runInContext(fs.readFileSync(worker, "utf8"), vm.createContext(scope), { filename: worker });

const ask = (type, data) => new Promise((resolve) => {
  waiting.push(resolve);
  const event = { data: { type, data } };
  for (const [kind, listener] of listeners) if (kind === "message") listener(event);
});

(async () => {
  const index = JSON.parse(fs.readFileSync(path.join(site, "search", "search_index.json"), "utf8"));
  await ask(0, { ...index, options: { suggest: true } });
  const found = {};
  for (const word of words) {
    const answer = await ask(2, word);
    found[word] = answer.data.items.map((page) => page[0].location.split("#")[0]);
  }
  console.log(JSON.stringify(found));
})();
