// What the controller would do if a person agreed. An approval holds for the state that the person saw.
import { h, show } from "../dom.js";
import { ask, may } from "../api.js";
import { confirmed } from "../confirm.js";
import { clock, counted, gpuTime, sentence, words } from "../format.js";

const MOST = 200;
let data = null;
let wanted = ""; // id that the address names
let shown = new Map(); // id -> document, as on the page, with those that are gone but still read
const explained = new Map(); // id -> lines
const results = new Map(); // id -> what became of it

const reading = (id) => {
  const card = document.querySelector(`[data-key="${CSS.escape(`rec-${id}`)}"]`);
  return card !== null && (card.querySelector("details[open]") !== null || card.contains(document.activeElement));
};

function merge() {
  const now = new Map(data.recommendations.map((each) => [each.id, each]));
  const order = [...data.recommendations].sort((a, b) => Number(b.approvable) - Number(a.approvable) || b.benefit_gpu_s - a.benefit_gpu_s);
  const next = new Map();
  for (const [id, each] of shown) if (now.has(id)) next.set(id, now.get(id)); else if (reading(id)) next.set(id, { ...each, gone: true });
  for (const each of order) if (!next.has(each.id)) next.set(each.id, each);
  shown = next;
  for (const id of explained.keys()) if (!shown.has(id)) { explained.delete(id); results.delete(id); }
}

function card(each) {
  const effect = each.victims.length ? ` Takes GPUs from ${counted(each.victims.length, "workload")}.` : "";
  const lines = explained.get(each.id);
  return h("li", { class: `card rec${each.gone ? " gone" : ""}`, "data-key": `rec-${each.id}` },
    h("h2", null, `${words(each.action)}: ${each.workload}`),
    h("p", { class: "why" }, `${sentence(each.why)}${effect}`),
    h("dl", { class: "pairs" },
      h("div", null, h("dt", null, "Gain"), h("dd", null, gpuTime(each.benefit_gpu_s))),
      h("div", null, h("dt", null, "Cost"), h("dd", null, gpuTime(each.cost_gpu_s))),
      h("div", null, h("dt", null, "Place"), h("dd", null, each.place || counted(each.gpus, "GPU"))),
      h("div", null, h("dt", null, "Tenant"), h("dd", null, each.tenant || "–")),
      h("div", null, h("dt", null, "Queue"), h("dd", null, each.queue || "–")),
      h("div", null, h("dt", null, "Proposed"), h("dd", null, clock.short(each.at_s)))),
    each.gone ? h("p", { class: "banner quiet" }, "This is no longer proposed. It stays here until you close it.") : null,
    results.has(each.id) ? h("p", { class: "result" }, results.get(each.id)) : null,
    h("div", { class: "buttons" },
      each.approvable
        ? h("button", { type: "button", class: "main", "data-do": "approve", "data-id": each.id, "aria-disabled": each.gone && "true", disabled: !may("approver"),
          "aria-label": `Approve ${words(each.action)}: ${each.workload}` }, "Approve")
        : h("span", { class: "quiet" }, `Only recommended: the mode of ${each.action} takes no approvals`),
      h("button", { type: "button", "data-do": "reject", "data-id": each.id, "aria-disabled": each.gone && "true", disabled: !may("approver"),
        "aria-label": `Reject ${words(each.action)}: ${each.workload}` }, "Reject")),
    h("details", { "data-id": each.id }, h("summary", null, "Explanation"),
      lines ? h("pre", { tabindex: "0" }, lines.join("\n")) : h("p", { class: "loading" }, "Loading …"),
      h("p", { class: "quiet" }, `Id ${each.id}. In a terminal: autopilot explain ${each.id}`)));
}

async function decide(id, verb) {
  const seen = shown.get(id);
  if (!seen || seen.gone) return false;
  const title = `${verb === "approve" ? "Approve" : "Reject"}: ${words(seen.action)} ${seen.workload}?`;
  const victims = seen.victims.map((each) => `${each.workload} (${counted(each.gpus, "GPU")}, ${each.how})`).slice(0, 8).join(", ");
  const lines = [sentence(seen.why), `Gain ${gpuTime(seen.benefit_gpu_s)}, cost ${gpuTime(seen.cost_gpu_s)}.`];
  if (victims) lines.push(`It takes GPUs from ${victims}${seen.victims.length > 8 ? " and others" : ""}.`);
  lines.push("This holds for the state shown here. If it changed since, the service refuses and says what changed.");
  return confirmed({
    title, lines, verb: verb === "approve" ? "Approve" : "Reject", tone: verb === "approve" ? "" : "bad",
    async act() {
      const answer = await ask(`/api/v1/recommendations/${encodeURIComponent(id)}/${verb}`, { method: "POST", body: { state_digest: seen.state_digest } });
      const text = `${answer.result}: ${answer.message}.`;
      results.set(id, text);
      return text[0].toUpperCase() + text.slice(1);
    },
  });
}

export const recommendations = {
  name: "recommendations",
  title: "Recommendations",
  ready: false,
  async load() { data = await ask(`/api/v1/recommendations?details=false&limit=${MOST}`); },
  draw(main) {
    if (!this.ready) shown = new Map();
    this.ready = true;
    merge();
    const cards = [...shown.values()];
    const role = may("approver") ? null : h("p", { class: "banner quiet", "data-key": "role" }, "Your token has the role viewer. Approving needs the role approver.");
    show(main,
      h("h1", null, "Recommendations"),
      h("p", { class: "lead", "data-key": "lead" }, data.in_total ? `${counted(data.in_total, "proposal")} a person may decide on, those that take an approval first${data.in_total > MOST ? `; shown are the best ${MOST}` : ""}.` : ""),
      role,
      wanted && !shown.has(wanted) ? h("p", { class: "banner quiet", "data-key": "wanted" }, `${wanted} is not open now. `,
        h("a", { href: `#/decisions/${encodeURIComponent(wanted)}` }, "What was decided about it")) : null,
      cards.length ? h("ul", { class: "cards", "data-key": "cards" }, cards.map(card))
        : h("div", { class: "card empty", "data-key": "none" }, h("p", null, data.halted ? `Nothing is recommended while the controller is halted: ${data.halted}.` : "Nothing is recommended now. The controller looks again at every tick; this page updates by itself.")));
    this.reveal(main);
  },
  route(id, main) { wanted = id; if (this.ready) this.reveal(main); },
  // Opens the recommendation that the address names, once.
  reveal(main) {
    if (!shown.has(wanted)) return;
    const found = main.querySelector(`[data-key="${CSS.escape(`rec-${wanted}`)}"]`);
    wanted = "";
    found.querySelector("details").open = true;
    found.scrollIntoView();
  },
  async act(pressed) {
    const { do: what, id } = pressed.dataset;
    return what === "approve" || what === "reject" ? decide(id, what) : false;
  },
  async toggled(details, main) {
    const id = details.dataset.id;
    if (!id || !details.open || explained.has(id)) return;
    try { explained.set(id, (await ask(`/api/v1/decisions/${encodeURIComponent(id)}`)).lines); }
    catch (error) { explained.set(id, [error.message]); }
    if (data) this.draw(main);
  },
};
