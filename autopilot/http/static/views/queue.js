// Work that waits, in the order of service, each with the reason; the whole story of one on request.
import { h, show, table } from "../dom.js";
import { ask } from "../api.js";
import { ahead, counted, duration, sentence, UNKNOWN, words } from "../format.js";
import { finder } from "../find.js";
import { unseen } from "../status.js";

const MOST = 200;
let data = null;
let find = "";
let timer = 0;
const stories = new Map(); // workload -> lines

export const size = (row) => {
  if (row.profile) return `${row.gpus} × ${row.profile}`;
  if (row.gpu_share) return `${row.gpus} × ${row.gpu_share} GPU`;
  return row.members > 1 ? `${counted(row.gpus, "GPU")} in ${row.members} members` : counted(row.gpus, "GPU");
};

const COLUMNS = [
  { head: "Workload", cell: (row) => row.id },
  { head: "Tenant", cell: (row) => row.tenant || UNKNOWN },
  { head: "Queue", cell: (row) => row.queue || UNKNOWN },
  { head: "Size", kind: "short", cell: size },
  { head: "Class", kind: "short", cell: (row) => row.class },
  { head: "Priority", kind: "number", cell: (row) => row.priority },
  { head: "Submitted", kind: "number", cell: (row) => `${duration(row.since_submission_s)} ago` },
  { head: "Expected start", kind: "number", cell: (row) => ahead(row.expected_start_s, data.now_s) },
  { head: "Why pending", kind: "words", cell: (row) => [why(row), story(row)] },
];

export const why = (row) => [h("span", { class: "code" }, words(row.code || "unknown")), ` ${sentence(row.words)}`];
export const story = (row) => h("details", { "data-id": row.id }, h("summary", null, "The whole story"),
  stories.has(row.id) ? h("pre", { tabindex: "0" }, stories.get(row.id).join("\n")) : h("p", { class: "loading" }, "Loading …"));
export const forgetStories = () => stories.clear();
export async function tell(details) {
  const id = details.dataset.id;
  if (!id || !details.open) return false;
  try { stories.set(id, (await ask(`/api/v1/workloads/${encodeURIComponent(id)}`)).lines); }
  catch (error) { stories.set(id, [error.message]); }
  return true;
}

export const queue = {
  name: "queue",
  title: "Queue",
  ready: false,
  async load() {
    if (!this.ready) find = "";
    data = await ask(`/api/v1/queue?limit=${MOST}&find=${encodeURIComponent(find)}`);
  },
  draw(main) {
    if (!this.ready) forgetStories();
    this.ready = true;
    if (data.workloads === null) { show(main, h("h1", null, "Queue"), unseen()); return; }
    const reasons = data.reasons.map((each) => `${words(each.code)}: ${each.workloads}`).join(", ");
    show(main,
      h("h1", null, "Queue"),
      h("p", { class: "lead", "data-key": "lead" }, data.in_total ? `${counted(data.in_total, "workload")} waiting, shown in the order of service.${reasons ? ` By reason: ${reasons}.` : ""}` : ""),
      data.in_total ? finder("Find by name, tenant, queue or reason") : null,
      data.workloads.length
        ? h("section", { class: "card", "data-key": "queue" }, table({ caption: "Why each workload waits", name: "queue", columns: COLUMNS, rows: data.workloads, key: (row) => row.id,
          note: data.found > data.workloads.length ? ` the first ${data.workloads.length} of ${data.found}; narrow the search to see others` : "" }))
        : h("p", { class: "card empty", "data-key": "none" }, data.in_total ? "No waiting workload matches." : "Nothing waits."));
  },
  input(field, _main, refresh) {
    if (field.id !== "find") return;
    find = field.value;
    clearTimeout(timer);
    timer = setTimeout(() => refresh(), 200);
  },
  async toggled(details, main) { if (await tell(details)) this.draw(main); },
};
