// Calls a JavaScript tool: `function main(input)`, from JSON to JSON; it may be async.
//
// What is sent is this file and `await stockadeFinish(SOURCE, MOST_BYTES)`. Answers as python_tool.py
// does, and with `stockadeCheck` in its place the source is only parsed.
"use strict";
// Names that no tool has: a script's own may not be those of functions that it parses.
const { stockadeCheck, stockadeFinish } = (() => {
    // A tool may change what is global: what answers is taken before it runs.
    const { parse, stringify } = JSON;
    const { isArray } = Array;
    const { entries } = Object;
    const { isFinite } = Number;
    const { readInput, writeResult, exit } = stockade;
    const deepest = 60;

    const refuse = (kind, message, place = null) => {
        writeResult(stringify({ error: { kind, message: String(message).slice(0, 500), place } }));
        exit(1);
    };
    const told = (error) => {
        try {
            return `${error}`;
        } catch {
            return "what was thrown cannot be printed";
        }
    };
    const place = (error) => {
        const found = /<(?:anonymous|input|eval)[^>]*>:(\d+)/.exec((error && error.stack) || "");
        return found ? `line ${Math.max(1, found[1] - 2)}` : null;
    };
    const made = (source) => new Function(`${source}\n;return typeof main === "function" ? main : null`);
    // What of it is no JSON: [sentence, pointer], or null. JSON.stringify would leave it out.
    const fault = (value, at, depth, inside) => {
        switch (typeof value) {
            case "string": case "boolean": return null;
            case "number": return isFinite(value) ? null : [`${value} is no JSON`, at];
            case "object": break;
            default: return [`a value of type ${typeof value} is no JSON`, at];
        }
        if (value === null) return null;
        if (inside.includes(value)) return ["it contains itself", at];
        if (depth >= deepest) return [`it is nested more than ${deepest} levels deep`, at];
        if (ArrayBuffer.isView(value) || value instanceof ArrayBuffer || value instanceof Map || value instanceof Set) {
            return [`a value of type ${value.constructor && value.constructor.name} is no JSON`, at];
        }
        const within = [...inside, value];
        for (const [name, inner] of isArray(value) ? value.entries() : entries(value)) {
            const part = String(name).slice(0, 100).replaceAll("~", "~0").replaceAll("/", "~1");
            const wrong = fault(inner, `${at}/${part}`, depth + 1, within);
            if (wrong) return wrong;
        }
        return null;
    };
    // new Function() takes a body that closes the function and goes on, and runs what follows. As a
    // script it is parsed whole, and ends before its first statement.
    const parsed = (source) => {
        try {
            (0, eval)(`throw 0;\n\n${source}`);
        } catch (error) {
            if (error !== 0 && error instanceof SyntaxError) throw error;
        }
    };
    return {
        stockadeCheck(source) {
            try {
                parsed(source);
                made(source);
            } catch (error) {
                refuse("raised", told(error), place(error));
            }
            writeResult('{"output":null}');
        },
        async stockadeFinish(source, mostBytes) {
            let output;
            try {
                const main = made(source)();
                if (main === null) return refuse("no_main", "there is no function main(input)");
                output = await main(parse(readInput()));
            } catch (error) {
                return refuse("raised", told(error), place(error));
            }
            let answer;
            try {
                const wrong = fault(output, "", 0, []);
                if (wrong) return refuse("not_json", ...wrong);
                answer = stringify({ output });
            } catch (error) {
                return refuse("not_json", told(error), "");
            }
            if (answer.length > mostBytes) {
                return refuse("too_large", `the output has ${answer.length - 11} characters; limits.result_bytes allows ${mostBytes}`, "");
            }
            writeResult(answer);
        },
    };
})();
