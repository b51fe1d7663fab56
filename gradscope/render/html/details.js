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

const facts = (...pairs) =>
  el(
    "dl",
    { class: "facts" },
    pairs
      .filter((pair) => pair && pair[1] !== null && pair[1] !== "")
      .flatMap(([name, ...value]) => [el("dt", {}, name), el("dd", {}, ...value)]),
  );

function graphDetails(graph, marks) {
  const whole = graph.groups[0];
  const states = page.theme.nodeStates.filter((state) => whole.states[state]);
  const leaves = graph.node.variable_label.filter((label) => label !== null).length;
  return [
    marks && marks.text ? el("p", { class: `marks level-${marks.level}` }, el("b", {}, prose(marks.text))) : "",
    marks ? el("h3", {}, "Marked") : "",
    marks
      ? el(
          "ul",
          { class: "plain marked" },
          marks.nodes.slice(0, 12).map((node) =>
            el(
              "li",
              {},
              linkButton(graph.titleOf(node), () => selectNode(node, true)),
              " ",
              stateTag(graph.stateOf(node)),
            ),
          ),
          marks.nodes.length > 12 ? el("li", { class: "muted" }, `and ${count(marks.nodes.length - 12)} more`) : "",
        )
      : "",
    el("h3", {}, "This graph"),
    facts(
      ["Nodes", count(graph.count)],
      ["Saved", bytes(whole.bytes)],
      [
        "States",
        el(
          "ul",
          { class: "plain" },
          states.map((state) => el("li", {}, stateTag(state), ` ${count(whole.states[state])}`)),
        ),
      ],
      leaves ? ["Leaves", `${count(leaves)}, where gradients arrive`] : null,
      [
        "Roots",
        el(
          "ul",
          { class: "plain" },
          graph.roots.map(({ node, name, label: kind }) =>
            el(
              "li",
              {},
              linkButton(name || graph.nameOf(node), () => selectNode(node, true)),
              kind ? ` ${kind}` : "",
            ),
          ),
        ),
      ],
      graph.sharedNodes && graph.sharedNodes.length
        ? ["Shared", `${counted(graph.sharedNodes.length, "node")} reached from more than one root`]
        : null,
    ),
    el("p", { class: "hint" }, "Select a node to see what it saved, and which line made it. Gradients flow downwards."),
  ].filter(Boolean);
}

function groupDetails(graph, group) {
  const open = graph.open.has(group.index);
  return [
    el("h3", {}, group.label),
    facts(
      group.module_class ? ["Module", group.module_class] : null,
      group.path ? ["Path", el("code", {}, group.path)] : null,
      ["Nodes", count(group.nodes)],
      ["Saved", bytes(group.bytes)],
      [
        "States",
        el(
          "ul",
          { class: "plain" },
          page.theme.nodeStates
            .filter((state) => group.states[state])
            .map((state) => el("li", {}, stateTag(state), ` ${count(group.states[state])}`)),
        ),
      ],
    ),
    el(
      "div",
      { class: "actions" },
      el(
        "button",
        { type: "button", onclick: () => toggleGroup(group.index) },
        open ? "Close the group" : "Open the group",
      ),
    ),
  ];
}

function nodeDetails(graph, node) {
  const state = graph.stateOf(node);
  const site = graph.siteAt(node);
  const saved = graph.savedOf(node);
  const neighbour = (other, note) =>
    el(
      "li",
      {},
      linkButton(graph.titleOf(other), () => selectNode(other, true)),
      " ",
      stateTag(graph.stateOf(other)),
      note ? el("span", { class: "muted" }, ` ${note}`) : "",
    );
  const listed = (edges, other, note) => [...edges].slice(0, 12).map((e) => neighbour(other(e), note(e)));
  const next = graph.outgoing(node);
  const from = graph.incoming(node);
  const more = (edges) =>
    edges.length > 12 ? el("li", { class: "muted" }, `and ${count(edges.length - 12)} more`) : "";
  return [
    el("h3", {}, graph.titleOf(node)),
    el("p", { class: "states" }, stateTag(state), graph.isLeaf(node) ? ` ${graph.node.variable_label[node]}` : ""),
    site
      ? el(
          "div",
          { class: "made" },
          el("b", {}, "made at"),
          el(
            "figure",
            { class: "snippet" },
            el("figcaption", {}, `${site.where} in ${site.func}`),
            site.text
              ? el(
                  "pre",
                  { tabindex: "0" },
                  el("span", { class: "row here" }, el("i", {}, String(site.line)), el("code", {}, site.text.trim())),
                )
              : "",
          ),
        )
      : "",
    facts(
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
    ),
    saved.length ? el("h4", {}, "Saved tensors") : "",
    saved.length
      ? el("ul", { class: "saved" }, saved.map(savedItem))
      : graph.isLeaf(node)
        ? ""
        : el("p", { class: "muted" }, "Saved nothing, so it can be run backward any number of times."),
    next.length ? el("h4", {}, "Next functions") : "",
    next.length
      ? el(
          "ul",
          { class: "plain" },
          listed(
            next,
            (e) => graph.edge.target[e],
            (e) => (graph.edge.input_nr[e] ? `input ${graph.edge.input_nr[e]}` : ""),
          ),
          more(next),
        )
      : "",
    from.length ? el("h4", {}, "Gradient comes from") : "",
    from.length
      ? el(
          "ul",
          { class: "plain" },
          listed(
            from,
            (e) => graph.edge.source[e],
            () => "",
          ),
          more(from),
        )
      : "",
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
    tensor.source || (tensor.parameter ? "parameter" : null),
    tensor.device === "cpu" ? null : tensor.device,
    tensor.version ? `version ${tensor.version}` : null,
    tensor.site ? tensor.site.place : null,
  ].filter(Boolean);
  return el(
    "li",
    {},
    el("code", {}, tensor.name ? el("b", {}, tensor.name) : "", tensor.name ? " " : "", tensor.kind),
    el("span", { class: "size" }, bytes(tensor.bytes)),
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
            graph
              .savedOf(node)
              .map((tensor) => `${tensor.name ? `${tensor.name} ` : ""}${tensor.kind}`)
              .join(", ") ||
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
