// Shows what one backward call did: a line for the pointer, a card for the selected call.

/** What a call did to the saved tensors, in one line. */
function callEffect(call) {
  if (call.exception) return `failed: ${call.exception.split(":")[0]}`;
  const each = call.count > 1 ? " each" : "";
  const parts = [];
  if (call.freed_bytes) {
    const held = call.freed_bytes - call.returned_bytes;
    parts.push(
      `freed ${bytes(call.freed_bytes)}${each}${held > 0 ? ` (${bytes(held)} of it still held by someone else)` : ""}`,
    );
  }
  if (call.retained_bytes) parts.push(`retained ${bytes(call.retained_bytes)}${each}`);
  return parts.join(", ") || "saved tensors: none to free";
}

function showCall() {
  const call = page.call;
  const box = byId("call");
  box.hidden = !call;
  if (!call) return;
  const list = page.brushed || page.calls;
  const place = list.indexOf(call);
  const go = (step) => page.selectCall(list[Math.max(0, Math.min(list.length - 1, (place < 0 ? 0 : place) + step))]);
  const fact = (name, ...value) => el("div", {}, el("dt", {}, name), el("dd", {}, ...value));
  const held = call.freed_bytes - call.returned_bytes;
  const each = call.count > 1 ? " each" : "";
  const flags = [call.retain_graph && "retain_graph", call.create_graph && "create_graph"].filter(Boolean);
  refill(
    box,
    el(
      "div",
      { class: "call-head" },
      el(
        "div",
        { class: "stepper", role: "group", "aria-label": "Step through calls" },
        el(
          "button",
          { type: "button", "aria-label": "Previous call", disabled: place === 0, onclick: () => go(-1) },
          "‹",
        ),
        el(
          "button",
          { type: "button", "aria-label": "Next call", disabled: place === list.length - 1, onclick: () => go(1) },
          "›",
        ),
      ),
      el("h3", {}, call.title),
      call.count > 1 ? el("span", { class: "times" }, `${count(call.count)} alike`) : "",
      call.exception
        ? el("span", { class: "badge state-error" }, el("i", { "aria-hidden": "true" }, look("error").symbol), "failed")
        : "",
      call.site
        ? el(
            "code",
            { class: "line", title: `${call.site.where} in ${call.site.func}` },
            el("span", { class: "place" }, call.site.place),
            call.site.text ? ` ${call.site.text.trim()}` : ` ${call.verb}`,
          )
        : el("code", {}, call.verb),
    ),
    call.exception ? el("p", { class: "exception" }, call.exception) : "",
    el(
      "dl",
      { class: "facts wide" },
      fact(
        "Roots",
        call.roots.length
          ? call.roots.map((root) => `${root.name || "(no name)"} ${root.label}`).join(", ")
          : "not known",
      ),
      fact("Nodes run", `${count(call.nodes_run)} of ${count(call.nodes)}`),
      fact("Saved tensors", `${count(call.saved_tensors)}, ${bytes(call.saved_bytes)}${each}`),
      fact("Freed", call.freed_bytes ? `${count(call.freed_tensors)}, ${bytes(call.freed_bytes)}${each}` : "nothing"),
      call.freed_bytes
        ? fact(
            "Memory returned",
            `${bytes(call.returned_bytes)}${each}${held > 0 ? `; ${bytes(held)} still held by someone else` : ""}`,
          )
        : "",
      call.retained_bytes ? fact("Retained", `${bytes(call.retained_bytes)}${each}`) : "",
      fact("All graphs after it", `${bytes(call.live_bytes)}, peak ${bytes(call.peak_bytes)}`),
      fact("Nodes built, destroyed", `${count(call.nodes_built)}, ${count(call.nodes_destroyed)} since the call before`),
      flags.length
        ? fact(
            "Flags",
            flags.map((flag) => el("code", { class: "chip" }, `${flag}=True`)),
          )
        : "",
      call.inputs ? fact("Only for inputs", call.inputs.join(", ") || "none") : "",
      call.oldest_generation !== null && call.oldest_generation < call.number - 1
        ? fact(
            "Oldest nodes",
            call.oldest_generation ? `built after call ${count(call.oldest_generation)}` : "built before the first call",
          )
        : "",
      call.parent !== null ? fact("Inside of", `call ${count(call.parent)}`) : "",
      call.thread !== "MainThread" ? fact("Thread", call.thread) : "",
      call.count === 1 ? fact("Took", seconds(Math.max(0, call.ended - call.started))) : "",
    ),
  );
}
