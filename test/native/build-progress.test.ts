import { chmodSync, mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { buildNative } from "../../lib/native/build.ts";
import { inDirectory } from "../support/tiny.ts";

test("a build reports each step at once, and the latest count that the tool printed", () =>
  inDirectory(async (directory) => {
    const bin = join(directory, "bin");
    mkdirSync(bin);
    // Stands for cmake: the build prints two counts in one piece, as ninja does.
    const script = '#!/bin/sh\n[ "$1" = --build ] && printf "[1/7] a\\n[2/7] b\\n"\nexit 0\n';
    for (const name of ["cmake", "ninja", "make", "c++"]) {
      writeFileSync(join(bin, name), script);
      chmodSync(join(bin, name), 0o755);
    }
    const seen: unknown[] = [];
    await buildNative({
      name: "cpu",
      definitions: {},
      root: directory,
      env: { PATH: `${bin}:/bin:/usr/bin` },
      report: { line: () => {}, progress: (...given) => seen.push(given) },
    });
    expect(seen).toEqual([
      ["configure cpu", 0, undefined, "steps"],
      ["build cpu", 0, undefined, "steps"],
      ["build cpu", 2, 7, "steps"],
    ]);
  }));
