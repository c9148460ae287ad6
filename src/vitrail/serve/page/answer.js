// The answer to one picture in words, panes and bars.

import { drawn, element } from "./element.js";
import { maskView } from "./masks.js";
import { answered, counted, fixed, joined, measured, number, probabilities, promise, stands, unitOf } from "./words.js";

const TOP = 5; // classes that are shown at once
const SIDE = 13; // of a pane, and from one to the next
const STEP = 16;
const ACROSS = 20;
const WORDS = {
  anomaly: oddness,
  classification: classes,
  multilabel: labels,
  regression: numbers,
  segmentation: (picture, about) => [notesOf(picture), ...maskView(picture, about)],
};

// What stands beside the picture; again(picture) asks once more about one that failed.
export function answerOf(picture, about, again) {
  if (picture.state === "failed") return failure(picture, again);
  if (picture.state !== "answered") return [element("p", { class: "word soft" }, "Waiting for the answer …")];
  return WORDS[about.task](picture, about).filter((part) => part !== null);
}

function failure(picture, again) {
  const button = element("button", { type: "button", click: () => again(picture) }, "Try again");
  return [element("p", { class: "word silent" }, "No answer"), element("p", { class: "stern" }, picture.error), button];
}

function classes(picture, about) {
  const { label, probability } = picture.row;
  return [
    headline(picture.row, label),
    stands(picture.row) ? null : element("p", {}, `It would have said “${label}”.`),
    notesOf(picture),
    ...promised(picture.row, [[label, probability]], about),
    ...bars(probabilities(picture.row, about), about, [label], TOP),
  ];
}

function labels(picture, about) {
  const { row } = picture;
  const found = answered(row);
  const none = `None of the ${about.classes.length} labels`;
  return [
    headline(row, joined(found) || none),
    !stands(row) && found.length ? element("p", {}, `It would have said: ${joined(found)}.`) : null,
    stands(row) && !found.length ? element("p", {}, "No label reaches its threshold.") : null,
    notesOf(picture),
    ...promised(row, found.map((name) => [name, row[`prob_${name}`]]), about),
    ...bars(probabilities(row, about), about, found, about.classes.length),
  ];
}

function numbers(picture, about) {
  const { row } = picture;
  const silent = !stands(row);
  const values = about.columns.map((column) => valueOf(row, column, silent));
  return [silent ? headline(row, "") : null, notesOf(picture), element("dl", { class: "values" }, ...values)];
}

function oddness(picture) {
  const { label, p_value: share, score } = picture.row;
  const figures = `A share of ${number(share)} of good pictures looks at least as odd (p-value); score ${number(score)}.`;
  return [headline(picture.row, label), notesOf(picture), element("p", { class: "promise" }, figures)];
}

function valueOf(row, column, silent) {
  const { name, unit } = unitOf(column);
  const [low, high] = [row[`low_${column}`], row[`high_${column}`]];
  const between = `between ${number(low)} and ${number(high)} ${unit}`.trim();
  const range = low === undefined ? null : element("small", {}, between);
  const value = element("dd", { class: silent ? "word silent" : "word" }, measured(row, column), range);
  return element("div", {}, element("dt", {}, name), value);
}

// The answer in large letters, or why there is none.
function headline(row, word) {
  const { abstain } = row;
  if (stands(row)) return element("p", { class: "word" }, word);
  const reasons = { unsure: "Not sure enough to answer", unlike: "Unlike the training pictures" };
  return element("p", { class: "word silent" }, reasons[abstain] ?? `Not answered: ${abstain}`);
}

function notesOf(picture) {
  const said = [...picture.notes];
  if (picture.row.decision) said.push(`Answered by the decision ${picture.row.decision}.`);
  if (!stands(picture.row)) said.push("A person should look at this picture.");
  return said.length ? element("ul", { class: "notes small" }, ...said.map((note) => element("li", {}, note))) : null;
}

// What the probabilities promise; nothing for a picture on which the promise was never tested.
function promised(row, named, about) {
  if (row.abstain === "unlike" && about.calibrated) {
    const nothing = "Probabilities were calibrated on pictures like those of the training: here they promise nothing.";
    return [element("p", { class: "soft" }, nothing)];
  }
  const sentences = named.map(([name, chance]) => element("p", { class: "promise" }, promise(name, chance, about)));
  return about.calibrated && named.length === 1 ? [...sentences, hundred(named[0][1])] : sentences;
}

// A hundred panes in rows of twenty, as many of them lit as pictures answered like this are right.
function hundred(probability) {
  const lit = Math.round(100 * probability);
  const panes = Array.from({ length: 100 }, (_, place) => {
    const [across, down] = [place % ACROSS, Math.floor(place / ACROSS)];
    return `M${across * STEP} ${down * STEP}h${SIDE}v${SIDE}h-${SIDE}z`;
  });
  const box = `0 0 ${ACROSS * STEP - 3} ${(100 / ACROSS) * STEP - 3}`;
  return drawn(
    "svg",
    { class: "hundred", viewBox: box, "aria-hidden": "true" },
    drawn("path", { class: "lit", d: panes.slice(0, lit).join("") }),
    drawn("path", { class: "dim", d: panes.slice(lit).join("") }),
  );
}

// One bar a class, what was found and then the longest first; those beyond `most` wait behind a button.
function bars(named, about, found, most) {
  const first = (name) => (found.includes(name) ? 0 : 1);
  const sorted = [...named].sort((one, other) => first(one[0]) - first(other[0]) || other[1] - one[1]);
  const lines = sorted.map(([name, chance]) => bar(name, chance, about.thresholds?.[name], found.includes(name)));
  const title = about.calibrated ? "Probabilities" : "Scores";
  const list = element("ol", { class: "bars", "aria-label": title }, ...lines.slice(0, most));
  const rest = lines.slice(most);
  return [element("h3", {}, title), list, rest.length ? opener(list, rest) : null];
}

// A button that shows the other bars, and hands the focus to the first of them.
function opener(list, rest) {
  const words = `Show ${counted(rest.length, "more class", "more classes")}`;
  const button = element("button", { type: "button", class: "quiet" }, words);
  button.addEventListener("click", () => {
    list.append(...rest);
    rest[0].tabIndex = -1;
    rest[0].focus();
    button.remove();
  });
  return button;
}

function bar(name, chance, threshold, found) {
  const fill = element("b");
  fill.style.width = `${100 * Math.min(1, Math.max(0, chance))}%`;
  const track = element("span", { class: "track", "aria-hidden": "true" }, fill);
  const word = element("span", { class: "class" }, name);
  if (threshold !== undefined && threshold !== null) {
    const mark = element("i");
    mark.style.left = `${100 * threshold}%`;
    track.append(mark);
    word.append(element("small", {}, `threshold ${fixed(threshold)}`));
  }
  const told = element("span", { class: "chance" }, fixed(chance));
  return element("li", { class: found ? "found" : null }, word, track, told);
}
