import { mkdirSync, mkdtempSync, readdirSync, readFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, test } from "vitest";
import { uniform } from "../../lib/base/random.ts";
// @ts-expect-error: a script without types
import { replay, writeImage } from "../../scripts/torture/support/crash-image.mjs";

const root = "/root";
const made = (path: string) => ({ kind: "open", path: `${root}/${path}`, created: true, truncated: false });
const write = (path: string, offset: number, data: string) => ({
  ...{ kind: "write", path: `${root}/${path}`, offset },
  data: Buffer.from(data),
});
const sync = (path: string) => ({ kind: "fsync", path: join(root, path) });
const rename = (from: string, to: string) => ({
  ...{ kind: "rename", path: `${root}/${from}`, second: `${root}/${to}` },
});

/** The trees that 300 crashes leave after all operations, as "name=content" lists. */
function images(operations: object[]): Set<string> {
  const found = new Set<string>();
  for (let i = 0; i < 300; i++) {
    const target = mkdtempSync(join(tmpdir(), "nlac-image-"));
    let draw = 0;
    writeImage(replay(operations, operations.length, root), target, () => uniform(i, 0, draw++));
    const files = readdirSync(target).sort();
    found.add(files.map((file) => `${file}=${readFileSync(join(target, file), "utf8")}`).join(" "));
  }
  return found;
}

test("a rename without a sync of the file may leave an empty file under the new name", () => {
  const operations = [made("a.tmp"), write("a.tmp", 0, "new"), rename("a.tmp", "a"), sync("")];
  expect(images(operations)).toEqual(new Set(["a=", "a=new", "a=\0\0\0"]));
});

test("a rename without a sync of the directory may be missing, but the old file is whole", () => {
  const old = [made("a"), write("a", 0, "old"), sync("a"), sync("")];
  const replaced = [made("a.tmp"), write("a.tmp", 0, "new"), sync("a.tmp"), rename("a.tmp", "a")];
  expect(images([...old, ...replaced])).toEqual(new Set(["a=old", "a=old a.tmp=new", "a=new"]));
  expect(images([...old, ...replaced, sync("")])).toEqual(new Set(["a=new"]));
});

test("writes after the last sync may be torn between pages of 4096 bytes, each of which has them in order", () => {
  const operations = [made("a"), write("a", 0, "x"), sync("a"), sync("")];
  const later = [write("a", 4095, "yz"), write("a", 1, "w")];
  const contents = [...images([...operations, ...later])].map((image) => image.replaceAll("\0", "").slice(2));
  expect(new Set(contents)).toEqual(new Set(["x", "xy", "xz", "xyz", "xwy", "xwyz"]));
});

test("without a crash everything is there", () => {
  const target = mkdtempSync(join(tmpdir(), "nlac-image-"));
  const operations = [{ kind: "mkdir", path: `${root}/d` }, made("d/a"), write("d/a", 0, "x")];
  mkdirSync(join(target, "whole"));
  writeImage(replay(operations, operations.length, root), join(target, "whole"));
  expect(readFileSync(join(target, "whole", "d", "a"), "utf8")).toBe("x");
});
