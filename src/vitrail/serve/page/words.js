// Sentences about answers, numbers for people, and who has to look: nothing here touches the page.

export const REASONS = { unsure: "not sure enough", unlike: "unlike the training pictures" };

export const probabilities = (row, about) => about.classes.map((name) => [name, row[`prob_${name}`]]);

// The labels that were found, or the class that was answered, as a list of names.
export const answered = (row) => (Array.isArray(row.label) ? row.label : [row.label]);

// Names side by side; a name may hold commas.
export const joined = (names) => names.join(" · ");

// Whether an answer stands; "unknown" is that of a model that cannot tell unlike pictures.
export const stands = (row) => row.abstain === "no" || row.abstain === "unknown";

export const needsPerson = (picture) =>
  picture.state === "failed" || (picture.state === "answered" && !stands(picture.row));

// Why a person has to look, in two or three words; empty where nobody has to.
export function reasonOf(picture) {
  if (picture.state === "failed") return "no answer";
  if (!needsPerson(picture)) return "";
  return REASONS[picture.row.abstain] ?? picture.row.abstain;
}

// What a calibrated probability promises: a share of a hundred.
export function ofHundred(probability) {
  const count = Math.round(100 * probability);
  if (count === 0) return "fewer than 1";
  if (count === 100) return "more than 99";
  return `about ${count}`;
}

export function promise(name, probability, about) {
  const verb = about.task === "multilabel" ? "show" : "are";
  if (!about.calibrated) {
    const score = `Score ${fixed(probability)} for “${name}”.`;
    return `${score} It is not calibrated: the order of scores means something, their size does not.`;
  }
  return `Of 100 pictures answered like this, ${ofHundred(probability)} ${verb} “${name}”.`;
}

// What the batch table and a screen reader say of a picture.
export function inShort(picture, about) {
  if (picture.state === "failed") return picture.error;
  if (picture.state !== "answered") return picture.state === "asking" ? "asking …" : "waiting";
  const value = (column) => `${unitOf(column).name} ${measured(picture.row, column)}`;
  if (about.columns.length) return about.columns.map(value).join(", ");
  return joined(answered(picture.row)) || "none of the labels";
}

// A column named like "height (cm)" or "height [cm]" says its unit.
export function unitOf(column) {
  const found = /^(.*\S)\s*[([]\s*([^()[\]]+?)\s*[)\]]$/.exec(column);
  return found ? { name: found[1], unit: found[2] } : { name: column, unit: "" };
}

export function measured(row, column) {
  const { unit } = unitOf(column);
  return `${number(row[`value_${column}`])}${unit ? ` ${unit}` : ""}`;
}

// Four digits, no more than can be read.
export function number(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size >= 1e7 || size < 1e-4)) return value.toExponential(2);
  return size >= 1e4 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(4)));
}

export const fixed = (value) => (value === null || value === undefined ? "–" : value.toFixed(3));

export function megabytes(bytes) {
  const size = bytes / 1024 ** 2;
  return size >= 1 ? `${number(Number(size.toPrecision(3)))} MiB` : `${Math.max(1, Math.round(1024 * size))} KiB`;
}

export function counted(count, one, many) {
  return `${count.toLocaleString("en")} ${count === 1 ? one : many}`;
}
