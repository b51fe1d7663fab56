// Draws the arrows of a graph on a canvas; the painter of the boxes extends it.

const DETAIL = { text: 0.42, curves: 0.16, dash: 0.3 };

class ArrowPainter {
  constructor(canvas) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.view = { scale: 1, x: 0, y: 0 };
    this.graph = null;
    this.scene = { boxes: [], edges: [], width: 0, height: 0 };
    this.marks = null;
    this.selected = null;
    this.hovered = null;
    this.readColours();
  }

  paintEdges() {
    const c = this.context;
    const { boxes } = this.scene;
    const passes = [
      [this.ink.rule, 1.2, this.marked ? 0.45 : 0.75],
      [this.ink.rule, 0.8, 0.18],
      [this.markInk(), 2.4, 1],
      [this.ink.accent, 2.2, 1],
    ];
    const curved = this.view.scale >= DETAIL.curves;
    // Zoomed out, short arrows and the fans of shared leaves cannot be seen, and cost most.
    const least = curved ? 0 : 3 / this.view.scale;
    passes.forEach(([ink, width, alpha], pass) => {
      if (!curved && pass === 1) return;
      c.beginPath();
      let any = false;
      for (const edge of this.edgesByPass[pass]) {
        const [from, to] = [boxes[edge.from], boxes[edge.to]];
        const low = Math.min(from.y, to.y);
        const high = Math.max(from.y + from.height, to.y + to.height);
        if (!curved && high - low < least && Math.abs(from.x - to.x) < least) continue;
        if (
          high < this.clip.top ||
          low > this.clip.bottom ||
          Math.max(from.x + from.width, to.x + to.width) < this.clip.left ||
          Math.min(from.x, to.x) > this.clip.right
        )
          continue;
        any = true;
        this.trace(from, to, curved);
      }
      if (!any) return;
      c.globalAlpha = alpha;
      c.strokeStyle = ink;
      c.lineWidth = curved ? width : (width / this.view.scale) * 0.5;
      c.stroke();
    });
  }

  /** Draw an arrow: down from box to box, aside to a leaf, or bowed around what lies between. */
  trace(from, to, curved) {
    const c = this.context;
    if (to.kind === "leaf" && to.y >= from.y && to.y < from.y + from.height && to.x > from.x) {
      c.moveTo(from.x + from.width, to.y + to.height / 2);
      c.lineTo(to.x, to.y + to.height / 2);
      return;
    }
    const [x1, y1] = [from.x + from.width / 2, from.y + from.height];
    const [x2, y2] = [to.x + to.width / 2, to.y];
    c.moveTo(x1, y1);
    if (!curved) return void c.lineTo(x2, y2);
    const drop = y2 - y1;
    const far = drop > GAP.y + GROUP.head + GROUP.pad + NODE.height || drop < 0;
    const bow = far && Math.abs(x2 - x1) < 70 ? Math.max(from.width, to.width) / 2 + 46 + Math.min(60, drop / 40) : 0;
    const reach = drop < 0 ? 60 : Math.min(drop / 2, 140);
    if (bow) {
      const side = Math.min(x1, x2) - bow;
      c.bezierCurveTo(x1, y1 + 22, side, y1 + 10, side, y1 + Math.min(70, Math.abs(drop) / 2));
      c.lineTo(side, y2 - Math.min(70, Math.abs(drop) / 2));
      c.bezierCurveTo(side, y2 - 10, x2, y2 - 26, x2, y2);
    } else c.bezierCurveTo(x1, y1 + reach, x2, y2 - reach, x2, y2);
    if (this.view.scale > DETAIL.dash) {
      c.moveTo(x2 - 4, y2 - 7);
      c.lineTo(x2, y2);
      c.lineTo(x2 + 4, y2 - 7);
    }
  }
}
