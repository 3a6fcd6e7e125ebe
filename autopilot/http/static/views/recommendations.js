// What the controller would do if a person agreed. An approval covers what a card shows; equal ones share a card.
import { h, show } from "../dom.js";
import { ask, may } from "../api.js";
import { confirmed } from "../confirm.js";
import { clock, counted, sentence, words } from "../format.js";
import { unseen } from "../status.js";

const MOST = 200;
let data = null;
let rejected = []; // what people rejected
let wanted = ""; // id that the address names
let shown = new Map(); // key of a card -> its recommendations, as on the page, with those that are gone but still read
const explained = new Map(); // id -> lines
const results = new Map(); // key of a card -> what became of it

const TIMES = [["", "as the policy says"], ["1h", "for an hour"], ["1d", "for a day"], ["forever", "until it is revoked"]];
const SCOPES = [["workload", "this action for this object"], ["plan", "this plan only"], ["queue", "this action for its whole queue"]];
const COVERS = [["", "this and other plans within what is shown"], ["exactly", "this very plan only"]];

const reading = (key) => {
  const card = document.querySelector(`[data-key="${CSS.escape(`rec-${key}`)}"]`);
  return card !== null && (card.querySelector("details[open]") !== null || card.contains(document.activeElement));
};

const sum = (each, name) => each.reduce((total, one) => total + one[name], 0);
const together = (some, sums) => Object.assign(some, { sums }); // the figures of a card, in words

function merge() {
  const now = new Map();
  const order = [...data.recommendations].sort((a, b) => Number(b.approvable) - Number(a.approvable) || b.benefit_gpu_s - a.benefit_gpu_s);
  for (const each of order) now.set(each.group, [...(now.get(each.group) || []), each]);
  for (const sums of data.groups) together(now.get(sums.group), sums);
  const next = new Map();
  for (const [key, some] of shown) if (now.has(key)) next.set(key, now.get(key)); else if (reading(key)) next.set(key, together(some.map((each) => ({ ...each, gone: true })), some.sums));
  for (const [key, some] of now) if (!next.has(key)) next.set(key, some);
  shown = next;
  const ids = new Set([...shown.values()].flat().map((each) => each.id));
  for (const id of explained.keys()) if (!ids.has(id)) explained.delete(id);
  for (const key of results.keys()) if (!shown.has(key)) results.delete(key);
}

const subject = (some) => (some.length === 1 ? some[0].workload : counted(some.length, "object"));
const title = (some) => `${words(some[0].action)}: ${subject(some)}`;
const taken = (each) => each.victims.map((one) => `${one.workload} (${counted(one.gpus, "GPU")}, ${one.how}${one.queue ? `, queue ${one.queue}` : ""})`);

function card([key, some]) {
  const [first] = some;
  const victims = some.flatMap(taken);
  const effect = victims.length ? ` Takes GPUs from ${counted(victims.length, "workload")}.` : "";
  const press = (verb, label, tone = "") => h("button", { type: "button", class: tone, "data-do": verb, "data-id": key, "aria-disabled": first.gone && "true", disabled: !may("approver"),
    "aria-label": `${label} ${title(some)}` }, label);
  const changed = first.changed_s > first.since_s ? ` (changed ${clock.short(first.changed_s)})` : "";
  return h("li", { class: `card rec${first.gone ? " gone" : ""}`, "data-key": `rec-${key}` },
    h("h2", null, title(some)),
    h("p", { class: "why" }, `${sentence(first.why)}${effect}`),
    h("dl", { class: "pairs" },
      h("div", null, h("dt", null, "Gain"), h("dd", null, some.sums.gain)),
      h("div", null, h("dt", null, "Cost"), h("dd", null, some.sums.cost)),
      h("div", null, h("dt", null, "Place"), h("dd", null, (some.length === 1 && first.place) || counted(sum(some, "gpus"), "GPU"))),
      h("div", null, h("dt", null, "Tenant"), h("dd", null, first.tenant || "–")),
      h("div", null, h("dt", null, "Queue"), h("dd", null, [...new Set(some.map((each) => each.queue))].join(", ") || "–")),
      h("div", null, h("dt", null, "Since"), h("dd", null, `${clock.short(Math.min(...some.map((each) => each.since_s)))}${changed}`))),
    first.gone ? h("p", { class: "banner quiet" }, "This is no longer proposed. It stays here until you close it.") : null,
    results.has(key) ? h("p", { class: "result" }, results.get(key)) : null,
    h("div", { class: "buttons" },
      first.approvable ? press("approve", "Approve", "main")
        : h("span", { class: "quiet" }, `Only recommended: the mode of ${first.action} takes no approvals`),
      press("reject", "Reject")),
    some.map((each) => h("details", { "data-id": each.id, "data-key": `of-${each.id}` },
      h("summary", null, some.length === 1 ? "Explanation" : `${each.workload}: gain ${each.gain}, cost ${each.cost}`),
      explained.has(each.id) ? h("pre", { tabindex: "0" }, explained.get(each.id).join("\n")) : h("p", { class: "loading" }, "Loading …"),
      h("p", { class: "quiet" }, `Id ${each.id}. In a terminal: autopilot explain ${each.id}`))));
}

async function decide(key, verb) {
  const some = shown.get(key);
  if (!some || some[0].gone) return false;
  const approves = verb === "approve";
  const victims = some.flatMap(taken);
  const lines = [sentence(some[0].why), `Gain ${some.sums.gain}, cost ${some.sums.cost}.`];
  if (victims.length) lines.push(`It takes GPUs from ${victims.slice(0, 8).join(", ")}${victims.length > 8 ? " and others" : ""}.`);
  const waiting = some.flatMap((each) => each.side_effects).map((one) => `${one.workload} (its ${one.loses}, ${counted(one.gpus, "GPU")}, queue ${one.queue})`);
  if (waiting.length) lines.push(`It takes from work that waits: ${waiting.slice(0, 8).join(", ")}${waiting.length > 8 ? " and others" : ""}.`);
  if (some.length > 1) lines.push(`These are ${some.map((each) => each.workload).slice(0, 12).join(", ")}${some.length > 12 ? " and others" : ""}.`);
  if (approves) lines.push(`The approval covers a cost of up to ${some.sums.covers}, no more GPUs, and only work of the queues and classes that are shown, until it expires.`);
  return confirmed({
    title: `${approves ? "Approve" : "Reject"}: ${words(some[0].action)} ${subject(some)}?`, lines, verb: approves ? "Approve" : "Reject", tone: approves ? "" : "bad",
    fields: approves ? [{ name: "covers", label: "Approve", options: COVERS }] : [{ name: "scope", label: "Reject", options: SCOPES }, { name: "for", label: "and keep it rejected", options: TIMES }],
    async act(values) {
      const text = approves ? await approved(some, values.covers === "exactly") : await refused(some, values);
      results.set(key, text);
      return text[0].toUpperCase() + text.slice(1);
    },
  });
}

async function approved(some, exactly) {
  const body = { exactly, recommendations: some.map((each) => ({ id: each.id, digest: each.digest })) };
  const { results: found } = await ask("/api/v1/recommendations/approve", { method: "POST", body });
  const failed = found.filter((each) => each.result === "refused");
  if (some.length === 1 && failed.length) throw new Error(failed[0].message);
  if (some.length === 1) return `${found[0].result}: ${found[0].message}.`;
  const told = new Map();
  for (const each of found) told.set(each.result, (told.get(each.result) || 0) + 1);
  return `${[...told].map(([result, count]) => `${result}: ${count}`).join(", ")}${failed.length ? `; ${failed[0].message}` : ""}.`;
}

async function refused(some, { scope, for: time }) {
  let answer = null;
  for (const each of scope === "queue" ? some.slice(0, 1) : some) {
    answer = await ask(`/api/v1/recommendations/${encodeURIComponent(each.id)}/reject`, { method: "POST", body: { digest: each.digest, scope, for: time } });
  }
  return `${answer.result}: ${answer.message}.`;
}

async function revoke(id) {
  const answer = await ask(`/api/v1/rejections/${encodeURIComponent(id)}/revoke`, { method: "POST", body: {} });
  rejected = rejected.filter((each) => each.id !== id);
  return answer.result === "revoked" || answer.result === "stored";
}

const standing = () => (data.approvals.length || rejected.length ? h("section", { class: "card", "data-key": "standing" },
  h("h2", null, "Decided by people"),
  h("ul", null,
    data.approvals.map((each) => h("li", { "data-key": `approved-${each.id}` },
      `${each.who} approved ${each.id}${each.exactly ? " exactly" : ""}: ${each.carried_out ? "carried out" : "waits until it is possible"}; ends ${clock.short(each.until_s)}`)),
    rejected.map((each) => h("li", { "data-key": `rejected-${each.id}` }, `${each.words} `,
      h("button", { type: "button", "data-do": "revoke", "data-id": each.id, disabled: !may("approver"), "aria-label": `Revoke: ${each.words}` }, "Revoke"))))) : null);

const holder = (id) => [...shown.values()].some((some) => some.some((each) => each.id === id));
const proposalOf = (id) => [...shown.values()].flat().find((each) => each.id === id)?.proposal || id;

export const recommendations = {
  name: "recommendations",
  title: "Recommendations",
  ready: false,
  async load() {
    data = await ask(`/api/v1/recommendations?details=false&limit=${MOST}`);
    rejected = (await ask("/api/v1/rejections")).rejections;
  },
  draw(main) {
    if (!this.ready) shown = new Map();
    this.ready = true;
    if (data.recommendations === null) { show(main, h("h1", null, "Recommendations"), unseen(), standing()); return; }
    merge();
    const cards = [...shown];
    const role = may("approver") ? null : h("p", { class: "banner quiet", "data-key": "role" }, "Your token has the role viewer. Approving needs the role approver.");
    show(main,
      h("h1", null, "Recommendations"),
      h("p", { class: "lead", "data-key": "lead" }, data.in_total ? `${counted(data.in_total, "recommendation")}${data.in_total > MOST ? `; shown are the best ${MOST}` : ""}. Equal ones of one owner share a card.` : ""),
      role,
      wanted && !holder(wanted) ? h("p", { class: "banner quiet", "data-key": "wanted" }, `${wanted} is not open now. `,
        h("a", { href: `#/decisions/${encodeURIComponent(wanted)}` }, "What was decided about it")) : null,
      cards.length ? h("ul", { class: "cards", "data-key": "cards" }, cards.map(card))
        : h("div", { class: "card empty", "data-key": "none" }, h("p", null, data.halted ? `Nothing is recommended while the controller is halted: ${data.halted}.` : "Nothing is recommended now. The controller looks again at every tick; this page updates by itself.")),
      standing());
    this.reveal(main);
  },
  route(id, main) { wanted = id; if (this.ready) this.reveal(main); },
  // Opens the recommendation that the address names, once.
  reveal(main) {
    if (!holder(wanted)) return;
    const found = main.querySelector(`[data-key="${CSS.escape(`of-${wanted}`)}"]`);
    wanted = "";
    found.open = true;
    found.scrollIntoView();
  },
  async act(pressed) {
    const { do: what, id } = pressed.dataset;
    if (what === "revoke") return revoke(id);
    return what === "approve" || what === "reject" ? decide(id, what) : false;
  },
  async toggled(details, main) {
    const id = details.dataset.id;
    if (!id || !details.open || explained.has(id)) return;
    try { explained.set(id, (await ask(`/api/v1/decisions/${encodeURIComponent(proposalOf(id))}`)).lines); }
    catch (error) { explained.set(id, [error.message]); }
    if (data) this.draw(main);
  },
};
