// Elements from data, and updates that leave alone what the reader is doing.
//
// `morph` changes a live tree into a fresh one in place: open details, focus, scroll positions and form input stay,
// because the elements stay. Siblings with `data-key` are matched by it. An element with `data-keep` belongs to the
// module that made it (a chart) and is not touched. Text that is selected is not replaced until the selection ends.
// Every string becomes a text node or an attribute, never markup.

export function h(tag, props, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props || {})) {
    if (value === null || value === undefined || value === false) continue;
    element.setAttribute(name, value === true ? "" : String(value));
  }
  add(element, children);
  return element;
}

function add(element, children) {
  for (const child of children) {
    if (Array.isArray(child)) add(element, child);
    else if (child instanceof Node) element.append(child);
    else if (child !== null && child !== undefined && child !== false) element.append(String(child));
  }
}

export function show(container, ...children) {
  const fresh = container.cloneNode(false);
  add(fresh, children);
  const focused = document.activeElement;
  const selection = document.getSelection();
  const frozen = selection && !selection.isCollapsed && container.contains(selection.anchorNode) ? selection : null;
  morphChildren(container, fresh, frozen);
  if (focused && focused !== document.activeElement && focused.isConnected) focused.focus({ preventScroll: true });
}

const keyOf = (node) => (node.nodeType === Node.ELEMENT_NODE ? node.getAttribute("data-key") : null);
const alike = (one, other) => one.nodeType === other.nodeType && one.nodeName === other.nodeName;
const selected = (frozen, node) => frozen !== null && frozen.containsNode(node, true);

function morph(live, fresh, frozen) {
  if (live.nodeType === Node.TEXT_NODE) {
    if (live.data !== fresh.data && !selected(frozen, live)) live.data = fresh.data;
    return;
  }
  if (live.hasAttribute("data-keep")) return;
  const stays = live.nodeName === "DETAILS" ? "open" : null; // the reader opens and closes it
  for (const { name, value } of fresh.attributes) if (live.getAttribute(name) !== value) live.setAttribute(name, value);
  for (const { name } of [...live.attributes]) if (!fresh.hasAttribute(name) && name !== stays) live.removeAttribute(name);
  morphChildren(live, fresh, frozen);
}

function morphChildren(live, fresh, frozen) {
  const wanted = new Set([...fresh.childNodes].map(keyOf));
  const known = new Map();
  for (const child of [...live.childNodes]) {
    const key = keyOf(child);
    if (key === null) continue;
    if (wanted.has(key)) known.set(key, child);
    else if (!selected(frozen, child)) child.remove();
  }
  let at = live.firstChild;
  for (const child of [...fresh.childNodes]) {
    const key = keyOf(child);
    let match = key === null ? at : known.get(key) || null;
    if (key === null && match && (keyOf(match) !== null || !alike(match, child))) match = null;
    if (match && !alike(match, child)) { match.remove(); match = null; }
    if (match === null) { live.insertBefore(child, at && at.parentNode === live ? at : null); continue; }
    if (match === at) at = at.nextSibling;
    else live.insertBefore(match, at);
    morph(match, child, frozen);
  }
  while (at) {
    const next = at.nextSibling;
    if (!selected(frozen, at)) at.remove();
    at = next;
  }
}

// A table with a caption, in a box that scrolls by itself. `columns`: {head, unit?, cell(row), kind?: "number"|"words", sort?}.
export function table({ caption, columns, rows, key, note, name }) {
  const head = columns.map((column) =>
    h("th", { scope: "col", class: column.kind || null }, column.head, column.unit ? h("small", null, column.unit) : null));
  const body = rows.map((row) =>
    h("tr", { "data-key": key(row) }, columns.map((column, place) =>
      h(place ? "td" : "th", { class: column.kind || null, scope: place ? null : "row", "data-head": place ? [column.head, column.unit].filter(Boolean).join(", ") : null }, column.cell(row)))));
  return h("div", { class: "box", tabindex: "0", role: "region", "aria-label": caption, "data-key": `table-${name || caption}` },
    h("table", null, h("caption", null, caption, note ? h("small", null, note) : null),
      h("thead", null, h("tr", null, head)), h("tbody", null, body)));
}

export function fact(name, value, { unit, note, tone, id } = {}) {
  return h("div", { class: `fact${tone ? ` ${tone}` : ""}`, "data-key": `fact-${name}`, id },
    h("dt", null, name), h("dd", null, h("span", { class: "value" }, value), unit ? h("span", { class: "unit" }, ` ${unit}`) : null,
      note ? h("small", null, note) : null));
}
