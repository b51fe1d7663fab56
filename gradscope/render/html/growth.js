// Draws what grows, stacked by holder or by module, and tells what came between two marked steps.

const growth = { kind: "holder", from: 0, to: 0, steps: [], trends: [] };
const GROWTH_TONES = ["live", "retained", "warning", "freed", "stale", "error"];
const GROWTH_HEIGHT = 150;

const growthTone = (place) => GROWTH_TONES[place % GROWTH_TONES.length];

/** The parts of one look at a holder; modules stand for all that was saved, as hooks saw not all of it. */
function growthParts({ holder }, look, before) {
  if (growth.kind === "holder") return { [holder]: look.saved + look.outputs + look.nodes };
  const named = (modules) => Object.values(modules).reduce((sum, size) => sum + size, 0);
  const modules = named(look.modules) ? look.modules : before;
  const parts = { "(outputs)": look.outputs, "(nodes)": look.nodes };
  for (const [name, size] of Object.entries(modules)) parts[name || NO_MODULE] = (size * look.saved) / named(modules);
  return parts;
}

/** The bytes of each part at each step, in between two looks in proportion; the largest at the end first. */
function growthLayers() {
  const layers = new Map();
  for (const trend of growth.trends) {
    let modules = {};
    const looks = trend.looks.map((look) => {
      const parts = growthParts(trend, look, modules);
      if (Object.keys(look.modules).length) ({ modules } = look);
      return { step: look.iterations, parts };
    });
    for (const name of new Set(looks.flatMap(({ parts }) => Object.keys(parts)))) {
      if (!layers.has(name)) layers.set(name, { name, trend, sizes: growth.steps.map(() => 0) });
      growth.steps.forEach((step, i) => {
        const after = Math.max(1, looks.findIndex((look) => look.step >= step));
        const [first, last] = step > looks.at(-1).step ? [looks.at(-1), looks.at(-1)] : [looks[after - 1], looks[after] ?? looks[after - 1]];
        const part = last.step > first.step ? (step - first.step) / (last.step - first.step) : 0;
        const [low, high] = [first.parts[name] ?? 0, last.parts[name] ?? 0];
        layers.get(name).sizes[i] += step < first.step ? 0 : low + (high - low) * part;
      });
    }
  }
  return [...layers.values()].filter(({ sizes }) => sizes.at(-1)).sort((a, b) => b.sizes.at(-1) - a.sizes.at(-1));
}

function showGrowth() {
  const layers = growthLayers();
  const picture = byId("growth-picture");
  const width = Math.max(300, picture.clientWidth);
  const [first, last] = [growth.steps[0], growth.steps.at(-1)];
  const sums = growth.steps.map((_, i) => layers.reduce((sum, { sizes }) => sum + sizes[i], 0));
  const x = (at) => MARGIN.left + ((at - first) / (last - first || 1)) * (width - MARGIN.left - MARGIN.right);
  const { y, grid } = sizeScale(Math.max(1024, ...sums), GROWTH_HEIGHT, width);
  const marks = [growth.from, growth.to].map((i) => {
    const at = x(growth.steps[i]);
    return svg("line", { class: "peak", x1: at, x2: at, y1: MARGIN.top, y2: MARGIN.top + GROWTH_HEIGHT });
  });
  const below = growth.steps.map(() => 0);
  const areas = layers.map((layer, i) => {
    const low = [...below];
    layer.sizes.forEach((size, at) => (below[at] += size));
    const points = (sizes) => sizes.map((size, at) => `${x(growth.steps[at]).toFixed(1)},${y(size).toFixed(1)}`);
    const held = `${bytes(layer.sizes.at(-1))} at step ${count(last)}`;
    const hint = (event) => tip.show(event.clientX, event.clientY, el("b", {}, layer.name), el("div", {}, held));
    const d = `M${[...points(below), ...points(low).reverse()].join("L")}Z`;
    const onclick = () => openFinding(layer.trend.index);
    const path = svg("path", { class: "growth", d, onclick, onpointermove: hint, onpointerleave: tip.hide });
    path.style.fill = `var(--${growthTone(i)}-fill)`;
    path.style.stroke = `var(--${growthTone(i)}-ink)`;
    const [bottom, top] = [y(low.at(-1)), y(below.at(-1))];
    // Its name in it: colour alone does not tell layers apart.
    return bottom - top < 14 ? [path] : [path, label(x(last) - 8, (bottom + top) / 2 + 4, layer.name, "end", "growth-name")];
  });
  const foot = MARGIN.top + GROWTH_HEIGHT + 16;
  const ends = [label(x(first), foot, `step ${count(first)}`, "start"), label(x(last), foot, `step ${count(last)}`, "end")];
  const size = { width, height: foot + 6, viewBox: `0 0 ${width} ${foot + 6}`, role: "img" };
  picture.replaceChildren(svg("svg", { ...size, "aria-label": "What grows, stacked; the table has the same" }, ...grid, ...areas.flat(), ...marks, ...ends));
  showGrowthTable(layers);
}

function showGrowthTable(layers) {
  const [from, to] = [growth.from, growth.to].sort((a, b) => a - b);
  const steps = growth.steps[to] - growth.steps[from];
  const came = ({ sizes }) => sizes[to] - sizes[from];
  const mark = (layer) => {
    const box = el("i", { class: "swatch", "aria-hidden": "true" });
    box.style.background = `var(--${growthTone(layers.indexOf(layer))}-ink)`;
    return box;
  };
  const columns = [
    [growth.kind === "holder" ? "Holder" : "Module", (layer) => [mark(layer), el("code", {}, layer.name)]],
    [`At step ${count(growth.steps[from])}`, ({ sizes }) => bytes(sizes[from]), true],
    [`At step ${count(growth.steps[to])}`, ({ sizes }) => bytes(sizes[to]), true],
    ["Came between", (layer) => bytes(came(layer)), true],
    ["Each step", (layer) => (steps ? bytes(came(layer) / steps) : "—"), true],
    ["Line", ({ trend }) => siteCell(trend.site)],
    ["Finding", ({ trend }) => linkButton(trend.code, () => openFinding(trend.index))],
  ].slice(0, growth.kind === "holder" ? 7 : 5);
  byId("growth-table").replaceChildren(...dataTable("What came between the two marks", columns, layers));
}

function startGrowth() {
  growth.trends = page.data.findings
    .map(({ code, trend, location }, index) => ({ ...trend, code, index, site: siteOf(location) }))
    .filter(({ looks, index }) => looks?.length > 1 && !page.data.findings[index].suppression);
  byId("growth-card").hidden = !growth.trends.length;
  if (!growth.trends.length) return;
  const steps = growth.trends.flatMap(({ looks }) => looks.map(({ iterations }) => iterations));
  growth.steps = [...new Set(steps)].sort((a, b) => a - b);
  growth.to = growth.steps.length - 1;
  byId("growth-note").textContent = page.data.growing;
  const kinds = ["holder", "module"].map((kind) => [kind, `By ${kind}`]);
  segmented(byId("growth-kind"), kinds, growth.kind, (kind) => {
    growth.kind = kind;
    showGrowth();
  });
  for (const end of ["from", "to"]) {
    const range = el("input", { type: "range", min: 0, max: growth.steps.length - 1, value: growth[end], "aria-label": `Mark ${end}` });
    range.addEventListener("input", () => {
      growth[end] = Number(range.value);
      showGrowth();
    });
    byId("growth-marks").append(el("label", {}, end, range));
  }
  showGrowth();
  new ResizeObserver(showGrowth).observe(byId("growth-card"));
}
