// Shows the selected node or group beside the graph, and the graph as a table.

function showDetails(item) {
  const { graph, canvas } = stage;
  const box = byId("details");
  if (item === null) refill(box, ...graphDetails(graph, canvas.marks));
  else if (item < 0) refill(box, ...groupDetails(graph, graph.groups[~item]));
  else refill(box, ...nodeDetails(graph, item));
  nameSelected(item);
  box.scrollTop = 0;
}

/** A link to a node, with its state. */
const nodeItem = (graph, node) => [
  linkButton(graph.titleOf(node), () => selectNode(node, true)),
  " ",
  stateTag(graph.stateOf(node)),
];

/** How many nodes of a group there are, what they hold, and in which states they are. */
function sumFacts({ nodes, bytes: size, states }) {
  const found = page.theme.nodeStates.filter((state) => states[state]);
  const items = found.map((state) => el("li", {}, stateTag(state), ` ${count(states[state])}`));
  return [
    ["Nodes", count(nodes)],
    ["Saved", bytes(size)],
    ["States", el("ul", { class: "plain" }, items)],
  ];
}

function graphDetails(graph, marks) {
  const leaves = graph.node.variable_label.filter((label) => label !== null).length;
  const root = ({ node, name, label: kind }) => {
    const link = linkButton(name || graph.nameOf(node), () => selectNode(node, true));
    return el("li", {}, link, kind ? ` ${kind}` : "");
  };
  return [
    marks && marks.text ? el("p", { class: `marks level-${marks.level}` }, el("b", {}, prose(marks.text))) : "",
    marks ? el("h3", {}, "Marked") : "",
    marks ? shortList(marks.nodes, (node) => nodeItem(graph, node), "plain marked") : "",
    el("h3", {}, "This graph"),
    facts([
      ...sumFacts(graph.groups[0]),
      leaves ? ["Leaves", `${count(leaves)}, where gradients arrive`] : null,
      ["Roots", el("ul", { class: "plain" }, graph.roots.map(root))],
      graph.sharedNodes && graph.sharedNodes.length
        ? ["Shared", `${counted(graph.sharedNodes.length, "node")} reached from more than one root`]
        : null,
    ]),
    el("p", { class: "hint" }, "Select a node to see what it saved, and which line made it. Gradients flow downwards."),
  ].filter(Boolean);
}

function groupDetails(graph, group) {
  const words = graph.open.has(group.index) ? "Close the group" : "Open the group";
  return [
    el("h3", {}, group.label),
    facts([
      group.module_class ? ["Module", group.module_class] : null,
      group.path ? ["Path", el("code", {}, group.path)] : null,
      ...sumFacts(group),
    ]),
    el("div", { class: "actions" }, button(words, () => toggleGroup(group.index))),
  ];
}

function nodeDetails(graph, node) {
  const state = graph.stateOf(node);
  const site = graph.siteAt(node);
  const line = site?.text ? [sourceRow(site.line, true, site.text.trim())] : [];
  const saved = graph.savedOf(node);
  const { source, target, input_nr: inputs } = graph.edge;
  const neighbours = (title, edges, itemOf) => (edges.length ? [el("h4", {}, title), shortList(edges, itemOf)] : []);
  const input = (e) => (inputs[e] ? el("span", { class: "muted" }, ` input ${inputs[e]}`) : "");
  return [
    el("h3", {}, graph.titleOf(node)),
    el("p", { class: "states" }, stateTag(state), graph.isLeaf(node) ? ` ${graph.node.variable_label[node]}` : ""),
    site ? el("div", { class: "made" }, el("b", {}, "made at"), figure(`${site.where} in ${site.function}`, line)) : "",
    facts([
      graph.isLeaf(node) ? ["Node", graph.nameOf(node)] : null,
      graph.node.module[node] ? ["Module", el("code", {}, graph.node.module[node])] : null,
      graph.node.differentiates[node] ? ["Differentiates", el("code", {}, graph.node.differentiates[node])] : null,
      graph.node.freed_by[node] ? ["Freed by", freedByLink(graph.node.freed_by[node])] : null,
      graph.isLeaf(node)
        ? null
        : [
            "Built",
            graph.node.built_after[node]
              ? `after backward call ${count(graph.node.built_after[node])}`
              : "before the first backward call",
          ],
      graph.node.sequence_nr[node] === null ? null : ["Sequence number", String(graph.node.sequence_nr[node])],
      graph.node.will_run[node] ? null : ["In this call", "not run: on no path to the inputs asked for"],
    ]),
    saved.length ? el("h4", {}, "Saved tensors") : "",
    saved.length
      ? el("ul", { class: "saved" }, saved.map(savedItem))
      : graph.isLeaf(node)
        ? ""
        : el("p", { class: "muted" }, "Saved nothing, so it can be run backward any number of times."),
    ...neighbours("Next functions", graph.outgoing(node), (e) => [...nodeItem(graph, target[e]), input(e)]),
    ...neighbours("Gradient comes from", graph.incoming(node), (e) => nodeItem(graph, source[e])),
  ].filter(Boolean);
}

function freedByLink(number) {
  const call = callWithNumber(number);
  const text = `backward call ${count(number)}`;
  return call
    ? linkButton(text, () => {
        page.selectCall(call);
        scrollTo("timeline");
      })
    : text;
}

function savedItem(tensor) {
  const notes = [
    tensor.source || (tensor.is_parameter ? "parameter" : null),
    tensor.device === "cpu" ? null : tensor.device,
    tensor.version ? `version ${tensor.version}` : null,
    tensor.site ? tensor.site.place : null,
  ].filter(Boolean);
  return el(
    "li",
    {},
    el("code", {}, tensor.name ? el("b", {}, tensor.name) : "", tensor.name ? " " : "", tensor.kind),
    el("span", { class: "size" }, bytes(tensor.nbytes)),
    el("div", {}, stateTag(tensor.state), notes.length ? el("span", { class: "muted" }, ` ${notes.join(", ")}`) : ""),
  );
}

function showNodesTable() {
  const { graph } = stage;
  byId("nodes-table").replaceChildren(
    ...dataTable(
      "Nodes of the graph",
      [
        ["Node", (node) => linkButton(graph.titleOf(node), () => selectNode(node, true))],
        ["State", (node) => (graph.isLeaf(node) ? "leaf" : stateTag(graph.stateOf(node)))],
        [
          "Saved",
          (node) =>
            graph.savedOf(node).map((tensor) => tensor.label).join(", ") ||
            (graph.node.variable_label[node] ?? "nothing"),
        ],
        ["Bytes", (node) => (graph.bytesOf(node) ? bytes(graph.bytesOf(node)) : ""), true],
        ["Module", (node) => graph.node.module[node] ?? ""],
        ["Made at", (node) => siteCell(graph.siteAt(node))],
        ["Freed by", (node) => (graph.node.freed_by[node] ? `call ${count(graph.node.freed_by[node])}` : "")],
        ["Next", (node) => [...graph.outgoing(node)].map((e) => graph.titleOf(graph.edge.target[e])).join(", ")],
      ],
      Array.from({ length: graph.count }, (_, node) => node),
    ),
  );
}
