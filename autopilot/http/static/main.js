// Starts the page: session, stream of ticks, and the view that the address names.
import { h, show } from "./dom.js";
import { listen, restore, session, signOut, whenSignedOut } from "./api.js";
import { draw as drawStatus, say, stale, state, take } from "./status.js";
import { forget } from "./charts.js";
import { drawSignIn } from "./signin.js";
import { alerts } from "./views/alerts.js";
import { decisions } from "./views/decisions.js";
import { fleet } from "./views/fleet.js";
import { forecasts } from "./views/forecasts.js";
import { health } from "./views/health.js";
import { nodes } from "./views/nodes.js";
import { queue } from "./views/queue.js";
import { recommendations } from "./views/recommendations.js";
import { tenants } from "./views/tenants.js";
import { workloads } from "./views/workloads.js";

const VIEWS = [fleet, recommendations, alerts, queue, workloads, tenants, nodes, forecasts, decisions, health];
const REFRESH_MS = 1500;
const $ = (id) => document.getElementById(id);
const main = $("content");
let view = null;
let stop = null;
let busy = false;
let wanted = false;
let drawnAt = 0;

// `#/view` or `#/view/id`: links of dashboards and alerts name what they mean.
function named() {
  const [name, ...rest] = location.hash.slice(2).split("/");
  let id = rest.join("/");
  try { id = decodeURIComponent(id); } catch { /* an id that is not encoded stands for itself */ }
  return [VIEWS.find((each) => each.name === name) || VIEWS[0], id];
}

function drawViews() {
  const waiting = state.summary && state.summary.recommendations;
  const firing = state.summary && state.summary.alerts;
  $("views").hidden = !session.signedIn;
  show($("views"), h("ul", null, VIEWS.map((each) => h("li", { "data-key": each.name },
    h("a", { href: `#/${each.name}`, "aria-current": each === view ? "page" : null }, each.title,
      each === recommendations && waiting ? h("span", { class: "count" }, `${waiting}`) : null,
      each === alerts && firing ? h("span", { class: "count" }, `${firing}`) : null)))));
}

function drawWho() {
  show($("who"), session.signedIn ? [h("span", { class: "name" }, `${session.name} (${session.role})`),
    h("button", { type: "button", "data-do": "sign-out" }, "Sign out")] : null);
}

// Asks for the data of the present view and shows it. One request at a time; news meanwhile means once more.
async function refresh(again = false) {
  if (!view || !session.signedIn) return;
  if (busy) { wanted = true; return; }
  busy = true;
  const now = view;
  try {
    await now.load();
    if (now === view) { main.removeAttribute("aria-busy"); now.draw(main); }
  } catch (error) {
    if (now === view && session.signedIn) failed(error, again);
  }
  drawnAt = performance.now();
  busy = false;
  if (now !== view) refresh(); // the person went on meanwhile
  else if (wanted) { wanted = false; later(); }
}

function failed(error, again) {
  if (error.status === 503 && !view.ready) {
    show(main, h("h1", null, view.title), h("p", { class: "loading" }, "Waiting for the first tick of the controller …"));
  } else if (!view.ready) {
    show(main, h("h1", null, view.title), h("div", { class: "card" }, h("p", { class: "problem" }, `This view cannot be shown: ${error.message}.`),
      h("p", null, h("button", { type: "button", "data-do": "retry" }, "Try again"))));
  } else if (error.status === 0) { state.lost = true; }
  if (!again) setTimeout(() => refresh(), 2000);
  drawStatus();
}

let timer = 0;
function later() {
  if (timer || document.hidden) return;
  const pause = Math.max((view && view.everyMs) || REFRESH_MS, REFRESH_MS) - (performance.now() - drawnAt);
  timer = setTimeout(() => { timer = 0; refresh(); }, Math.max(pause, 0));
}

function open() {
  const [next, id] = named();
  if (next === view) { if (view.route && id) { view.route(id, main); refresh(); } return; }
  view = next;
  view.ready = false;
  if (view.route) view.route(id, main);
  forget();
  document.title = `${view.title} · gpu-autopilot`;
  main.setAttribute("aria-busy", "true");
  show(main);
  show(main, h("h1", null, view.title), h("p", { class: "loading" }, "Loading …"));
  drawViews();
  scrollTo(0, 0);
  refresh();
}

function signedIn() {
  view = null;
  stop = listen({
    onTick(summary) {
      const again = state.lost;
      take(summary);
      drawStatus();
      drawViews();
      if (again) drawnAt = 0;
      later();
    },
    onLost() { state.lost = true; drawStatus(); },
    onSignedOut(why) {
      if (why === "again") { stop(); setTimeout(() => session.signedIn && signedInAgain(), 2000); } else signedOut("The session has ended. Sign in again to go on.");
    },
  });
  drawWho();
  drawStatus();
  open();
}

function signedInAgain() {
  const kept = view;
  signedIn();
  if (kept) kept.ready = true;
}

function signedOut(reason = "") {
  if (stop) stop();
  stop = null;
  view = null;
  session.signedIn = false;
  state.summary = null;
  state.lost = false;
  $("dialog").close();
  document.title = "Sign in · gpu-autopilot";
  main.removeAttribute("aria-busy");
  drawWho();
  drawViews();
  drawStatus();
  show(main);
  drawSignIn(main, { reason, done: () => { say("Signed in"); signedIn(); } });
}

function theme() {
  const choice = $("theme");
  choice.value = document.documentElement.dataset.theme || "system";
  choice.addEventListener("change", () => {
    if (choice.value === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = choice.value;
    try { localStorage.setItem("gpu-autopilot-theme", choice.value); } catch { /* kept for this page only */ }
    if (view && view.ready) { view.recolour?.(); view.draw(main); }
  });
}

document.addEventListener("click", async (event) => {
  const pressed = event.target.closest("[data-do]");
  if (!pressed || pressed.closest("dialog")) return;
  if (pressed.dataset.do === "sign-out") { try { await signOut(); } finally { signedOut(); } return; }
  if (pressed.dataset.do === "retry") { refresh(); return; }
  if (view && view.act && (await view.act(pressed)) && view) { drawnAt = 0; refresh(); }
});
main.addEventListener("toggle", (event) => view && view.toggled && view.toggled(event.target, main), true);
main.addEventListener("input", (event) => { if (view && view.input) view.input(event.target, main, refresh); });
addEventListener("hashchange", () => session.signedIn && open());
document.addEventListener("visibilitychange", () => { if (!document.hidden) later(); });
setInterval(() => {
  drawStatus();
  if (view && view.ready && !busy && !document.hidden && (view.ages || stale())) view.draw(main); // ages that it shows grow
}, 1000);
whenSignedOut(() => signedOut("The session has ended. Sign in again to go on."));
theme();
async function start() {
  try { if (await restore()) signedIn(); else signedOut(); } catch (error) {
    show(main, h("section", { class: "card" }, h("h1", null, "The service does not answer"), h("p", null, `${error.message}. Trying again.`)));
    setTimeout(start, 2000);
  }
}
start();
