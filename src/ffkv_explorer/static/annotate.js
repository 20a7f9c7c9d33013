// Keeps every keystroke of a sheet, and its keys. The page works without it.
"use strict";
(() => {
  const form = document.getElementById("item");
  const saved = document.getElementById("saved");
  const place = `ffkv ${location.pathname.replace(/^[/]~[^/]*/, "")} ${form.elements.which.value}`;
  const content = () => new URLSearchParams([...new FormData(form)].map(([name, value]) => [name, String(value)])).toString();
  const atStart = content();

  // Every change lies in this browser at once, and soon after in the explorer. It stays here until the explorer has it.
  const keepHere = submitted => localStorage.setItem(place, JSON.stringify({ content: content(), submitted, base: form.dataset.saved }));
  let timer = 0, sending = null;
  const send = async () => {
    clearTimeout(timer);
    if (sending) return sending.then(send);
    const sent = content();
    sending = post(sent);
    const worked = await sending;
    sending = null;
    if (worked && content() === sent) localStorage.removeItem(place);
    else timer = setTimeout(send, worked ? 0 : 3000);
  };
  const post = async sent => {
    try {
      const answer = await fetch(form.action, {
        method: "POST", body: new URLSearchParams(sent + "&go=stay"), credentials: "same-origin", keepalive: true,
      });
      const text = await answer.text();
      if (!answer.ok) throw new Error(text.length < 600 && !text.startsWith("<") ? text : "");
      form.dataset.saved = text;
      saved.textContent = "kept";
      return true;
    } catch (error) {
      saved.textContent = `Not kept yet: ${error.message || "the explorer does not answer"}. It stays in this browser.`;
      return false;
    }
  };
  form.addEventListener("input", () => {
    saved.textContent = "";
    keepHere(false);
    clearTimeout(timer);
    timer = setTimeout(send, 500);
  });
  addEventListener("pagehide", () => { if (!submitting && localStorage.getItem(place)) send(); });

  // What a page sends on leaving must come behind what it sent before.
  let submitting = false;
  form.addEventListener("submit", event => {
    clearTimeout(timer);
    if (sending) {
      event.preventDefault();
      sending.then(() => form.requestSubmit(event.submitter));
      return;
    }
    submitting = true;
    if (content() !== atStart) keepHere(true);
  });

  // What this browser has and the explorer has not, after a reload or a crash.
  const restore = () => {
    const here = JSON.parse(localStorage.getItem(place) || "null");
    if (!here) return;
    if (here.content === content() || (here.submitted && here.base !== form.dataset.saved)) {
      localStorage.removeItem(place);
      return;
    }
    const fields = [...new URLSearchParams(here.content)];
    for (const each of form.elements) {
      if (each.type === "checkbox" || each.type === "radio") each.checked = fields.some(([name, value]) => name === each.name && value === each.value);
      else if (each.type === "text") each.value = fields.find(([name]) => name === each.name)?.[1] ?? "";
    }
    send();
  };
  restore();

  // Keys.
  const rows = [...form.querySelectorAll(".marks tbody tr")].map(row => [...row.querySelectorAll("input")]);
  let row = 0, slot = 0;
  const isWriting = target => target.matches("input:not([type=checkbox], [type=radio]), textarea, select");
  const look = () => {
    rows[row][slot].focus();
    form.querySelectorAll("[data-slot]").forEach(each => each.classList.toggle("current", Number(each.dataset.slot) === slot));
  };
  const move = (down, right) => {
    row = Math.min(rows.length - 1, Math.max(0, row + down));
    slot = Math.min(rows[0].length - 1, Math.max(0, slot + right));
    look();
  };
  const ways = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  form.addEventListener("focusin", event => {
    rows.forEach((boxes, number) => {
      if (boxes.includes(event.target)) [row, slot] = [number, boxes.indexOf(event.target)];
    });
    const pattern = event.target.closest("[data-slot]");
    if (pattern) slot = Number(pattern.dataset.slot);
  });
  form.addEventListener("click", event => {
    const cell = event.target.closest(".marks td.text");
    if (cell && !String(getSelection())) rows[[...cell.parentNode.parentNode.children].indexOf(cell.parentNode)][slot].click();
  });
  const onTexts = event => {
    if (event.key in ways) move(...ways[event.key]);
    else if (/^[1-9]$/.test(event.key) && rows[row][event.key - 1]) {
      slot = event.key - 1;
      look();
      rows[row][slot].click();
    } else if (event.key === "w") form.elements[`label.${slot}`].focus();
    else if (event.key === "s" || event.key === "m") form.querySelector(`[name="kind.${slot}"][value=${event.key === "s" ? "shallow" : "semantic"}]`).click();
    else return false;
    return true;
  };
  document.addEventListener("keydown", event => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (isWriting(event.target)) {
      if (rows.length && (event.key === "Enter" || event.key === "Escape")) {
        event.preventDefault();
        look();
      }
      return;
    }
    if (event.key === "Enter" && event.target.closest("a, button, summary")) return;
    const pressed = form.querySelector(`[data-press="${CSS.escape(event.key)}"]`);
    if (rows.length && onTexts(event)) event.preventDefault();
    else if (pressed) {
      event.preventDefault();
      pressed.click();
    }
  });
  if (rows.length) look();
})();
