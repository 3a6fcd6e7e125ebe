// Health of the controller and its sources; kill switch, pause and resume.
import { fact, h, show, table } from "../dom.js";
import { ask, may } from "../api.js";
import { condition, grown, stale } from "../status.js";
import { confirmed } from "../confirm.js";
import { age, clock, counted, duration, number, sentence, words } from "../format.js";

let data = null;
let promises = null;
const QUESTIONS = {
  pause: { title: "Pause the controller?", verb: "Pause", tone: "", lines: ["Nothing acts until a person resumes. Decisions are still made, recorded and shown."] },
  kill: { title: "Kill: stop acting at once?", verb: "Kill", tone: "bad", lines: ["Nothing acts until an admin resumes. Use it when something goes wrong; a pause is enough for maintenance."] },
  lift: { title: "Lift the cap?", verb: "Lift the cap", tone: "", lines: ["The action acts again within its mode. It is judged by the cases that finish from now on."] },
  resume: { title: "Resume?", verb: "Resume", tone: "", lines: ["A pause or a kill ends. A kill switch by file or environment stays on."] },
};

const COLLECTORS = [
  { head: "Collector", cell: (row) => row.name },
  { head: "State", cell: (row) => (row.problem ? h("span", { class: "pill bad" }, "fails") : h("span", { class: "pill good" }, "answers")) },
  { head: "Data from", kind: "short", cell: (row) => clock.short(row.fresh_s) },
  { head: "Age", kind: "number", cell: (row) => age(grown(row.age_s)) },
  { head: "Last read took", kind: "number", cell: (row) => duration(row.took_s) },
  { head: "Gaps", kind: "number", cell: (row) => row.gaps },
  { head: "Problem", kind: "words", cell: (row) => row.problem || "none" },
];
const LISTS = [
  { head: "List", cell: (row) => `${row.kind} of ${row.source}` },
  { head: "State", cell: (row) => (row.problem ? h("span", { class: "pill bad" }, "not complete") : h("span", { class: "pill good" }, "complete")) },
  { head: "Age", kind: "number", cell: (row) => age(grown(row.age_s)) },
  { head: "Objects", kind: "number", cell: (row) => number(row.objects, 0) },
  { head: "Problem", kind: "words", cell: (row) => row.problem || "none" },
];
const GAPS = [
  { head: "Source", cell: (row) => row.source }, { head: "Object", cell: (row) => row.object_id || "all" },
  { head: "Signal", cell: (row) => row.signal || "all" }, { head: "Reason", kind: "words", cell: (row) => row.reason },
];

const PROMISES = [
  { head: "Action", cell: (row) => words(row.action) },
  { head: "Cases", kind: "number", cell: (row) => row.cases },
  { head: "Promised use", kind: "number", cell: (row) => row.promised_use },
  { head: "Realised use", kind: "number", cell: (row) => row.realised_use },
  { head: "At least", kind: "number", cell: (row) => row.least_use },
  { head: "Not over yet", kind: "number", cell: (row) => row.under_way },
  { head: "State", cell: (row) => (row.capped_since_s === null ? h("span", { class: "pill good" }, `mode ${row.mode}`)
    : [h("span", { class: "pill bad" }, "only recommends"), ` since ${clock.short(row.capped_since_s)} `,
      h("button", { type: "button", "data-do": "lift", "data-action": row.action, "data-key": `lift ${row.action}`, disabled: !may("admin") }, "Lift the cap")]) },
];

const FAILED = [
  { head: "At", cell: (row) => clock.short(row.at_s) },
  { head: "Object", cell: (row) => row.object },
  { head: "Effect", cell: (row) => words(row.operation) },
  { head: "Cause", cell: (row) => h("span", { class: "pill gap" }, row.cause) },
  { head: "Reason", cell: (row) => `${sentence(row.reason)}${row.retried ? " It is tried again." : ""}` },
];

const button = (what, role, tone) => h("button", { type: "button", class: tone, "data-do": what, "data-key": what, disabled: !may(role) }, QUESTIONS[what].verb);

export const health = {
  name: "health",
  title: "Health",
  ready: false,
  ages: true,
  async load() { [data, promises] = await Promise.all([ask("/api/v1/state"), ask("/api/v1/promises")]); },
  draw(main) {
    this.ready = true;
    const [tone, word, why] = condition();
    const stages = Object.entries(data.stages_s);
    show(main,
      h("h1", null, "Health"),
      h("section", { class: "card", "data-key": "control", "aria-labelledby": "control" },
        h("h2", { id: "control" }, "Control"),
        h("p", null, h("span", { class: `pill ${tone}` }, word), ` ${why || stale() || "The controller decides and acts within the modes of its policy."}`),
        h("div", { class: "buttons" }, button("pause", "approver"), button("resume", "admin"), button("kill", "approver", "bad")),
        may("admin") ? null : h("p", { class: "quiet" }, may("approver") ? "Resuming needs the role admin." : "Pausing needs the role approver, resuming the role admin.")),
      h("dl", { class: "facts", "data-key": "facts" },
        fact("Tick", data.tick, { note: `at ${clock.short(data.now_s)}` }),
        fact("Last tick took", duration(data.took_s), { note: stages.map(([name, s]) => `${words(name)} ${duration(s)}`).join(", ") }),
        fact("Effects under way", data.in_flight),
        fact("Leads", data.leads ? "yes" : "no", { tone: data.leads ? "" : "gap" }),
        fact("Kill switch", data.kill_switch ? "on" : "off", { note: data.kill_switch || "read at every tick", tone: data.kill_switch ? "bad" : "" }),
        fact("Policy", data.policy.name, { note: data.policy.problem || "in force", tone: data.policy.problem ? "bad" : "" })),
      h("section", { class: "card", "data-key": "collectors" }, table({ caption: "Collectors", columns: COLLECTORS, rows: data.collectors, key: (row) => row.name })),
      h("section", { class: "card", "data-key": "lists" }, table({ caption: "Lists", columns: LISTS, rows: data.lists, key: (row) => `${row.kind} ${row.source}`,
        note: " The age is that of the last complete list." })),
      promises.actions.length ? h("section", { class: "card", "data-key": "promises" }, table({ caption: "Promised and realised use", name: "promises", columns: PROMISES, rows: promises.actions, key: (row) => row.action,
        note: ` Use before the start that was predicted without the action, less the loss; not the gain of a recommendation, which counts waiting. An action that realises less than ${Math.round(100 * promises.least_ratio)} % of its promise over ${promises.least_cases} cases or more only recommends.` }))
        : h("p", { class: "card empty", "data-key": "nopromises" }, "No action has promised anything yet: nothing was stopped or moved for other work."),
      data.failed_effects.length ? h("section", { class: "card", "data-key": "failed" }, table({ caption: "Effects that did not come about", name: "failed", columns: FAILED, rows: data.failed_effects, key: (row) => `${row.instruction} ${row.at_s}`,
        note: " The newest first, since the start of this process." })) : null,
      data.notes.length ? h("section", { class: "card", "data-key": "notes" }, h("h2", null, "Notes of the last tick"),
        h("ul", null, data.notes.map((note, place) => h("li", { "data-key": place }, `${note.subject && !note.words.includes(note.subject) ? `${note.subject}: ` : ""}${sentence(note.words)}`)))) : null,
      data.gaps.length ? h("section", { class: "card", "data-key": "gaps" }, table({ caption: "Missing values", name: "gaps", columns: GAPS, rows: data.gaps, key: (row) => `${row.source} ${row.object_id} ${row.signal}`,
        note: ` ${counted(data.gaps_in_total, "gap")}${data.gaps_in_total > data.gaps.length ? `, the first ${data.gaps.length}` : ""}` }))
        : h("p", { class: "card empty", "data-key": "nogaps" }, "No value is reported as missing."));
  },
  async act(pressed) {
    const question = QUESTIONS[pressed.dataset.do];
    if (!question) return false;
    const path = [pressed.dataset.do, pressed.dataset.action].filter(Boolean).join("/");
    return confirmed({ ...question, async act() {
      const answer = await ask(`/api/v1/${path}`, { method: "POST" });
      return sentence(answer.message);
    } });
  },
};
