#!/usr/bin/env node
// Records commands in a terminal and writes an animated SVG: docs/images/terminal.svg of README.md.
// Needs tmux, and a built checkout with the native addon. Waiting is shortened in the picture.
//   node scripts/record-terminal.mjs [FILE]
//   node scripts/record-terminal.mjs docs/images/served.svg --title "…" \
//     --command "node scripts/record-served.mjs"
// Commands of --command run in the checkout, others in an empty directory.
import { execFileSync } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";

const root = fileURLToPath(new URL("..", import.meta.url));
const { values: options, positionals } = parseArgs({
  options: {
    command: { type: "string", multiple: true },
    title: { type: "string", default: "nlac init, train and eval in a terminal" },
  },
  allowPositionals: true,
});
const file = positionals[0] ?? join(root, "docs", "images", "terminal.svg");
const commands = options.command ?? [
  "npx nlac init my-agent && cd my-agent",
  "npx nlac train recipe.ts --run runs/desk",
  "npx nlac eval runs/desk --trials 16 --temperature 1",
];
const columns = 80;
const rows = 30;
/** Milliseconds between captures, of the longest frame, and of pauses. */
const interval = 250;
const longest = 350;
const typing = 40;
const pause = 1200;
const lastPause = 6000;
const timeout = 2_400_000;

const home = mkdtempSync(join(tmpdir(), "nlac-terminal-"));
const session = `nlac-recording-${process.pid}`;
const tmux = (...args) => execFileSync("tmux", ["-L", session, ...args], { encoding: "utf8" });
/** Lines of the screen, without the machine's path. */
const screen = () =>
  tmux("capture-pane", "-p", "-t", session)
    .replaceAll(home, "~")
    .split("\n")
    .slice(0, rows)
    .map((line) => line.trimEnd());

/** @type {{ lines: string[], ms: number }[]} */
const frames = [];
/** Adds the screen as it is, or extends the last frame up to `most` milliseconds. */
function capture(ms, most = ms) {
  const lines = screen();
  const last = frames.at(-1);
  if (last !== undefined && last.lines.join("\n") === lines.join("\n"))
    last.ms = Math.min(most, last.ms + ms);
  else frames.push({ lines, ms });
}

try {
  // Where npx finds it, also from directories below.
  mkdirSync(join(home, "node_modules", ".bin"), { recursive: true });
  symlinkSync(join(root, "bin", "nlac.js"), join(home, "node_modules", ".bin", "nlac"));
  const shell = "env PS1='$ ' bash --norc --noprofile";
  tmux(
    "new-session",
    "-d",
    "-s",
    session,
    "-x",
    String(columns),
    "-y",
    String(rows),
    "-c",
    options.command ? root : home,
    shell,
  );
  await sleep(500);
  for (const command of commands) {
    for (const character of command) {
      tmux("send-keys", "-t", session, "-l", character);
      await sleep(20);
      capture(typing);
    }
    tmux("send-keys", "-t", session, "Enter");
    const started = Date.now();
    await sleep(interval);
    while (!isPrompt(screen())) {
      if (Date.now() - started > timeout) throw new Error(`${command} takes too long`);
      capture(interval, longest);
      await sleep(interval);
    }
    capture(pause);
  }
  frames.at(-1).ms = lastPause;
} finally {
  try {
    tmux("kill-server");
  } finally {
    rmSync(home, { recursive: true, force: true });
  }
}
mkdirSync(dirname(file), { recursive: true });
writeFileSync(file, render(thinned(frames)));
console.log(`${file}: ${frames.length} frames`);

/** Whether the shell waits for the next command. */
function isPrompt(lines) {
  return lines.findLast((line) => line !== "") === "$";
}

/** At most 160 frames: of long phases in which only a progress line changes, every n-th. */
function thinned(all) {
  const every = Math.ceil(all.length / 160);
  return all.filter((frame, i) => i % every === 0 || frame.ms >= pause || i === all.length - 1);
}

function render(shown) {
  const [cell, line, margin] = [8.4, 19, 16];
  const width = Math.round(columns * cell + 2 * margin);
  const used = Math.max(...shown.map(({ lines }) => lines.findLastIndex((text) => text !== "") + 1));
  const height = used * line + 2 * margin;
  const total = shown.reduce((sum, { ms }) => sum + ms, 0);
  const starts = shown.map((_, i) => shown.slice(0, i).reduce((sum, { ms }) => sum + ms, 0));
  const share = (ms) => `${Math.round((1e4 * ms) / total) / 100}%`;
  const texts = [];
  const rules = new Map();
  for (let row = 0; row < used; row++) {
    for (let from = 0; from < shown.length; ) {
      const text = shown[from].lines[row] ?? "";
      let to = from + 1;
      while (to < shown.length && (shown[to].lines[row] ?? "") === text) to++;
      if (text !== "") {
        const name = `f${from}-${to}`;
        rules.set(name, keyframes(name, starts[from], starts[to] ?? total));
        const isLast = to === shown.length ? ' class="last"' : "";
        const y = Math.round((row + 0.75) * line + margin);
        texts.push(
          `<text${isLast} style="animation-name:${name}" x="${margin}" y="${y}">${escaped(text)}</text>`,
        );
      }
      from = to;
    }
  }
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}" role="img">`,
    `<title>${escaped(options.title)}</title>`,
    "<style>",
    "text { font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, DejaVu Sans Mono, monospace; fill: #e6edf3; white-space: pre; " +
      `visibility: hidden; animation: ${total}ms step-end infinite }`,
    "@media (prefers-reduced-motion: reduce) { text { animation: none } .last { visibility: visible } }",
    ...rules.values(),
    "</style>",
    `<rect width="${width}" height="${height}" rx="8" fill="#0d1117"/>`,
    ...texts,
    "</svg>",
    "",
  ].join("\n");

  function keyframes(name, from, to) {
    const before = from === 0 ? "" : "0% { visibility: hidden } ";
    const after = to >= total ? "" : ` ${share(to)} { visibility: hidden }`;
    return `@keyframes ${name} { ${before}${share(from)} { visibility: visible }${after} }`;
  }
}

function escaped(text) {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}
