// Drawings of graphs: zoom, pan, pins, and what a node does to others. Without it they are as they were drawn.
"use strict";
for (const drawing of document.querySelectorAll("svg.graph")) {
  const frame = drawing.parentNode, tools = document.getElementById("graph-tools"), told = document.getElementById("graph-told");
  const box = drawing.viewBox.baseVal, width = box.width, height = box.height;
  const nodes = [...drawing.querySelectorAll("[data-node]")], edges = [...drawing.querySelectorAll("[data-ends]")];
  const pinned = new Set();
  let shown = null;  // the node or the edge below the pointer, or with the focus

  const move = (x, y) => {
    box.x = Math.min(Math.max(x, 0), width - box.width);
    box.y = Math.min(Math.max(y, 0), height - box.height);
  };
  const zoom = (factor, across = 0.5, down = 0.5) => {
    const x = box.x + across * box.width, y = box.y + down * box.height;
    const share = Math.min(1, Math.max(1 / 16, box.width / width / factor));
    [box.width, box.height] = [share * width, share * height];
    move(x - across * box.width, y - down * box.height);
    drawing.classList.toggle("zoomed", share < 1);
  };

  const title = each => each.querySelector("title").textContent;
  const show = () => {
    const lit = new Set([...pinned, ...shown?.dataset.node ? [shown.dataset.node] : []]), near = new Set(lit);
    const own = edges.filter(edge => edge === shown || edge.dataset.ends.split(" ").some(end => lit.has(end)));
    for (const edge of own) for (const end of edge.dataset.ends.split(" ")) near.add(end);
    for (const edge of edges) edge.classList.toggle("lit", own.includes(edge));
    for (const node of nodes) {
      node.classList.toggle("lit", near.has(node.dataset.node));
      node.classList.toggle("pinned", pinned.has(node.dataset.node));
    }
    drawing.classList.toggle("dim", near.size > 0);
    const strongest = own.toSorted((a, b) => b.getAttribute("stroke-width") - a.getAttribute("stroke-width"));
    told.textContent = [...nodes.filter(node => lit.has(node.dataset.node)), ...strongest.slice(0, 8)].map(title).join(" · ");
  };
  const pin = name => {
    if (!pinned.delete(name)) pinned.add(name);
    show();
  };

  const point = event => {
    shown = event.type === "focusout" ? null : event.target.closest("[data-node], [data-ends]");
    show();
  };
  for (const kind of ["pointerover", "focusin", "focusout"]) drawing.addEventListener(kind, point);
  drawing.addEventListener("pointerleave", () => { shown = null; show(); });

  let from = null, moved = false;
  drawing.addEventListener("dragstart", event => event.preventDefault());
  drawing.addEventListener("pointerdown", event => {
    moved = false;
    from = [event.clientX, event.clientY, box.x, box.y];
  });
  drawing.addEventListener("pointermove", event => {
    if (!from || !event.buttons) return;
    const right = event.clientX - from[0], down = event.clientY - from[1];
    if (!moved && Math.hypot(right, down) < 4) return;
    if (!moved) drawing.setPointerCapture(event.pointerId);
    moved = true;
    const scale = box.width / drawing.clientWidth;
    move(from[2] - right * scale, from[3] - down * scale);
  });
  drawing.addEventListener("click", event => {
    const mark = event.target.closest("[data-node] circle");
    if (mark || moved) event.preventDefault();
    if (mark && !moved) pin(mark.closest("[data-node]").dataset.node);
  });
  drawing.addEventListener("wheel", event => {
    if (!event.ctrlKey && !event.metaKey) return;  // else the page scrolls
    event.preventDefault();
    const place = drawing.getBoundingClientRect();
    zoom(event.deltaY < 0 ? 1.2 : 1 / 1.2, (event.clientX - place.left) / place.width, (event.clientY - place.top) / place.height);
  }, { passive: false });

  const act = {
    "+": () => zoom(1.5), "-": () => zoom(1 / 1.5), "0": () => zoom(0.01),
    p: () => shown?.dataset.node && pin(shown.dataset.node),
    Escape: () => { pinned.clear(); show(); },
    ArrowLeft: () => move(box.x - box.width / 8, box.y), ArrowRight: () => move(box.x + box.width / 8, box.y),
    ArrowUp: () => move(box.x, box.y - box.height / 8), ArrowDown: () => move(box.x, box.y + box.height / 8),
  };
  frame.addEventListener("keydown", event => {
    if (event.ctrlKey || event.metaKey || event.altKey || !act[event.key]) return;
    if (event.key.startsWith("Arrow") && box.width === width) return;  // the frame scrolls
    event.preventDefault();
    act[event.key]();
  });
  tools.hidden = false;
  tools.addEventListener("click", event => act[event.target.value]?.());
}
