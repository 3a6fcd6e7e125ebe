// Tenants and queues: what each holds, really uses, leaves idle and waits for.
import { h, show, table } from "../dom.js";
import { ask } from "../api.js";
import { counted, duration, gpus, percent } from "../format.js";
import { finder, matches } from "../find.js";
import { unseen } from "../status.js";

const MOST = 100;
let data = null;
let find = "";
let shown = MOST;

const TENANTS = [
  { head: "Tenant", cell: (row) => row.name || "without a name" },
  { head: "Allocated", unit: "GPUs", kind: "number", cell: (row) => gpus(row.held_gpus) },
  { head: "Active", unit: "GPUs", kind: "number", cell: (row) => gpus(row.active_gpus) },
  { head: "Gap", unit: "GPUs", kind: "number", cell: (row) => gpus(row.gap_gpus) },
  { head: "Hardware utilization", kind: "number", cell: (row) => percent(row.hardware_ratio) },
  { head: "Measured", kind: "number", cell: (row) => percent(row.measured_ratio) },
  { head: "Idle work", unit: "GPUs", kind: "number", cell: (row) => gpus(row.idle_gpus) },
  { head: "Running", unit: "workloads", kind: "number", cell: (row) => row.workloads },
  { head: "Pending", unit: "GPUs", kind: "number", cell: (row) => gpus(row.pending_gpus) },
  { head: "Oldest pending", kind: "number", cell: (row) => duration(row.oldest_pending_s) },
];

const QUEUES = [
  { head: "Queue", cell: (row) => row.name },
  { head: "Parent", cell: (row) => row.parent || "–" },
  { head: "Guaranteed", unit: "GPUs", kind: "number", cell: (row) => gpus(row.guaranteed_gpus) },
  { head: "Limit", unit: "GPUs", kind: "number", cell: (row) => (row.limit_gpus === null ? "none" : gpus(row.limit_gpus)) },
  { head: "Allocated", unit: "GPUs", kind: "number", cell: (row) => gpus(row.held_gpus) },
  { head: "Borrowed", unit: "GPUs", kind: "number", cell: (row) => gpus(row.held_gpus === null ? null : Math.max(row.held_gpus - row.guaranteed_gpus, 0)) },
  { head: "Active", unit: "GPUs", kind: "number", cell: (row) => gpus(row.active_gpus) },
  { head: "Measured", kind: "number", cell: (row) => percent(row.measured_ratio) },
  { head: "Pending", unit: "GPUs", kind: "number", cell: (row) => gpus(row.pending_gpus) },
];

export const tenants = {
  name: "tenants",
  title: "Tenants",
  ready: false,
  async load() { data = await ask("/api/v1/tenants"); },
  draw(main) {
    if (!this.ready) { find = ""; shown = MOST; }
    this.ready = true;
    if (data.tenants === null) { show(main, h("h1", null, "Tenants"), unseen()); return; }
    const found = data.tenants.filter((row) => matches(find, row.name)).sort((a, b) => b.held_gpus - a.held_gpus || b.pending_gpus - a.pending_gpus || (a.name < b.name ? -1 : 1));
    const queues = data.queues.filter((row) => matches(find, row.name));
    show(main,
      h("h1", null, "Tenants"),
      data.tenants.length ? null : h("p", { class: "card empty", "data-key": "none" }, "No tenant holds GPUs or waits."),
      finder("Find a tenant or queue"),
      found.length ? h("section", { class: "card", "data-key": "tenants" },
        table({ caption: "Tenants now", name: "tenants", columns: TENANTS, rows: found.slice(0, shown), key: (row) => row.name, note: ` ${counted(found.length, "tenant")}, the largest first` }),
        found.length > shown ? h("p", null, h("button", { type: "button", "data-do": "more" }, `Show ${found.length - shown} more`)) : null) : null,
      queues.length ? h("section", { class: "card", "data-key": "queues" },
        table({ caption: "Queues now", name: "queues", columns: QUEUES, rows: queues.slice(0, 2 * shown), key: (row) => row.name, note: ` ${counted(queues.length, "queue")}` })) : null);
  },
  input(field, main) { if (field.id === "find") { find = field.value; this.draw(main); } },
  async act(pressed) { if (pressed.dataset.do === "more") shown += 10 * MOST; return true; },
};
