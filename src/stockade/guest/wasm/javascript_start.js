// What a program finds beside the language: docs/wasm.md. The worker answers `__host`.
"use strict";
(() => {
    const host = globalThis.__host;
    delete globalThis.__host;
    const ask = (...given) => {
        const [failed, value] = host(...given);
        if (failed) throw new Error(value);
        return value;
    };
    const shown = (value, depth = 0) => {
        if (typeof value === "string") return depth ? JSON.stringify(value) : value;
        if (typeof value === "function") return `[Function: ${value.name || "anonymous"}]`;
        if (typeof value === "bigint") return `${value}n`;
        if (typeof value !== "object" || value === null) return String(value);
        if (value instanceof Error) return value.stack ? `${value}\n${value.stack}` : String(value);
        if (depth > 3) return Array.isArray(value) ? "[Array]" : "[Object]";
        if (Array.isArray(value)) return `[ ${value.map((each) => shown(each, depth + 1)).join(", ")} ]`;
        const fields = Object.entries(value).map(([name, each]) => `${name}: ${shown(each, depth + 1)}`);
        return fields.length ? `{ ${fields.join(", ")} }` : "{}";
    };
    const print = (descriptor) => (...values) => {
        ask("write", descriptor, `${values.map((each) => shown(each)).join(" ")}\n`);
    };
    globalThis.console = {
        log: print(1), info: print(1), debug: print(1), error: print(2), warn: print(2), trace: print(2),
    };
    globalThis.stockade = {
        arguments: [],
        environment: {},
        readInput: () => ask("input"),
        writeResult: (text) => ask("result", String(text)),
        readFile: (path) => ask("read", String(path)),
        writeFile: (path, text) => ask("put", String(path), String(text)),
        exit: (code = 0) => ask("exit", code | 0),
    };

    let timers = [], number = 0;
    globalThis.setTimeout = (callback, delay = 0, ...given) => {
        timers.push({ number: ++number, at: ask("clock") + Math.max(0, +delay || 0), callback, given });
        timers.sort((one, other) => one.at - other.at || one.number - other.number);
        return number;
    };
    globalThis.clearTimeout = (which) => { timers = timers.filter((each) => each.number !== which); };
    globalThis.queueMicrotask = (callback) => { Promise.resolve().then(callback); };

    // Every copy of this engine would begin with the same numbers: seeded for each program.
    const seed = (a, b, c, d) => {
        const next = () => {
            const t = (((a + b) | 0) + d) | 0;
            d = (d + 1) | 0;
            a = b ^ (b >>> 9);
            b = (c + (c << 3)) | 0;
            c = (c << 21) | (c >>> 11);
            c = (c + t) | 0;
            return t >>> 0;
        };
        for (let i = 0; i < 12; i++) next();
        Math.random = () => ((next() >>> 5) * 67108864 + (next() >>> 6)) / 9007199254740992;
    };
    const stopClock = (start) => {
        const Real = Date;
        let now = start;
        globalThis.Date = class Date extends Real {
            constructor(...given) { if (given.length) super(...given); else super(++now); }
            static now() { return ++now; }
        };
    };
    return {
        begin(given) {
            stockade.arguments = given.arguments;
            stockade.environment = given.environment;
            seed(...given.seed);
            if (given.steady) stopClock(given.start);
        },
        // The next timer's delay in milliseconds, or a negative number where none is left.
        pending: () => (timers.length ? Math.max(0, timers[0].at - ask("clock")) : -1),
        fire() {
            const timer = timers.shift();
            if (timer) timer.callback(...timer.given);
        },
    };
})();
