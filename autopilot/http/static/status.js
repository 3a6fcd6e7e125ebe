// The header: whether the controller acts, how old its last tick is, and who is signed in. Banners say what is wrong.
import { h, show } from "./dom.js";
import { age, clock } from "./format.js";
import { session } from "./api.js";

export const state = { summary: null, at: 0, lost: false };
const $ = (id) => document.getElementById(id);
const LATE = "the last tick";
let announced = "";

export function take(summary) {
  state.summary = summary;
  state.at = performance.now();
  state.lost = false;
  if (typeof summary.start_s === "number") clock.start = summary.start_s;
}

// An age of the summary, which grows while no tick brings a new one.
export const grown = (seconds) => (typeof seconds === "number" ? seconds + (performance.now() - state.at) / 1000 : NaN);
export const tickAge = () => (state.summary && state.summary.tick !== null ? grown(state.summary.age_s) : NaN);
const last = (word, seconds) => (Number.isNaN(seconds) ? `not ${word} yet` : `last ${word} ${age(seconds)} ago`);
// The age of what a dash stands for.
export const seenLast = () => last("seen", grown(state.summary?.seen_age_s));
export const sampledLast = () => last("sampled", grown(state.summary?.telemetry_age_s));
// In place of a table whose rows are not known.
export const unseen = () => h("p", { class: "card empty", "data-key": "unseen" }, `The cluster is not seen now, so this is not known; ${seenLast()}.`);

// What is stale, since when and why: the tick by the clock of this page, the rest as the service says; "" for nothing.
export function stale() {
  const found = state.summary;
  if (state.lost) return `The connection to the service is lost. Shown is what was known ${age(tickAge())} ago. Trying again.`;
  if (!found || found.tick === null || !found.leads) return "";
  const late = tickAge() > found.late_s ? [{ what: LATE, age_s: found.age_s, why: "the next one has not ended; the log of the controller has the reason" }] : [];
  const words = [...late, ...found.stale.filter((each) => each.what !== LATE)].map((each) => `${each.what}${each.age_s === null ? "" : `, ${age(grown(each.age_s))} ago`}: ${each.why}`);
  return words.length ? `Stale: ${words.join("; ")}.` : "";
}

// One condition at a time, the worst first: [tone, word, sentence].
export function condition() {
  const found = state.summary;
  if (state.lost) return ["bad", "Not connected", ""];
  if (!found) return ["quiet", "Connecting", ""];
  if (found.tick === null) return ["quiet", "Starting", "The controller has not decided yet; its first tick is under way."];
  if (found.kill_switch) return ["bad", "Kill switch on", `Nothing acts: ${found.kill_switch}.`];
  if (found.killed) return ["bad", "Killed", "Nothing acts until an admin resumes."];
  if (found.paused) return ["warn", "Paused", `Nothing acts: ${found.paused}.`];
  if (!found.leads) return ["warn", "Stands by", "Another controller leads; these are the last decisions of this one."];
  const halted = found.halted ? `Nothing acts: ${found.halted}.` : "";
  if (stale()) return ["warn", "Stale", halted];
  if (halted) return ["warn", "Halted", halted];
  return ["good", "Running", ""];
}

export function say(text) {
  if (text !== announced) $("live").textContent = text;
  announced = text;
}

export function draw() {
  const [tone, word, sentence] = condition();
  const found = state.summary;
  const seconds = tickAge();
  if (!session.signedIn) { show($("status")); show($("banner")); return; }
  show($("status"),
    h("span", { class: `pill ${tone}` }, word),
    h("span", { class: found && tickAge() > found.late_s ? "tick late" : "tick" }, Number.isNaN(seconds) ? "no tick yet" : `last tick ${age(seconds)} ago`),
    found && found.tick !== null ? h("span", { class: "at" }, `cluster time ${clock.at(found.now_s)}`) : null,
    found && found.policy ? h("span", { class: "at" }, `policy “${found.policy}”`) : null);
  const old = stale();
  const banners = old ? [[state.lost ? "bad" : "warn", old]] : [];
  if (sentence) banners.push([tone, sentence]);
  if (found && found.policy_problem) banners.push(["warn", `The policy file is not in force: ${found.policy_problem}`]);
  if (found && found.policy_note) banners.push(["quiet", `Policy: ${found.policy_note}.`]);
  show($("banner"), banners.map(([kind, text], place) => h("p", { class: `banner ${kind}`, "data-key": `${kind}-${place}` }, text)));
  say(sentence ? `${word}. ${sentence}` : state.summary ? word : "");
}
