// The axes of the timeline: seconds to pixels, round steps, and the outline of the memory curve.

/** A mapping from seconds to pixels: by the clock, or with the same room for every call. */
function timeScale(width, mode) {
  const end = page.track.end || 1;
  const left = MARGIN.left;
  const room = width - MARGIN.left - MARGIN.right;
  if (mode === "time" || !page.bars.length) {
    const x = (time) => left + (Math.min(time, end) / end) * room;
    return { x, invert: (pixel) => ((pixel - left) / room) * end };
  }
  const moments = page.bars.flatMap(({ built, started, ended }) => [built, started, ended]);
  const stops = [...new Set([0, end, ...moments])].sort((a, b) => a - b);
  // What a stretch holds decides its room: running calls, many folded calls, or building only.
  const runs = page.bars
    .map((bar, row) => [bar.started, bar.ended, page.calls[row].count > 1 ? 5 : 1])
    .sort((a, b) => a[0] - b[0]);
  const places = [0];
  let first = 0;
  for (let i = 1; i < stops.length; i += 1) {
    while (first < runs.length && runs[first][1] <= stops[i - 1]) first += 1;
    let weight = 0.55;
    for (let r = first; r < Math.min(runs.length, first + 24) && runs[r][0] < stops[i]; r += 1) {
      if (runs[r][1] > stops[i - 1])
        weight = Math.max(
          weight,
          runs[r][2] > 1 ? (runs[r][2] * (stops[i] - stops[i - 1])) / (runs[r][1] - runs[r][0]) : 1,
        );
    }
    places.push(places[i - 1] + weight);
  }
  const total = places.at(-1) || 1;
  const between = (from, to, value) => {
    let low = 0;
    let high = from.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (from[middle] <= value) low = middle;
      else high = middle;
    }
    const share = from[high] > from[low] ? (value - from[low]) / (from[high] - from[low]) : 0;
    return to[low] + Math.max(0, Math.min(1, share)) * (to[high] - to[low]);
  };
  return {
    x: (time) => left + (between(stops, places, time) / total) * room,
    invert: (pixel) => between(places, stops, ((pixel - left) / room) * total),
  };
}

function niceStep(most, steps, base) {
  const unit = base ** Math.floor(Math.log(most / steps) / Math.log(base));
  const factors = base === 10 ? [1, 2, 5, 10] : [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];
  return unit * factors.find((factor) => unit * factor * steps >= most);
}

/** The curve in steps: bytes change when something is saved or freed, and stay in between. */
function areaPath(points, x, y, low, high, end = page.track.end) {
  if (!points.length) return "";
  let top = `M${x(points[0][0]).toFixed(1)},${y(high(points[0])).toFixed(1)}`;
  let bottom = "";
  points.forEach((point, i) => {
    const until = x(i + 1 < points.length ? points[i + 1][0] : end).toFixed(1);
    top += `V${y(high(point)).toFixed(1)}H${until}`;
    bottom = `H${x(point[0]).toFixed(1)}` + bottom;
    bottom = `V${y(low(point)).toFixed(1)}` + bottom;
  });
  return `${top}${bottom}Z`;
}
