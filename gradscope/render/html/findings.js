// Shows the verdict and the findings: what is wrong, the lines involved, and what to do.

const ROLES = {
  created: "made",
  freed_by: "freed",
  next_read: "next read",
  held_by: "held by",
  modified_by: "modified",
  retained_by: "retained",
  linked_by: "linked",
  failing_node: "stops at",
};

const VERDICT_SYMBOL = { clean: "✓", unfinished: "…" };

function showVerdict() {
  const { verdict, summary, outcome } = page.data;
  const symbol = VERDICT_SYMBOL[verdict.level] || look(verdict.level).symbol;
  const tile = (label, value, note) =>
    el("div", { class: "tile" }, el("dt", {}, label), el("dd", {}, value, note ? el("small", {}, note) : ""));
  const about = summary.exact ? "" : "about ";
  const held = summary.freed_bytes - summary.returned_bytes;
  const tiles = [
    tile("Backward calls", count(summary.backward_calls)),
    tile("Nodes built", count(summary.nodes), `${count(summary.nodes_destroyed)} destroyed`),
    tile("Saved by graphs", about + bytes(summary.saved_bytes), counted(summary.saved_tensors, "tensor")),
    tile(
      "Freed by backward",
      about + bytes(summary.freed_bytes),
      held > 0 ? `${bytes(held)} still held elsewhere` : "all returned",
    ),
    tile("Held by graphs at most", about + bytes(summary.peak_saved_bytes), `${bytes(summary.live_bytes)} at the end`),
    tile("Predicted", count(summary.predicted), summary.predicted ? `came true ${count(summary.came_true)}` : "nothing ahead"),
  ]; // six, as many as fill rows of six, of three and of two
  byId("verdict").replaceChildren(
    el(
      "div",
      { class: `verdict level-${verdict.level}` },
      el("span", { class: "seal", "aria-hidden": "true" }, symbol),
      el(
        "div",
        {},
        el("h1", {}, verdict.headline),
        verdict.detail ? el("p", { class: "clamped" }, prose(verdict.detail)) : "",
      ),
    ),
    el("dl", { class: "tiles" }, tiles),
    processTable(),
    ...summary.notes.map((note) => el("p", { class: "run-note" }, el("b", {}, "Note "), prose(note))),
  );
  if (outcome.exception) byId("verdict").querySelector(".clamped")?.setAttribute("title", outcome.exception);
}

/** What each process of a run did, and in what a rank differs from the others. */
function processTable() {
  const { processes } = page.data;
  if (!processes.length) return "";
  const ended = ({ outcome, unfinished }) => outcome.exception || (outcome.finished ? "" : unfinished);
  const columns = [
    ["Process", ({ name }) => name],
    ["Backward calls", ({ summary }) => count(summary.backward_calls), true],
    ["Saved", ({ summary }) => bytes(summary.saved_bytes), true],
    ["Peak", ({ summary }) => bytes(summary.peak_saved_bytes), true],
    ["Findings", ({ findings }) => count(findings), true],
    processes.some(ended) ? ["Ended", (process) => ended(process) || "—"] : null,
    processes.some(({ differs }) => differs) ? ["Differs", ({ differs }) => (differs ? prose(differs) : "—")] : null,
  ];
  const note = el("p", { class: "note" }, "The timeline below shows one of them at a time.");
  const table = dataTable("Processes", columns.filter(Boolean), processes);
  return el("div", { class: "card table", id: "processes" }, ...table, note);
}

/** By severity. */
function worstFirst() {
  const order = ["error", "warning", "advice"];
  const weight = (finding) => order.indexOf(finding.severity);
  return page.data.findings
    .map((finding, index) => ({ finding, index }))
    .sort((a, b) => weight(a.finding) - weight(b.finding) || a.index - b.index);
}

function showFindings() {
  const { failures, findings, summary } = page.data;
  const sorted = worstFirst();
  byId("findings-note").textContent = findings.length > 1 ? "worst first; open one to see its nodes in the graph" : "";
  if (!findings.length && !failures.length) {
    const text = summary.backward_calls
      ? "Nothing to report: no graph was run after it was freed, changed under its feet, or kept for nothing."
      : "Findings are about backward() and autograd.grad(), and neither was called. If the program should have trained, look whether it was given the arguments that make it do so; if it only evaluates, this is as it should be. Timeline and graphs appear here after the first backward call.";
    byId("findings-list").replaceChildren(el("p", { class: "card empty" }, text));
    return;
  }
  byId("findings-list").replaceChildren(
    ...failures.map(failureCard),
    ...sorted.map(({ finding, index }, place) => findingCard(finding, index, place === 0 && !failures.length)),
  );
}

/** A card that opens: how grave it is, in a ``word``, what it says and where, and below that its body. */
function cardOf({ severity, word, code, message, times, location, id, open }, ...body) {
  const site = siteOf(location);
  return el(
    "details",
    { class: `card finding level-${severity}`, id, open },
    el(
      "summary",
      {},
      badge(severity, word),
      code ? el("span", { class: "code" }, code) : "",
      el("span", { class: "message" }, prose(message)),
      times > 1 ? el("span", { class: "times", title: "how often it was met" }, `×${count(times)}`) : "",
      site ? siteLink(site) : "",
    ),
    el("div", { class: "body" }, ...body),
  );
}

/** An exception that ended the run and that no finding explains: where it arose, and what to do. */
function failureCard(failure) {
  const { exception: message, where, help } = failure;
  return cardOf(
    { ...failure, message, severity: "error", word: `raised${where}`, open: true },
    stepsOf(failure),
    help ? el("div", { class: "aside" }, el("div", { class: "fix" }, el("h3", {}, "Help"), el("p", {}, prose(help)))) : "",
  );
}

function findingCard(finding, index, open) {
  const { severity: word, count: times } = finding;
  const card = cardOf({ ...finding, word, times, id: `finding-${index}`, open });
  const body = card.lastChild;
  // A run may have hundreds, so closed ones are not built.
  const fill = () => body.firstChild || body.append(...findingBody(finding));
  if (open) fill();
  card.addEventListener("toggle", () => card.open && fill());
  // The nodes are shown at once: `toggle` comes in a task of its own, when another may have been chosen.
  card.querySelector("summary").addEventListener("click", () => card.open || showFindingNodes(finding));
  return card;
}

/** Open a finding, and go there. */
function openFinding(index) {
  const card = byId(`finding-${index}`);
  card.open = true;
  card.scrollIntoView({ behavior: calm() ? "auto" : "smooth", block: "center" });
  card.querySelector("summary").focus({ preventScroll: true });
}

/** The lines that a finding or a failure names, with the lines around them. */
function stepsOf({ location, label, related }) {
  // An excerpt that stands above already is named alone.
  const shown = new Set();
  const excerpt = (site) => {
    const isNew = !shown.has(site.where);
    shown.add(site.where);
    return isNew ? snippet(site) : siteLink(site);
  };
  const step = (label, message, site) =>
    el(
      "li",
      { class: "step" },
      el("div", { class: "role" }, el("b", {}, label), el("span", {}, prose(message))),
      site ? excerpt(site) : "",
    );
  const steps = [
    location === null ? "" : step("here", label, siteOf(location)),
    ...related.map(({ role, message, location }) => step(ROLES[role] || role, message, siteOf(location))),
  ];
  return el("ol", { class: "steps" }, steps);
}

const CERTAINTY = {
  certain: "certain: the engine raises",
  predicted: "predicted from the code",
  observed: "observed",
};

function findingBody(finding) {
  const told = [
    ["How sure", CERTAINTY[finding.certainty]],
    finding.backward_call ? ["Backward call", count(finding.backward_call)] : null,
    finding.processes.length ? ["Met in", ...finding.processes.map(chip)] : null,
    finding.nodes.length ? ["Nodes", ...finding.nodes.map(chip)] : null,
    finding.saved.length ? ["Saved tensors", ...finding.saved.map(chip)] : null,
    finding.bytes ? ["Bytes", bytes(finding.bytes)] : null,
    finding.count > 1 ? ["Met", `${count(finding.count)} times`] : null,
    finding.came_true ? ["Outcome", "came true: the backward call failed"] : null,
    finding.withdrawn ? ["Outcome", `withdrawn: ${finding.withdrawn}`] : null,
    finding.suppression ? ["Suppressed", finding.suppression.reason] : null,
    finding.missed ? ["Outcome", "gradscope did not call this before the engine did; please report it"] : null,
  ];
  const call = callWithNumber(finding.backward_call, trackOf(finding).calls);
  const goToCall = () => {
    page.selectTrack(trackOf(finding));
    page.selectCall(call);
    scrollTo("timeline");
  };
  const actions = [
    finding.graph_nodes.length && page.data.graphs[finding.graph]
      ? button("Show in the graph", () => showFindingNodes(finding, true), { class: "primary" })
      : "",
    call ? button(`Show call ${count(finding.backward_call)}`, goToCall) : "",
  ];
  return [
    stepsOf(finding),
    el(
      "div",
      { class: "aside" },
      finding.fix ? fixBox(finding.fix, finding.alternatives) : "",
      finding.untried ? el("p", { class: "untried" }, ...prose(finding.untried)) : "",
      facts(told),
      el("div", { class: "actions" }, actions),
      el("p", { class: "explain" }, "More: ", el("code", {}, `gradscope explain ${finding.code}`)),
    ),
  ];
}



/** The fix to choose, with its reason, effects and edits, and below what else could be done. */
function fixBox(fix, alternatives) {
  return el(
    "div",
    { class: "fix" },
    el("h3", {}, "Fix", safety(fix)),
    ...inFull(fix),
    alternatives.length ? [el("h3", { class: "instead" }, "Instead"), ...alternatives.map(alternative)] : "",
  );
}

const safety = (fix) => {
  const { proofs, safeties } = page.theme;
  const known = [fix.edits.length ? proofs[fix.proof] : "", safeties[fix.applicability]];
  const said = known.filter(Boolean).join(", ");
  return said ? el("span", { class: "safety" }, said) : "";
};

/** What a fix does, why, what it means, and its edits. */
const inFull = (fix) => [
  el("p", {}, prose(fix.message)),
  fix.reason ? el("p", { class: "why" }, "Why: ", prose(fix.reason)) : "",
  fix.effects.length ? el("ul", {}, fix.effects.map((effect) => el("li", {}, prose(effect)))) : "",
  editsOf(fix),
];

/** One alternative in a line; what it says in full and its edits are folded. */
function alternative(fix) {
  const kind = fix.kind === "other" ? "" : fix.kind.replaceAll("_", " ");
  const line = (kind && fix.effects.join("; ")) || fix.message;
  return el(
    "details",
    {},
    el("summary", {}, el("span", {}, kind && el("b", {}, kind), safety(fix), " ", ...prose(line))),
    ...inFull(fix),
  );
}

function editsOf(fix) {
  const edits = fix.edits.flatMap(({ file, line, before, replacement: after }) => {
    const [old, now] = [before, after].map((text) => (text ? text.split("\n") : []));
    const indent = indentOf([...old, ...now]);
    return [
      el("span", { class: "row where" }, `${shortFile(file)}:${line}`),
      ...old.map((text) => el("span", { class: "row minus" }, `- ${text.slice(indent)}`)),
      ...now.map((text) => el("span", { class: "row plus" }, `+ ${text.slice(indent)}`)),
    ];
  });
  return edits.length ? el("pre", { tabindex: "0" }, edits) : "";
}

const callWithNumber = (number, calls = page.calls) =>
  calls.find((call) => call.count === 1 && call.number === number) ||
  calls.find((call) => call.number <= number && number <= call.last_number) ||
  null;

/** The timeline of the first process that met a finding. */
const trackOf = (finding) => page.data.tracks.find(({ name }) => name === finding.processes[0]) || page.data.tracks[0];

/** Select the finding's call and mark its nodes. */
function showFindingNodes(finding, scroll = false) {
  page.selectTrack(trackOf(finding));
  const call =
    page.calls.find((c) => c.graph === finding.graph && c.number <= finding.backward_call && finding.backward_call <= c.last_number) ||
    page.calls.find((c) => c.graph === finding.graph && finding.graph !== null) ||
    callWithNumber(finding.backward_call);
  const marks =
    finding.graph === null || !finding.graph_nodes.length
      ? null
      : { nodes: finding.graph_nodes, level: finding.severity, text: `${finding.code}: ${finding.message}` };
  page.selectCall(call, { graph: finding.graph, marks });
  if (scroll) scrollTo("graph");
}
