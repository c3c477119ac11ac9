#!/usr/bin/env node
// Checks the links of all Markdown pages: files that exist, and headings that exist. Addresses on
// the network are not fetched.
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

/** The pages of the documentation, relative to `root`. */
export function pagesOf(root) {
  const below = (folder) =>
    readdirSync(join(root, folder), { recursive: true, encoding: "utf8" }).map((name) => join(folder, name));
  return [...readdirSync(root), ...below("docs"), ...below("bench")]
    .filter((name) => name.endsWith(".md") && !name.includes("node_modules"))
    .sort();
}

/** The text outside code blocks and inline code. */
function prose(text) {
  return text.replaceAll(/^(\s*)```.*?^\1```/gms, "").replaceAll(/`[^`\n]*`/g, "");
}

/** Targets of a page's links and images. */
export function linksOf(text) {
  return [
    ...[...prose(text).matchAll(/\]\(([^()\s]+)\)/g)].map(([, link]) => link),
    ...[...prose(text).matchAll(/(?:src|href)="([^"]+)"/g)].map(([, link]) => link),
  ];
}

/** The anchors of a page's headings, as GitHub makes them. */
function anchorsOf(text) {
  const headings = text.replaceAll(/^```.*?^```/gms, "").matchAll(/^#+ (.*)$/gm);
  return new Set(
    [...headings].map(([, heading]) =>
      heading
        .replaceAll(/\[([^\]]*)\]\([^)]*\)/g, "$1")
        .toLowerCase()
        .replaceAll(/[^\p{L}\p{N}\- _]/gu, "")
        .replaceAll(" ", "-"),
    ),
  );
}

/** Every broken link below `root`, one line each. */
export function checkLinks(root) {
  const faults = [];
  for (const page of pagesOf(root)) {
    const text = readFileSync(join(root, page), "utf8");
    for (const link of linksOf(text)) {
      if (/^\w+:/.test(link)) continue;
      const [path, anchor] = link.split("#");
      const target = path === "" ? page : join(dirname(page), decodeURI(path));
      if (!existsSync(join(root, target))) faults.push(`${page}: ${link}: there is no ${target}`);
      else if (anchor !== undefined && target.endsWith(".md")) {
        const anchors = anchorsOf(readFileSync(join(root, target), "utf8"));
        if (!anchors.has(anchor)) faults.push(`${page}: ${link}: ${target} has no such heading`);
      }
    }
  }
  return faults;
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const faults = checkLinks(fileURLToPath(new URL("..", import.meta.url)));
  console.log(faults.length === 0 ? "All links lead somewhere." : faults.join("\n"));
  process.exitCode = faults.length === 0 ? 0 : 1;
}
