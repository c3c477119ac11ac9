import { spawnSync } from "node:child_process";
import {
  chmodSync,
  mkdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  truncateSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { NlacError } from "../../lib/base/errors.ts";
import { makeDirectory } from "../../lib/files/disk.ts";
import { Learner } from "../../lib/learner/learner.ts";
import { modelFaults } from "../../lib/learner/verify.ts";
import { pipe } from "../support/files-and-servers.ts";
import { inDirectory, tinyLearner } from "../support/tiny.ts";

let learner: Learner;
beforeAll(async () => {
  learner = await tinyLearner();
});
afterAll(() => learner.dispose());

const codeOf = (promise: Promise<unknown>) =>
  promise.then(
    () => "no error",
    (error: unknown) => (error instanceof NlacError ? error.code : String(error)),
  );

test("saving to a place that takes no directory fails with ERR_IO, and does not hang", () =>
  inDirectory(async (directory) => {
    const at = (name: string) => join(directory, name);
    spawnSync("mkfifo", [at("pipe")]);
    writeFileSync(at("file"), "");
    symlinkSync(at("nowhere"), at("dead"));
    symlinkSync(at("loop"), at("loop"));
    const places = [
      at("pipe"),
      at("pipe/below"),
      at("file/below"),
      at("dead"),
      at("dead/below"),
      at("loop/below"),
      at("x".repeat(300)),
      "/dev/full",
      "/dev/full/below",
      "/proc/nlac/below",
      "/proc/self/nlac",
    ];
    for (const place of places) {
      expect([place, await codeOf(learner.save(place))]).toEqual([place, "ERR_IO"]);
      expect([place, await codeOf(learner.exportHuggingFace(place))]).toEqual([place, "ERR_IO"]);
      expect(() => makeDirectory(place)).toThrow(expect.objectContaining({ code: "ERR_IO" }));
    }
    if (process.getuid?.() !== 0) {
      mkdirSync(at("closed"));
      chmodSync(at("closed"), 0o500);
      expect(await codeOf(learner.save(at("closed")))).toBe("ERR_IO");
    }
  }));

test("saving where an old file cannot be removed fails with ERR_IO", () =>
  inDirectory(async (directory) => {
    mkdirSync(join(directory, "learner.json/below"), { recursive: true });
    expect(await codeOf(learner.save(directory))).toBe("ERR_IO");
  }));

test("a pipe in place of a file of a saved learner is refused, and does not hang", () =>
  inDirectory(async (directory) => {
    await learner.save(directory);
    for (const name of [
      "checksums.json",
      "sampling.json",
      "learner.json",
      "model.safetensors",
      "tokenizer.json",
    ]) {
      const file = join(directory, name);
      const content = readFileSync(file);
      rmSync(file);
      spawnSync("mkfifo", [file]);
      expect([name, await codeOf(Learner.resume(directory))]).toEqual([name, "ERR_CHECKPOINT"]);
      rmSync(file);
      writeFileSync(file, content);
    }
    await (await Learner.resume(directory)).dispose();
  }));

test("every flipped bit of a saved learner is an error that names the file", () =>
  inDirectory(async (directory) => {
    await learner.updateTarget(0);
    await learner.tokenNll([{ prompt: [97], response: [98, 99] }]);
    await learner.step({ learningRate: 0.01 });
    await learner.save(directory);
    const names = ["model", "target", "optimizer-0"].map((name) => `${name}.safetensors`);
    names.push(
      "learner.json",
      "sampling.json",
      "config.json",
      "tokenizer.json",
      "tokenizer_config.json",
      "checksums.json",
    );
    for (const name of names) {
      const file = join(directory, name);
      const content = readFileSync(file);
      for (const share of [0, 0.3, 0.5, 0.99]) {
        const damaged = Buffer.from(content);
        damaged[Math.floor(share * content.length)]! ^= 4;
        writeFileSync(file, damaged);
        const error = await Learner.resume(directory).catch((thrown) => thrown);
        expect([name, error.code]).toEqual([name, "ERR_CHECKPOINT"]);
        expect(error.message).toContain(`${file} is damaged`);
      }
      writeFileSync(file, content);
    }
    await (await Learner.resume(directory)).dispose();
  }));

test("an export is found damaged, with its checksums and without", () =>
  inDirectory(async (directory) => {
    const faults = async () => {
      const found: string[] = [];
      for await (const fault of modelFaults(directory)) found.push(fault);
      return found.join(" ");
    };
    await learner.exportHuggingFace(directory);
    expect(await faults()).toBe("");
    const file = join(directory, "model.safetensors");
    const content = readFileSync(file);
    const flipped = Buffer.from(content);
    flipped[content.length - 5]! ^= 1;
    writeFileSync(file, flipped);
    expect(await faults()).toContain(`${file} is damaged: its SHA-256 differs`);
    rmSync(join(directory, "checksums.json"));
    writeFileSync(file, content.subarray(0, -1));
    expect(await faults()).toContain(`${file} is damaged: it has ${content.length - 1} bytes`);
    writeFileSync(file, content);
    expect(await faults()).toBe("");
    writeFileSync(join(directory, "config.json"), "{");
    expect(await faults()).toContain("config.json is not JSON");
    rmSync(join(directory, "config.json"));
    const sizes = { "config.json": 2 ** 30, "model.safetensors": 2 ** 30 };
    for (const [name, size] of Object.entries(sizes)) {
      writeFileSync(join(directory, name), Buffer.from([0, 0, 0, 0x10, 0, 0, 0, 0]));
      truncateSync(join(directory, name), size); // sparse
    }
    const large = await faults();
    expect(large).toContain("config.json has 1073741824 bytes; at most 100000000 are read");
    expect(large).toContain("its header has 268435456 bytes; at most 100000000 are read");
    rmSync(file);
    pipe(file);
    expect(await faults()).toContain(`${file} is not a regular file`);
  }));
