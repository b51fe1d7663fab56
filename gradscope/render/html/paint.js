// Draws boxes and arrows on a canvas: only what is in view, in the detail that the zoom can show.

/** What a box is, zoomed out, as parts of its width and height: each state has a shape of its own. */
const FAR = {
  group: [[0, 0, 1, 1]],
  live: [[0, 0, 1, 1]],
  retained: [[0, 0, 0.4, 1], [0.6, 0, 0.4, 1]],
  freed: [[0, 0, 1, 1], [0.14, 0.28, 0.72, 0.44]],
  stale: [[0, 0, 1, 0.36], [0, 0.64, 1, 0.36]],
  bufferless: [[0, 0.34, 1, 0.32]],
  destroyed: [[0.35, 0.34, 0.3, 0.32]],
};

const [SIGN, BOLD, SMALL_BOLD, SMALL] = ["600 15px", "600 12px", "600 11px", "11px"].map(
  (size) => `${size} system-ui, sans-serif`,
);

class GraphPainter extends ArrowPainter {
  readColours() {
    const names = ["background", "surface", "text", "muted", "rule", "accent", "line", "frame"];
    this.ink = Object.fromEntries(names.map((name) => [name, colour(name)]));
    this.tones = {};
    for (const state of Object.keys(page.theme.looks))
      this.tones[state] = { ink: colour(`${state}-ink`), fill: colour(`${state}-fill`) };
  }

  paint() {
    const { context: c, view } = this;
    if (!this.graph || !this.width) return;
    c.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    c.fillStyle = this.ink.background;
    c.fillRect(0, 0, this.width, this.height);
    c.translate(view.x, view.y);
    c.scale(view.scale, view.scale);
    this.clip = {
      left: -view.x / view.scale - 40,
      top: -view.y / view.scale - 60,
      right: (this.width - view.x) / view.scale + 40,
      bottom: (this.height - view.y) / view.scale + 40,
    };
    const [frames, groups, nodes, leaves] = this.order;
    const seen = frames.filter((box) => this.inView(box) && box.height * view.scale > 6);
    if (view.scale < DETAIL.curves) this.paintFarFrames(seen);
    else for (const box of seen) this.paintFrame(box);
    this.paintEdges();
    if (view.scale >= DETAIL.text * 0.6) for (const box of seen) this.paintFrameTitle(box);
    if (view.scale < DETAIL.curves) this.paintFar([...groups, ...nodes]);
    else {
      for (const box of groups) if (this.inView(box)) this.paintGroup(box);
      for (const box of nodes) if (this.inView(box)) this.paintNode(box);
      for (const box of leaves) if (this.inView(box)) this.paintLeaf(box);
    }
    this.paintMarks();
    this.paintRoots();
    c.globalAlpha = 1;
  }

  inView(box) {
    return (
      box.y < this.clip.bottom &&
      box.y + box.height > this.clip.top &&
      box.x < this.clip.right &&
      box.x + box.width > this.clip.left
    );
  }

  /** Fade what is not marked. */
  strength(box) {
    const number = this.graph.boxOf.get(box.item);
    return !this.marked || this.marked.has(number) || number === this.selectedBox ? 1 : 0.55;
  }

  /** A rounded box, filled unless `fill` is null, with a border. */
  outline({ x, y, width, height }, radius, fill, ink, lineWidth, dash = []) {
    const c = this.context;
    c.beginPath();
    c.roundRect(x, y, width, height, radius);
    if (fill) {
      c.fillStyle = fill;
      c.fill();
    }
    c.strokeStyle = ink;
    c.lineWidth = lineWidth;
    c.setLineDash(dash);
    c.stroke();
    c.setLineDash([]);
  }

  /** Text that fits into `room`; places lose their beginning, as their end identifies them. */
  text(text, x, y, room, font, ink, align = "left", keepEnd = false) {
    const c = this.context;
    c.globalAlpha = 1; // what is faded stays readable
    c.font = font;
    c.fillStyle = ink;
    c.textAlign = align;
    let shown = text;
    if (c.measureText(shown).width > room) {
      const share = room / c.measureText(shown).width;
      const kept = Math.max(1, Math.floor(shown.length * share) - 1);
      shown = keepEnd ? `…${shown.slice(-kept)}` : `${shown.slice(0, kept)}…`;
    }
    c.fillText(shown, x, y);
  }

  paintFarFrames(boxes) {
    const c = this.context;
    c.beginPath();
    for (const box of boxes) c.rect(box.x, box.y, box.width, box.height);
    c.strokeStyle = this.ink.line;
    c.lineWidth = 1 / this.view.scale;
    c.stroke();
  }

  paintFrame(box) {
    const dash = this.graph.groups[~box.item].kind !== "module" ? [6, 4] : [];
    this.context.globalAlpha = 1;
    this.outline(box, 10, this.ink.frame, this.ink.line, 1.2, dash);
  }

  /** Draw the title over the arrows, on the page's colour, so that none crosses the words. */
  paintFrameTitle(box) {
    const c = this.context;
    const words = this.graph.groupTitle(~box.item);
    c.globalAlpha = 0.9;
    c.fillStyle = this.ink.background;
    c.fillRect(box.x + 8, box.y + 6, Math.min(box.width - 16, textWidth(words) + 34), 19);
    c.globalAlpha = 1;
    this.text("−", box.x + 14, box.y + 20, 20, SIGN, this.ink.muted);
    this.text(words, box.x + 30, box.y + 20, box.width - 44, BOLD, this.ink.muted);
  }

  /** Zoomed out, a box is a spot in the shape and colour of its state. */
  paintFar(boxes) {
    const c = this.context;
    const paths = new Map();
    let drawn = NaN;
    for (const box of boxes) {
      if (!this.inView(box)) continue;
      // Where many boxes fall on one line of pixels, one of them is enough.
      const line = Math.floor(box.y * this.view.scale * 2);
      if (box.height * this.view.scale < 1 && line === drawn) continue;
      drawn = line;
      const state = box.kind === "group" ? "group" : this.graph.stateOf(box.item);
      const key = `${state} ${this.strength(box)}`;
      if (!paths.has(key)) paths.set(key, []);
      paths.get(key).push(box);
    }
    for (const [key, found] of paths) {
      const [state, alpha] = key.split(" ");
      c.globalAlpha = Number(alpha);
      c.fillStyle = (this.tones[state] ?? this.tones.bufferless).ink;
      c.beginPath();
      for (const { x, y, width, height } of found)
        for (const [left, top, wide, high] of FAR[state])
          c.rect(x + left * width, y + top * height, wide * width, high * height);
      c.fill("evenodd");
    }
  }

  paintNode(box) {
    const { context: c, graph } = this;
    const node = box.item;
    if (graph.isLeaf(node)) return this.paintLeaf(box);
    const state = graph.stateOf(node);
    const tone = this.tones[state];
    c.globalAlpha = this.strength(box) * (graph.node.will_run[node] ? 1 : 0.65);
    const { symbol, dash } = look(state);
    const width = state === "retained" ? 2.2 : 1.4;
    this.outline(box, 7, tone.fill, tone.ink, width, this.view.scale > DETAIL.dash ? dash : []);
    if (this.view.scale < DETAIL.text)
      return this.text(symbol, box.x + box.width / 2, box.y + 45, 90, "600 48px system-ui, sans-serif", tone.ink, "center");
    const room = box.width - 22;
    const x = box.x + 11;
    this.text(symbol, x, box.y + 20, 20, BOLD, tone.ink);
    this.text(graph.nameOf(node), x + 16, box.y + 20, room - 14, BOLD, this.ink.text);
    const ink = state === "bufferless" ? this.ink.muted : tone.ink;
    this.text(graph.stateWords(node), x, box.y + 35, room, SMALL, ink);
    const site = graph.siteAt(node);
    if (site)
      this.text(site.place, x, box.y + 49, room, "10.5px ui-monospace, monospace", this.ink.muted, "left", true);
  }

  paintLeaf(box) {
    const { context: c, graph } = this;
    c.globalAlpha = this.strength(box) * (graph.node.will_run[box.item] ? 1 : 0.65);
    this.outline(box, box.kind === "leaf" ? 12 : 21, this.ink.surface, this.ink.rule, 1.1);
    if (this.view.scale < DETAIL.text) return;
    const middle = box.x + box.width / 2;
    const title = graph.titleOf(box.item);
    if (box.kind === "leaf")
      return this.text(title, middle, box.y + 16, box.width - 14, SMALL_BOLD, this.ink.text, "center");
    this.text(title, middle, box.y + 18, box.width - 22, BOLD, this.ink.text, "center");
    const users = graph.incoming(box.item).length;
    const about = `${graph.node.variable_label[box.item]}${users > 1 ? `, used ×${count(users)}` : ""}`;
    this.text(about, middle, box.y + 33, box.width - 22, SMALL, this.ink.muted, "center");
  }

  paintGroup(box) {
    const c = this.context;
    const group = this.graph.groups[~box.item];
    c.globalAlpha = this.strength(box);
    for (const shift of [6, 3, 0])
      this.outline({ ...box, x: box.x + shift, y: box.y + shift }, 8, this.ink.surface, this.ink.rule, 1.2);
    if (this.view.scale < DETAIL.text * 0.8) return;
    const x = box.x + 12;
    this.text("+", x, box.y + 20, 20, SIGN, this.ink.accent);
    this.text(group.label, x + 16, box.y + 20, box.width - 40, BOLD, this.ink.text);
    const about = [group.module_class, counted(group.nodes, "node")].filter(Boolean).join(", ");
    this.text(about, x, box.y + 36, box.width - 24, SMALL, this.ink.muted);
    let at = x;
    for (const state of page.theme.nodeStates) {
      if (!group.states[state] || at > box.x + box.width - 40) continue;
      const words = `${look(state).symbol} ${count(group.states[state])}`;
      this.text(words, at, box.y + 53, 90, SMALL_BOLD, this.tones[state].ink);
      at += c.measureText(words).width + 10;
    }
    const [end, saved] = [box.x + box.width, `${bytes(group.bytes)} saved`];
    if (group.bytes) this.text(saved, end - 12, box.y + 53, end - 20 - at, SMALL, this.ink.muted, "right");
  }

  /** The colour of marks: the finding's, or the page's own for searches and the shared part. */
  markInk() {
    return this.marks && this.marks.level ? this.tones[this.marks.level].ink : this.ink.accent;
  }

  /** Draw rings around what is marked, selected or under the pointer. */
  paintMarks() {
    const ring = (box, ink, width, away) => {
      const around = { x: box.x - away, y: box.y - away, width: box.width + 2 * away, height: box.height + 2 * away };
      this.context.globalAlpha = 1;
      this.outline(around, 10, null, ink, Math.max(width, (width * 0.5) / this.view.scale));
    };
    const tone = this.markInk();
    for (const number of this.marked || []) {
      const box = this.scene.boxes[number];
      if (this.inView(box)) ring(box, tone, 2.4, 4);
    }
    for (const number of this.near)
      if (number !== this.selectedBox) ring(this.scene.boxes[number], this.ink.accent, 1.4, 2);
    if (this.selectedBox >= 0) ring(this.scene.boxes[this.selectedBox], this.ink.accent, 3, 4);
    if (this.hovered !== null && this.scene.boxes[this.hovered])
      ring(this.scene.boxes[this.hovered], this.ink.accent, 1.4, 3);
  }

  /** Draw a flag above each root: the name of the tensor that backward starts from. */
  paintRoots() {
    if (this.view.scale < DETAIL.text * 0.6) return;
    const c = this.context;
    const flags = new Map();
    for (const { node, name, label: kind } of this.graph.roots) {
      const number = this.graph.boxNumbers[node];
      flags.set(number, [...(flags.get(number) || []), name || kind || "root"]);
    }
    for (const [number, names] of flags) {
      const box = this.scene.boxes[number];
      if (!box || !this.inView(box)) continue;
      const shown = names.length > 2 ? `${names.slice(0, 2).join(", ")} +${names.length - 2}` : names.join(", ");
      const width = textWidth(shown) + 18;
      c.globalAlpha = 1;
      c.fillStyle = this.ink.accent;
      c.beginPath();
      c.roundRect(box.x + box.width / 2 - width / 2, box.y - 26, width, 19, 5);
      c.fill();
      this.text(shown, box.x + box.width / 2, box.y - 12, width, BOLD, this.ink.background, "center");
    }
  }
}
