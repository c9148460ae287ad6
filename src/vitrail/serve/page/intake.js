// The ways of pictures onto the page: chosen, dropped (folders too), pasted. Each gives a list of files with names.

import { byId } from "./element.js";

export function listen(take) {
  const zone = byId("intake");
  const input = byId("files");
  byId("choose").addEventListener("click", () => input.click());
  input.addEventListener("change", () => {
    take([...input.files].map((file) => ({ file, name: file.name })));
    input.value = ""; // the same picture can be chosen again
  });
  document.addEventListener("paste", (event) => {
    const files = [...(event.clipboardData?.files ?? [])];
    if (!files.length) return;
    event.preventDefault();
    take(files.map((file) => ({ file, name: file.name || "pasted.png" })));
  });
  document.addEventListener("dragover", (event) => {
    if (!carriesFiles(event)) return;
    event.preventDefault();
    zone.classList.add("over");
  });
  document.addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) zone.classList.remove("over");
  });
  document.addEventListener("drop", async (event) => {
    if (!carriesFiles(event)) return;
    event.preventDefault();
    zone.classList.remove("over");
    take(await droppedFiles(event.dataTransfer));
  });
}

const carriesFiles = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");

async function droppedFiles(transfer) {
  const items = [...transfer.items].filter((item) => item.kind === "file");
  // both must be read before the first await: afterwards the browser has emptied the list
  const entries = items.map((item) => item.webkitGetAsEntry?.() ?? null);
  const plain = items.map((item) => item.getAsFile());
  const found = entries.map((entry, place) => {
    if (entry?.isDirectory) return filesOf(entry);
    return plain[place] ? [{ file: plain[place], name: plain[place].name }] : [];
  });
  return (await Promise.all(found)).flat();
}

// All files of a folder to the bottom, in natural order; hidden ones are left out, as `vitrail predict` does.
async function filesOf(entry) {
  if (entry.name.startsWith(".")) return [];
  if (entry.isFile) {
    const file = await new Promise((done, failed) => entry.file(done, failed));
    return [{ file, name: entry.fullPath.replace(/^\//, "") }];
  }
  const reader = entry.createReader();
  const inside = [];
  for (;;) {
    const some = await new Promise((done, failed) => reader.readEntries(done, failed)); // at most 100 at a time
    if (!some.length) break;
    inside.push(...some);
  }
  inside.sort((one, other) => one.name.localeCompare(other.name, "en", { numeric: true }));
  return (await Promise.all(inside.map(filesOf))).flat();
}
