// Finds nodes by the words of their names, modules and lines.

/** Nodes whose name, variable, module or line holds the words. */
function findNodes(words) {
  const { graph } = stage;
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  if (!wanted.length) return [];
  const found = [];
  for (let node = 0; node < graph.count; node += 1) {
    const site = graph.siteAt(node);
    const text = [
      graph.nameOf(node),
      graph.node.variable[node] || "",
      graph.node.module[node] ?? "",
      graph.stateOf(node),
      site ? `${site.place} ${site.function}` : "",
    ]
      .join(" ")
      .toLowerCase();
    if (wanted.every((word) => text.includes(word))) found.push(node);
  }
  return found;
}

function search(words, move = 0) {
  if (!stage.graph) return;
  if (!stage.search || stage.search.words !== words || stage.search.graph !== stage.graph)
    stage.search = { words, graph: stage.graph, found: findNodes(words), at: 0 };
  const { found } = stage.search;
  stage.search.at = found.length ? (stage.search.at + move + found.length) % found.length : 0;
  const said = found.length ? `${count(stage.search.at + 1)} of ${count(found.length)}` : "none found";
  byId("search-note").textContent = words.trim() ? said : "";
  byId("shared").setAttribute("aria-pressed", "false");
  stage.canvas.marks = found.length ? { nodes: found, level: null } : null;
  if (found.length) selectNode(found[stage.search.at], true);
  else clearSelection();
}
