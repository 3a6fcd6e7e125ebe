// The latest decisions, each with its explanation on request.
import { h, show, table } from "../dom.js";
import { ask } from "../api.js";
import { clock, counted, sentence, UNKNOWN, words } from "../format.js";

const MOST = 150;
const ANSWERS = ["accepted", "needs_approval", "recommended", "refused"];
let data = null;
let answer = "";
let wanted = ""; // id that the address names
let lines = null; // its explanation
const explained = new Map();

const COLUMNS = [
  { head: "Time", kind: "short", cell: (row) => clock.short(row.at_s) },
  { head: "Action", kind: "short", cell: (row) => words(row.action) },
  { head: "Workload", cell: (row) => row.workload },
  { head: "Tenant", cell: (row) => row.tenant || UNKNOWN },
  { head: "Answer", cell: (row) => h("span", { class: `pill ${{ accepted: "good", refused: "quiet" }[row.answer] || "warn"}` }, words(row.answer)) },
  { head: "Gain", kind: "number", cell: (row) => row.gain },
  { head: "Cost", kind: "number", cell: (row) => row.cost },
  { head: "Why", kind: "words", cell: (row) => [sentence(row.words),
    h("details", { "data-id": row.id, "data-tick": row.tick }, h("summary", null, "Explanation"),
      explained.has(row.id) ? h("pre", { tabindex: "0" }, explained.get(row.id).join("\n")) : h("p", { class: "loading" }, "Loading …"))] },
];

export const decisions = {
  name: "decisions",
  title: "Decisions",
  ready: false,
  everyMs: 3000,
  async load() {
    data = await ask(`/api/v1/decisions?limit=${MOST}${answer ? `&answer=${answer}` : ""}`);
    if (!wanted || lines) return;
    const id = wanted;
    const found = await ask(`/api/v1/decisions/${encodeURIComponent(id)}`).then((one) => one.lines, (error) => [error.message]);
    if (id === wanted) lines = found;
  },
  route(id) { wanted = id; lines = null; },
  draw(main) {
    if (!this.ready) explained.clear();
    this.ready = true;
    show(main,
      h("h1", null, "Decisions"),
      wanted && lines ? h("section", { class: "card", "data-key": "wanted" }, h("h2", null, wanted), h("pre", { tabindex: "0" }, lines.join("\n"))) : null,
      h("div", { class: "find", "data-key": "find" }, h("label", { for: "answer" }, "Answer",
        h("select", { id: "answer" }, h("option", { value: "" }, "any"), ANSWERS.map((each) => h("option", { value: each }, words(each)))))),
      data.decisions.length
        ? h("section", { class: "card", "data-key": "decisions" }, table({ caption: "Latest decisions", name: "decisions", columns: COLUMNS, rows: data.decisions, key: (row) => `${row.id}-${row.tick}-${row.answer}`,
          note: ` ${counted(data.decisions.length, "decision")}, newest first; one that repeats is listed once. The journal has all.` }))
        : h("p", { class: "card empty", "data-key": "none" }, answer ? `No recent decision was ${words(answer)}.` : "The controller has decided nothing yet: nothing waits."));
  },
  input(field, _main, refresh) { if (field.id === "answer") { answer = field.value; refresh(); } },
  async toggled(details, main) {
    const id = details.dataset.id;
    if (!id || !details.open || explained.has(id)) return;
    try { explained.set(id, (await ask(`/api/v1/decisions/${encodeURIComponent(id)}`)).lines); }
    catch (error) { explained.set(id, [error.message]); }
    if (data) this.draw(main);
  },
};
