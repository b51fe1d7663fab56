// The view of a graph: what is marked and selected, which part is visible, and at which size.

class GraphCanvas extends GraphPainter {
  resize() {
    const ratio = devicePixelRatio || 1;
    const { clientWidth, clientHeight } = this.canvas;
    this.width = clientWidth;
    this.height = clientHeight;
    this.canvas.width = Math.round(clientWidth * ratio);
    this.canvas.height = Math.round(clientHeight * ratio);
    this.ratio = ratio;
    this.draw();
  }

  show(graph) {
    this.graph = graph;
    this.scene = graph.layout();
    this.order = ["frame", "group", "node", "leaf"].map((kind) => this.scene.boxes.filter((box) => box.kind === kind));
    this.markBoxes();
  }

  /** Find the boxes that hold marked or selected nodes, and their neighbours. */
  markBoxes() {
    const { graph } = this;
    this.marked = this.marks
      ? new Set(this.marks.nodes.filter((node) => node < graph.count).map((node) => graph.boxNumbers[node]))
      : null;
    this.near = new Set();
    this.selectedBox = graph.boxOf.get(this.selected) ?? graph.boxNumbers[this.selected] ?? -1;
    for (const edge of this.scene.edges) {
      edge.near = edge.from === this.selectedBox || edge.to === this.selectedBox;
      if (edge.near) this.near.add(edge.from).add(edge.to);
      edge.across = this.marked !== null && this.marked.has(edge.to) && !this.marked.has(edge.from);
      edge.pass = edge.near ? 3 : edge.across ? 2 : edge.fan ? 1 : 0;
    }
    this.edgesByPass = [0, 1, 2, 3].map((pass) => this.scene.edges.filter((edge) => edge.pass === pass));
    this.draw();
  }

  draw() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => {
      this.pending = false;
      this.paint();
    });
  }

  boxAt(px, py) {
    const x = (px - this.view.x) / this.view.scale;
    const y = (py - this.view.y) / this.view.scale;
    for (const boxes of [...this.order].reverse()) {
      for (const box of boxes) {
        const bottom = box.kind === "frame" ? GROUP.head : box.height;
        if (x >= box.x && x <= box.x + box.width && y >= box.y && y <= box.y + bottom)
          return this.graph.boxOf.get(box.item);
      }
    }
    return null;
  }

  zoom(factor, px = this.width / 2, py = this.height / 2) {
    const scale = Math.max(this.leastScale(), Math.min(4, this.view.scale * factor));
    const real = scale / this.view.scale;
    this.view = { scale, x: px - (px - this.view.x) * real, y: py - (py - this.view.y) * real };
    this.draw();
  }

  leastScale() {
    return Math.min(0.2, 0.8 * this.fitting().scale);
  }

  fitting(area = { x: 0, y: 0, width: this.scene.width, height: this.scene.height }) {
    const scale = Math.min(
      1.1,
      (this.width - 48) / Math.max(1, area.width),
      (this.height - 48) / Math.max(1, area.height),
    );
    return {
      scale,
      x: (this.width - area.width * scale) / 2 - area.x * scale,
      y: (this.height - area.height * scale) / 2 - area.y * scale,
    };
  }

  fit() {
    this.view = this.fitting();
    this.draw();
  }

  /** Show the whole graph if it is readable then, else its top at a readable size. */
  home() {
    const whole = this.fitting();
    if (whole.scale >= DETAIL.text) this.view = whole;
    else {
      const root = this.scene.boxes[this.graph.boxNumbers[this.graph.roots[0]?.node ?? 0]];
      const scale = Math.max(0.7, whole.scale);
      this.view = { scale, x: this.width / 2 - (root ? root.x + root.width / 2 : 0) * scale, y: 56 };
    }
    this.draw();
  }

  /** Show boxes with everything around them, if that is readable. */
  showAround(numbers) {
    if (this.fitting().scale >= 0.72) this.fit();
    else this.showBoxes(numbers);
  }

  /** Bring boxes into view; zoom only as far as it takes. */
  showBoxes(numbers) {
    const found = numbers.map((number) => this.scene.boxes[number]).filter(Boolean);
    if (!found.length) return;
    const x = Math.min(...found.map((box) => box.x)) - 60;
    const y = Math.min(...found.map((box) => box.y)) - 60;
    const area = {
      x,
      y,
      width: Math.max(...found.map((box) => box.x + box.width)) + 60 - x,
      height: Math.max(...found.map((box) => box.y + box.height)) + 60 - y,
    };
    const fitted = this.fitting(area);
    const scale = Math.max(Math.min(fitted.scale, Math.max(this.view.scale, 0.8)), 0.5, this.leastScale());
    const first = found[0];
    const [mx, my] =
      scale > fitted.scale
        ? [first.x + first.width / 2, first.y + first.height / 2]
        : [x + area.width / 2, y + area.height / 2];
    this.view = { scale, x: this.width / 2 - mx * scale, y: this.height / 2 - my * scale };
    this.draw();
  }
}
