// Shows what a step takes by the number of its samples, which a slider sets, and how many of them fit.

function showFit() {
  const { fit } = page.data;
  const size = Number(byId("fit-size").value) * 2 ** 30;
  const kept = byId("fit-spares").checked ? 1 - fit.checkpoint_share : 1;
  const beside = Object.entries(fit.beside);
  const rest = beside.reduce((sum, [, nbytes]) => sum + nbytes, 0);
  const most = Math.floor((size - rest - fit.fixed_bytes * kept) / (fit.sample_bytes * kept));
  const slider = byId("fit-samples");
  slider.max = 2 * Math.max(most, fit.samples.at(-1));
  const samples = Number(slider.value);
  const graph = (fit.fixed_bytes + fit.sample_bytes * samples) * kept;
  const parts = [...beside, ["graph", graph]].filter(([, nbytes]) => nbytes);
  const bar = parts.map(([name, nbytes], i) => {
    const part = el("span", { title: `${name}: ${bytes(nbytes)}` }, name);
    part.style.width = `${(100 * nbytes) / Math.max(size, rest + graph)}%`;
    part.style.background = `var(--${GROWTH_TONES[i % GROWTH_TONES.length]}-fill)`;
    return part;
  });
  byId("fit-bar").replaceChildren(...bar);
  const told = `${counted(samples, "sample")}: ${bytes(rest + graph)}, ${rest + graph > size ? "too much for" : "fits in"} ${bytes(size)}.`;
  const list = parts.map(([name, nbytes]) => `${name} ${bytes(nbytes)}`).join(", ");
  byId("fit-told").replaceChildren(el("b", {}, told), ` ${most < 1 ? "Not one fits" : `At most ${count(most)} fit`}. In it: ${list}.`);
}

function startFit() {
  const { fit } = page.data;
  byId("fit-card").hidden = !fit;
  if (!fit) return;
  const of = fit.samples.length > 1 ? `graphs of ${fit.samples.join(" and ")} samples` : `one graph, of ${fit.samples[0]} samples: a guess`;
  byId("fit-note").textContent = `reckoned by ${of}`;
  byId("fit-spares").parentElement.hidden = !fit.checkpoint;
  byId("fit-spares").after("checkpointing ", ...prose(fit.checkpoint ?? ""));
  for (const id of ["fit-samples", "fit-size", "fit-spares"]) byId(id).addEventListener("input", showFit);
  showFit();
  byId("fit-samples").value = fit.samples.at(-1);
  showFit();
}
