// The graph of the selected call: what is shown, marked, selected and open.

const graphs = new Map();
const stage = { canvas: null, graph: null, search: null, pointers: new Map(), armed: null, moved: false };

async function loadGraph(number) {
  if (number === null || !page.data.embedded.includes(number)) return null;
  if (!graphs.has(number)) graphs.set(number, new BackwardGraph(await readData(`graph-${number}`)));
  return graphs.get(number);
}

function showEmptyGraph(text) {
  stage.graph = null;
  hideGraph(true);
  byId("graph-empty").textContent = text;
  byId("graph-note").textContent = "";
}

function hideGraph(hidden) {
  for (const id of ["graph-card", "nodes-toggle"]) byId(id).hidden = hidden;
  byId("nodes-table").hidden = hidden || byId("nodes-toggle").getAttribute("aria-expanded") !== "true";
  byId("graph-empty").hidden = !hidden;
}

function whyNoGraph(number, call) {
  const size = page.data.graphs[number];
  if (size)
    return `This graph has ${counted(size, "node")} and did not fit into this file; gradscope draw shows it from the recording.`;
  if (call) return `${call.title}: no graph of its own was recorded. Select another call in the timeline.`;
  return "No backward call, so there is no graph to show.";
}

async function showGraph(number, options = {}) {
  const call = page.call;
  const asked = (stage.asked = {});
  const graph = await loadGraph(number);
  if (stage.asked !== asked) return;
  if (!graph) return showEmptyGraph(whyNoGraph(number, call));
  hideGraph(false);
  const changed = stage.graph !== graph;
  stage.graph = graph;
  if (changed) {
    stage.canvas.selected = null;
    stage.canvas.marks = null;
    byId("search").value = "";
    byId("search-note").textContent = "";
    const shared = graph.roots.length > 1 ? graph.shared() : [];
    graph.sharedNodes = shared;
    byId("shared").disabled = shared.length === 0;
    byId("shared").title = shared.length
      ? "Mark what more than one root reaches, the crossing edges emphasised"
      : "Nothing here is reached from more than one root";
    byId("shared").setAttribute("aria-pressed", "false");
    for (const id of ["open-all", "close-all"]) byId(id).disabled = graph.groups.length < 2;
  }
  noteGraph(call, graph);
  if (changed && stage.canvas.canvas.clientWidth !== stage.canvas.width) stage.canvas.resize();
  if (options.marks) mark(options.marks);
  else if (options.node !== undefined) selectNode(options.node, true);
  else if (changed) {
    stage.canvas.show(graph);
    stage.canvas.home();
    showDetails(null);
  }
  if (!byId("nodes-table").hidden) showNodesTable();
}

function noteGraph(call, graph) {
  const parts = [counted(graph.count, "node")];
  if (graph.not_looked_at) parts.push(`${counted(graph.not_looked_at, "edge")} too deep to follow`);
  byId("graph-note").textContent = `${call ? `${call.title.toLowerCase()}: ` : ""}${parts.join(", ")}`;
}

/** Mark nodes (of a finding, the shared part, a search), open their groups, and show them. */
function mark(marks) {
  const { canvas, graph } = stage;
  canvas.marks = marks.nodes.length ? marks : null;
  // Every group is opened for a few nodes only; many would drown the picture.
  if (marks.nodes.length <= 60) for (const node of marks.nodes) if (node < graph.count) graph.reveal(node);
  canvas.selected = null;
  canvas.show(graph);
  if (canvas.marks) canvas.showAround([...canvas.marked]);
  else canvas.home();
  showDetails(null);
}

function selectNode(node, center = false) {
  const { canvas, graph } = stage;
  graph.reveal(node);
  canvas.selected = node;
  canvas.show(graph);
  if (center || !visible(canvas.scene.boxes[canvas.selectedBox])) canvas.showBoxes([canvas.selectedBox]);
  showDetails(node);
}

/** Name what is selected, in the canvas to whoever is there, else aloud. */
function nameSelected(item) {
  const { canvas } = stage.canvas;
  const name = item === null ? "" : stage.graph.spoken(item);
  const id = `box-${item}`;
  canvas.toggleAttribute("aria-activedescendant", Boolean(name));
  if (name) canvas.setAttribute("aria-activedescendant", id);
  canvas.replaceChildren(name && el("span", { id, role: "img", "aria-label": name }));
  if (name && document.activeElement !== canvas) announce(name);
}

function visible(box) {
  const { view, width, height } = stage.canvas;
  const [x, y] = [box.x * view.scale + view.x, box.y * view.scale + view.y];
  return x >= 0 && y >= 0 && x + box.width * view.scale <= width && y + box.height * view.scale <= height;
}

/** Open or close a group; what was under the pointer stays there. */
function toggleGroup(group) {
  const { canvas, graph } = stage;
  const before = canvas.scene.boxes[graph.boxOf.get(~group)];
  const wasOpen = graph.open.has(group);
  if (wasOpen) graph.close(group);
  else graph.open.add(group);
  canvas.selected = ~group;
  canvas.show(graph);
  const after = canvas.scene.boxes[graph.boxOf.get(~group)];
  if (before && after) {
    const { view } = canvas;
    view.x += (before.x + before.width / 2 - after.x - after.width / 2) * view.scale;
    view.y += (before.y - after.y) * view.scale;
  }
  canvas.draw();
  showDetails(~group);
}

function activate(number) {
  const { canvas, graph } = stage;
  const box = number === null ? null : canvas.scene.boxes[number];
  if (!box) return clearSelection();
  if (box.item < 0) toggleGroup(~box.item);
  else selectNode(box.item);
}

function clearSelection() {
  const { canvas } = stage;
  canvas.selected = null;
  canvas.marks = null;
  byId("shared").setAttribute("aria-pressed", "false");
  canvas.markBoxes();
  showDetails(null);
}

/** From the selected box to a connected one, or to its neighbour in the row. */
function step(key) {
  const { canvas, graph } = stage;
  const { boxes, edges } = canvas.scene;
  const now = canvas.selectedBox;
  if (now < 0) {
    return choose(graph.boxNumbers[graph.roots[0]?.node ?? 0]);
  }
  const middle = (number) => boxes[number].x + boxes[number].width / 2;
  const nearest = (numbers) =>
    numbers.sort((a, b) => Math.abs(middle(a) - middle(now)) - Math.abs(middle(b) - middle(now)))[0];
  if (key === "ArrowDown") choose(nearest(edges.filter((edge) => edge.from === now).map((edge) => edge.to)));
  else if (key === "ArrowUp") choose(nearest(edges.filter((edge) => edge.to === now).map((edge) => edge.from)));
  else {
    const side = key === "ArrowRight" ? 1 : -1;
    const near = boxes
      .map((_, number) => number)
      .filter(
        (number) =>
          boxes[number].kind !== "frame" &&
          (middle(number) - middle(now)) * side > 1 &&
          boxes[number].y < boxes[now].y + boxes[now].height &&
          boxes[number].y + boxes[number].height > boxes[now].y,
      );
    choose(nearest(near));
  }
}

function choose(number) {
  const { canvas } = stage;
  if (number === undefined) return;
  const { item } = canvas.scene.boxes[number];
  if (item >= 0) return selectNode(item);
  canvas.selected = item;
  canvas.markBoxes();
  if (!visible(canvas.scene.boxes[number])) canvas.showBoxes([number]);
  showDetails(item);
}

/** Select the open group around what is selected. */
function leave() {
  const { canvas, graph } = stage;
  const around = canvas.selected < 0 ? graph.groups[~canvas.selected].parent : graph.parent[canvas.selected];
  if (canvas.selected !== null && around > 0) choose(graph.boxOf.get(~around));
}

function toggleShared() {
  const on = byId("shared").getAttribute("aria-pressed") !== "true";
  const { graph } = stage;
  if (!on) return clearSelection();
  const inside = new Set(graph.sharedNodes);
  // A group that holds both kinds is opened, so that the border between them shows.
  const held = graph.groups.map(() => new Set());
  graph.parent.forEach((group, node) => {
    for (let g = group; g > 0; g = graph.groups[g].parent) held[g].add(inside.has(node));
  });
  held.forEach((kinds, g) => kinds.size === 2 && graph.sizes[g] <= READABLE && graph.open.add(g));
  mark({ nodes: graph.sharedNodes, level: null });
  byId("shared").setAttribute("aria-pressed", "true");
  announce(`${counted(graph.sharedNodes.length, "node")} reached from more than one root`);
}
