// The map of nodes, GPUs and MIG instances. Each row says in words what its picture shows; one node opens in detail.
import { h, show } from "../dom.js";
import { ask } from "../api.js";
import { counted, duration, number, percent, sentence, UNKNOWN, words } from "../format.js";
import { finder, matches } from "../find.js";
import { unseen } from "../status.js";

const STEP = 150;
let data = null;
let rows = [];
let find = "";
let shown = STEP;
const details = new Map(); // node -> document

// GPUs of a node in words and as squares: shade by activity, a frame where held, slices where cut.
function build() {
  const { nodes, gpus } = data;
  const cuts = new Map();
  for (const [gpu, profile, start, held] of data.instances) (cuts.get(gpu) || cuts.set(gpu, []).get(gpu)).push({ profile, start, held });
  let first = 0;
  rows = nodes.id.map((id, place) => {
    const row = { id, pool: data.pools[nodes.pool[place]] ?? "", model: data.models[nodes.model[place]] ?? "", first, count: nodes.gpus[place], cuts,
      state: nodes.cordoned[place] ? "cordoned" : !nodes.ready[place] ? "not ready" : nodes.reclaimed[place] ? "called back" : nodes.spot[place] ? "ready, spot" : "ready" };
    first += row.count;
    return row;
  });
  for (const row of rows) {
    let held = 0; let active = 0; let measured = 0; let bad = 0; const profiles = new Map();
    for (let gpu = row.first; gpu < row.first + row.count; gpu += 1) {
      const cut = cuts.get(gpu) || [];
      held += gpus.held_milli[gpu] / 1000;
      if (gpus.activity_percent[gpu] !== null) { active += gpus.activity_percent[gpu] / 100; measured += 1; }
      if (!gpus.healthy[gpu]) bad += 1;
      for (const each of cut) { const name = data.profiles[each.profile]?.name ?? "?"; profiles.set(name, (profiles.get(name) || 0) + 1); }
    }
    Object.assign(row, { held, active: measured ? active : null, measured, bad, mig: [...profiles].map(([name, count]) => `${count} × ${name}`).join(", ") });
  }
}

const level = (value) => (value === null ? "none" : value < 5 ? "a0" : value < 25 ? "a1" : value < 50 ? "a2" : value < 75 ? "a3" : "a4");

function square(gpu, cuts) {
  const { gpus } = data;
  const title = `GPU ${gpu}`;
  if (gpus.recut[gpu] === 1) return h("span", { class: "gpu changing", title });
  if (!gpus.mig[gpu]) return h("span", { class: `gpu ${gpus.healthy[gpu] ? level(gpus.activity_percent[gpu]) : "broken"}${gpus.held_milli[gpu] ? " held" : ""}` });
  const parts = [...(cuts.get(gpu) || [])].sort((a, b) => a.start - b.start);
  return h("span", { class: `gpu mig${gpus.healthy[gpu] ? "" : " broken"}` }, parts.map((each) => h("i", { class: `w${Math.min(data.profiles[each.profile]?.slices || 1, 8)}${each.held ? " taken" : ""}` })));
}

function node(row) {
  const found = details.get(row.id);
  return h("tr", { "data-key": row.id },
    h("th", { scope: "row" }, row.id, h("details", { "data-id": row.id }, h("summary", null, "GPUs"), found ? inside(found) : h("p", { class: "loading" }, "Loading …"))),
    h("td", null, row.pool, h("small", { class: "line" }, row.model)),
    h("td", null, row.state, row.bad ? h("small", { class: "line problem" }, `${counted(row.bad, "GPU")} out of use`) : null),
    h("td", { class: "number" }, `${number(row.held)} of ${row.count}`),
    h("td", { class: "number" }, row.active === null ? UNKNOWN : number(row.active), row.active !== null && row.measured < row.count ? h("small", { class: "line" }, `${row.measured} of ${row.count} measured`) : null),
    h("td", null, h("span", { class: "gpus", "aria-hidden": "true" }, Array.from({ length: row.count }, (_, place) => square(row.first + place, row.cuts))),
      row.mig ? h("small", { class: "line" }, row.mig) : null));
}

const parted = ({ replicas, sharing }) => (replicas > 1
  ? `Shared in ${replicas} by ${sharing === "whole" ? "a mechanism that is not stated" : sharing}, the activity is that of all together. ` : "");
const inside = (found) => h("ul", { class: "inside" }, found.gpus.map((gpu) => h("li", { "data-key": gpu.uuid },
  h("b", null, `GPU ${gpu.index}`), ` ${gpu.healthy ? "" : "out of use, "}${gpu.xid ? `XID ${gpu.xid}, ` : ""}active ${percent(gpu.activity_ratio)}. ${parted(found)}`,
  gpu.workloads.length ? gpu.workloads.map((each) => `${each.id}${each.tenant ? ` (${each.tenant})` : ""}${each.gpu_share < 1 ? `, ${each.gpu_share} GPU` : ""}`).join("; ") : "Nothing runs on it.",
  gpu.mig ? ` MIG: ${gpu.instances.map((each) => `${each.profile} at ${each.start}`).join(", ") || "no instances"}${gpu.recut === "settled" ? "" : `, ${words(gpu.recut)}`}.` : "",
  gpu.quarantined ? h("small", { class: "line problem" }, `Quarantined, takes no new work: ${gpu.quarantined}`) : null,
  h("small", { class: "line" }, gpu.uuid))));

export const nodes = {
  name: "nodes",
  title: "Nodes",
  ready: false,
  everyMs: 4000,
  async load() { data = await ask("/api/v1/nodes"); if (data.pools !== null) build(); },
  draw(main) {
    if (!this.ready) { find = ""; shown = STEP; details.clear(); }
    this.ready = true;
    if (data.pools === null) { show(main, h("h1", null, "Nodes"), unseen()); return; }
    const found = rows.filter((row) => matches(find, row.id, row.pool, row.model, row.state, row.mig));
    const legend = [["a0", "below 5 % active"], ["a2", "25 to 50 %"], ["a4", "above 75 %"], ["none", "not measured"], ["broken", "out of use"]];
    show(main,
      h("h1", null, "Nodes"),
      rows.length ? finder("Find by node, pool, model, state or MIG profile") : null,
      h("ul", { class: "legend", "data-key": "legend" }, legend.map(([kind, text]) => h("li", { "data-key": kind }, h("span", { class: `gpu ${kind}`, "aria-hidden": "true" }), text)),
        h("li", { "data-key": "held" }, h("span", { class: "gpu held a0", "aria-hidden": "true" }), "frame: allocated"),
        h("li", { "data-key": "mig" }, h("span", { class: "gpu mig", "aria-hidden": "true" }, h("i", { class: "w3 taken" }), h("i", { class: "w4" })), "MIG: instances in use are filled")),
      found.length ? h("section", { class: "card", "data-key": "map" },
        h("div", { class: "box", tabindex: "0", role: "region", "aria-label": "Nodes and their GPUs", "data-key": "box" }, h("table", null,
          h("caption", null, "Nodes and their GPUs", h("small", null, ` ${counted(found.length, "node")}; SM activity over ${duration(data.window_s)}`)),
          h("thead", null, h("tr", null, ["Node", "Pool", "State", "Allocated", "Active", "GPUs"].map((head, place) =>
            h("th", { scope: "col", class: place === 3 || place === 4 ? "number" : null }, head, place === 3 || place === 4 ? h("small", null, "GPUs") : null)))),
          h("tbody", null, found.slice(0, shown).map(node)))),
        found.length > shown ? h("p", null, h("button", { type: "button", "data-do": "more" }, `Show ${Math.min(found.length - shown, 500)} more of ${found.length - shown}`)) : null)
        : h("p", { class: "card empty", "data-key": "none" }, rows.length ? "No node matches." : "The cluster has no nodes with GPUs."));
  },
  input(field, main) { if (field.id === "find") { find = field.value; this.draw(main); } },
  async act(pressed) { if (pressed.dataset.do === "more") shown += 500; return true; },
  async toggled(opened, main) {
    const id = opened.dataset.id;
    if (!id || !opened.open) return;
    try { details.set(id, await ask(`/api/v1/nodes/${encodeURIComponent(id)}`)); }
    catch (error) { details.set(id, { gpus: [{ uuid: "", index: "", healthy: true, workloads: [{ id: sentence(error.message) }], instances: [] }] }); }
    if (data) this.draw(main);
  },
};
