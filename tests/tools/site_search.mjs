// Print what the search of the built site finds for each question of stdin: a list of sections for each page, best first.
// The search is the worker that the site's pages start: node site_search.mjs WORKER INDEX < questions
import fs from "node:fs";
import vm from "node:vm";

const [worker, index] = process.argv.slice(2);
let listener, answer;
const scope = { URL, console, setTimeout, importScripts: () => {} };
scope.self = scope;
scope.addEventListener = (_kind, given) => { listener = given; };
scope.postMessage = (message) => { answer(message.data); };
vm.runInNewContext(fs.readFileSync(worker, "utf8"), scope);

const sent = (type, data) => new Promise((done) => { answer = done; listener({ data: { type, data } }); });
const { config, docs } = JSON.parse(fs.readFileSync(index, "utf8"));
await sent(0, { config, docs, options: {} }); // 0: set up, 2: search (mkdocs-material, integrations/search/worker/message)
for (const question of fs.readFileSync(0, "utf8").split("\n").filter(Boolean)) {
  const { items } = await sent(2, question);
  console.log(JSON.stringify(items.map((page) => page.map((section) => section.location))));
}
