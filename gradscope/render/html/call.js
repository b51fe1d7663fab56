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

  refill(
    box,
    el(
      "div",
      { class: "call-head" },
      el(
        "div",
        { class: "stepper", role: "group", "aria-label": "Step through calls" },
        button("‹", () => go(-1), { "aria-label": "Previous call", disabled: place === 0 }),
        button("›", () => go(1), { "aria-label": "Next call", disabled: place === list.length - 1 }),
      ),
      el("h3", {}, call.title),
      call.count > 1 ? el("span", { class: "times" }, `${count(call.count)} alike`) : "",
      call.exception ? badge("error", "failed") : "",
      call.site
        ? el(
            "code",
            { class: "line", title: `${call.site.where} in ${call.site.function}` },
            el("span", { class: "place" }, call.site.place),
            call.site.text ? ` ${call.site.text.trim()}` : ` ${call.verb}`,
          )
        : el("code", {}, call.verb),
    ),
    call.exception ? el("p", { class: "exception" }, call.exception) : "",
    facts(factsOf(call), true),
  );
}

/** Names and values; null for what there is nothing to say of. */
function factsOf(call) {
  const held = call.freed_bytes - call.returned_bytes;
  const each = call.count > 1 ? " each" : "";
  const elsewhere = held > 0 ? `; ${bytes(held)} still held by someone else` : "";
  const roots = call.roots.map((root) => `${root.name || "(no name)"} ${root.label}`).join(", ");
  const flags = [call.retain_graph && "retain_graph", call.create_graph && "create_graph"].filter(Boolean);
  const { oldest_generation: oldest } = call;
  const built = oldest ? `built after call ${count(oldest)}` : "built before the first call";
  return [
    ["Roots", roots || "not known"],
    ["Nodes run", `${count(call.nodes_run)} of ${count(call.nodes)}`],
    ["Saved tensors", `${count(call.saved_tensors)}, ${bytes(call.saved_bytes)}${each}`],
    ["Freed", call.freed_bytes ? `${count(call.freed_tensors)}, ${bytes(call.freed_bytes)}${each}` : "nothing"],
    call.freed_bytes ? ["Memory returned", `${bytes(call.returned_bytes)}${each}${elsewhere}`] : null,
    call.retained_bytes ? ["Retained", `${bytes(call.retained_bytes)}${each}`] : null,
    ["All graphs after it", `${bytes(call.live_bytes)}, peak ${bytes(call.peak_bytes)}`],
    ["Nodes built, destroyed", `${count(call.nodes_built)}, ${count(call.nodes_destroyed)} since the call before`],
    flags.length ? ["Flags", ...flags.map((flag) => chip(`${flag}=True`))] : null,
    call.inputs ? ["Only for inputs", call.inputs.join(", ") || "none"] : null,
    oldest !== null && oldest < call.number - 1 ? ["Oldest nodes", built] : null,
    call.parent !== null ? ["Inside of", `call ${count(call.parent)}`] : null,
    call.thread !== "MainThread" ? ["Thread", call.thread] : null,
    call.count === 1 ? ["Took", seconds(Math.max(0, call.ended - call.started))] : null,
  ];
}
