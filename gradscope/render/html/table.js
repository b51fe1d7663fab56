// Real tables: what holds memory, and the accessible twins of the two pictures.

const PAGE_ROWS = 100;

/** A table that grows by pages; `columns` are [heading, cell of a row, whether a number]. */
function dataTable(caption, columns, rows, options = {}) {
  const body = el("tbody");
  const more = el("button", { type: "button", class: "more" });
  const step = options.rows || PAGE_ROWS;
  let shown = 0;
  const cellsOf = (row) =>
    columns.map(([heading, cell, number], index) => {
      const kind = index ? { role: "cell" } : { scope: "row", role: "rowheader" };
      const properties = { class: number ? "number" : null, ...kind, "data-label": heading };
      return el(index ? "td" : "th", properties, el("div", {}, cell(row)));
    });
  const grow = () => {
    for (const row of rows.slice(shown, shown + step)) {
      const line = el("tr", { role: "row", class: options.rowClass?.(row) }, cellsOf(row));
      line.setAttribute("aria-label", (line.querySelector("summary") ?? line.firstChild).textContent);
      body.append(line);
    }
    shown = Math.min(rows.length, shown + step);
    more.hidden = shown >= rows.length;
    more.textContent = `Show ${count(Math.min(step, rows.length - shown))} more of ${count(rows.length - shown)}`;
  };
  grow();
  const heads = columns.map(([heading, , number]) =>
    el("th", { scope: "col", class: number ? "number" : null }, heading),
  );
  const head = el("thead", {}, el("tr", {}, heads));
  const scroll = el(
    "div",
    { class: "scroll", tabindex: "0", role: "group", "aria-label": caption },
    el("table", { role: "table" }, el("caption", {}, caption), head, body),
  );
  more.addEventListener("click", () => {
    grow();
    if (more.hidden) scroll.focus({ preventScroll: true });
  });
  return [scroll, more];
}



function siteCell(site) {
  if (!site) return "—";
  return [siteLink(site), site.text ? el("code", { class: "source" }, site.text.trim()) : ""];
}

function showCallsTable() {
  const rows = page.brushed || page.calls;
  const size = (value) => (value ? bytes(value) : "—");
  refill(
    byId("calls-table"),
    ...dataTable(
      page.brushed ? "Selected backward calls" : "Backward calls",
      [
        ["Call", (call) => linkButton(call.numbers, () => page.selectCall(call))],
        ["Alike", (call) => (call.count > 1 ? `×${count(call.count)}` : ""), true],
        ["What", (call) => call.verb],
        ["Where", (call) => siteCell(call.site)],
        ["Roots", (call) => call.roots.map((root) => root.name || root.label).join(", ")],
        ["Nodes run", (call) => `${count(call.nodes_run)} / ${count(call.nodes)}`, true],
        ["Saved", (call) => size(call.saved_bytes), true],
        ["Freed", (call) => size(call.freed_bytes), true],
        ["Returned", (call) => size(call.returned_bytes), true],
        ["Retained", (call) => size(call.retained_bytes), true],
        ["Result", (call) => (call.exception ? call.exception.split(":")[0] : "ran")],
      ],
      rows,
      { rowClass: (call) => (call === page.call ? "current" : "") },
    ),
  );
}

/** A button that opens and closes a table, which is built when first asked for. */
function tableToggle(button, box, build) {
  button.addEventListener("click", () => {
    box.hidden = !box.hidden;
    button.setAttribute("aria-expanded", String(!box.hidden));
    button.textContent = box.hidden ? "Show as table" : "Hide table";
    if (!box.hidden) build();
  });
}

function showMemory() {
  const holders = page.data.findings
    .flatMap((finding, index) => {
      const held = finding.related.filter((related) => related.role === "held_by");
      return held.map((related) => ({ finding, index, related, site: siteOf(related.location) }));
    })
    .sort((a, b) => b.finding.bytes - a.finding.bytes);
  const nodeCell = ({ graph, node, name }) =>
    page.data.embedded.includes(graph) ? linkButton(name, () => showNode(graph, node)) : name;
  const card = (title, nothing, caption, columns, rows, options) => {
    const shown = rows.length ? dataTable(caption, columns, rows, options) : [el("p", { class: "empty" }, nothing)];
    return el("div", { class: "card table" }, el("h3", {}, title), ...shown);
  };
  const { largest } = page.data;
  byId("memory-tables").replaceChildren(
    card(
      "Holders",
      "No finding names a holder: nothing was seen to keep a graph alive longer than it is needed.",
      "Holders that findings name",
      [
        ["Holder", ({ related }) => prose(related.message)],
        ["Bytes", ({ finding }) => (finding.bytes ? bytes(finding.bytes) : "—"), true],
        ["Line", ({ site }) => siteCell(site)],
        ["Finding", ({ finding, index }) => linkButton(finding.code, () => openFinding(index))],
      ],
      holders,
    ),
    card(
      "Largest saved tensors",
      "No graph of this recording saved a tensor.",
      "Largest saved tensors",
      [
        ["Saved tensor", ({ label }) => el("code", {}, label)],
        ["Bytes", ({ nbytes }) => bytes(nbytes), true],
        ["State", ({ state }) => stateTag(state)],
        ["Node", nodeCell],
        ["Line", ({ location }) => siteCell(siteOf(location))],
      ],
      largest,
      { rows: 10 },
    ),
  );
}

/** Select the call of a graph and one node in it. */
function showNode(graph, node) {
  const has = ({ calls }) => calls.some((call) => call.graph === graph);
  if (!has(page.track)) page.selectTrack(page.data.tracks.find(has));
  page.selectCall(page.calls.find((call) => call.graph === graph) || page.call, { graph, node });
  scrollTo("graph");
}
