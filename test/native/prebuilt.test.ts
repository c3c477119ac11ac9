import { spawnSync } from "node:child_process";
import { readFileSync, rmSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { describe, expect, it } from "vitest";
import { version } from "../../lib/base/version.ts";
import { TORCH_VERSION } from "../../lib/native/libtorch.ts";
import { packageRoot } from "../../lib/native/paths.ts";
import { whyUnfit } from "../../lib/native/prebuilt.ts";
import { thisMachine } from "../../lib/native/system.ts";
import { sha256, temporaryDirectory, write } from "../support/files-and-servers.ts";

const scripts = (name: string) => import(fileURLToPath(new URL(`../../scripts/${name}`, import.meta.url)));

function prebuilt(changes: Record<string, unknown> = {}): string {
  const directory = temporaryDirectory();
  const files = { "nlac.node": "core", "nlac_loader.node": "loader" };
  for (const [name, text] of Object.entries(files)) write(join(directory, name), text);
  const sums = Object.entries(files).map(([name, text]) => [name, sha256(Buffer.from(text))]);
  const build = {
    ...{ nlac: version, torch: TORCH_VERSION, variant: "cpu", nodeApi: 9, symbols: { GLIBC: "2.28" } },
    files: Object.fromEntries(sums),
    ...changes,
  };
  write(join(directory, "build.json"), JSON.stringify(build));
  return directory;
}

describe("whyUnfit", () => {
  const machine = { os: "linux", arch: "x64", nodeApi: 9, glibc: "2.28", release: "6.1.0" };

  it("accepts what fits, and a directory that was compiled here", () => {
    expect(whyUnfit(prebuilt(), machine)).toBeUndefined();
    expect(whyUnfit(temporaryDirectory(), machine)).toBeUndefined();
    expect(whyUnfit(prebuilt())).toBeUndefined();
    expect(thisMachine().glibc).toMatch(/^2\.\d+$/);
  });

  it.each([
    [{ nlac: "9.9.9" }, "it is of nlac 9.9.9, not "],
    [{ torch: "2.10.0" }, "it was compiled for torch 2.10.0, not "],
    [{ nodeApi: 10 }, "it needs Node-API 10; this Node has 9"],
    [{ symbols: { GLIBC: "2.34" } }, "it needs glibc 2.34; this system has 2.28"],
    [{ symbols: { GLIBC: "2.28.1" } }, "it needs glibc 2.28.1"],
    [{ files: { "nlac.node": "0" } }, "nlac.node is damaged"],
    [{ files: { "other.node": "0" } }, "other.node is missing"],
    [{ files: 3 }, "build.json is damaged"],
  ])("refuses %j", (changes, reason) => {
    expect(whyUnfit(prebuilt(changes), machine)).toContain(reason);
  });

  it("notices a damaged file", () => {
    const directory = prebuilt();
    write(join(directory, "nlac.node"), "cure");
    expect(whyUnfit(directory, machine)).toContain("nlac.node is damaged");
    rmSync(join(directory, "build.json"));
    expect(whyUnfit(directory, machine)).toBeUndefined();
  });
});

describe("reading ELF files", () => {
  const addon = join(packageRoot(), "build/cpu/nlac.node");

  it("agrees with binutils about the addon", async () => {
    const { readElf, compareVersions } = await scripts("elf.mjs");
    const elf = readElf(addon);
    const dump = (flag: string) => spawnSync("readelf", ["-W", flag, addon], { encoding: "utf8" }).stdout;
    const needed = [...dump("-d").matchAll(/\(NEEDED\).*\[(.*)\]/g)].map(([, name]) => name);
    expect(elf.libraries).toEqual(needed);
    expect(elf.libraries).toContain("libtorch_cpu.so");
    const versions = [...dump("-V").matchAll(/Name: GLIBC_([\d.]+)/g)].map(([, text]) => text!);
    expect(elf.symbols.GLIBC).toBe(versions.sort(compareVersions).at(-1));
    expect(elf.machine).toBe(process.arch);
    expect(() => readElf(fileURLToPath(import.meta.url))).toThrow(/is not a 64-bit little-endian ELF file/);
  });

  it("finds why an addon cannot be released", async () => {
    const { faultsOf } = await scripts("prebuild.mjs");
    // Not stripped; its libraries are the allowed ones.
    expect(faultsOf(addon, { anySystem: true })).toEqual(["has .symtab"]);
    const node = faultsOf(process.execPath) as string[];
    expect(node.length).toBeGreaterThan(0);
    const program = faultsOf(
      readFileSync("/proc/self/maps", "utf8").match(/\/\S+libc\.so\.6/)![0],
    ) as string[];
    expect(program.every((fault) => !fault.startsWith("has the run path"))).toBe(true);
  });
});
