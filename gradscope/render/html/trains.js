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
      ...trains.losses.map((loss, place) => [loss, ({ cells }) => trainsCell(cells[place])]),
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

/** The source line of a cut, or of a freeze, stands below the words. */
function trainsCell({ state, words, location }) {
  const { symbol, meaning } = look(state);
  const site = siteOf(location);
  const tag = el("span", { class: `state state-${state}`, title: meaning }, el("i", { "aria-hidden": "true" }, symbol), words);
  return site?.text ? [tag, el("code", { class: "source", title: site.where }, site.text.trim())] : tag;
}
