"use strict";
const SHOWN = 100;

async function unpack(text) {
  const bytes = Uint8Array.from(atob(text), letter => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).json();
}

function gpuHours(value) {
  if (!value) return "-";
  return Math.abs(value) < 3600 ? `${Math.round(value)} GPU-s`
    : `${(value / 3600).toLocaleString("en-US", {minimumFractionDigits: 1, maximumFractionDigits: 1})} GPU-h`;
}

const words = name => name === "needs_approval" ? "waiting for approval" : name.replaceAll("_", " ");

function element(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function reveal(part) {
  const within = part.querySelector(":scope > details.fold");
  if (within) within.open = true;
  for (let above = part.closest("details.fold"); above; above = above.parentElement.closest("details.fold")) above.open = true;
}

class Finder {
  constructor(box, data) {
    this.box = box;
    this.data = data;
    this.prefix = box.dataset.prefix;
    this.body = box.querySelector("tbody");
    this.more = box.querySelector(".more");
    this.texts = new Map();
    this.place = new Map(data.id.map((id, at) => [id, at]).reverse());
    this.fields = Object.fromEntries([...box.querySelectorAll("[name]")].map(field => [field.name, field]));
    for (const name of ["action", "tenant", "answer"]) this.fill(name);
    for (const field of Object.values(this.fields)) field.addEventListener("input", () => this.find());
    this.more.addEventListener("click", () => this.grow());
    box.querySelector(".find").hidden = false;
    box.querySelector(".wait").hidden = true;
    this.find();
  }

  text(name, at) { return this.data.strings[this.data[name][at]]; }

  fill(name) {
    for (const value of [...new Set(this.data[name])].map(at => this.data.strings[at]).sort()) {
      const option = element("option", "", words(value));
      option.value = value;
      this.fields[name].append(option);
    }
  }

  words(at) {
    if (!this.texts.has(at)) {
      const lines = this.data.case[at].map(line => this.data.strings[line]);
      const codes = this.data.codes[at].map(code => this.data.strings[code]);
      const named = ["action", "workload", "tenant", "answer", "why"].map(name => this.text(name, at));
      this.texts.set(at, [this.data.id[at], ...named, ...codes, ...lines].join("\n").toLowerCase());
    }
    return this.texts.get(at);
  }

  find() {
    const wanted = this.fields.words.value.toLowerCase().split(/\s+/).filter(Boolean);
    const equal = ["action", "tenant", "answer"].filter(name => this.fields[name].value);
    this.found = this.data.id.map((_, at) => at).filter(at =>
      equal.every(name => this.text(name, at) === this.fields[name].value)
      && wanted.every(word => this.words(at).includes(word)));
    const order = this.fields.order.value;
    if (order !== "time") this.found.sort((one, two) => this.data[order][two] - this.data[order][one] || one - two);
    this.body.replaceChildren();
    this.shown = 0;
    this.box.querySelector("output").textContent =
      `${this.found.length.toLocaleString("en-US")} of ${this.data.id.length.toLocaleString("en-US")} decisions`;
    this.grow();
  }

  grow() {
    const next = this.found.slice(this.shown, this.shown + SHOWN);
    this.body.append(...next.map(at => this.row(at)));
    this.shown += next.length;
    const left = this.found.length - this.shown;
    this.more.hidden = left <= 0;
    this.more.textContent = `Show ${Math.min(left, SHOWN)} more of ${left.toLocaleString("en-US")}`;
  }

  row(at) {
    const row = element("tr");
    const address = this.prefix + this.data.id[at];
    if (this.place.get(this.data.id[at]) === at) row.id = address;
    const answer = this.text("answer", at);
    const cells = {
      time: this.text("at", at), answer: "", action: this.text("action", at), work: this.text("workload", at),
      gpus: this.data.gpus[at] || "-", gain: gpuHours(this.data.gain[at]), cost: gpuHours(this.data.lost[at]), why: "",
    };
    for (const [name, text] of Object.entries(cells)) row.append(element("td", name, text));
    row.querySelector(".answer").append(element("b", `chip ${answer}`, words(answer)));
    row.querySelector(".work").append(element("small", "", this.text("tenant", at)));
    const why = row.querySelector(".why");
    why.textContent = this.text("why", at);
    const whole = element("details");
    const link = element("a", "", this.data.id[at]);
    link.href = "#" + encodeURIComponent(address);
    const summary = element("summary", "", "the whole case ");
    summary.append(link);
    whole.append(summary);
    const below = element("tr", "case");
    const cell = element("td");
    cell.colSpan = row.children.length;
    below.append(cell);
    whole.addEventListener("toggle", () => {
      if (!whole.open) return below.remove();
      const lines = this.data.case[at].map(line => this.data.strings[line]);
      cell.replaceChildren(element("pre", "", lines.join("\n")));
      row.after(below);
    });
    why.append(whole);
    return row;
  }

  show(address) {
    if (!address.startsWith(this.prefix)) return false;
    const at = this.place.get(address.slice(this.prefix.length));
    if (at === undefined) return false;
    for (const field of Object.values(this.fields)) field.value = field.name === "order" ? "time" : "";
    this.find();
    while (!document.getElementById(address) && !this.more.hidden) this.grow();
    const row = document.getElementById(address);
    reveal(row);
    row.querySelector("details").open = true;
    row.classList.add("aimed");
    row.scrollIntoView({block: "center"});
    return true;
  }
}

(async () => {
  const finders = [];
  for (const box of document.querySelectorAll(".finder")) {
    try {
      finders.push(new Finder(box, await unpack(box.querySelector("script").textContent)));
    } catch (error) {
      box.querySelector(".wait").textContent = "This browser cannot unpack the decisions; use autopilot decisions.";
    }
  }
  const aim = () => {
    let address = "";
    try { address = decodeURIComponent(location.hash.slice(1)); } catch (error) { return; }
    document.querySelectorAll(".aimed").forEach(row => row.classList.remove("aimed"));
    if (!address || finders.some(finder => finder.show(address))) return;
    const part = document.getElementById(address);
    if (!part) return;
    reveal(part);
    part.scrollIntoView();
  };
  addEventListener("hashchange", aim);
  addEventListener("beforeprint", () => document.querySelectorAll("details.fold").forEach(each => { each.open = true; }));
  aim();
  document.documentElement.dataset.ready = "yes";
})();
