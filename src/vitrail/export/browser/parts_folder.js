// Where the parts of the page are: in files beside it.

const RELOADED = "vitrail-reloaded";
const PATIENCE = 5000; // milliseconds for the service worker

export const openWorker = () => new Worker(new URL("./worker.js", import.meta.url), { type: "module" });

export async function readPart(name) {
  const response = await fetch(new URL(name, import.meta.url));
  if (!response.ok) throw new Error(`${name}: ${response.status}`);
  return response.arrayBuffer();
}

// The file of the engine that knows graphics processors, where there is one, and else why not.
export async function findGraphics() {
  const adapter = await navigator.gpu?.requestAdapter().catch(() => null);
  if (adapter) return { gpu: "ort-wasm-simd-threaded.jsep.wasm" };
  return { why: navigator.gpu ? "this browser finds none" : "this browser has no WebGPU here" };
}

// Start the service worker; where its headers are missing yet, load the page once more, with them.
export async function prepare() {
  try {
    await navigator.serviceWorker.register("service.js");
    const ready = await Promise.race([navigator.serviceWorker.ready, new Promise((late) => setTimeout(late, PATIENCE))]);
    if (self.crossOriginIsolated) return sessionStorage.removeItem(RELOADED);
    if (!ready || sessionStorage.getItem(RELOADED)) return null;
    sessionStorage.setItem(RELOADED, "yes");
  } catch {
    return null; // not from here, such as over plain http: one thread, which the page says
  }
  location.reload();
  return new Promise(() => {});
}
