// What every part of the page uses: elements, numbers in words, the embedded data, the selection.

const byId = (id) => document.getElementById(id);

/** An element filled; text children become text nodes, so no string of the program is ever read as markup. */
function filled(element, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

const el = (tag, properties = {}, ...children) => filled(document.createElement(tag), properties, children);

const SVG = "http://www.w3.org/2000/svg";
const svg = (tag, properties = {}, ...children) => filled(document.createElementNS(SVG, tag), properties, children);

const digits = new Intl.NumberFormat("en-US");
const count = (number) => digits.format(number);
const counted = (number, noun, plural = noun + "s") => `${count(number)} ${number === 1 ? noun : plural}`;

function bytes(number) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  let size = number;
  while (unit < 4 && Math.round(size * 10) / 10 >= 1024) {
    size /= 1024;
    unit += 1;
  }
  return `${digits.format(Math.round(size * 10) / 10)} ${units[unit]}`;
}

function seconds(duration) {
  if (duration === 0) return "0 s";
  if (Math.round(duration * 1e6) < 1000) return `${Math.round(duration * 1e6)} µs`;
  if (duration < 1) return `${Number((duration * 1e3).toPrecision(3))} ms`;
  if (duration < 59.95) return `${Number(duration.toPrecision(3))} s`;
  const minutes = Math.floor(Math.round(duration) / 60);
  if (minutes < 60) return `${minutes} min ${Math.round(duration) % 60} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

const button = (text, onclick, more = {}) => el("button", { type: "button", onclick, ...more }, text);
const linkButton = (text, onclick) => button(text, onclick, { class: "link" });

/** Fill a box with buttons of which one is pressed; `choices` are [value, text, title]. */
function segmented(box, choices, chosen, choose) {
  const press = (value) =>
    choices.forEach(([each], index) => box.children[index].setAttribute("aria-pressed", String(each === value)));
  box.append(...choices.map(([value, text, title]) => button(text, () => (press(value), choose(value)), { title })));
  press(chosen);
}

const MOST_ITEMS = 12;

/** The first of many items as a list, and how many more there are. */
function shortList(items, itemOf, kind = "plain") {
  const more = items.length - MOST_ITEMS;
  return el(
    "ul",
    { class: kind },
    [...items].slice(0, MOST_ITEMS).map((item) => el("li", {}, itemOf(item))),
    more > 0 ? el("li", { class: "muted" }, `and ${count(more)} more`) : "",
  );
}

/** Names with values; a pair without a value is left out, and each stands in a box of its own in a `wide` list. */
function facts(pairs, wide = false) {
  const told = pairs.filter((pair) => pair && pair[1] !== null && pair[1] !== "");
  const items = told.map(([name, ...value]) => [el("dt", {}, name), el("dd", {}, ...value)]);
  if (wide) return el("dl", { class: "facts wide" }, items.map((item) => el("div", {}, item)));
  return el("dl", { class: "facts" }, items.flat());
}

/** Where the pointer is within an element. */
function pointIn(element, event) {
  const box = element.getBoundingClientRect();
  return [event.clientX - box.left, event.clientY - box.top];
}

/** A sentence in which what stands between backticks is code. */
const prose = (text) => text.split("`").map((part, index) => (index % 2 ? el("code", {}, part) : part));

/** The data block `id`, parsed: JSON, deflated and in base64. */
async function readData(id) {
  const block = byId(id);
  if (!block) return null;
  const packed = Uint8Array.from(atob(block.textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

/** A file's name without the program's own folder. */
const shortFile = (file) => (file.startsWith(page.folder) ? file.slice(page.folder.length) : file);

/** A site of this number as a record; null for -1. */
function siteOf(number, sites = page.data.sites) {
  const site = sites[number];
  if (!site) return null;
  const { line, column, cell, lines } = site;
  const file = shortFile(site.file);
  const place = cell ? `Cell ${cell}, line ${line}` : `${file.split(/[\\/]/).pop()}:${line}`;
  const text = lines.find(([at]) => at === line)?.[1] ?? "";
  return { ...site, file, text, place, where: cell ? place : `${file}:${line}:${column}` };
}

function callOf(row, index) {
  const call = { ...row, row: index, site: siteOf(row.location) };
  call.numbers = call.count > 1 ? `${count(call.number)}–${count(call.last_number)}` : count(call.number);
  call.title = `${call.count > 1 ? "Calls" : "Call"} ${call.numbers}`;
  call.verb = call.kind === "grad" ? "autograd.grad()" : call.kind.includes("(") ? call.kind : `${call.kind}()`;
  return call;
}

/** What is selected, and the listeners that hear of changes. */
const page = {
  data: null,
  theme: null,
  /** The process whose timeline is shown, with its calls and their bars. */
  track: null,
  calls: [],
  bars: [],
  call: null,
  brushed: null,
  /** The program's own folder, left out of file names. */
  folder: "\0",
  listeners: [],
  onChange(listener) {
    this.listeners.push(listener);
  },
  changed(what) {
    for (const listener of this.listeners) listener(what);
  },
  selectTrack(track) {
    if (!track || this.track === track) return;
    if (this.track) announce(`${track.name} selected`);
    this.track = track;
    this.calls = track.calls;
    this.bars = track.bars;
    this.brushed = this.call = null;
    this.changed({ track: true, brush: true });
  },
  selectCall(call, options = {}) {
    this.call = call;
    this.changed({ call: true, ...options });
    if (call) announce(`${call.title} selected, ${call.verb}`);
  },
};

const look = (state) => page.theme.looks[state];
const announce = (text) => {
  byId("announce").textContent = text;
};
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const calm = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

/** Go to a picture, the keyboard with it. */
function scrollTo(id) {
  byId(id).scrollIntoView({ behavior: calm() ? "auto" : "smooth", block: "start" });
  byId(id === "graph" ? "canvas" : "timeline-svg")?.focus({ preventScroll: true });
}

const spoken = (element) => element.getAttribute("aria-label") ?? element.textContent;

/** Put new content into a box: the focus stays on the control of the same name, else on the box. */
function refill(box, ...content) {
  const focused = document.activeElement;
  const held = box !== focused && box.contains(focused);
  box.replaceChildren(...content);
  const alike = (one) => spoken(one) === spoken(focused) && !one.disabled;
  if (held) ([...box.querySelectorAll("button, [tabindex]")].find(alike) ?? box).focus({ preventScroll: true });
}

const chip = (text) => el("code", { class: "chip" }, text);
const icon = (state) => el("i", { "aria-hidden": "true" }, look(state).symbol);
const badge = (state, word) => el("span", { class: `badge state-${state}` }, icon(state), word);

/** Symbol and word of a state: never colour alone. */
function stateTag(state) {
  const { word, meaning } = look(state);
  return el("span", { class: `state state-${state}`, title: meaning }, icon(state), word);
}

function siteLink(site) {
  return el("span", { class: "place", title: `${site.where} in ${site.function}` }, site.place);
}

/** One line of source, the concerned columns marked. */
function markedLine(text, site) {
  const { line, column, end_line: endLine, end_column: end } = site;
  const last = endLine > line || end <= column ? text.trimEnd().length : end - 1;
  const letters = [...text];
  const from = Math.min(column - 1, letters.length);
  const to = Math.max(from, Math.min(last, letters.length));
  return [
    letters.slice(0, from).join(""),
    to > from ? el("mark", {}, letters.slice(from, to).join("")) : "",
    letters.slice(to).join(""),
  ];
}

/** By how much all of these lines are indented. */
function indentOf(lines) {
  return Math.min(...lines.filter((text) => text.trim()).map((text) => text.search(/\S/)));
}

const sourceRow = (number, here, code) =>
  el("span", { class: here ? "row here" : "row" }, el("i", {}, String(number)), el("code", {}, code));

const figure = (head, rows) =>
  el("figure", { class: "snippet" }, el("figcaption", {}, head), rows.length ? el("pre", { tabindex: "0" }, rows) : "");

/** The lines around a site; without source the place alone. */
function snippet(site) {
  const indent = indentOf(site.lines.map(([, text]) => text));
  const shown = { ...site, column: site.column - indent, end_column: site.end_column - indent };
  const rows = site.lines.map(([number, text]) => {
    const [here, code] = [number === site.line, text.slice(indent)];
    return sourceRow(number, here, here ? markedLine(code, shown) : code);
  });
  return figure([el("b", {}, site.where), ` in ${site.function}`], rows);
}

const tip = {
  show(x, y, ...content) {
    const box = byId("tip");
    box.replaceChildren(...content);
    box.hidden = false;
    const { width, height } = box.getBoundingClientRect();
    box.style.left = `${Math.max(8, Math.min(x + 14, innerWidth - width - 8))}px`;
    box.style.top = `${y + height + 24 > innerHeight ? y - height - 12 : y + 16}px`;
  },
  hide() {
    byId("tip").hidden = true;
  },
};
