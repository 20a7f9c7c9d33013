// Keys, live search, and parts that load into the page. Every page works without it.
"use strict";
(() => {
  // Leads an address without its secret beginning, or with that of an explorer before, to the right page here.
  const base = location.pathname.match(/^[/]~[^/]+/);
  if (base) localStorage.setItem("ffkv", base[0]);

  const status = document.getElementById("status");
  const tell = text => { if (status) status.textContent = text; };
  const isTyping = target => target.closest("input, select, textarea, [contenteditable]") !== null;

  // Long work says that it goes on. A page that comes back from the browser's memory is at rest.
  addEventListener("pageshow", () => tell(""));
  document.addEventListener("click", event => {
    const link = event.target.closest("a[data-busy]");
    if (link && !event.ctrlKey && !event.metaKey && !event.shiftKey) tell(link.dataset.busy);
  });
  document.addEventListener("submit", event => {
    if (event.target.dataset.busy) tell(event.target.dataset.busy);
  });

  // Sections of the page, as another address shows them. Where this is a state of the same page, it becomes the page's address.
  document.addEventListener("click", async event => {
    const link = event.target.closest("a[data-swap]");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    const sections = link.dataset.swap.split(" ").map(id => document.getElementById(id)).filter(Boolean);
    const first = link.closest("section");
    if (first.ariaBusy) return;
    first.ariaBusy = "true";
    try {
      const page = await read(link.href);
      if (!page.getElementById(first.id)) throw new Error(page.querySelector("main")?.textContent.trim() || "The explorer does not answer.");
      for (const each of sections) each.replaceChildren(...page.getElementById(each.id).childNodes);
      if (link.pathname === location.pathname) history.replaceState(null, "", link.href);
      first.tabIndex = -1;
      first.focus({ preventScroll: true });
      tell("");
    } catch (error) {
      tell(error.message);
    } finally {
      first.ariaBusy = null;
    }
  });

  const read = async (address, signal) => {
    const answer = await fetch(address, { signal, credentials: "same-origin" });
    return new DOMParser().parseFromString(await answer.text(), "text/html");
  };

  // What is computed tells how far it is, and gives way to the answer, which is another page.
  const follow = async () => {
    const section = document.getElementById("progress");
    if (!section?.dataset.again) return;
    const found = (await read(section.dataset.again).catch(() => document)).getElementById("progress");
    if (!found?.dataset.again) return location.reload();
    if (found !== section) section.replaceChildren(...found.childNodes);
    setTimeout(follow, 2000);
  };
  setTimeout(follow, 2000);

  // The list follows what is typed.
  const form = document.getElementById("search");
  if (form && document.getElementById("results")) {
    let timer = 0, running = null;
    const search = async () => {
      const asked = [...new FormData(form)].filter(([, value]) => value.trim());
      const query = new URLSearchParams(asked).toString();
      const address = form.getAttribute("action") + (query ? "?" + query : "");
      running?.abort();
      running = new AbortController();
      try {
        const found = (await read(address, running.signal)).getElementById("results");
        if (found) document.getElementById("results").replaceChildren(...found.childNodes);
        history.replaceState(null, "", address);
      } catch (error) {
        if (error.name !== "AbortError") tell("The explorer does not answer. Is it still running?");
      }
    };
    form.addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(search, 300);
    });
  }

  // Tokens and names of memories are completed while one types.
  document.addEventListener("input", async event => {
    const field = event.target;
    if (!field.dataset.complete) return;
    const list = document.getElementById("completions") ?? document.body.appendChild(document.createElement("datalist"));
    list.id = "completions";
    field.setAttribute("list", list.id);
    const typed = field.value;
    const answer = await fetch(field.dataset.complete + (field.dataset.complete.includes("?") ? "&" : "?") + "q=" + encodeURIComponent(typed), { credentials: "same-origin" });
    if (!answer.ok || field.value !== typed) return;
    list.replaceChildren(...(await answer.json()).map(text => new Option(text, text)));
  });

  // Keys.
  const help = document.getElementById("keys-help");
  const step = by => {
    const rows = [...document.querySelectorAll(".list tbody th a")];
    if (!rows.length) return false;
    const at = rows.indexOf(document.activeElement);
    rows[Math.min(rows.length - 1, Math.max(0, at < 0 ? 0 : at + by))].focus();
    return true;
  };
  document.addEventListener("keydown", event => {
    if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target) || help?.open) return;
    if (event.key === "j" && step(1) || event.key === "k" && step(-1)) return event.preventDefault();
    const named = [...document.querySelectorAll("[data-key]")].find(each => each.dataset.key === event.key);
    if (!named) return;
    event.preventDefault();
    if (named.matches("input")) named.focus();
    else named.click();
  });
  document.querySelector("a[href='#keys-help']")?.addEventListener("click", event => {
    event.preventDefault();
    help.showModal();
  });

  // Coloured tokens can be reached one by one.
  document.addEventListener("keydown", event => {
    if (!["ArrowRight", "ArrowLeft"].includes(event.key) || !event.target.matches(".t")) return;
    const tokens = [...event.target.closest("td").querySelectorAll(".t")];
    const next = tokens[tokens.indexOf(event.target) + (event.key === "ArrowRight" ? 1 : -1)];
    if (next) { next.focus(); event.preventDefault(); }
  });

  // Cells of a map, too: from the number of a layer to the right, then in all directions.
  document.addEventListener("keydown", event => {
    const step = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
    const row = event.target.closest(".cells tbody tr");
    if (!step || !row) return;
    const rows = [...row.parentNode.rows], at = [...row.querySelectorAll("a")].indexOf(event.target);
    const next = rows[rows.indexOf(row) + step[0]]?.querySelectorAll("a")[at + step[1]];
    if (next) { next.focus(); event.preventDefault(); }
  });
})();
