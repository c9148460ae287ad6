// From the outputs of the model to a row with the columns of `vitrail predict`, and notes.

const LONGEST = 1000; // of a name

// result: {outputs, remarks} or {error, status}; described: what the page knows of its model.
export function rowOf(result, name, described) {
  const path = name.slice(0, LONGEST);
  if (!result.outputs) return { path, error: result.error, status: result.status };
  const abstain = described.reasons[result.outputs.abstained[0]] || described.answered;
  const remarks = result.remarks.map((remark) => described.remarks[remark]);
  return {
    path,
    id: path.replaceAll("\\", "/").split("/").pop(),
    split: "",
    ...(described.task === "regression" ? numbers(result.outputs, described) : words(result.outputs, described)),
    ...(described.decided_by ? { decision: described.decided_by } : {}),
    abstain,
    notes: [described.notes[abstain], ...remarks].filter(Boolean),
  };
}

function words({ probabilities, decisions }, { task, classes }) {
  const each = classes.map((name, place) => [`prob_${name}`, probabilities[place]]);
  if (task === "multilabel") {
    const found = classes.filter((_, place) => decisions[place]);
    return { target: null, label: found, probability: Math.max(...probabilities), ...Object.fromEntries(each) };
  }
  const [place] = decisions;
  return { target: null, label: classes[place], probability: probabilities[place], ...Object.fromEntries(each) };
}

function numbers({ values }, { columns }) {
  const targets = columns.map((name) => [`target_${name}`, null]);
  return Object.fromEntries([...targets, ...columns.map((name, place) => [`value_${name}`, values[place]])]);
}
