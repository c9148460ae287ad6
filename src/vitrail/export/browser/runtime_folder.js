// The engine of a page in a folder: the one that also knows graphics processors is read only where there is one.

export const openRuntime = (gpu) => import(gpu ? "./ort.bundle.min.mjs" : "./ort.wasm.bundle.min.mjs");
