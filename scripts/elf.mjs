// Reads the needs of an ELF shared object without binutils: libraries, run paths, and the
// newest symbol version of each family. Section types and tags: the System V ABI and the LSB.
import { readFileSync } from "node:fs";

const DYNAMIC = 6;
const VERNEED = 0x6ffffffe;
const NEEDED = 1;
const RPATH = 15;
const RUNPATH = 29;

/**
 * Returns `machine`, `libraries`, `runPaths`, `sections` (names) and `symbols`: the newest version
 * of each family, e.g. { GLIBC: "2.34" }. Throws if the file is not 64-bit little-endian ELF.
 */
export function readElf(path) {
  const bytes = readFileSync(path);
  if (bytes.length < 64 || bytes.toString("latin1", 0, 6) !== "\x7fELF\x02\x01")
    throw new Error(`${path} is not a 64-bit little-endian ELF file`);
  const number = (at) => Number(bytes.readBigUInt64LE(at));
  const sections = Array.from({ length: bytes.readUInt16LE(60) }, (_, i) => {
    const at = number(40) + i * bytes.readUInt16LE(58);
    return {
      nameAt: bytes.readUInt32LE(at),
      type: bytes.readUInt32LE(at + 4),
      offset: number(at + 24),
      size: number(at + 32),
      link: bytes.readUInt32LE(at + 40),
      info: bytes.readUInt32LE(at + 44),
    };
  });
  const text = (table, at) => {
    const start = sections[table].offset + at;
    return bytes.toString("latin1", start, bytes.indexOf(0, start));
  };

  const libraries = [];
  const runPaths = [];
  const dynamic = sections.find((section) => section.type === DYNAMIC);
  for (let at = dynamic?.offset ?? 0; at < (dynamic?.offset ?? 0) + (dynamic?.size ?? 0); at += 16) {
    const tag = number(at);
    if (tag === NEEDED) libraries.push(text(dynamic.link, number(at + 8)));
    if (tag === RPATH || tag === RUNPATH) runPaths.push(text(dynamic.link, number(at + 8)));
  }

  const symbols = {};
  const needs = sections.find((section) => section.type === VERNEED);
  for (let i = 0, at = needs?.offset; i < (needs?.info ?? 0); i++, at += bytes.readUInt32LE(at + 12))
    for (let j = 0, of = at + bytes.readUInt32LE(at + 8); j < bytes.readUInt16LE(at + 2); j++) {
      const [family, version = ""] = text(needs.link, bytes.readUInt32LE(of + 8)).split("_");
      if (/^\d/.test(version) && !(compareVersions(version, symbols[family] ?? "0") <= 0))
        symbols[family] = version;
      of += bytes.readUInt32LE(of + 12);
    }
  return {
    machine: { 62: "x64", 183: "arm64" }[bytes.readUInt16LE(18)] ?? "other",
    ...{ libraries, runPaths, symbols },
    sections: sections.map((section) => text(bytes.readUInt16LE(62), section.nameAt)),
  };
}

/** Negative if `a` is older than `b`, 0 if they are equal, positive if `a` is newer. */
export function compareVersions(a, b) {
  const [x, y] = [a, b].map((version) => version.split(".").map(Number));
  for (let i = 0; i < Math.max(x.length, y.length); i++) {
    const difference = (x[i] ?? 0) - (y[i] ?? 0);
    if (difference !== 0) return difference;
  }
  return 0;
}
