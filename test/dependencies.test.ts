import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
// @ts-expect-error: a script without types
import * as dependencies from "../scripts/check-dependencies.mjs";

const root = join(import.meta.dirname, "..");
const read = (path: string) => readFileSync(join(root, path), "utf8");
const lock = JSON.parse(read("package-lock.json"));
const readme = read("third_party/README.md");
const folders = readdirSync(join(root, "third_party")).filter((name) => name !== "README.md");

test("every production dependency and everything in third_party has an allowed licence", () => {
  expect(dependencies.licenceFaults(lock, readme, folders)).toEqual([]);
});

test("all of package.json's dependencies are looked at, and no development dependency", () => {
  const names = dependencies.productionPackages(lock).map(({ name }: { name: string }) => name);
  const { dependencies: own, devDependencies } = JSON.parse(read("package.json"));
  expect(names).toEqual(expect.arrayContaining(Object.keys(own)));
  expect(names.filter((name: string) => name in devDependencies)).toEqual([]);
});

test("a licence that is not allowed and a folder without a row are found", () => {
  const packages = { "node_modules/x": { version: "1.0.0", license: "GPL-3.0-only" }, "node_modules/y": {} };
  expect(dependencies.licenceFaults({ packages }, readme, [...folders, "zlib"])).toEqual([
    "package-lock.json: x 1.0.0 has the licence GPL-3.0-only",
    "package-lock.json: y undefined has the licence undefined",
    "third_party/README.md: no row for zlib/",
  ]);
});

test.each([
  ["MIT", true],
  ["(MIT OR GPL-3.0-only)", true],
  ["MIT AND GPL-3.0-only", false],
  ["SEE LICENSE IN LICENSE", false],
  [undefined, false],
])("the licence %s is allowed: %s", (expression, allowed) => {
  expect(dependencies.isAllowed(expression)).toBe(allowed);
});

test("the list of components has third_party, with licences and versions", () => {
  const npm = {
    metadata: { component: { "bom-ref": "nlac@1.0.0", name: "directory" } },
    components: [{ "bom-ref": "zod@4.0.0" }],
    dependencies: [{ ref: "nlac@1.0.0", dependsOn: ["zod@4.0.0"] }],
  };
  const own = { name: "nlac", version: "1.0.0" };
  const components = dependencies.thirdPartyComponents(readme);
  const sbom = dependencies.completeSbom(npm, own, components);
  expect(sbom.metadata.component).toMatchObject(own);
  expect(sbom.components).toHaveLength(1 + components.length);
  expect(sbom.components).toContainEqual(
    expect.objectContaining({
      name: "XGrammar",
      version: expect.stringMatching(/^\d+\.\d+/),
      licenses: [{ license: { id: "Apache-2.0" } }],
    }),
  );
  expect(sbom.dependencies[0].dependsOn).toContain("third_party/xgrammar");
});
