import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { recipeIfRun } from "../../lib/recipe/run-recipe.ts";

const before = process.cwd();
let place: string;
beforeEach(() => {
  place = mkdtempSync(join(tmpdir(), "nlac-runs-"));
  process.chdir(place);
});
afterEach(() => {
  process.chdir(before);
  rmSync(place, { recursive: true, force: true });
});

test("a missing run is an error that lists the others, and not a name on the hub", () => {
  expect(() => recipeIfRun("runs/desk")).toThrow(
    "There is no run runs/desk: there is no directory runs here.",
  );
  mkdirSync("runs");
  expect(() => recipeIfRun("./runs/desk")).toThrow("There is no run ./runs/desk, and ./runs has no others.");
  mkdirSync("runs/first");
  writeFileSync("runs/first/run.json", "{}");
  mkdirSync("runs/model"); // not a run
  expect(() => recipeIfRun("runs/frist")).toThrow("There is no run runs/frist; runs has first.");
});

test("other names and directories are not runs", () => {
  mkdirSync("runs/exported", { recursive: true });
  for (const name of ["runs/exported", "Qwen/Qwen2.5-0.5B-Instruct", "errands-base", "/nowhere/else"])
    expect(recipeIfRun(name)).toBeUndefined();
});
