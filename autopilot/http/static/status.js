// The header: whether the controller acts, how old its last tick is, and who is signed in. Banners say what is wrong.
import { h, show } from "./dom.js";
import { age, clock, UNKNOWN } from "./format.js";
import { session } from "./api.js";

export const state = { summary: null, at: 0, lost: false };
const $ = (id) => document.getElementById(id);
let announced = "";

export function take(summary) {
  state.summary = summary;
  state.at = performance.now();
  state.lost = false;
  if (typeof summary.start_s === "number") clock.start = summary.start_s;
}

export const tickAge = () =>
  state.summary && state.summary.tick !== null ? state.summary.age_s + (performance.now() - state.at) / 1000 : NaN;

// One condition at a time, the worst first: [tone, word, sentence].
export function condition() {
  const found = state.summary;
  if (!found) return ["quiet", "Connecting", ""];
  if (found.tick === null) return ["quiet", "Starting", "The controller has not decided yet; its first tick is under way."];
  if (found.kill_switch) return ["bad", "Kill switch on", `Nothing acts: ${found.kill_switch}.`];
  if (found.killed) return ["bad", "Killed", "Nothing acts until an admin resumes."];
  if (found.paused) return ["warn", "Paused", `Nothing acts: ${found.paused}.`];
  if (!found.leads) return ["warn", "Stands by", "Another controller leads; these are the last decisions of this one."];
  if (found.halted) return ["warn", "Halted", `Nothing acts: ${found.halted}.`];
  return ["good", "Running", ""];
}

export function say(text) {
  if (text !== announced) $("live").textContent = text;
  announced = text;
}

function stale() {
  const limit = Math.max(15, ((state.summary && state.summary.silent_s) || 60) / 2);
  return tickAge() > limit;
}

export function draw() {
  const [tone, word, sentence] = condition();
  const found = state.summary;
  const seconds = tickAge();
  if (!session.signedIn) { show($("status")); show($("banner")); return; }
  show($("status"),
    h("span", { class: `pill ${tone}` }, word),
    h("span", { class: stale() ? "tick late" : "tick" }, Number.isNaN(seconds) ? "no tick yet" : `last tick ${age(seconds)} ago`),
    found && found.tick !== null ? h("span", { class: "at" }, `cluster time ${clock.at(found.now_s)}`) : null,
    found && found.policy ? h("span", { class: "at" }, `policy “${found.policy}”`) : null);
  const banners = [];
  if (state.lost) banners.push(["bad", `The connection to the service is lost. Shown is what was known ${Number.isNaN(seconds) ? UNKNOWN : age(seconds)} ago. Trying again.`]);
  else if (stale()) banners.push(["warn", `Stale: the last tick was ${age(seconds)} ago. The controller is slow or stuck; its log has the reason.`]);
  if (sentence) banners.push([tone, sentence]);
  if (found && found.policy_problem) banners.push(["warn", `The policy file is not in force: ${found.policy_problem}`]);
  if (found && found.collectors_failing) banners.push(["warn", `${found.collectors_failing === 1 ? "A collector fails" : `${found.collectors_failing} collectors fail`}; see Health.`]);
  show($("banner"), banners.map(([kind, text], place) => h("p", { class: `banner ${kind}`, "data-key": `${kind}-${place}` }, text)));
  say(state.lost ? "Connection lost" : stale() ? "Data is stale" : sentence ? `${word}. ${sentence}` : state.summary ? word : "");
}
