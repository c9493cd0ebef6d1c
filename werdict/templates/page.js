// A click on the head of a column sorts its table, a second one the other way round; unknown values stay last.
const NUMBER = /^[^\d∞−-]*([−-]?)(\d[\d.,\u202f]*(?:e[-+]?\d+)?|∞)(?:\s(min|h)\b)?/;
const SCALES = { min: 60, h: 3600 };  // times of one column may have different units

function keyOf(cell, isText) {
  const text = cell.textContent.trim();
  if (isText) return text === "–" ? null : text;
  const found = text.match(NUMBER);
  if (!found) return null;
  const size = found[2] === "∞" ? Infinity : parseFloat(found[2].replace(/[,\u202f]/g, ""));
  return (found[1] ? -1 : 1) * size * (SCALES[found[3]] ?? 1);
}

function compare(a, b) {
  return typeof a === "string" ? a.localeCompare(b, undefined, { numeric: true }) : Math.sign(a - b) || 0;
}

function makeSortable(table) {
  const heads = [...table.querySelectorAll("thead th")], body = table.tBodies[0];
  for (const [column, head] of heads.entries()) {
    const button = document.createElement("button");
    button.append(...head.childNodes);
    head.append(button);
    button.onclick = () => {
      const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
      const rows = [...body.rows].map((row) => [keyOf(row.cells[column], head.matches(".words")), row]);
      rows.sort(([a], [b]) => (a === null || b === null ? (a === null) - (b === null) : sign * compare(a, b)));
      body.append(...rows.map(([, row]) => row));
    };
  }
}

addEventListener("DOMContentLoaded", () => {
  document.querySelectorAll("table:has(thead):has(tbody tr + tr)").forEach(makeSortable);
});
