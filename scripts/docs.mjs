#!/usr/bin/env node
// `npm run docs`: builds the documentation site from README.md, docs/ and the public docstrings
// into build/docs/site. The pages are copied with their folders, so that the links that work in a
// checkout work in the site too; files that pages link to are served beside them.
//   node scripts/docs.mjs [--dev]
import { spawnSync } from "node:child_process";
import {
  cpSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from "node:fs";
import { dirname, join, relative } from "node:path";
import { fileURLToPath } from "node:url";
import { Application } from "typedoc";
import { build, createServer } from "vitepress";
import { linksOf, pagesOf } from "./check-links.mjs";

const root = fileURLToPath(new URL("..", import.meta.url));
const place = join(root, "build", "docs");
rmSync(place, { recursive: true, force: true });
const pages = pagesOf(root);

for (const page of pages) {
  const text = readFileSync(join(root, page), "utf8");
  // The report of the API is for reviews; the reference below has the same names with their
  // comments.
  const shown = page === "docs/api.md" ? "# API\n\nSee the [reference](reference/index.md).\n" : text;
  write(page, safe(shown));
  for (const link of linksOf(text)) {
    const target = join(dirname(page), link.replace(/#.*/, ""));
    if (link.startsWith("#") || /^\w+:/.test(link) || target.endsWith(".md") || target.startsWith(".."))
      continue;
    if (!statSync(join(root, target), { throwIfNoEntry: false })?.isFile()) continue;
    cpSync(join(root, target), join(place, "public", target));
    if (/\.(svg|png)$/.test(target)) cpSync(join(root, target), join(place, target));
  }
}
cpSync(join(root, "scripts", "docs", "config.mjs"), join(place, ".vitepress", "config.mjs"));
await makeReference();

if (process.argv.includes("--dev")) {
  const server = await createServer(place);
  await server.listen();
  server.printUrls();
} else {
  await build(place);
  console.log(`${pages.length} pages, and the reference, in ${relative(process.cwd(), join(place, "site"))}`);
}

function write(page, text) {
  const file = join(place, page);
  mkdirSync(dirname(file), { recursive: true });
  writeFileSync(file, text);
}

/** VitePress reads templates of Vue outside code blocks; the pages have braces of their own. */
function safe(text) {
  let isCode = false;
  return text
    .split("\n")
    .map((line) => {
      if (/^\s*```/.test(line)) isCode = !isCode;
      return isCode ? line : line.replaceAll("{{", "&#123;&#123;").replaceAll("<|", "&lt;|");
    })
    .join("\n");
}

/** The public names with their comments, as pages of docs/reference. */
async function makeReference() {
  if (!existsSync(join(root, "dist", "index.d.ts"))) {
    const built = spawnSync(process.execPath, [join(root, "scripts", "build.mjs")], { stdio: "inherit" });
    if (built.status !== 0) process.exit(1);
  }
  // The declarations, not the sources: types that schemas infer are written out in them.
  const entries = ["index", "environments/index", "models", "serving", "ops/index", "compare/index"];
  const app = await Application.bootstrapWithPlugins({
    plugin: ["typedoc-plugin-markdown"],
    entryPoints: entries.map((entry) => join(root, "dist", `${entry}.d.ts`)),
    tsconfig: join(root, "scripts", "docs", "tsconfig.json"),
    out: join(place, "docs", "reference"),
    readme: "none",
    name: "API",
    router: "module",
    entryFileName: "modules",
    sanitizeComments: true,
    useHTMLEncodedBrackets: true,
    hidePageHeader: true,
    hideBreadcrumbs: true,
    disableSources: true,
    excludePrivate: true,
    excludeInternal: true,
    skipErrorChecking: true,
    logLevel: "Error",
    validation: { notExported: false, invalidLink: false, notDocumented: false },
  });
  const project = await app.convert();
  if (project === undefined) process.exit(1);
  await app.generateOutputs(project);
  const made = readdirSync(join(place, "docs", "reference"), { recursive: true, encoding: "utf8" });
  for (const file of made.filter((name) => name.endsWith(".md"))) {
    const path = join(place, "docs", "reference", file);
    writeFileSync(path, safe(readFileSync(path, "utf8")));
  }
}
