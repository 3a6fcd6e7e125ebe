// Numbers, durations and times in words. Unknown is "–", never 0.
export const UNKNOWN = "–";
const known = (value) => typeof value === "number" && Number.isFinite(value);

export function number(value, digits = 1) {
  if (!known(value)) return UNKNOWN;
  const shown = Math.abs(value) >= 1000 ? 0 : digits;
  return value.toLocaleString("en", { maximumFractionDigits: shown });
}

export const gpus = (value) => number(value, 1);

export function percent(ratio, digits = 0) {
  return known(ratio) ? `${(100 * ratio).toFixed(digits)} %` : UNKNOWN;
}

export function duration(seconds) {
  if (!known(seconds)) return UNKNOWN;
  const s = Math.abs(seconds);
  const sign = seconds < 0 ? "-" : "";
  if (s < 10) return `${sign}${s.toFixed(s < 1 ? 2 : 1)} s`;
  if (s < 60) return `${sign}${Math.round(s)} s`;
  if (s < 3600) return sign + pair(Math.floor(s / 60), "min", Math.floor(s % 60), "s");
  if (s < 86400) return sign + pair(Math.floor(s / 3600), "h", Math.floor((s % 3600) / 60), "min");
  return sign + pair(Math.floor(s / 86400), "d", Math.floor((s % 86400) / 3600), "h");
}

const pair = (large, unit, small, below) => (small ? `${large} ${unit} ${small} ${below}` : `${large} ${unit}`);

// A time to come, seen from `now`.
export function ahead(at, now) {
  if (!known(at)) return UNKNOWN;
  return at > now ? `in ${duration(at - now)}` : "now";
}

export function age(seconds) {
  if (!known(seconds)) return UNKNOWN;
  return seconds < 60 ? `${Math.floor(seconds)} s` : duration(seconds);
}

export function counted(count, one, many = `${one}s`) {
  return `${number(count, 0)} ${count === 1 ? one : many}`;
}

// `start` is the start of the run since 1970: times of the cluster count from it.
export const clock = {
  start: null,
  at(seconds) {
    if (!known(seconds)) return UNKNOWN;
    if (!known(this.start)) return `${duration(seconds)} after the start`;
    return new Date((this.start + seconds) * 1000).toISOString().replace("T", " ").slice(0, 19) + " UTC";
  },
  // for tables: without a date the time since the start alone
  short(seconds) { return known(this.start) ? this.at(seconds) : duration(seconds); },
};

const NAMES = { needs_approval: "waiting for approval" };
export const words = (name) => NAMES[name] || String(name).replaceAll("_", " ");

export const sentence = (text) => (text ? `${text[0].toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}` : "");
