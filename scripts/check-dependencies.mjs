#!/usr/bin/env node
// Checks what the package brings along: production dependencies (package-lock.json) and
// third_party/.
//   node scripts/check-dependencies.mjs            licences against an allow-list, and npm audit
//   node scripts/check-dependencies.mjs --sbom     prints a CycloneDX list of all components
// Exits with 1 for a licence that is not allowed, or a known vulnerability.
import { spawnSync } from "node:child_process";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const root = fileURLToPath(new URL("..", import.meta.url));

/** Licences that allow redistribution under Apache-2.0, by SPDX id. */
export const allowedLicences = new Set([
  ...["0BSD", "Apache-2.0", "BlueOak-1.0.0", "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "ISC", "MIT"],
]);

/** Whether an SPDX expression can be satisfied with allowed licences. */
export function isAllowed(expression) {
  if (typeof expression !== "string") return false;
  return expression
    .replace(/[()]/g, " ")
    .split(/ OR /)
    .some((choice) => choice.split(/ AND /).every((id) => allowedLicences.has(id.trim())));
}

/** Production dependencies, also transitive ones, as { name, version, licence }. */
export function productionPackages(lock) {
  return Object.entries(lock.packages).flatMap(([path, entry]) =>
    path === "" || entry.dev === true || entry.devOptional === true
      ? []
      : [{ name: path.replace(/^.*node_modules\//, ""), version: entry.version, licence: entry.license }],
  );
}

/** The rows of third_party/README.md's table, as { path, name, version, licence }. */
export function thirdPartyComponents(readme) {
  const rows = [...readme.matchAll(/^\| `([^`]+)` \| ([^|]+) \| ([^|]+) \| [^|]+ \| ([^|]+) \|$/gm)];
  return rows.map(([, path, ...cells]) => {
    const [name, version, licence] = cells.map((cell) => cell.trim());
    return { path: `third_party/${path}`.replace(/\/$/, ""), name, version, licence };
  });
}

/**
 * One line for each fault: a licence that is not allowed, or a folder of third_party/ without a
 * row.
 */
export function licenceFaults(lock, readme, folders) {
  const packages = productionPackages(lock);
  const components = thirdPartyComponents(readme);
  return [
    ...packages.map((one) => ({ ...one, place: "package-lock.json" })),
    ...components.map((one) => ({ ...one, place: "third_party/README.md" })),
  ]
    .filter(({ licence }) => !isAllowed(licence))
    .map(({ name, version, licence, place }) => `${place}: ${name} ${version} has the licence ${licence}`)
    .concat(
      folders
        .filter((folder) => !components.some(({ path }) => path === `third_party/${folder}`))
        .map((folder) => `third_party/README.md: no row for ${folder}/`),
    );
}

/** npm's CycloneDX list, completed by the components of third_party/. */
export function completeSbom(sbom, { name, version }, components) {
  const own = sbom.metadata.component;
  const added = components.map((component) => ({
    "bom-ref": component.path,
    type: "library",
    name: component.name,
    ...(/^\d/.test(component.version) && { version: component.version }),
    licenses: [{ license: { id: component.licence } }],
    properties: [{ name: "nlac:path", value: component.path }],
  }));
  const dependencies = sbom.dependencies.map((one) =>
    one.ref === own["bom-ref"]
      ? { ...one, dependsOn: [...one.dependsOn, ...components.map(({ path }) => path)] }
      : one,
  );
  return {
    ...sbom,
    // npm takes the name of the directory.
    metadata: { ...sbom.metadata, component: { ...own, name, version } },
    components: [...sbom.components, ...added],
    dependencies: [...dependencies, ...components.map(({ path }) => ({ ref: path, dependsOn: [] }))],
  };
}

function npm(...args) {
  const { status, stdout, stderr } = spawnSync("npm", args, {
    cwd: root,
    encoding: "utf8",
    maxBuffer: 1 << 28,
    timeout: 120_000,
  });
  return { status, stdout: stdout ?? "", stderr: stderr ?? "" };
}

/** Known vulnerabilities of production dependencies; undefined if the registry offers no audit. */
function vulnerabilities() {
  const { stdout } = npm("audit", "--omit=dev", "--json");
  let report;
  try {
    report = JSON.parse(stdout);
  } catch {
    return undefined;
  }
  if (report.vulnerabilities === undefined) return undefined;
  return Object.values(report.vulnerabilities).map(
    ({ name, severity, range }) => `npm audit: ${name} ${range} (${severity})`,
  );
}

function main() {
  const read = (path) => readFileSync(join(root, path), "utf8");
  const readme = read("third_party/README.md");
  if (process.argv.includes("--sbom")) {
    const { status, stdout, stderr } = npm("sbom", "--sbom-format", "cyclonedx", "--omit", "dev");
    if (status !== 0) throw new Error(`npm sbom failed: ${stderr}`);
    const sbom = completeSbom(
      JSON.parse(stdout),
      JSON.parse(read("package.json")),
      thirdPartyComponents(readme),
    );
    console.log(JSON.stringify(sbom, null, 2));
    return;
  }
  const lock = JSON.parse(read("package-lock.json"));
  const folders = readdirSync(join(root, "third_party"), { withFileTypes: true })
    .filter((entry) => entry.isDirectory())
    .map(({ name }) => name);
  const faults = licenceFaults(lock, readme, folders);
  const known = vulnerabilities();
  if (known === undefined)
    console.log("SKIPPED: npm audit: the registry does not offer it, or is not reachable");
  for (const fault of [...faults, ...(known ?? [])]) console.error(fault);
  const count = productionPackages(lock).length + thirdPartyComponents(readme).length;
  console.log(
    `${count} components, ${faults.length} licence faults, ${known?.length ?? "unknown"} vulnerabilities`,
  );
  if (faults.length + (known?.length ?? 0) > 0) process.exitCode = 1;
}

if (process.argv[1] === fileURLToPath(import.meta.url)) main();
