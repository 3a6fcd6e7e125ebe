// The fleet now and over the last day.
import { fact, h, show, table } from "../dom.js";
import { ask } from "../api.js";
import { clock, counted, duration, gpus, percent, UNKNOWN } from "../format.js";
import { sampledLast, seenLast, unseen } from "../status.js";
import { forget, holder, legend, plot } from "../charts.js";

const SERIES = [
  { name: "capacity_gpus", label: "Capacity", colour: "--s8", dash: [6, 4], width: 1.5 },
  { name: "held_gpus", label: "Allocated", colour: "--s2" },
  { name: "measured_gpus", label: "Measured", colour: "--s3", dash: [1, 3], width: 1.5 },
  { name: "active_gpus", label: "SM-active equivalents", colour: "--s1", fill: "30" },
  { name: "pending_gpus", label: "Pending work", colour: "--s4", dash: [2, 3], width: 1.5 },
];
const DAY_S = 86400;
const history = { at_s: [], capacity_gpus: [], held_gpus: [], active_gpus: [], pending_gpus: [], gap_gpus: [], measured_gpus: [] };
let data = null;

function join(news) {
  // the last point is a minute that goes on: it comes again, with what was added to it
  while (history.at_s.length && news.at_s.length && history.at_s.at(-1) >= news.at_s[0] - 1e-9) for (const column of Object.values(history)) column.pop();
  const from = news.at_s.at(-1) - DAY_S;
  for (const name of Object.keys(history)) history[name].push(...news[name]);
  while (history.at_s.length && history.at_s[0] < from) for (const column of Object.values(history)) column.shift();
}

function facts() {
  const now = data.fleet;
  const of = (value, note, last = seenLast) => (value === null ? last() : note()); // a dash has the age of what was known
  const share = (value) => (now.capacity_gpus && value !== null ? percent(value / now.capacity_gpus) : UNKNOWN);
  // what is not measured is neither active nor idle: a figure of activity is then the least that it can be
  const sampled = now.capacity_gpus === null ? seenLast : sampledLast;
  const least = now.measured_ratio !== null && now.measured_ratio < 1 ? "at least " : "";
  return h("dl", { class: "facts", "data-key": "facts" },
    fact("Capacity", gpus(now.capacity_gpus), { unit: "GPUs", note: of(data.nodes, () => `${counted(data.nodes, "node")}, ${counted(data.gpus, "GPU")} in all`) }),
    fact("Allocated", gpus(now.held_gpus), { unit: "GPUs", note: of(now.held_gpus, () => `${percent(now.allocation_ratio)} of the capacity`) }),
    fact("Really active", gpus(now.active_gpus), { unit: "GPUs", note: of(now.active_gpus, () => `${least}${percent(now.real_utilization_ratio)} of the capacity`, sampled), tone: "work" }),
    fact("Gap", gpus(now.gap_gpus), { unit: "GPUs", note: of(now.gap_gpus, () => `allocated, not active: ${least}${share(now.gap_gpus)}`, sampled), tone: "gap" }),
    fact("Pending", gpus(data.signals.pending_gpus), { unit: "GPUs", note: of(data.workloads.pending, () => counted(data.workloads.pending, "workload")) }),
    fact("Widest gang that fits", gpus(data.signals.largest_gang_gpus), { unit: "GPUs", note: of(now.free_gpus, () => `${gpus(now.free_gpus)} GPUs free, ${gpus(now.out_of_use_gpus)} out of use`) }),
    fact("Measured", percent(now.measured_ratio), { note: `of what is allocated, over ${duration(data.window_s)}; ${sampledLast()}` }));
}

const POOLS = [
  { head: "Pool", cell: (row) => row.name },
  { head: "Nodes", kind: "number", cell: (row) => row.nodes },
  { head: "Capacity", unit: "GPUs", kind: "number", cell: (row) => gpus(row.capacity_gpus) },
  { head: "Allocated", unit: "GPUs", kind: "number", cell: (row) => gpus(row.held_gpus) },
  { head: "Free", unit: "GPUs", kind: "number", cell: (row) => gpus(row.free_gpus) },
  { head: "Out of use", unit: "GPUs", kind: "number", cell: (row) => gpus(row.out_of_use_gpus) },
  { head: "Active", unit: "GPUs", kind: "number", cell: (row) => gpus(row.active_gpus) },
  { head: "Gap", unit: "GPUs", kind: "number", cell: (row) => gpus(row.gap_gpus) },
  { head: "Allocation", kind: "number", cell: (row) => percent(row.allocation_ratio) },
  { head: "Real utilization", kind: "number", cell: (row) => percent(row.real_utilization_ratio) },
  { head: "Measured", kind: "number", cell: (row) => percent(row.measured_ratio) },
];

export const fleet = {
  name: "fleet",
  title: "Fleet",
  ready: false,
  async load() {
    const last = this.ready ? history.at_s.at(-2) : undefined;
    const [now, news] = await Promise.all([ask("/api/v1/fleet"), ask(`/api/v1/history${last === undefined ? "" : `?after_s=${last}`}`)]);
    if (last === undefined) for (const column of Object.values(history)) column.length = 0;
    data = now;
    if (news.at_s.length) join(news);
  },
  draw(main) {
    this.ready = true;
    const points = history.at_s.length;
    show(main,
      h("h1", null, "Fleet"),
      facts(),
      h("section", { class: "card", "aria-labelledby": "day", "data-key": "day" },
        h("h2", { id: "day" }, "The last day"),
        points > 1 ? null : h("p", { class: "empty", "data-key": "none" }, "The history begins with the second minute of the cluster’s time."),
        points > 1 ? [legend(SERIES), holder("fleet-day", `GPUs over time, ${clock.at(history.at_s[0])} to ${clock.at(history.at_s.at(-1))}. The table of pools has the numbers of now.`)] : null,
        points > 1 ? h("p", { class: "quiet", "data-key": "range" }, `${clock.at(history.at_s[0])} to ${clock.at(history.at_s.at(-1))}, means over a minute. The distance between allocated and active is the gap.`) : null),
      data.pools === null ? unseen() : h("section", { class: "card", "data-key": "pools" },
        table({ caption: "Pools now", columns: POOLS, rows: data.pools, key: (row) => row.name, note: ` SM activity over ${duration(data.window_s)}` })));
    if (points > 1) {
      plot("fleet-day", { times: history.at_s.map((at) => (clock.start || 0) + at), unit: "GPUs",
        lines: SERIES.map((each) => ({ ...each, values: history[each.name] })) });
    }
  },
  recolour: forget,
};
