// The toolbar, the pointer and the keyboard around the canvas.

function buildToolbar() {
  const tool = (id, text, title, onclick, more = {}) => button(text, onclick, { id, title, ...more });
  const relayout = (change) => () => {
    change(stage.graph);
    stage.canvas.selected = null;
    stage.canvas.show(stage.graph);
    stage.canvas.home();
    showDetails(null);
  };
  const field = el("input", {
    type: "search",
    id: "search",
    placeholder: "Search nodes, modules, lines",
    "aria-label": "Search the graph",
    autocomplete: "off",
    spellcheck: "false",
  });
  field.addEventListener("input", () => search(field.value));
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter") search(field.value, event.shiftKey ? -1 : 1);
    else if (event.key === "Escape") {
      field.value = "";
      search("");
      byId("canvas").focus({ preventScroll: true });
    } else return;
    event.preventDefault();
    event.stopPropagation();
  });
  byId("graph-toolbar").append(
    el("div", { class: "search" }, field, el("kbd", { "aria-hidden": "true" }, "/")),
    el("span", { id: "search-note", class: "note", "aria-live": "polite" }),
    el("span", { class: "grow" }),
    tool("shared", "Shared part", "", toggleShared, { "aria-pressed": "false" }),
    tool("open-all", "Open all", "Open every module group", relayout((graph) => graph.openAll())),
    tool("close-all", "Close all", "Close every module group", relayout((graph) => graph.closeAll())),
  );
  byId("graph-zoom").append(
    tool("zoom-in", "+", "Zoom in (+)", () => stage.canvas.zoom(1.3), { "aria-label": "Zoom in" }),
    tool("zoom-out", "−", "Zoom out (−)", () => stage.canvas.zoom(1 / 1.3), { "aria-label": "Zoom out" }),
    tool("fit", "Fit", "Fit the whole graph (0)", () => stage.canvas.fit()),
  );
  const key = (state) => {
    const shape = svg("path", { "fill-rule": "evenodd" });
    shape.setAttribute("d", FAR[state].map(([x, y, w, h]) => `M${22 * x},${12 * y}h${22 * w}v${12 * h}h${-22 * w}z`).join(""));
    shape.style.fill = `var(--${state}-ink)`;
    const far = svg("svg", { width: 22, height: 12, "aria-hidden": "true" }, shape);
    return el("span", { class: "key" }, far, stateTag(state), look(state).meaning);
  };
  byId("graph-legend").append(...page.theme.nodeStates.map(key));
}

function listenToCanvas() {
  const { canvas: view } = stage;
  const { canvas } = view;
  const at = (event) => pointIn(canvas, event);
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    stage.pointers.set(event.pointerId, at(event));
    stage.moved = stage.pointers.size > 1;
  });
  canvas.addEventListener("pointermove", (event) => {
    const [px, py] = at(event);
    stage.armed = [event.clientX, event.clientY];
    const before = stage.pointers.get(event.pointerId);
    if (!before) return hover(event, px, py);
    if (stage.pointers.size === 1) {
      if (!stage.moved && Math.hypot(px - before[0], py - before[1]) < 4) return;
      stage.moved = true;
      view.view.x += px - before[0];
      view.view.y += py - before[1];
      view.draw();
    } else {
      const [other] = [...stage.pointers].filter(([id]) => id !== event.pointerId).map(([, point]) => point);
      const spread = (point) => Math.hypot(point[0] - other[0], point[1] - other[1]) || 1;
      view.zoom(spread([px, py]) / spread(before), (px + other[0]) / 2, (py + other[1]) / 2);
    }
    stage.pointers.set(event.pointerId, [px, py]);
    tip.hide();
  });
  const up = (event) => {
    const pressed = stage.pointers.delete(event.pointerId);
    if (pressed && !stage.moved && event.type === "pointerup") activate(view.boxAt(...at(event)));
  };
  canvas.addEventListener("pointerup", up);
  canvas.addEventListener("pointercancel", up);
  canvas.addEventListener("pointerleave", () => {
    stage.armed = null;
    view.hovered = null;
    view.draw();
    tip.hide();
  });
  // Scrolling past must not get stuck here: the wheel zooms once the pointer has moved inside.
  addEventListener(
    "scroll",
    () => {
      stage.armed = null;
      tip.hide();
    },
    { passive: true },
  );
  canvas.addEventListener(
    "wheel",
    (event) => {
      if (!stage.armed && !event.ctrlKey) return;
      event.preventDefault();
      tip.hide();
      const pace = event.deltaMode === 1 ? 0.05 : event.ctrlKey ? 0.01 : 0.0016;
      view.zoom(Math.exp(-Math.max(-240, Math.min(240, event.deltaY)) * pace), ...at(event));
    },
    { passive: false },
  );
  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const pan = { ArrowLeft: [60, 0], ArrowRight: [-60, 0], ArrowUp: [0, 60], ArrowDown: [0, -60] }[event.key];
    if (pan && event.shiftKey) {
      view.view.x += pan[0];
      view.view.y += pan[1];
      view.draw();
    } else if (pan) step(event.key);
    else if (event.key === "Enter" || event.key === " ") {
      if (view.selected !== null && view.selected < 0) toggleGroup(~view.selected);
      else if (view.selected !== null) byId("details").focus({ preventScroll: true });
    } else if (event.key === "+" || event.key === "=") view.zoom(1.3);
    else if (event.key === "-") view.zoom(1 / 1.3);
    else if (event.key === "0") view.fit();
    else if (event.key === "Backspace") leave();
    else if (event.key === "Escape") clearSelection();
    else return;
    event.preventDefault();
  });
}

function hover(event, px, py) {
  const { canvas: view, graph } = stage;
  const number = view.boxAt(px, py);
  view.canvas.style.cursor = number === null ? "grab" : "pointer";
  if (number !== view.hovered) {
    view.hovered = number;
    view.draw();
  }
  if (number === null) return tip.hide();
  const { item } = view.scene.boxes[number];
  if (item < 0) {
    const group = graph.groups[~item];
    return tip.show(
      event.clientX,
      event.clientY,
      el("div", {}, el("b", {}, group.label), group.module_class ? ` ${group.module_class}` : ""),
      el("div", {}, `${counted(group.nodes, "node")}${group.bytes ? `, ${bytes(group.bytes)} saved` : ""}`),
      el("div", { class: "muted" }, graph.open.has(~item) ? "click to close" : "click to open"),
    );
  }
  const site = graph.siteAt(item);
  const saved = graph.savedOf(item);
  tip.show(
    event.clientX,
    event.clientY,
    el("div", {}, el("b", {}, graph.titleOf(item)), " ", stateTag(graph.stateOf(item))),
    ...saved.slice(0, 4).map((tensor) => el("div", {}, el("code", {}, tensor.label), ` ${bytes(tensor.nbytes)}`)),
    saved.length > 4 ? el("div", { class: "muted" }, `and ${saved.length - 4} more`) : "",
    site ? el("div", { class: "muted" }, site.place, site.text ? el("code", {}, ` ${site.text.trim()}`) : "") : "",
  );
}

function startGraph() {
  stage.canvas = new GraphCanvas(byId("canvas"));
  buildToolbar();
  listenToCanvas();
  stage.canvas.resize();
  new ResizeObserver(() => {
    const { canvas } = stage;
    if (
      canvas.canvas.clientWidth &&
      (canvas.canvas.clientWidth !== canvas.width || canvas.canvas.clientHeight !== canvas.height)
    )
      canvas.resize();
  }).observe(byId("graph-picture"));
  page.onChange((what) => {
    if (what.theme) {
      stage.canvas.readColours();
      stage.canvas.draw();
    }
    if (what.call) showGraph(what.graph ?? (page.call ? page.call.graph : null), what);
  });
}
