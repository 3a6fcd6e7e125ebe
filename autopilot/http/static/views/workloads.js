// Work that holds GPUs or waits: whose it is, what it does, where, since when, until when, and why it waits.
import { h, show, table } from "../dom.js";
import { ask } from "../api.js";
import { ahead, counted, duration, gpus, percent, UNKNOWN } from "../format.js";
import { finder } from "../find.js";
import { unseen } from "../status.js";
import { forgetStories, size, story, tell, why } from "./queue.js";

const MOST = 200;
const NODES = 4;
const ORDERS = [["activity", "Least active first"], ["since", "Longest first"], ["expected_end", "Soonest expected end first"], ["gpus", "Largest first"],
  ["owner", "Tenant and queue"], ["name", "Name"]];
let data = null;
let find = "";
let sort = ORDERS[0][0];
let timer = 0;

const activity = (row) => {
  const partly = row.activity_ratio !== null && row.measured_ratio < 1 ? `, ${percent(row.measured_ratio)} measured` : "";
  return `${row.activity_estimated && row.activity_ratio !== null ? "~" : ""}${percent(row.activity_ratio)}${partly}`;
};
const place = ({ nodes }) => (nodes.length ? [nodes.slice(0, NODES).join(", "), nodes.length > NODES ? ` and ${nodes.length - NODES} more` : ""] : UNKNOWN);
const asked = (row) => (row.held_gpus !== null && !row.profile && !row.gpu_share && row.held_gpus !== row.gpus ? `, holds ${gpus(row.held_gpus)}` : "");
const rate = (row) => (row.rate_ratio === null ? "" : `, at ${row.rate_ratio.toFixed(2)} of its rate alone (${row.rate_basis})`);
const beside = ({ beside: them }) => (them.length
  ? `, shares its GPUs with ${them.slice(0, NODES).map((each) => `${each.id}${each.tenant ? ` (${each.tenant})` : ""}`).join(", ")}${them.length > NODES ? ` and ${them.length - NODES} more` : ""}`
  : "");
const slowed = ({ slowed_by: them }) => them.map((each) => `, ${each.rise_ratio.toFixed(2)} times as slow since ${each.id || "unknown work"} came (${each.state})`).join("");
const heldUp = ({ held_up_by: them }) => them.map((each) => `, held up by ${each.node}${each.gpu ? ` (${each.gpu})` : ""}: ${each.slow_ratio.toFixed(2)} times as slow${each.suspect_gangs ? `, slow in ${each.suspect_gangs} gangs` : ""}`).join("");
const since = (row) => (row.since_s === null ? UNKNOWN : `${duration(data.now_s - row.since_s)} ago`);
const end = (row) => `${ahead(row.expected_end_s, data.now_s)}${row.end_by_limit ? " (time limit)" : ""}`;

const columns = () => [
  { head: "Workload", cell: (row) => row.id },
  { head: "State", kind: "short", cell: (row) => row.state },
  { head: "Tenant", cell: (row) => row.tenant || UNKNOWN },
  { head: "Queue", cell: (row) => row.queue || UNKNOWN },
  { head: "Size", kind: "short", cell: (row) => [size(row), asked(row), beside(row), row.beside.length ? rate(row) : "", slowed(row), heldUp(row)] },
  { head: "SM activity", unit: `over ${duration(data.window_s)}`, kind: "number", cell: activity },
  { head: "Since", kind: "number", cell: since },
  { head: "Expected end", kind: "number", cell: end },
  { head: "Nodes", cell: place },
  { head: "Why it waits", kind: "words", cell: (row) => [row.code === null ? UNKNOWN : why(row), story(row)] },
];

export const workloads = {
  name: "workloads",
  title: "Workloads",
  ready: false,
  async load() {
    if (!this.ready) { find = ""; sort = ORDERS[0][0]; }
    data = await ask(`/api/v1/workloads?limit=${MOST}&sort=${sort}&find=${encodeURIComponent(find)}`);
  },
  draw(main) {
    if (!this.ready) forgetStories();
    this.ready = true;
    if (data.workloads === null) { show(main, h("h1", null, "Workloads"), unseen()); return; }
    show(main,
      h("h1", null, "Workloads"),
      data.in_total ? h("p", { class: "lead", "data-key": "lead" }, `${counted(data.in_total, "workload")} with GPUs or waiting. Since: the start, or the submission of waiting work. `
        + `Expected end: quantile ${data.level} of run times, at most the time limit. ~ is estimated.`) : null,
      data.in_total ? finder("Find by name, tenant, queue, state, node or reason", h("label", { for: "sort" }, "Order",
        h("select", { id: "sort" }, ORDERS.map(([value, words]) => h("option", { value }, words))))) : null,
      data.workloads.length
        ? h("section", { class: "card", "data-key": "workloads" }, table({ caption: "Workloads now", name: "workloads", columns: columns(), rows: data.workloads, key: (row) => row.id,
          note: data.found > data.workloads.length ? ` the first ${data.workloads.length} of ${data.found}; narrow the search to see others` : "" }))
        : h("p", { class: "card empty", "data-key": "none" }, data.in_total ? "No workload matches." : "No workload holds GPUs or waits."));
  },
  input(field, _main, refresh) {
    if (field.id === "find") find = field.value;
    else if (field.id === "sort") sort = field.value;
    else return;
    clearTimeout(timer);
    timer = setTimeout(() => refresh(), 200);
  },
  async toggled(details, main) { if (await tell(details)) this.draw(main); },
};
