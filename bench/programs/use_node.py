"""node: files, a child process, a worker thread, a digest."""

import subprocess

PROGRAM = """
const { createHash } = require("crypto");
const { execFile } = require("child_process");
const { promisify } = require("util");
const { readFile, writeFile } = require("fs/promises");
const { Worker } = require("worker_threads");

async function main() {
  await writeFile("note", "hello");
  const text = await readFile("note", "utf8");
  const child = await promisify(execFile)("wc", ["-c", "note"]);
  const source = "require('worker_threads').parentPort.postMessage(6 * 7)";
  const answer = await new Promise((resolve, reject) => {
    new Worker(source, { eval: true }).on("message", resolve).on("error", reject);
  });
  const digest = createHash("sha256").update(text).digest("hex").slice(0, 8);
  console.log([text, child.stdout.trim(), answer, digest].join(" | "));
}
main();
"""
with open("program.js", "w") as file:
    file.write(PROGRAM)
subprocess.run(["node", "program.js"], check=True)
