// Who trains what: modules by losses, a symbol and a word in every cell.

function showTrains() {
  const { trains } = page.data;
  byId("trains").hidden = !trains;
  if (!trains) return;
  byId("trains-note").textContent = trains.title;
  const wrong = trains.rows.filter(({ fine }) => !fine);
  const filter = byId("trains-filter");
  filter.hidden = !wrong.length || wrong.length === trains.rows.length;
  const draw = (rows) => byId("trains-table").replaceChildren(...trainsTable(trains, rows));
  filter.addEventListener("click", () => {
    const all = filter.getAttribute("aria-pressed") === "true";
    filter.setAttribute("aria-pressed", String(!all));
    draw(all ? trains.rows : wrong);
  });
  draw(trains.rows);
  byId("trains-legend").replaceChildren(
    ...trains.states.map((state) => el("span", { class: "key" }, stateTag(state), look(state).meaning)),
    trains.command ? el("span", { class: "key" }, "Why no gradient comes: ", el("code", {}, trains.command)) : "",
  );
}

const trainsTable = (trains, rows) =>
  dataTable(
    "Who trains what",
    [
      ["Module", moduleCell],
      ...trains.losses.map((loss, place) => [
        loss,
        ({ cells, parameters }) => trainsCell(cells[place], tellerOf(cells[place], parameters, trains.calls[place])),
      ]),
    ],
    rows,
    { rowClass: ({ fine }) => (fine ? "fine" : "") },
  );

const moduleCell = ({ module, sizes, parameters }) =>
  el(
    "details",
    {},
    el("summary", {}, el("code", {}, module), el("small", {}, sizes)),
    el("ul", {}, parameters.map((name) => el("li", {}, el("code", {}, name)))),
  );

/** What tells of a cell whose loss trains nothing there: a link to the finding or, of a cut, to the graph of the call. */
function tellerOf({ state, location }, parameters, place) {
  if (state === "trains" || state === "frozen") return null;
  const line = siteOf(location)?.where;
  const isThere = (number) => line && siteOf(number)?.where === line;
  const names = new Set(parameters);
  const index = page.data.findings.findIndex(
    (finding) =>
      isThere(finding.location) ||
      finding.related.some((related) => isThere(related.location)) ||
      (["GS502", "GS503"].includes(finding.code) && finding.parameters.some((name) => names.has(name))),
  );
  if (index >= 0) return { to: `finding-${index}`, words: "to the finding", go: () => openFinding(index) };
  const calls = page.calls.filter((call) => call.location === place);
  const call = calls.findLast(({ graph }) => page.data.embedded.includes(graph)) || calls.at(-1);
  if (state !== "cut" || !call) return null;
  const go = () => {
    page.selectCall(call);
    scrollTo("graph");
  };
  return { to: "graph", words: "to the graph of this call", go };
}

/** The source line of a cut, or of a freeze, stands below the words. */
function trainsCell({ state, words, location }, teller) {
  const { symbol, meaning } = look(state);
  const site = siteOf(location);
  const jump = (event) => {
    event.preventDefault();
    teller.go();
  };
  const tag = el(
    teller ? "a" : "span",
    {
      class: `state state-${state}`,
      title: teller ? `${meaning}; ${teller.words}` : meaning,
      ...(teller ? { href: `#${teller.to}`, onclick: jump } : {}),
    },
    el("i", { "aria-hidden": "true" }, symbol),
    words,
  );
  return site?.text ? [tag, el("code", { class: "source", title: site.where }, site.text.trim())] : tag;
}
