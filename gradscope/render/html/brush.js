// Follows the pointer and the keyboard over the timeline; a brush selects calls.

function listenToTimeline(drawing) {
  const brush = byId("timeline-brush");
  drawing.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    [timeline.drag] = pointIn(drawing, event);
    if (event.pointerType === "mouse") drawing.setPointerCapture(event.pointerId);
  });
  drawing.addEventListener("pointermove", (event) => {
    const [px, py] = pointIn(drawing, event);
    if (timeline.drag !== null && Math.abs(px - timeline.drag) > 4) {
      brush.setAttribute("x", Math.min(px, timeline.drag));
      brush.setAttribute("width", Math.abs(px - timeline.drag));
      brush.setAttribute("visibility", "visible");
      tip.hide();
      return;
    }
    const row = rowAt(px, py);
    const sample = sampleAt(timeline.scale.invert(px));
    if (px < MARGIN.left || (row < 0 && !sample)) return tip.hide();
    const call = page.calls[row];
    tip.show(
      event.clientX,
      event.clientY,
      call ? el("div", {}, el("b", {}, call.title), ` ${call.verb}`, call.site ? ` at ${call.site.place}` : "") : "",
      call ? el("div", {}, callEffect(call)) : "",
      sample
        ? el(
            "div",
            { class: "muted" },
            `${seconds(Math.max(0, timeline.scale.invert(px)))}: ${bytes(sample[1])} held by graphs${sample[2] ? `, ${bytes(sample[2])} released but still held` : ""}`,
          )
        : "",
    );
  });
  drawing.addEventListener("pointerup", (event) => {
    const [px, py] = pointIn(drawing, event);
    const from = timeline.drag;
    timeline.drag = null;
    brush.setAttribute("visibility", "hidden");
    if (from === null) return;
    if (Math.abs(px - from) > 4) {
      const { x } = timeline.scale;
      const isIn = ({ started, ended }) => x(ended) >= Math.min(px, from) && x(started) <= Math.max(px, from);
      return brushCalls(page.calls.filter((_, row) => isIn(page.bars[row])));
    }
    const row = rowAt(px, py);
    if (row >= 0) page.selectCall(page.calls[row]);
  });
  drawing.addEventListener("pointercancel", () => {
    timeline.drag = null;
    brush.setAttribute("visibility", "hidden");
  });
  drawing.addEventListener("pointerleave", () => tip.hide());
  drawing.addEventListener("keydown", (event) => {
    const last = page.calls.length - 1;
    const now = page.call ? page.call.row : -1;
    const go = {
      ArrowRight: now + 1,
      ArrowDown: now + 1,
      ArrowLeft: now - 1,
      ArrowUp: now - 1,
      Home: 0,
      End: last,
      PageDown: now + 10,
      PageUp: now - 10,
    }[event.key];
    if (go !== undefined) {
      const call = page.calls[Math.max(0, Math.min(last, go))];
      timeline.from = event.shiftKey ? (timeline.from ?? Math.max(0, now)) : null;
      const ends = [timeline.from, call.row];
      if (event.shiftKey) brushCalls(page.calls.slice(Math.min(...ends), Math.max(...ends) + 1), call);
      else page.selectCall(call);
    } else if (event.key === "Enter") scrollTo("graph");
    else if (event.key === "Escape") clearBrush();
    else return;
    event.preventDefault();
  });
}

function brushCalls(rows, chosen = rows[0]) {
  if (!rows.length) return;
  page.brushed = rows;
  const note = byId("brush-note");
  note.hidden = false;
  const calls = rows.reduce((sum, call) => sum + call.count, 0);
  const freed = rows.reduce((sum, call) => sum + call.freed_bytes * call.count, 0);
  note.replaceChildren(
    `${counted(calls, "call")} selected, ${bytes(freed)} freed. `,
    button("Clear", () => (clearBrush(), byId("timeline-svg").focus())),
  );
  page.changed({ brush: true });
  page.selectCall(chosen);
}

function clearBrush() {
  page.brushed = timeline.from = null;
  byId("brush-note").hidden = true;
  page.changed({ brush: true });
}

/** The row nearest to the pointer in its lane, or in any lane when over the memory curve. */
function rowAt(px, py) {
  const { x } = timeline.scale;
  const lane = py < timeline.lanesTop ? null : Math.floor((py - timeline.lanesTop) / LANE);
  let best = -1;
  let distance = 14;
  page.bars.forEach((bar, row) => {
    if (lane !== null && bar.lane !== lane) return;
    const from = x(bar.started);
    const to = Math.max(x(bar.ended), from + 2);
    const away = px < from ? from - px : px > to ? px - to : 0;
    if (
      away < distance ||
      (away === 0 && best >= 0 && to - from < x(page.bars[best].ended) - x(page.bars[best].started))
    ) {
      distance = away;
      best = row;
    }
  });
  return best;
}

const sampleAt = (time) => page.track.samples.findLast((sample) => sample[0] <= time);
