// Where the parts of the page are: in files beside it.

export const openWorker = () => new Worker(new URL("./worker.js", import.meta.url), { type: "module" });

export async function readPart(name) {
  const response = await fetch(new URL(name, import.meta.url));
  if (!response.ok) throw new Error(`${name}: ${response.status}`);
  return response.arrayBuffer();
}
