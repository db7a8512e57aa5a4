"""The worker of the wasm tier: WebAssembly engines inside a sandbox. Needs wasmtime."""
