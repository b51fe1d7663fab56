// A backward graph: its columns, its module groups, which are open, and where each box goes.

const NODE = { height: 56, least: 132, most: 236 };
const LEAF = { height: 24, gap: 12 };
const LONE_LEAF = 42; // the height of one that hangs on no node
const GROUP = { height: 66, width: 208, pad: 18, head: 30 };
const FLAG = 26;
const GAP = { x: 30, y: 40 };
const READABLE = 140;

let measuring = null;
const widths = new Map();

/** The width of `text` in bold 12 px type, kept, as the same few names recur. */
function textWidth(text) {
  if (!widths.has(text)) {
    if (!measuring) {
      measuring = document.createElement("canvas").getContext("2d");
      measuring.font = "600 12px system-ui, sans-serif";
    }
    widths.set(text, measuring.measureText(text).width);
  }
  return widths.get(text);
}

/** Numbers grouped by key: those of key k are `values[starts[k]]` to `values[starts[k + 1] - 1]`. */
function grouped(keys, values, size) {
  const starts = new Uint32Array(size + 1);
  for (const key of keys) if (key >= 0) starts[key + 1] += 1;
  for (let i = 0; i < size; i += 1) starts[i + 1] += starts[i];
  const next = starts.slice();
  const sorted = new Uint32Array(starts[size]);
  keys.forEach((key, i) => {
    if (key >= 0) sorted[next[key]++] = values[i];
  });
  return (key) => sorted.subarray(starts[key], starts[key + 1]);
}

class BackwardGraph {
  constructor(columns) {
    Object.assign(this, columns, columns.placing);
    this.count = this.node.name.length;
    const edges = this.edge.source.map((_, i) => i);
    this.outgoing = grouped(this.edge.source, edges, this.count);
    this.incoming = grouped(this.edge.target, edges, this.count);
    const nodes = this.beside.map((_, i) => i);
    this.leavesBeside = grouped(this.beside, nodes, this.count);
    this.groups = this.groups.map((group, index) => ({ ...group, index, depth: 0, nodes: 0, bytes: 0, states: {} }));
    for (const group of this.groups) if (group.parent >= 0) group.depth = this.groups[group.parent].depth + 1;
    this.savedStart = [0];
    for (const saved of this.saved_count) this.savedStart.push(this.savedStart.at(-1) + saved);
    this.sum();
    this.rows = this.groups.map(() => []);
    this.groups.forEach((group) => group.parent >= 0 && this.put(group.parent, group.rank, group.order, ~group.index));
    for (let i = 0; i < this.count; i += 1)
      if (this.beside[i] < 0) this.put(this.parent[i], this.rank[i], this.order[i], i);
    this.sizes = this.rows.map((rows) => rows.reduce((sum, row) => sum + row.length, 0));
    this.linkLevels();
    this.open = new Set(this.groups.filter((group) => group.is_open).map((group) => group.index));
  }

  put(group, rank, order, item) {
    const rows = this.rows[group];
    while (rows.length <= rank) rows.push([]);
    rows[rank][order] = item;
  }

  stateOf(node) {
    return this.node.state[node];
  }
  nameOf(node) {
    return this.node.name[node];
  }
  isLeaf(node) {
    return this.node.variable_label[node] !== null;
  }
  titleOf(node) {
    return this.node.variable[node] || this.nameOf(node);
  }
  /** State and bytes of a node in a few words. */
  stateWords(node) {
    if (this.isLeaf(node)) return this.node.variable_label[node];
    const state = this.stateOf(node);
    if (state === "bufferless") return "saved nothing";
    const size = this.bytesOf(node);
    return `${look(state).word}${state === "freed" && this.node.freed_by[node] ? ` by call ${count(this.node.freed_by[node])}` : ""}${size ? `, ${bytes(size)}` : ""}`;
  }

  /** What a node or a group is called by a voice. */
  spoken(item) {
    if (item >= 0)
      return [this.titleOf(item), this.stateWords(item), this.node.module[item], this.siteAt(item)?.place].filter(Boolean).join(", ");
    const { label, nodes, states } = this.groups[~item];
    const told = page.theme.nodeStates.filter((state) => states[state]).map((state) => `${count(states[state])} ${look(state).word}`);
    return [`group ${label}`, counted(nodes, "node"), ...told, `Enter ${this.open.has(~item) ? "closes" : "opens"} it`].join(", ");
  }

  siteAt(node) {
    return siteOf(this.node.location[node], this.sites);
  }

  savedOf(node) {
    const all = [];
    for (let i = this.savedStart[node]; i < this.savedStart[node + 1]; i += 1) {
      const saved = Object.fromEntries(Object.entries(this.saved).map(([name, values]) => [name, values[i]]));
      const kind = `${saved.dtype}[${saved.shape.join(", ")}]`;
      const label = saved.name ? `${saved.name} ${kind}` : kind;
      all.push({ ...saved, kind, label, site: siteOf(saved.location, this.sites) });
    }
    return all;
  }

  bytesOf(node) {
    const seen = new Map();
    for (let i = this.savedStart[node]; i < this.savedStart[node + 1]; i += 1)
      if (!this.saved.is_parameter[i]) seen.set(this.saved.storage[i], this.saved.nbytes[i]);
    return [...seen.values()].reduce((sum, size) => sum + size, 0);
  }

  /** Nodes, bytes (each storage once) and states of every group. */
  sum() {
    const storages = this.groups.map(() => new Set());
    for (let node = 0; node < this.count; node += 1) {
      for (let g = this.parent[node]; g >= 0; g = this.groups[g].parent) {
        const group = this.groups[g];
        group.nodes += 1;
        if (!this.isLeaf(node)) group.states[this.stateOf(node)] = (group.states[this.stateOf(node)] || 0) + 1;
        for (let i = this.savedStart[node]; i < this.savedStart[node + 1]; i += 1) {
          if (this.saved.is_parameter[i] || storages[g].has(this.saved.storage[i])) continue;
          storages[g].add(this.saved.storage[i]);
          group.bytes += this.saved.nbytes[i];
        }
      }
    }
  }

  /** For each group the arrows between the boxes right inside it, both ways. */
  linkLevels() {
    this.above = this.groups.map(() => new Map());
    this.below = this.groups.map(() => new Map());
    const add = (map, key, value) => (map.has(key) ? map.get(key).push(value) : map.set(key, [value]));
    for (let e = 0; e < this.edge.source.length; e += 1) {
      let [source, target] = [this.edge.source[e], this.edge.target[e]];
      if (this.beside[target] >= 0) continue;
      let [g, h] = [this.parent[source], this.parent[target]];
      while (g !== h) {
        if (this.groups[g].depth >= this.groups[h].depth) [source, g] = [~g, this.groups[g].parent];
        else [target, h] = [~h, this.groups[h].parent];
      }
      if (source === target) continue;
      add(this.below[g], source, target);
      add(this.above[g], target, source);
    }
  }

  openAll() {
    this.open = new Set(this.groups.map((group) => group.index));
  }
  closeAll() {
    this.open = new Set([0]);
  }

  /** Open the groups that hide `node`. */
  reveal(node) {
    for (let g = this.parent[node]; g > 0; g = this.groups[g].parent) this.open.add(g);
  }

  close(group) {
    for (const other of this.groups) {
      for (let g = other.index; g > 0; g = this.groups[g].parent) if (g === group) this.open.delete(other.index);
    }
  }

  /** The nodes that more than one root reaches. */
  shared() {
    const times = new Uint16Array(this.count);
    for (const start of new Set(this.roots.map(({ node }) => node))) {
      const seen = new Uint8Array(this.count);
      const stack = [start];
      seen[start] = 1;
      while (stack.length) {
        const node = stack.pop();
        times[node] += 1;
        for (const e of this.outgoing(node)) {
          const next = this.edge.target[e];
          if (!seen[next]) {
            seen[next] = 1;
            stack.push(next);
          }
        }
      }
    }
    const found = [];
    times.forEach((number, node) => number > 1 && found.push(node));
    return found;
  }

  /** Place every visible box: nodes, closed groups, frames of open ones (outer before inner). */
  layout() {
    const measured = new Map();
    const flagged = new Set(this.roots.map(({ node }) => this.standIn(node)));
    const measure = (item) => {
      const size = plainSize(item);
      size.flag = flagged.has(item) ? FLAG : 0;
      size.height += size.flag;
      return size;
    };
    const plainSize = (item) => {
      if (item >= 0) {
        const width = Math.max(
          NODE.least,
          Math.min(
            NODE.most,
            Math.max(textWidth(this.titleOf(item)) + 40, textWidth(this.stateWords(item)) * 0.9 + 24),
          ),
        );
        const leaves = this.leavesBeside(item);
        let aside = 0;
        for (const leaf of leaves) aside = Math.max(aside, LEAF.gap + this.leafWidth(leaf));
        const height = Math.max(this.isLeaf(item) ? LONE_LEAF : NODE.height, leaves.length * (LEAF.height + 4) - 4);
        return { width, height, left: width / 2, right: width / 2 + aside };
      }
      if (!this.open.has(~item)) {
        const width = Math.max(GROUP.width, Math.min(320, textWidth(this.groups[~item].label) + 44));
        return { width, height: GROUP.height, left: width / 2, right: width / 2 };
      }
      const inside = arrange(~item);
      const width = Math.max(inside.width + 2 * GROUP.pad, Math.min(420, textWidth(this.groupTitle(~item)) + 60));
      return { width, height: inside.height + GROUP.head + GROUP.pad, left: width / 2, right: width / 2, inside };
    };
    const arrange = (group) => {
      const rows = this.rows[group];
      for (const row of rows) for (const item of row) measured.set(item, measure(item));
      const x = centres(rows, measured, this.above[group], this.below[group]);
      let [left, right] = [Infinity, -Infinity];
      const heights = rows.map((row) => {
        for (const item of row) {
          const size = measured.get(item);
          left = Math.min(left, x.get(item) - size.left);
          right = Math.max(right, x.get(item) + size.right);
        }
        return Math.max(0, ...row.map((item) => measured.get(item).height));
      });
      if (!rows.length) [left, right] = [0, 0];
      return {
        x,
        heights,
        left,
        width: right - left,
        height: heights.reduce((a, b) => a + b, 0) + GAP.y * Math.max(0, rows.length - 1),
      };
    };
    const boxes = [];
    this.boxOf = new Map();
    const add = (item, kind, bx, by, width, height) => {
      const box = { item, kind, x: bx, y: by, width, height };
      this.boxOf.set(item, boxes.length);
      boxes.push(box);
    };
    const settle = (group, inside, x0, y0) => {
      let top = y0;
      this.rows[group].forEach((row, number) => {
        for (const item of row) {
          const size = measured.get(item);
          const middle = x0 - inside.left + inside.x.get(item);
          if (item >= 0) {
            const high = this.isLeaf(item) ? LONE_LEAF : NODE.height;
            add(item, "node", middle - size.width / 2, top + size.flag, size.width, high);
            const aside = middle + size.width / 2 + LEAF.gap;
            this.leavesBeside(item).forEach((leaf, i) =>
              add(leaf, "leaf", aside, top + size.flag + i * (LEAF.height + 4), this.leafWidth(leaf), LEAF.height),
            );
          } else if (size.inside) {
            add(item, "frame", middle - size.width / 2, top, size.width, size.height);
            settle(~item, size.inside, middle - size.inside.width / 2, top + GROUP.head);
          } else add(item, "group", middle - size.width / 2, top + size.flag, size.width, GROUP.height);
        }
        top += inside.heights[number] + GAP.y;
      });
    };
    const whole = arrange(0);
    settle(0, whole, 0, 0);
    return { boxes, edges: this.visibleEdges(), width: whole.width, height: whole.height };
  }

  leafWidth(leaf) {
    return Math.min(200, textWidth(this.titleOf(leaf)) * 0.92 + 22);
  }

  groupTitle(group) {
    const { label, module_class: moduleClass } = this.groups[group];
    return moduleClass ? `${label}  ${moduleClass}` : label;
  }

  /** The box that shows `node` now: its own, or that of the outermost closed group around it. */
  boxFor(node) {
    return this.boxOf.get(this.standIn(node));
  }

  standIn(node) {
    let item = node;
    for (let g = this.parent[node]; g >= 0; g = this.groups[g].parent) if (!this.open.has(g)) item = ~g;
    return item;
  }

  visibleEdges() {
    const found = new Map();
    const boxes = Uint32Array.from({ length: this.count }, (_, node) => this.boxFor(node));
    this.boxNumbers = boxes;
    for (let e = 0; e < this.edge.source.length; e += 1) {
      const [from, to] = [boxes[this.edge.source[e]], boxes[this.edge.target[e]]];
      if (from === to) continue;
      const key = from * 67108864 + to;
      const leaf = this.edge.target[e];
      if (!found.has(key)) found.set(key, { from, to, fan: this.isLeaf(leaf) && this.incoming(leaf).length > 8 });
    }
    return [...found.values()];
  }
}
