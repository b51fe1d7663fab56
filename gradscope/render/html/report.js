// Puts the page together: reads the data, starts each part, selects what matters most.

const SHORTCUTS = [
  ["/", "search the graph"],
  ["Enter, Shift+Enter", "in the search: next, previous match"],
  ["← →", "in the timeline: previous, next call; Home, End: first, last; with Shift: select calls"],
  ["← ↑ ↓ →", "in the graph: to a connected or neighbouring node"],
  ["Enter", "open or close a group; from the timeline to the graph"],
  ["← ↑ ↓ →, Enter, Esc", "in the flame graph: to another part, zoom in, zoom out"],
  ["Backspace", "in the graph: to the group around, which Enter closes"],
  ["Shift+arrows", "pan the graph"],
  ["+ − 0", "zoom in, zoom out, fit the graph"],
  ["Esc", "clear the selection, the search, or the brushed calls"],
  ["t", "switch between light and dark"],
  ["?", "this help"],
];

const shownTheme = () => document.documentElement.dataset.theme;

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  byId("theme").textContent = theme === "dark" ? "Light" : "Dark";
  page.changed({ theme: true });
}

function startTheme() {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  let chosen = false;
  const toggle = () => {
    chosen = true;
    setTheme(shownTheme() === "dark" ? "light" : "dark");
  };
  dark.addEventListener("change", () => chosen || setTheme(dark.matches ? "dark" : "light"));
  byId("theme").addEventListener("click", toggle);
  setTheme(dark.matches ? "dark" : "light");
  return toggle;
}

/** Paper cannot be clicked: print the page light, every finding open, the graph whole. */
function startPrinting() {
  let restore = () => {};
  addEventListener("beforeprint", () => {
    const theme = shownTheme();
    const closed = [...document.querySelectorAll(".finding:not([open])")];
    setTheme("light");
    for (const card of closed) {
      card.open = true;
      card.dispatchEvent(new Event("toggle"));
    }
    if (stage.graph) {
      stage.canvas.resize();
      stage.canvas.fit();
      stage.canvas.paint();
    }
    restore = () => {
      setTheme(theme);
      for (const card of closed) card.open = false;
    };
  });
  addEventListener("afterprint", () => restore());
}

function startHelp(toggleTheme) {
  const help = byId("help");
  const shortcut = ([keys, what]) => el("tr", {}, el("th", { scope: "row" }, el("kbd", {}, keys)), el("td", {}, what));
  help.append(
    el("h2", { id: "help-title" }, "Reading this report"),
    el(
      "p",
      {},
      "A backward graph is built by the forward pass. Each node saves the tensors that its derivative needs; a backward call runs the nodes and frees what they saved, unless it retains the graph. The nodes themselves live on until nothing refers to them. What a graph released may still be held by somebody else: the two are shown apart.",
    ),
    el("table", {}, el("tbody", {}, SHORTCUTS.map(shortcut))),
    el("form", { method: "dialog" }, el("button", { class: "primary" }, "Close")),
  );
  byId("help-open").addEventListener("click", () => help.showModal());
  addEventListener("keydown", (event) => {
    if (event.key === "Escape") tip.hide();
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, textarea, select")) return;
    if (event.key === "?") help.open ? help.close() : help.showModal();
    else if (help.open) return;
    else if (event.key === "t") toggleTheme();
    else if (event.key === "/" && stage.graph) {
      byId("search").focus();
      byId("search").select();
    } else return;
    event.preventDefault();
  });
}

function showRun() {
  const { header } = page.data;
  const { end } = page.track;
  const started = header.started && new Date(header.started * 1000).toISOString().slice(0, 16).replace("T", " ");
  const when = [started ? `${started} UTC` : "", end ? `ran ${seconds(end)}` : ""].filter(Boolean).join(", ");
  byId("run").append(
    el("b", { title: header.script }, [header.script.replace(page.folder, ""), ...header.argv].join(" ")),
    el("span", { class: "muted" }, when),
  );
  byId("foot").append(
    `gradscope ${header.gradscope}, torch ${header.torch}, Python ${header.python}${header.hooks ? "" : ", without saved-tensor hooks"}. `,
    "This file is complete: it asks nothing from any network.",
  );
}

/** The call to look at first: that of the worst finding, else the last one with a graph. */
function firstCall() {
  const withGraph = page.calls.filter((call) => page.data.embedded.includes(call.graph));
  return withGraph.at(-1) || page.calls.at(-1) || null;
}

async function start() {
  page.theme = await readData("theme-data");
  page.data = await readData("report-data");
  page.folder = page.data.header.script.match(/^.*[\\/]/)?.[0] ?? "\0";
  for (const track of page.data.tracks) track.calls = track.calls.map(callOf);
  page.selectTrack(page.data.tracks.find(({ calls }) => calls.length) || page.data.tracks[0]);
  const toggleTheme = startTheme();
  showRun();
  showVerdict();
  showFindings();
  showTrains();
  startTimeline();
  startGraph();
  startHelp(toggleTheme);
  startPrinting();
  showMemory();
  // Without calls and graphs the other sections have nothing to show.
  const nothing = !page.calls.length && !Object.keys(page.data.graphs).length;
  for (const id of ["timeline", "graph", "memory"])
    byId(id).hidden = nothing || (id === "timeline" && !page.calls.length);
  for (const link of document.querySelectorAll(".top nav a")) link.hidden = byId(link.hash.slice(1)).hidden;
  if (!nothing) startFlames();
  startGrowth();
  tableToggle(byId("calls-toggle"), byId("calls-table"), showCallsTable);
  tableToggle(byId("nodes-toggle"), byId("nodes-table"), showNodesTable);
  page.onChange((what) => {
    if ((what.brush || what.call) && !byId("calls-table").hidden) showCallsTable();
  });
  const worst = worstFirst()[0]?.finding;
  if (worst && worst.graph !== null && page.data.embedded.includes(worst.graph)) showFindingNodes(worst);
  else page.selectCall(firstCall(), page.calls.length ? {} : { graph: page.data.embedded[0] ?? null });
  document.documentElement.dataset.ready = "yes";
}

start().catch((error) => {
  const text = `This browser could not draw the report (${error}). It needs Chrome 80, Firefox 113, Safari 16.4 or newer; gradscope report prints the same findings as text.`;
  byId("verdict").replaceChildren(el("p", { class: "card empty" }, text));
  throw error;
});
