// What every part of the page uses: elements, numbers in words, the embedded data, the selection.

const byId = (id) => document.getElementById(id);

/** An element; text children become text nodes, so no string of the program is ever read as markup. */
function el(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") element.className = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

/** An SVG element. */
function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

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
  const { file, line, column, end_line: endLine, end_column: endColumn, function: func, cell, lines } = site;
  const place = cell ? `Cell ${cell}, line ${line}` : `${file.split(/[\\/]/).pop()}:${line}`;
  return {
    file: shortFile(file),
    line,
    column,
    endLine,
    endColumn,
    func,
    lines,
    text: lines.find(([at]) => at === line)?.[1] ?? "",
    place,
    where: cell ? place : `${shortFile(file)}:${line}:${column}`,
  };
}

function callOf(row, index) {
  const call = { ...row, row: index, site: siteOf(row.location) };
  call.title = call.count > 1 ? `Calls ${count(call.number)}–${count(call.last_number)}` : `Call ${count(call.number)}`;
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

/** Symbol and word of a state: never colour alone. */
function stateTag(state) {
  const { symbol, word, meaning } = look(state);
  return el(
    "span",
    { class: `state state-${state}`, title: meaning },
    el("i", { "aria-hidden": "true" }, symbol),
    word,
  );
}

function siteLink(site) {
  return el("span", { class: "place", title: `${site.where} in ${site.func}` }, site.place);
}

/** One line of source, the concerned columns marked. */
function markedLine(text, site) {
  const last = site.endLine > site.line || site.endColumn <= site.column ? text.trimEnd().length : site.endColumn - 1;
  const letters = [...text];
  const from = Math.min(site.column - 1, letters.length);
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

/** The lines around a site; without source the place alone. */
function snippet(site) {
  const head = el("figcaption", {}, el("b", {}, site.where), ` in ${site.func}`);
  const indent = indentOf(site.lines.map(([, text]) => text));
  const rows = site.lines.map(([number, text]) => {
    const here = number === site.line;
    const shown = { ...site, column: site.column - indent, endColumn: site.endColumn - indent };
    const code = text.slice(indent);
    return el(
      "span",
      { class: here ? "row here" : "row" },
      el("i", {}, String(number)),
      el("code", {}, here ? markedLine(code, shown) : code),
    );
  });
  return el("figure", { class: "snippet" }, head, rows.length ? el("pre", { tabindex: "0" }, rows) : "");
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
