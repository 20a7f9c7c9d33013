// Sorts and filters tables, copies commands, and marks the place among the contents. The page can be read without it: each
// button is made here, and rows that the reader opens are rows of the page.
"use strict";
const FEW = 3, MANY = 8; // rows from which on a table is sorted and filtered
const make = (name, text, more = {}) => Object.assign(document.createElement(name), { textContent: text, ...more });

// The first number of a cell: of "1,234", "−2.1e−05", "<0.01", "3 of 100", "45 % (40 % to 50 %)". NaN if it begins with none.
const first = text => {
  const found = text.trim().replace(/,/g, "").replace(/−/g, "-").match(/^[<>+]?(-?\d+(\.\d+)?(e-?\d+)?)/);
  return found ? Number(found[1]) : NaN;
};
const cell = (row, place) => row.cells[place].textContent.trim();

// Puts the rows that the reader would open below those that are there: both are one table.
const join = table => {
  const rest = table.parentElement.nextElementSibling;
  if (!rest?.matches(".rest")) return;
  table.tBodies[0].append(...rest.querySelectorAll("tbody > tr"));
  rest.remove();
};

const sort = (table, head, rows) => {
  const place = head.cellIndex, numeric = head.classList.contains("number");
  const next = { none: "descending", descending: "ascending", ascending: "none" };
  const way = numeric ? next : { none: "ascending", ascending: "descending", descending: "none" };
  const sorted = way[head.getAttribute("aria-sort") ?? "none"], sign = sorted === "ascending" ? 1 : -1;
  for (const each of table.tHead.rows[0].cells) each.removeAttribute("aria-sort");
  if (sorted !== "none") head.setAttribute("aria-sort", sorted);
  const compare = (one, other) => {
    const [a, b] = [cell(one, place), cell(other, place)];
    if (!numeric) return sign * a.localeCompare(b, "en", { numeric: true });
    const [m, n] = [first(a), first(b)];
    return isNaN(m) || isNaN(n) ? isNaN(m) - isNaN(n) : sign * (m - n); // what has no number is last
  };
  table.tBodies[0].append(...(sorted === "none" ? rows : rows.toSorted(compare)));
};

for (const table of document.querySelectorAll(".scroll > table:not([class])")) {
  if (table.closest(".rest")) continue;
  const rest = table.parentElement.nextElementSibling, body = table.tBodies[0];
  const rows = [...body.rows, ...(rest?.matches(".rest") ? rest.querySelectorAll("tbody > tr") : [])];
  const always = table.closest("[data-search]"); // a page to find others with
  if (rows.length < FEW && !always) continue;
  for (const head of table.tHead.rows[0].cells) {
    const button = make("button", head.textContent, { type: "button" });
    button.onclick = () => { join(table); sort(table, head, rows); };
    head.replaceChildren(button);
  }
  if (rows.length <= MANY && !always) continue;
  const label = make("label", "Filter "), field = make("input", "", { type: "search" }), told = make("output", "");
  field.oninput = () => {
    join(table);
    const sought = field.value.trim().toLowerCase();
    for (const row of rows) row.hidden = !row.textContent.toLowerCase().includes(sought);
    told.textContent = sought ? `${rows.filter(row => !row.hidden).length} of ${rows.length} rows` : "";
  };
  label.className = "filter";
  label.append(field, " ", told);
  table.parentElement.before(label);
}

for (const code of document.querySelectorAll("code.command")) {
  const button = make("button", "copy", { type: "button", className: "copy", ariaLabel: `copy ${code.textContent}` });
  button.onclick = async () => {
    getSelection().selectAllChildren(code); // where the browser does not let it copy, the reader can
    await navigator.clipboard?.writeText(code.textContent).then(() => { button.textContent = "copied"; }, () => {});
  };
  code.after(" ", button);
}

const nav = document.querySelector("nav"), links = [...nav.querySelectorAll("a")];
const places = links.map(link => document.getElementById(link.hash.slice(1)));
const mark = () => {
  const here = links[places.findLastIndex(place => place?.getBoundingClientRect().top < innerHeight / 3)];
  for (const link of links) if (link !== here) link.removeAttribute("aria-current");
  if (!here || here.hasAttribute("aria-current")) return;
  here.setAttribute("aria-current", "location");
  const { top, bottom } = here.getBoundingClientRect(), box = nav.getBoundingClientRect();
  if (getComputedStyle(nav).position === "sticky" && (top < box.top || bottom > box.bottom)) nav.scrollTop += top - box.top - box.height / 2;
};
const watch = new IntersectionObserver(mark, { rootMargin: "0px 0px -66% 0px" });
for (const place of places) if (place) watch.observe(place);
