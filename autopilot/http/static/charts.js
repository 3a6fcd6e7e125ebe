// Charts by uPlot. A chart belongs to this module (`data-keep`) and is updated in place. Legend and table are ours: text
// only, and readable without the picture.
import { h } from "./dom.js";
import { clock } from "./format.js";

const drawn = new Map(); // id -> {plot, place, lines, sized}
// hours and minutes since the start of a run whose date is not known
const sinceStart = (seconds) => `${Math.floor(seconds / 3600)}:${String(Math.floor((seconds % 3600) / 60)).padStart(2, "0")}`;
const DAY = "\n{YYYY}-{MM}-{DD}";
const TIMES = [[3600, "{HH}:{mm}"], [60, "{HH}:{mm}"], [1, "{HH}:{mm}:{ss}"]]
  .map(([step, words]) => [step, words, DAY, null, DAY, null, null, null, 1]);

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// The place of a chart in a view; `plot` fills it.
export const holder = (id, label) => h("div", { class: "chart", id, "data-key": id, "data-keep": true, role: "img", "aria-label": label });

// `lines`: {label, colour: "--s1", values, fill?, dash?, width?}; `bands`: [upper place, lower place, colour].
export function plot(id, { times, lines, bands = [], unit, height = 260, top }) {
  const uPlot = globalThis.uPlot;
  const place = document.getElementById(id);
  if (!place || !uPlot) return;
  const data = [times, ...lines.map((line) => line.values)];
  const known = drawn.get(id);
  if (known && known.place === place && known.lines === lines.length) { known.plot.setData(data); return; }
  known?.plot.destroy();
  const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--grid"), width: 1 }, ticks: { stroke: colour("--grid"), width: 1 }, font: "12px system-ui, sans-serif" };
  const made = new uPlot({
    width: Math.max(place.clientWidth, 200), height, legend: { show: false }, cursor: { drag: { x: false, y: false } },
    tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
    scales: { x: { time: true }, y: { range: (_, low, high) => [0, Math.max(top || 0, high || 0, 1) * 1.05] } },
    axes: [{ ...axis, values: clock.start === null ? (_, splits) => splits.map(sinceStart) : TIMES },
      { ...axis, label: unit, labelSize: 20, labelFont: "12px system-ui, sans-serif", size: 56 }],
    series: [{}, ...lines.map((line) => ({ label: line.label, stroke: colour(line.colour), width: line.width ?? 2, dash: line.dash,
      fill: line.fill ? `${colour(line.colour)}${line.fill}` : undefined, points: { show: false }, spanGaps: false }))],
    bands: bands.map(([above, below, name]) => ({ series: [above + 1, below + 1], fill: `${colour(name)}33` })),
  }, data, place);
  const sized = new ResizeObserver(() => place.clientWidth && made.setSize({ width: place.clientWidth, height }));
  sized.observe(place);
  drawn.set(id, { plot: made, place, lines: lines.length, sized });
}

export function forget() {
  for (const { plot: made, sized } of drawn.values()) { sized.disconnect(); made.destroy(); }
  drawn.clear();
}

export const legend = (lines) => h("ul", { class: "legend" }, lines.map((line) =>
  h("li", { "data-key": line.label }, h("span", { class: `swatch ${line.colour.slice(2)}${line.dash ? " dashed" : ""}`, "aria-hidden": "true" }), line.label)));
