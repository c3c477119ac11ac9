/** What the scripts import from the library is there: most run only by hand. */

import { existsSync, readdirSync, readFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { expect, test } from "vitest";

const root = join(import.meta.dirname, "..");
const scripts = readdirSync(join(root, "scripts"), { recursive: true, encoding: "utf8" })
  .filter((name) => name.endsWith(".mjs"))
  .map((name) => join(root, "scripts", name));

/** Files that `script` imports: those of dist/ by their source in lib/. */
function imported(script: string): string[] {
  const text = readFileSync(script, "utf8");
  const own = [...text.matchAll(/(?:from|import\() ?"(\.[^"]+)"/g)].map(([, path]) =>
    join(dirname(script), path!).replace(join(root, "dist/"), join(root, "lib/")),
  );
  const fromLib = [...text.matchAll(/importLib\(\s*"([^"]+)"/g)].map(([, path]) => join(root, "lib", path!));
  return [...own, ...fromLib].map((file) =>
    file.startsWith(join(root, "lib/")) ? `${file.replace(/\.(js|ts)$/, "")}.ts` : file,
  );
}

test("every import of a script exists", () => {
  const files = scripts.flatMap((script) => imported(script).map((file) => ({ script, file })));
  expect(files.length).toBeGreaterThan(50);
  expect(files.filter(({ file }) => !existsSync(file))).toEqual([]);
});
