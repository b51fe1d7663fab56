// Draws every backward call on one axis: bytes held above, the life of each graph as a bar below.

const timeline = { mode: "calls", drag: null, from: null };
const LANE = 20;
const MARGIN = { left: 68, right: 12, top: 10, memory: 112, gap: 26, axis: 22 };

function showTimeline() {
  const { samples, backward_calls: backwardCalls, peak } = page.track;
  const picture = byId("timeline-picture");
  byId("timeline-note").textContent = page.calls.length
    ? `${counted(backwardCalls, "backward call")}${page.calls.length < backwardCalls ? `, alike ones folded into ${counted(page.calls.length, "row")}` : ""}; drag over the picture to select`
    : "";
  if (!page.calls.length) {
    picture.replaceChildren(el("p", { class: "empty" }, `${page.track.name} made no backward call.`));
    return;
  }
  const width = Math.max(300, picture.clientWidth);
  const lanes = 1 + Math.max(...page.bars.map((bar) => bar.lane));
  const lanesTop = MARGIN.top + MARGIN.memory + MARGIN.gap;
  const height = lanesTop + lanes * LANE + MARGIN.axis;
  const scale = timeScale(width, timeline.mode);
  const { x } = scale;
  Object.assign(timeline, { scale, lanesTop, width });

  const most = Math.max(1024, 1.06 * peak, ...samples.map((sample) => sample[1] + sample[2]));
  const { y, grid } = sizeScale(most, MARGIN.memory, width);
  const across = { y: MARGIN.top, height: height - MARGIN.top - MARGIN.axis };
  const stripes = (id, turn, wide) =>
    svg(
      "pattern",
      { id, width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: `rotate(${turn})` },
      svg("rect", { width: 6, height: 6, class: `${id}-back` }),
      svg("rect", { width: wide, height: 6, class: `${id}-line` }),
    );
  const live = (sample) => sample[1];
  const drawing = svg(
    "svg",
    {
      width,
      height,
      viewBox: `0 0 ${width} ${height}`,
      tabindex: 0,
      role: "application",
      id: "timeline-svg",
      "aria-label":
        "Timeline of backward calls. Left and right select a call, with Shift all up to it, Enter shows its graph; the button Show as table lists the same calls.",
    },
    svg("defs", {}, stripes("hatch", 45, 2.5), stripes("kept", 0, 1.5)),
    ...grid,
    label(MARGIN.left, MARGIN.top + MARGIN.memory + 17, "graphs", "start", "lane-title"),
    svg("rect", { class: "selected", id: "timeline-selected", ...across }),
    ...stretches(samples).map(({ points, alike, until }) =>
      svg("path", { class: alike ? "area live alike" : "area live", d: areaPath(points, x, y, () => 0, live, until) }),
    ),
    svg("path", { class: "area held", d: areaPath(samples, x, y, live, (sample) => sample[1] + sample[2]) }),
    ...barPaths(x),
    ...peakLine(peak, y(peak), width),
    ...axisLabels(x, lanesTop + lanes * LANE + 15),
    svg("rect", { class: "brush", id: "timeline-brush", ...across, visibility: "hidden" }),
  );
  picture.replaceChildren(drawing);
  listenToTimeline(drawing);
  markCall();
}

/** Where a size is drawn, of at most so many bytes in so many pixels, and lines across at round ones. */
function sizeScale(most, height, width) {
  const step = niceStep(most, 3, 2);
  const ceiling = Math.ceil(most / step) * step;
  const y = (size) => MARGIN.top + height * (1 - size / ceiling);
  const grid = [];
  for (let size = 0; size <= ceiling; size += step) {
    grid.push(svg("line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: y(size), y2: y(size) }));
    grid.push(label(MARGIN.left - 8, y(size) + 4, size ? bytes(size) : "0", "end"));
  }
  return { y, grid };
}

/** The memory curve in pieces: as it was measured, or known from like calls. */
function stretches(samples) {
  const pieces = [];
  for (const sample of samples) {
    const alike = Boolean(sample[4]);
    if (pieces.length && pieces.at(-1).alike === alike) {
      pieces.at(-1).points.push(sample);
      continue;
    }
    if (pieces.length) pieces.at(-1).until = sample[0];
    pieces.push({ points: [sample], alike, until: page.track.end });
  }
  return pieces;
}

function peakLine(peak, y, width) {
  if (!peak) return [];
  return [
    svg("line", { class: "peak", x1: MARGIN.left, x2: width - MARGIN.right, y1: y, y2: y }),
    label(width - MARGIN.right - 4, y - 4, `peak ${bytes(peak)}`, "end", "tick haloed"),
  ];
}

const label = (x, y, text, anchor = "middle", kind = "tick") =>
  svg("text", { x, y, class: kind, "text-anchor": anchor }, text);

const laneTop = (bar) => timeline.lanesTop + bar.lane * LANE + 3;

/** One path for each phase, so that thousands of calls stay a handful of elements. */
function barPaths(x) {
  const paths = { built: "", kept: "", run: "", folded: "", failed: "", freed: "" };
  const texts = [];
  const rect = (from, to, top, height) =>
    `M${from.toFixed(1)},${top}h${Math.max(1, to - from).toFixed(1)}v${height}h${-Math.max(1, to - from).toFixed(1)}z`;
  const nextInLane = nextStarts();
  page.bars.forEach((bar, row) => {
    const call = page.calls[row];
    const top = laneTop(bar);
    const [built, started, ended] = [x(bar.built), x(bar.started), x(bar.ended)];
    const free = Math.min(x(page.track.end), x(nextInLane[row]));
    if (started - built > 1) paths.built += rect(built, started, top + 4, LANE - 14);
    if (bar.kept !== null)
      paths.kept += rect(ended, Math.max(ended + 2, Math.min(free, x(bar.kept))), top + 2, LANE - 10);
    const phase = call.exception ? "failed" : call.count > 1 ? "folded" : "run";
    paths[phase] += rect(started, Math.max(ended, started + 2), top, LANE - 6);
    if (call.freed_bytes && call.count === 1 && ended - started > 8) {
      paths.freed += `M${(ended - 5).toFixed(1)},${top + 7}m-3,0a3,3 0 1,0 6,0a3,3 0 1,0 -6,0`;
    }
    const names = call.roots.flatMap((root) => root.name || []).join(", ");
    const times = call.count > 1 ? `×${count(call.count)}` : "";
    const full = [times, names].filter(Boolean).join(" ");
    const short = times || count(call.number);
    const room = ended - started - (call.freed_bytes && call.count === 1 ? 14 : 0);
    const text = [full, short].find((words) => words && words.length * 6.4 + 8 < room);
    const kind = phase === "run" ? "bar-text" : `bar-text ${phase}`;
    if (text) texts.push(label(started + room / 2, top + 11, text, "middle", kind));
  });
  return [...Object.entries(paths).map(([name, d]) => svg("path", { class: `bar ${name}`, d })), ...texts];
}

/** For each bar, when the next one in its lane begins. */
function nextStarts() {
  const next = new Map();
  const starts = [];
  for (let row = page.bars.length - 1; row >= 0; row -= 1) {
    const { lane, built } = page.bars[row];
    starts[row] = next.get(lane) ?? page.track.end;
    next.set(lane, built);
  }
  return starts;
}

function axisLabels(x, y) {
  const labels = [];
  let right = -Infinity;
  const put = (at, text) => {
    const half = text.length * 3.3 + 5;
    const middle = Math.max(MARGIN.left + half - 5, Math.min(timeline.width - half, at));
    if (middle - half < right) return;
    right = middle + half;
    labels.push(label(middle, y, text));
  };
  if (timeline.mode === "time") {
    const end = page.track.end || 1;
    const step = niceStep(end, Math.max(2, Math.floor(timeline.width / 140)), 10);
    for (let i = 0; i * step <= end * 1.001; i += 1) put(x(i * step), seconds(Number((i * step).toPrecision(6))));
  } else {
    const rows = page.bars
      .map((bar, row) => [(x(bar.started) + x(bar.ended)) / 2, page.calls[row]])
      .sort((a, b) => a[0] - b[0]);
    for (const [at, call] of rows) put(at, call.numbers);
  }
  return labels;
}

function markCall() {
  const mark = byId("timeline-selected");
  if (!mark) return;
  mark.setAttribute("visibility", page.call ? "visible" : "hidden");
  if (!page.call) return;
  const bar = page.bars[page.call.row];
  const { x } = timeline.scale;
  mark.setAttribute("x", x(bar.started) - 3);
  mark.setAttribute("width", Math.max(2, x(bar.ended) - x(bar.started)) + 6);
}

function startTimeline() {
  const modes = [
    ["calls", "By call", "The same room for every call"],
    ["time", "By time", "As the clock went"],
  ];
  segmented(byId("axis"), modes, timeline.mode, (mode) => {
    timeline.mode = mode;
    showTimeline();
  });
  const key = (kind, text) =>
    el(
      "span",
      { class: "key" },
      svg("svg", { width: 22, height: 14, "aria-hidden": "true" }, ...legendMark(kind)),
      text,
    );
  byId("timeline-legend").append(
    key("live", "held by graphs"),
    page.data.tracks.some(({ samples }) => samples.some((sample) => sample[4])) ? key("live alike", "the same, known from like calls") : "",
    key("held", "released by graphs, still held by someone"),
    key("built", "built"),
    key("run", "backward runs"),
    key("freed", "frees saved tensors"),
    key("kept", "retained"),
    key("folded", "alike calls folded"),
    key("failed", "failed"),
  );
  startTracks();
  showTimeline();
  showCall();
  new ResizeObserver(() => {
    if (page.calls.length && byId("timeline-picture").clientWidth !== timeline.width) showTimeline();
  }).observe(byId("timeline-picture"));
  page.onChange((what) => {
    if (what.track) {
      byId("track").value = String(page.data.tracks.indexOf(page.track));
      byId("brush-note").hidden = true;
      showTimeline();
    }
    if (what.call || what.brush) showCall();
    if (what.call) markCall();
  });
}

/** Of several processes, which one's timeline is shown. */
function startTracks() {
  const { tracks } = page.data;
  byId("track").hidden = tracks.length < 2;
  byId("track").append(...tracks.map(({ name }, index) => el("option", { value: String(index) }, name)));
  byId("track").addEventListener("change", () => {
    page.selectTrack(tracks[Number(byId("track").value)]);
    page.selectCall(firstCall());
  });
}

function legendMark(kind) {
  if (kind === "freed")
    return [...legendMark("run"), svg("path", { class: "bar freed", d: "M14,7m-3,0a3,3 0 1,0 6,0a3,3 0 1,0 -6,0" })];
  const { y, height } = { built: { y: 4, height: 6 }, kept: { y: 2, height: 10 } }[kind] ?? { y: 1, height: 12 };
  const isArea = kind.startsWith("live") || kind === "held";
  return [svg("rect", { class: `${isArea ? "area" : "bar"} ${kind}`, y, width: 22, height })];
}
