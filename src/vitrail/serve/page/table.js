// All pictures in a table: sorted by any column, narrowed to those that need a person, walked through by arrow keys.

import { byId, element } from "./element.js";
import { fixed, inShort, needsPerson, number, reasonOf, unitOf } from "./words.js";

const PAGE = 10;

export class Table {
  // choose(picture) when one is asked for.
  constructor(about, choose) {
    this.about = about;
    this.choose = choose;
    this.pictures = [];
    this.parts = new Map(); // picture -> the elements of its row
    this.order = null; // {key, down} once somebody sorts
    this.shown = [];
    this.roving = null; // the one picture that Tab reaches
    this.chosen = null;
    this.columns = columnsOf(about);
    byId("heads").replaceChildren(...this.columns.map((column) => this.head(column)));
    byId("rows").addEventListener("keydown", (event) => this.key(event));
    byId("only").addEventListener("change", () => this.arrange());
  }

  add(pictures) {
    for (const picture of pictures) {
      this.pictures.push(picture);
      this.parts.set(picture, this.row(picture));
      this.update(picture);
    }
    this.arrange();
  }

  clear() {
    this.pictures = [];
    this.parts.clear();
    this.roving = this.chosen = null;
    byId("only").checked = false;
    this.arrange();
  }

  update(picture) {
    const parts = this.parts.get(picture);
    if (!parts) return;
    for (const column of this.columns.slice(1)) parts.cells.get(column.key).replaceChildren(...column.show(picture));
    parts.row.className = picture.state;
    parts.row.toggleAttribute("data-silent", Boolean(picture.row) && needsPerson(picture));
    if (picture.thumb) parts.thumb.src = picture.thumb;
    parts.thumb.hidden = !picture.thumb;
    parts.blank.hidden = Boolean(picture.thumb);
    this.later ??= requestAnimationFrame(() => this.arrange());
  }

  mark(picture) {
    for (const [each, parts] of this.parts) {
      parts.row.toggleAttribute("data-chosen", each === picture);
      if (each === picture) parts.name.setAttribute("aria-current", "true");
      else parts.name.removeAttribute("aria-current");
    }
    this.chosen = picture;
    this.rove(picture);
  }

  head(column) {
    const button = element("button", { type: "button", click: () => this.sort(column.key) }, column.title);
    return element("th", { scope: "col", class: column.kind, "data-key": column.key }, button);
  }

  row(picture) {
    const open = () => this.choose(picture);
    const thumb = element("img", { class: "thumb", alt: "", hidden: true });
    const blank = element("span", { class: "thumb", "aria-hidden": "true" });
    const words = { type: "button", class: "name", tabindex: "-1", title: picture.name };
    const name = element("button", words, picture.name);
    const cells = new Map(this.columns.slice(1).map((column) => [column.key, element("td", { class: column.kind })]));
    const first = element("th", { scope: "row" }, element("span", { class: "pair" }, thumb, blank, name));
    const row = element("tr", { click: open }, first, ...cells.values());
    return { row, thumb, blank, name, cells };
  }

  sort(key) {
    const down = this.order?.key === key && !this.order.down;
    this.order = { key, down };
    for (const head of byId("heads").children) {
      if (head.dataset.key === key) head.setAttribute("aria-sort", down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    }
    this.arrange();
  }

  // Puts the rows in order; whatever has the focus keeps it.
  arrange() {
    cancelAnimationFrame(this.later);
    this.later = null;
    const kept = byId("only").checked ? this.pictures.filter(needsPerson) : [...this.pictures];
    const order = this.order;
    if (order) {
      const { value } = this.columns.find((column) => column.key === order.key);
      kept.sort((one, other) => compare(value(one), value(other)) * (order.down ? -1 : 1));
    }
    const same = kept.length === this.shown.length && kept.every((picture, place) => picture === this.shown[place]);
    if (same) return;
    const focused = document.activeElement;
    this.shown = kept;
    byId("rows").replaceChildren(...kept.map((picture) => this.parts.get(picture).row));
    if (!kept.includes(this.roving)) this.rove(kept.includes(this.chosen) ? this.chosen : kept[0]);
    if (focused !== document.activeElement && byId("rows").contains(focused)) focused.focus({ preventScroll: true });
  }

  rove(picture) {
    const before = this.parts.get(this.roving);
    if (before) before.name.tabIndex = -1;
    this.roving = picture ?? null;
    const now = this.parts.get(this.roving);
    if (now) now.name.tabIndex = 0;
  }

  key(event) {
    const here = this.shown.indexOf(this.roving);
    const last = this.shown.length - 1;
    const near = { ArrowDown: here + 1, ArrowUp: here - 1, PageDown: here + PAGE, PageUp: here - PAGE };
    const to = { ...near, Home: 0, End: last }[event.key];
    if (to === undefined || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    this.rove(this.shown[Math.min(last, Math.max(0, to))]);
    this.parts.get(this.roving).name.focus();
  }
}

// Of each column its name, how it is shown, and by what it is sorted.
function columnsOf(about) {
  const name = { key: "name", title: "Picture", value: (picture) => picture.name };
  const needs = {
    key: "needs",
    title: "Needs a person",
    kind: "needs",
    value: (picture) => (needsPerson(picture) ? `0 ${reasonOf(picture)}` : "1"),
    show: (picture) => [reasonOf(picture)],
  };
  return [name, ...(about.columns.length ? numberColumns(about) : wordColumns(about)), needs];
}

// The first of them also says why there is no answer.
function numberColumns(about) {
  return about.columns.map((column, place) => {
    const { name, unit } = unitOf(column);
    const value = (picture) => picture.row?.[`value_${column}`] ?? null;
    const word = (picture) => (picture.row ? number(value(picture)) : place ? "" : inShort(picture, about));
    const show = (picture) => [word(picture), ...(place ? [] : tag(picture))];
    return { key: `value_${column}`, title: unit ? `${name}, ${unit}` : name, kind: "n", value, show };
  });
}

function wordColumns(about) {
  const odd = about.task === "anomaly";
  const key = odd ? "p_value" : "probability";
  const highest = about.task === "multilabel" ? "Highest" : about.calibrated ? "Probability" : "Score"; // of any label
  const chance = (picture) => picture.row?.[key] ?? null;
  const answer = (picture) => inShort(picture, about);
  return [
    { key: "answer", title: "Answer", kind: "answer", value: answer, show: (one) => [answer(one), ...tag(one)] },
    {
      key,
      title: odd ? "p-value" : highest,
      kind: "n",
      value: chance,
      show: (picture) => [picture.row ? (odd ? number : fixed)(chance(picture)) : ""],
    },
  ];
}

// Where the last column does not fit, its word stands below the answer.
function tag(picture) {
  return needsPerson(picture) && picture.row ? [element("small", { class: "tag" }, reasonOf(picture))] : [];
}

function compare(one, other) {
  if (one === null || other === null) return (one === null) - (other === null);
  return typeof one === "number" ? one - other : String(one).localeCompare(String(other), "en", { numeric: true });
}
