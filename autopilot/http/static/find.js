// The field that filters a view.
import { h } from "./dom.js";

export const finder = (label, ...more) => h("div", { class: "find", "data-key": "find", role: "search" },
  h("label", { for: "find" }, label, h("input", { id: "find", type: "search", autocomplete: "off", spellcheck: "false" })), more);

export const matches = (find, ...texts) => !find || texts.some((text) => String(text ?? "").toLowerCase().includes(find.toLowerCase()));
