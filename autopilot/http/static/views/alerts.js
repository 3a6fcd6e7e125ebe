// Alerts that were delivered, what happens about each, and their runbooks with live numbers.
import { h, show } from "../dom.js";
import { ask } from "../api.js";
import { clock, counted, sentence, words } from "../format.js";

const MOST = 100;
const SCRAPED = new Set(["__name__", "instance", "job"]); // labels that say where a series was read
const MOST_OPEN = 4; // runbooks whose numbers are read again
const TONES = { proposed: "warn", acting: "warn", verifying: "warn", verified: "good", ended: "good", not_verified: "bad", no_runbook: "bad" };
let data = null;
let wanted = "";
const opened = new Map(); // key of an alert -> its runbook with live numbers, or null while it loads

const keyOf = (each) => `${each.fingerprint}@${each.started}`;
const about = (each) => Object.entries(each.about).map(([name, value]) => `${name} ${value}`).join(", ");

async function read(each) {
  const query = new URLSearchParams(each.about).toString();
  try { opened.set(keyOf(each), await ask(`/api/v1/runbooks/${encodeURIComponent(each.alert)}${query ? `?${query}` : ""}`)); }
  catch (error) { opened.set(keyOf(each), { parts: [], evidence: [], problem: error.message }); }
}

// A series for each answer to a query of the runbook; a query without an answer says why.
function found(each) {
  if (each.problem) return [["unknown", each.problem]];
  if (!each.series.length) return [["–", "no series"]];
  return each.series.map(({ labels, text }) => [text,
    Object.entries(labels).filter(([name]) => !SCRAPED.has(name)).map(([name, value]) => `${name}=${value}`).join(" ") || "all"]);
}

// The answers come first: what each question returns now, above the text of the runbook.
function answers(evidence) {
  return h("dl", { class: "answers" }, evidence.map((each) => h("div", null,
    h("dt", null, each.title), found(each).map(([answer, of]) => h("dd", null, h("strong", null, answer), " ", h("small", null, of))))));
}

const part = (each) => (typeof each === "string" ? each : h(each.tag, each.tag === "pre" ? { tabindex: "0" } : null, each.inside.map(part)));

function book(each) {
  const now = opened.get(keyOf(each));
  if (!now) return h("p", { class: "loading" }, "Loading …");
  return [now.problem ? h("p", { class: "problem" }, now.problem) : null,
    now.evidence.length ? answers(now.evidence) : null,
    h("div", { class: "prose" }, now.parts.map(part))];
}

function card(each) {
  const link = (id) => h("a", { href: `#/recommendations/${encodeURIComponent(id)}` }, id);
  const named = (what, ids) => ids.length ? h("p", null, `${what}: `, ids.map((id, place) => [place ? ", " : null, link(id)])) : null;
  return h("li", { class: "card", "data-key": `alert-${keyOf(each)}` },
    h("h2", null, each.alert),
    h("p", null, h("span", { class: `pill ${TONES[each.stage] || "quiet"}` }, words(each.stage)), ` ${sentence(each.reason || "the next tick looks at it")}`),
    each.summary ? h("p", { class: "why" }, sentence(each.summary)) : null,
    h("dl", { class: "pairs" },
      h("div", null, h("dt", null, "About"), h("dd", null, about(each) || "the cluster")),
      h("div", null, h("dt", null, "State"), h("dd", null, each.firing ? "fires" : "resolved")),
      h("div", null, h("dt", null, "Received"), h("dd", null, clock.short(each.received_s))),
      h("div", null, h("dt", null, "Deliveries"), h("dd", null, each.deliveries))),
    named("Recommended", each.stage === "proposed" ? each.proposals : []),
    named("Acted", each.acted),
    each.history.length ? h("ol", { class: "inside" }, each.history.map((step, place) => h("li", { "data-key": place }, `${clock.short(step.at_s)} ${words(step.stage)}: ${step.reason || "–"}`))) : null,
    h("details", { "data-id": keyOf(each) }, h("summary", null, "Runbook and live numbers"), book(each)));
}

export const alerts = {
  name: "alerts",
  title: "Alerts",
  ready: false,
  async load() {
    data = await ask(`/api/v1/alerts?limit=${MOST}`);
    await Promise.all(data.alerts.filter((each) => opened.has(keyOf(each))).slice(0, MOST_OPEN).map(read));
  },
  draw(main) {
    if (!this.ready) opened.clear();
    this.ready = true;
    show(main,
      h("h1", null, "Alerts"),
      data.in_total ? h("p", { class: "lead", "data-key": "lead" }, `${counted(data.open, "alert")} open, ${data.in_total} in total${data.in_total > data.alerts.length ? `; shown are the latest ${data.alerts.length}, open ones first` : ""}.`) : null,
      data.alerts.length ? h("ul", { class: "cards", "data-key": "cards" }, data.alerts.map(card))
        : h("p", { class: "card empty", "data-key": "none" }, "No alert was delivered. Alertmanager and Grafana send them to /api/v1/alerts of this service."));
    this.reveal(main);
  },
  route(id, main) { wanted = id; if (this.ready) this.reveal(main); },
  // Opens the alert that the address names, once.
  reveal(main) {
    const found = wanted && data.alerts.find((each) => each.fingerprint === wanted);
    if (!found) return;
    wanted = "";
    const details = main.querySelector(`details[data-id="${CSS.escape(keyOf(found))}"]`);
    details.open = true;
    details.closest("li").scrollIntoView();
  },
  async toggled(details, main) {
    const found = data && data.alerts.find((each) => keyOf(each) === details.dataset.id);
    if (!found) return;
    if (!details.open) { opened.delete(keyOf(found)); return; }
    if (!opened.has(keyOf(found))) opened.set(keyOf(found), null);
    await read(found);
    this.draw(main);
  },
};
