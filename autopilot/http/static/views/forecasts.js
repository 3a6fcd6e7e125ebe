// Forecasts with their bands, and how well earlier ones held.
import { h, show, table } from "../dom.js";
import { ask } from "../api.js";
import { clock, counted, duration, number, percent, sentence, UNKNOWN } from "../format.js";
import { unseen } from "../status.js";
import { forget, holder, legend, plot } from "../charts.js";

const MOST = 12;
const LINES = [{ label: "Rate of the last minute", colour: "--s1" }, { label: "Expected highest rate (median)", colour: "--s3" },
  { label: "Band up to the highest level", colour: "--s3", dash: [4, 4], width: 1 }];
let data = null;

const requests = (service) => service.demand.find((each) => each.kind === "requests_per_s") || null;

// The past as a line; the forecast as steps at its horizons, from now on.
function series(service) {
  const { past } = service;
  const times = [...past.at_s];
  const rate = [...past.requests_per_s];
  const middle = rate.map(() => null);
  const high = rate.map(() => null);
  const given = requests(service);
  if (given && !given.abstains) {
    const median = given.levels.includes(0.5) ? given.levels.indexOf(0.5) : 0;
    const last = given.levels.length - 1;
    let from = Math.max(given.made_s, times.at(-1) ?? given.made_s) + 1e-3;
    given.horizons_s.forEach((horizon, place) => {
      for (const at of [from, given.made_s + horizon]) {
        times.push(at); rate.push(null); middle.push(given.values[place][median]); high.push(given.values[place][last]);
      }
      from = given.made_s + horizon + 1e-3;
    });
  }
  return { times: times.map((at) => (clock.start || 0) + at), values: [rate, middle, high] };
}

const brief = (seconds) => (seconds !== null && seconds < 1 ? `${number(1000 * seconds, 0)} ms` : duration(seconds));
const against = (p99, objective) => (objective === null ? brief(p99) : `${brief(p99)} of ${brief(objective)}`);

const SERVICES = [
  { head: "Service", cell: (row) => row.name },
  { head: "Role", cell: (row) => row.role },
  { head: "p99", unit: "over 5 min", kind: "number", cell: (row) => duration(row.p99_s) },
  { head: "Objective", kind: "number", cell: (row) => duration(row.objective_s) },
  { head: "First token p99", unit: "over 5 min, of objective", kind: "number", cell: (row) => against(row.ttft_p99_s, row.ttft_objective_s) },
  { head: "Next token p99", unit: "over 5 min, of objective", kind: "number", cell: (row) => against(row.itl_p99_s, row.itl_objective_s) },
  { head: "Late requests", unit: "last minute", kind: "number", cell: (row) => percent(row.late_ratio, 1) },
  { head: "Rate", unit: "requests/s, last minute", kind: "number", cell: (row) => number(row.rate, 2) },
  { head: "Queued", unit: "requests", kind: "number", cell: (row) => number(row.queued, 0) },
  { head: "Replicas", unit: "ready of all", kind: "number", cell: (row) => `${row.ready_replicas} of ${row.replicas}` },
  { head: "Floor", unit: "replicas", kind: "number", cell: (row) => row.floor || "none" },
];

function record(service) {
  const given = requests(service);
  if (!given) return h("p", { class: "empty", "data-key": "none" }, "There is no forecast of its requests yet.");
  if (given.abstains) return h("p", { class: "empty", "data-key": "abstains" }, `The model abstains: ${sentence(given.abstains)}`);
  const last = given.levels.length - 1;
  return h("div", { "data-key": "record" },
    h("p", { class: "quiet" }, `Model ${given.model}, made at ${clock.at(given.made_s)}.`, given.drifting ? h("b", { class: "problem" }, " It drifts: its errors left their usual range.") : null),
    table({ caption: `Forecast of ${service.name}`, name: `f-${service.name}`, rows: given.horizons_s.map((horizon, place) => ({ horizon, place })), key: (row) => row.horizon, columns: [
      { head: "Within", cell: (row) => duration(row.horizon) },
      ...given.levels.map((each, at) => ({ head: percent(each), unit: "requests/s", kind: "number", cell: (row) => number(given.values[row.place][at], 2) })),
      { head: "Promised", kind: "number", cell: () => percent(given.levels[last]) },
      { head: "Delivered", kind: "number", cell: (row) => percent(given.coverage ? given.coverage[row.place][last] : null) },
      { head: "Outcomes", kind: "number", cell: (row) => (given.outcomes ? number(given.outcomes[row.place], 0) : UNKNOWN) },
    ] }));
}

function mix() {
  const found = data.mix;
  if (!found) return h("p", { class: "empty" }, "There is no forecast of the mix of work.");
  if (found.reason) return h("p", { class: "empty" }, `The model of the mix abstains: ${sentence(found.reason)}`);
  return table({ caption: "Expected work", name: "mix", rows: found.kinds, key: (row) => `${row.words}-${row.models}`, note: ` gangs that will be submitted, from ${duration(3600 * found.watched_h)} of data`, columns: [
    { head: "Kind", cell: (row) => row.words }, { head: "GPU model", cell: (row) => row.models },
    ...found.horizons_s.map((horizon, place) => ({ head: `Within ${duration(horizon)}`, unit: "gangs, mean", kind: "number", cell: (row) => number(row.expected[place], 1) }))] });
}

export const forecasts = {
  name: "forecasts",
  title: "Forecasts",
  ready: false,
  everyMs: 3000,
  async load() { data = await ask("/api/v1/forecasts"); },
  draw(main) {
    this.ready = true;
    if (data.services === null) { forget(); show(main, h("h1", null, "Forecasts"), unseen()); return; }
    const charted = data.services.slice(0, MOST);
    const known = data.runtimes && data.runtimes.known_ratio;
    show(main,
      h("h1", null, "Forecasts"),
      data.services.length ? h("section", { class: "card", "data-key": "services" }, table({ caption: "Services now", name: "services", columns: SERVICES, rows: data.services, key: (row) => row.name, note: ` ${counted(data.services_in_total, "service")}` }))
        : h("p", { class: "card empty", "data-key": "none" }, "The cluster has no inference services, so there is no forecast of demand."),
      charted.map((service) => h("section", { class: "card", "data-key": `service-${service.name}` },
        h("h2", null, `Requests of ${service.name}`), legend(LINES),
        holder(`chart-${service.name}`, `Rate of ${service.name} in requests per second, with the forecast as a band. The table below has the numbers.`), record(service))),
      data.services.length > MOST ? h("p", { class: "quiet", "data-key": "more" }, `Charts of the first ${MOST} services; the table has all.`) : null,
      h("section", { class: "card", "data-key": "mix" }, h("h2", null, "Mix of work"), mix()),
      h("section", { class: "card", "data-key": "runtimes" }, h("h2", null, "Run times"),
        h("p", { class: "quiet" }, data.runtimes ? `Model ${data.runtimes.model}: ${percent(known)} of pending and running jobs have a forecast of their run time.` : "There is no forecast of run times.")));
    for (const service of charted) {
      const { times, values } = series(service);
      if (times.length > 1) plot(`chart-${service.name}`, { times, unit: "requests/s", height: 200, bands: [[2, 1, "--s3"]], lines: LINES.map((line, place) => ({ ...line, values: values[place] })) });
    }
  },
  recolour: forget,
};
