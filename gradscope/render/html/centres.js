// Places the boxes of a row, given the rows above and below.

/** Horizontal centres: each box near the mean of its neighbours; order and distances stay. */
function centres(rows, sizes, above, below) {
  const x = new Map();
  const settle = (row, wish) => {
    const offsets = [0];
    for (let i = 1; i < row.length; i += 1)
      offsets.push(offsets[i - 1] + sizes.get(row[i - 1]).right + GAP.x + sizes.get(row[i]).left);
    // Isotonic regression: blocks that would overlap share the mean of their wishes.
    const blocks = [];
    row.forEach((item, i) => {
      blocks.push({ sum: wish(item) - offsets[i], size: 1 });
      while (blocks.length > 1 && blocks.at(-2).sum / blocks.at(-2).size >= blocks.at(-1).sum / blocks.at(-1).size) {
        const last = blocks.pop();
        blocks.at(-1).sum += last.sum;
        blocks.at(-1).size += last.size;
      }
    });
    let i = 0;
    for (const block of blocks)
      for (let k = 0; k < block.size; k += 1, i += 1) x.set(row[i], block.sum / block.size + offsets[i]);
  };
  const mean = (items, fallback) => {
    let [sum, number] = [0, 0];
    for (const item of items || []) {
      if (!x.has(item)) continue;
      sum += x.get(item);
      number += 1;
    }
    return number ? sum / number : fallback;
  };
  for (const row of rows) settle(row, (item) => mean(above.get(item), x.get(row[0]) ?? 0));
  for (let i = rows.length - 2; i >= 0; i -= 1)
    settle(rows[i], (item) => mean([...(below.get(item) || []), ...(above.get(item) || [])], x.get(item)));
  for (const row of rows)
    settle(row, (item) => mean([...(above.get(item) || []), ...(below.get(item) || [])], x.get(item)));
  return x;
}
