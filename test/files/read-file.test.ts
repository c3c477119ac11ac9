import { execFileSync } from "node:child_process";
import {
  closeSync,
  constants,
  mkdirSync,
  openSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  readSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { readModelFile, readModelJson } from "../../lib/files/read-file.ts";
import { requireWritable, writeAtomically } from "../../lib/files/write-atomically.ts";
import { inDirectory } from "../support/tiny.ts";

const limit = { bytes: 100, values: 5 };

describe("readModelFile", () => {
  it("reads a file, also through a symbolic link, and gives undefined for a missing one", () =>
    inDirectory(async (directory) => {
      writeFileSync(join(directory, "a"), "köln");
      symlinkSync("a", join(directory, "link"));
      expect(await readModelFile(join(directory, "a"), 5)).toBe("köln");
      expect(await readModelFile(join(directory, "link"), 5)).toBe("köln");
      expect(await readModelFile(join(directory, "none"), 5)).toBeUndefined();
    }));

  it("refuses larger files, directories and pipes, without waiting for a writer", () =>
    inDirectory(async (directory) => {
      const path = (name: string) => join(directory, name);
      writeFileSync(path("large"), "123456");
      mkdirSync(path("folder"));
      execFileSync("mkfifo", [path("pipe")]);
      const code = (name: string) => readModelFile(path(name), 5).catch(({ code }) => code);
      expect(await code("large")).toBe("ERR_MODEL_FORMAT");
      expect(await code("folder")).toBe("ERR_IO");
      expect(await code("pipe")).toBe("ERR_IO");
    }));
});

describe("readModelJson", () => {
  it("limits the number of values before it parses", () =>
    inDirectory(async (directory) => {
      const path = join(directory, "config.json");
      const read = (text: string) => {
        writeFileSync(path, text);
        return readModelJson(path, limit).catch(({ code, message }) => `${code} ${message}`);
      };
      expect(await read('{"a": [1, 2]}')).toEqual({ a: [1, 2] });
      expect(await read("[1, 2, 3, 4, 5, 6]")).toBe(`ERR_MODEL_FORMAT ${path} has more than 5 values.`);
      expect(await read("{")).toMatch(/^ERR_MODEL_FORMAT .* is not JSON/);
      expect(await readModelJson(join(directory, "none.json"), limit)).toBeUndefined();
    }));
});

describe("writeAtomically", () => {
  it("replaces a file, and leaves the old one and no temporary file if it fails", () =>
    inDirectory((directory) => {
      const path = join(directory, "state");
      writeAtomically(path, "one");
      writeAtomically(path, Buffer.from("two"));
      expect(readFileSync(path, "utf8")).toBe("two");
      mkdirSync(join(directory, "folder", "full"), { recursive: true });
      expect(() => writeAtomically(join(directory, "folder"), "x")).toThrow(
        expect.objectContaining({ code: "ERR_IO", message: expect.stringContaining("folder") }),
      );
      const nowhere = join(directory, "none", "state");
      for (const write of [() => writeAtomically(nowhere, "x"), () => requireWritable(nowhere)])
        expect(write).toThrow(
          `${nowhere} cannot be written: there is no directory ${join(directory, "none")}.`,
        );
      expect(readdirSync(directory).sort()).toEqual(["folder", "state"]);
    }));

  it("writes to the file that a link names, and leaves the link", () =>
    inDirectory((directory) => {
      const [file, link] = [join(directory, "file"), join(directory, "link")];
      writeAtomically(file, "one");
      symlinkSync("file", link);
      requireWritable(link);
      writeAtomically(link, "two");
      expect(readFileSync(file, "utf8")).toBe("two");
      expect(readlinkSync(link)).toBe("file");
      expect(readdirSync(directory).sort()).toEqual(["file", "link"]);
    }));

  it("writes into a pipe, as into /dev/stdout, and does not replace it by a file", () =>
    inDirectory((directory) => {
      const pipe = join(directory, "pipe");
      execFileSync("mkfifo", [pipe]);
      // Held open for reading, so that writing does not wait for a reader.
      const reader = openSync(pipe, constants.O_RDONLY | constants.O_NONBLOCK);
      try {
        requireWritable(pipe);
        writeAtomically(pipe, "page");
        const bytes = Buffer.alloc(8);
        expect(bytes.toString("utf8", 0, readSync(reader, bytes))).toBe("page");
        expect(statSync(pipe).isFIFO()).toBe(true);
        expect(readdirSync(directory)).toEqual(["pipe"]);
      } finally {
        closeSync(reader);
      }
    }));
});
