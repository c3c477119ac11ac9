// Bundles the page of `nlac dash` (lib/dash/browser) into main.js and main.css.
//   node scripts/bundle-dash.mjs DIRECTORY
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const bundled = ["preact", "@preact/signals", "@preact/signals-core", "uplot"];

/** Writes both files, and the licenses of the packages in them, to `directory`. */
export async function bundleDash(directory) {
  await build({
    entryPoints: [fileURLToPath(new URL("../lib/dash/browser/main.tsx", import.meta.url))],
    outdir: directory,
    bundle: true,
    minify: true,
    format: "esm",
    target: "es2022",
    jsx: "automatic",
    jsxImportSource: "preact",
    legalComments: "none",
    banner: { js: "/*! With preact, @preact/signals and uPlot (MIT): see licenses.txt. */" },
    logLevel: "warning",
  });
  const modules = fileURLToPath(new URL("../node_modules/", import.meta.url));
  const licenses = bundled.map(
    (name) => `${name}\n\n${readFileSync(join(modules, name, "LICENSE"), "utf8").trim()}\n`,
  );
  writeFileSync(join(directory, "licenses.txt"), licenses.join("\n\n"));
}

if (process.argv[1] === fileURLToPath(import.meta.url)) await bundleDash(process.argv[2]);
