"""The wasm tier: WebAssembly inside the namespace tier's walls."""
