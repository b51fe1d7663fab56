// Draws what the largest graph saved as a flame graph: each part as wide as its bytes.

const flames = { kind: "module", trees: {}, zoomed: null, focus: null };
const FLAME_ROW = 26;
const NARROWEST = 0.0015; // of the width: what is less is reached by zooming

const NO_MODULE = "(no module)";
const NO_LINE = "(unknown line)";

/** What was saved, each storage with its module, its line and those of libraries, and its operation. */
const savedStorages = () =>
  page.data.flames.saved.map(([module, moduleClass, numbers, operation, size, alone]) => {
    const lines = numbers.map((number) => {
      const site = siteOf(number);
      return site
        ? { kind: "line", name: site.function, place: site.place, at: `${site.file}:${site.line}`, text: site.text.trim() }
        : { kind: "line", name: NO_LINE, place: "", at: "", text: "" };
    });
    const parts = module ? module.split(".") : [NO_MODULE];
    const names = parts.map((_, index) => parts.slice(0, index + 1).join("."));
    return {
      size,
      alone,
      names: { module: `${module} ${moduleClass}`.trim() || NO_MODULE, line: lines[0].place || NO_LINE, operation },
      modules: names.map((name) => ({ kind: "module", name })),
      lines,
      operation: { kind: "operation", name: operation },
    };
  });

/** The steps to a saved storage, the outermost first, in each kind of tree. */
const FLAME_STEPS = {
  module: ({ modules, operation }) => [...modules, operation],
  line: ({ lines, operation }) => [...lines, operation],
  operation: ({ lines, operation }) => [operation, ...lines],
};

/** All that was saved as a tree: each part knows its depth, what it is a part of, and where it begins. */
function flameTree(kind) {
  const made = (step, above) => ({ ...step, above, depth: above ? above.depth + 1 : 0, size: 0, alone: 0, parts: new Map() });
  const root = made({ kind, name: "everything" }, null);
  for (const one of savedStorages()) {
    let branch = root;
    for (const step of [null, ...FLAME_STEPS[kind](one)]) {
      if (step) {
        const key = [step.kind, step.name, step.at].join("\0");
        if (!branch.parts.has(key)) branch.parts.set(key, made(step, branch));
        branch = branch.parts.get(key);
      }
      branch.size += one.size;
      branch.alone += one.alone;
    }
  }
  const settle = (branch, start) => {
    branch.start = start;
    const bySize = ([key, part], [other, rest]) => rest.size - part.size || (key < other ? -1 : 1);
    branch.parts = [...branch.parts].sort(bySize).map(([, part]) => part);
    for (const part of branch.parts) {
      settle(part, start);
      start += part.size;
    }
  };
  settle(root, 0);
  return root;
}

/** The rows of a table, the most first: a name, its bytes, and those that the graph alone held. */
function flameRows(kind) {
  const rows = new Map();
  for (const { names, size, alone } of savedStorages()) {
    const [, sum, own] = rows.get(names[kind]) ?? [null, 0, 0];
    rows.set(names[kind], [names[kind], sum + size, own + alone]);
  }
  return [...rows.values()].sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1));
}

const share = (size) => {
  const percent = (100 * size) / page.data.flames.nbytes;
  return percent > 0 && percent < 1 ? "<1%" : `${Math.round(percent)}%`;
};

/** What a part is called: in full, and as short as can be. */
function flameNames(branch) {
  if (!branch.above) return ["all that the graph saved", "all"];
  if (branch.kind === "line") return [branch.place ? `${branch.place} ${branch.name}` : branch.name, branch.place];
  if (branch.kind === "operation") return [branch.name, branch.name.replace(/Backward\d*$/, "")];
  const [, kind] = page.data.flames.saved.find(([module]) => module === branch.name) ?? [];
  return [kind ? `${branch.name} ${kind}` : branch.name, branch.name.split(".").pop()];
}

function flameFacts(branch) {
  const facts = [`${bytes(branch.size)}, ${share(branch.size)} of the graph`];
  if (page.data.flames.alone !== null)
    facts.push(
      branch.alone === branch.size
        ? "held by the graph alone"
        : `${bytes(branch.alone)} held by the graph alone, the rest by something else too`,
    );
  return facts;
}

/** The parts that show: those above what is zoomed to, itself, and all below it, by rows. */
function shownFlames() {
  const shown = [];
  for (let above = flames.zoomed.above; above; above = above.above) shown.unshift(above);
  const add = (branch) => {
    if (branch.size < NARROWEST * flames.zoomed.size) return;
    shown.push(branch);
    branch.parts.forEach(add);
  };
  add(flames.zoomed);
  return shown;
}

function showFlames() {
  const { zoomed } = flames;
  const picture = byId("flames");
  const shown = shownFlames();
  const rows = 1 + Math.max(...shown.map((branch) => branch.depth));
  flames.parts = new Map(shown.map((branch) => [branch, flameButton(branch, zoomed)]));
  picture.style.height = `${rows * FLAME_ROW}px`;
  picture.replaceChildren(...flames.parts.values());
  fitFlames();
  findFlames();
  setFlameFocus(shown.includes(flames.focus) ? flames.focus : zoomed, false);
  byId("flames-out").disabled = !zoomed.above;
}

function flameButton(branch, zoomed) {
  const above = branch.depth < zoomed.depth;
  const from = above ? 0 : (branch.start - zoomed.start) / zoomed.size;
  const width = above ? 1 : branch.size / zoomed.size;
  const hint = (x, y) => {
    const names = el("div", {}, el("b", {}, flameNames(branch)[0]));
    const text = branch.text ? el("div", {}, el("code", {}, branch.text)) : "";
    const facts = flameFacts(branch).map((fact) => el("div", { class: "muted" }, fact));
    tip.show(x, y, names, text, ...facts);
  };
  const part = button(el("span"), () => zoomFlame(branch), {
    class: `flame flame-${branch.above ? branch.kind : "all"}${above ? " above" : ""}`,
    tabindex: "-1",
    "aria-label": [flameNames(branch)[0], branch.text, ...flameFacts(branch)].filter(Boolean).join(", "),
    onpointermove: (event) => hint(event.clientX, event.clientY),
    onpointerleave: tip.hide,
    onfocus: () => {
      setFlameFocus(branch, false);
      if (!part.matches(":focus-visible")) return;
      const box = part.getBoundingClientRect();
      hint(box.left, box.bottom - 10);
    },
    onblur: tip.hide,
  });
  Object.assign(part.style, {
    left: `${100 * from}%`,
    width: `calc(${100 * width}% - 1px)`,
    top: `${branch.depth * FLAME_ROW}px`,
  });
  if (page.data.flames.alone !== null) {
    const alone = el("i", { "aria-hidden": "true" });
    alone.style.width = `${(100 * branch.alone) / branch.size}%`;
    part.append(alone);
  }
  return part;
}

/** Mark the parts whose name or line has what is searched for, and say what they hold together. */
function findFlames() {
  const words = byId("flames-search").value.trim().toLowerCase();
  const isFound = (branch) =>
    words && [...flameNames(branch), branch.text ?? ""].some((text) => text.toLowerCase().includes(words));
  const held = (branch) =>
    isFound(branch) ? branch.size : branch.parts.reduce((sum, part) => sum + held(part), 0);
  for (const [branch, part] of flames.parts) part.classList.toggle("faint", Boolean(words) && !isFound(branch));
  const size = words ? held(flames.trees[flames.kind]) : 0;
  byId("flames-found").textContent = words ? `${bytes(size)}, ${share(size)}` : "";
}

/** Write into each part the longest name that its room allows. */
function fitFlames() {
  for (const [branch, part] of flames.parts) {
    const letters = (part.clientWidth - 10) / 7;
    const [full, short] = flameNames(branch);
    const words = [`${full}  ${bytes(branch.size)}`, full, branch.name, short].find((text) => text.length <= letters);
    part.firstChild.textContent = words ?? (letters >= 3 ? short : "");
  }
}

function zoomFlame(branch) {
  flames.zoomed = branch;
  flames.focus = branch;
  tip.hide();
  showFlames();
  setFlameFocus(branch, true);
  announce(`${flameNames(branch)[0]}, ${flameFacts(branch).join(", ")}`);
}

/** Keep one part in the order of the tab key, as a toolbar does. */
function setFlameFocus(branch, move) {
  flames.focus = branch;
  for (const [other, part] of flames.parts) part.tabIndex = other === branch ? 0 : -1;
  if (move) flames.parts.get(branch).focus({ preventScroll: true });
}

function flameKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const at = flames.focus;
  const shown = [...flames.parts.keys()];
  const shows = (branch) => flames.parts.has(branch);
  const row = shown.filter((branch) => branch.depth === at.depth);
  const steps = {
    ArrowUp: () => at.above,
    ArrowDown: () => at.parts.find(shows) ?? (at.depth < flames.zoomed.depth ? shown[at.depth + 1] : null),
    ArrowLeft: () => row[row.indexOf(at) - 1],
    ArrowRight: () => row[row.indexOf(at) + 1],
  };
  if (steps[event.key]) {
    const next = steps[event.key]();
    if (next) setFlameFocus(next, true);
  } else if (event.key === "Escape" && flames.zoomed.above) zoomFlame(flames.zoomed.above);
  else return;
  event.preventDefault();
}

function chooseFlames(kind) {
  flames.kind = kind;
  flames.zoomed = flames.trees[kind] ??= flameTree(kind);
  flames.focus = flames.zoomed;
  showFlames();
  if (!byId("flames-table").hidden) showFlamesTable();
}

function showFlamesTable() {
  const { alone } = page.data.flames;
  byId("flames-table").replaceChildren(
    ...dataTable(
      `What the largest graph saved, by ${flames.kind}`,
      [
        [flames.kind[0].toUpperCase() + flames.kind.slice(1), ([name]) => el("code", {}, name)],
        ["Saved", ([, size]) => bytes(size), true],
        ["Share", ([, size]) => share(size), true],
        ...(alone === null ? [] : [["By the graph alone", ([, , own]) => bytes(own), true]]),
      ],
      flameRows(flames.kind),
    ),
  );
}

function startFlames() {
  const { flames: data } = page.data;
  byId("flames-card").hidden = !data;
  if (!data) return;
  const calls = data.last > data.call ? `calls ${count(data.call)}–${count(data.last)}` : `call ${count(data.call)}`;
  const of = data.process ? ` of ${data.process}` : "";
  const others = data.alone === null ? 0 : data.nbytes - data.alone;
  const shared = others ? `, ${bytes(others)} of it held by something else too` : "";
  byId("flames-note").textContent = `${bytes(data.nbytes)} saved, backward ${calls}${of}${shared}`;
  const kinds = Object.keys(FLAME_STEPS).map((kind) => [kind, `By ${kind}`]);
  segmented(byId("flames-kind"), kinds, flames.kind, chooseFlames);
  byId("flames-out").addEventListener("click", () => zoomFlame(flames.zoomed.above));
  byId("flames").addEventListener("keydown", flameKey);
  byId("flames-search").addEventListener("input", findFlames);
  if (data.alone === null) byId("flames-legend").hidden = true;
  chooseFlames(flames.kind);
  tableToggle(byId("flames-toggle"), byId("flames-table"), showFlamesTable);
  new ResizeObserver(fitFlames).observe(byId("flames"));
}
