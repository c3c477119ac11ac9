#!/usr/bin/env node
// Compares lib/native/addon.ts with the exports of the built addon: names and parameter counts.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import ts from "typescript";
import { importLib } from "./build-native.mjs";

const root = fileURLToPath(new URL("..", import.meta.url)).replace(/\/$/, "");

/**
 * Parameter counts of each interface's methods, null for properties; in the form of `signatures()`.
 */
export function declaredSignatures(source) {
  const signatures = {};
  for (const statement of ts.createSourceFile("addon.ts", source, ts.ScriptTarget.Latest).statements) {
    if (!ts.isInterfaceDeclaration(statement) || !statement.members.some(ts.isMethodSignature)) continue;
    signatures[statement.name.text] = Object.fromEntries(
      statement.members.map((member) => [
        member.name.text,
        ts.isMethodSignature(member) ? member.parameters.length : null,
      ]),
    );
  }
  return signatures;
}

/** Every difference, one line each. */
export function compareSignatures(declared, exported) {
  const faults = [];
  for (const name of new Set([...Object.keys(declared), ...Object.keys(exported)])) {
    const [ours, theirs] = [declared[name] ?? {}, exported[name] ?? {}];
    for (const member of new Set([...Object.keys(ours), ...Object.keys(theirs)])) {
      const where = `${name}.${member}`;
      if (!(member in theirs)) faults.push(`${where} is declared in addon.ts, but the addon lacks it`);
      else if (!(member in ours)) faults.push(`${where} is exported by the addon, but addon.ts lacks it`);
      else if (ours[member] !== theirs[member])
        faults.push(
          `${where}: addon.ts declares ${described(ours[member])}, the addon ${described(theirs[member])}`,
        );
    }
  }
  return faults;
}

const described = (arity) => (arity === null ? "a property" : `${arity} parameters`);

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const { loadAddon } = await importLib("native/load");
  const addon = loadAddon();
  const exported = addon.signatures();
  for (const name of Object.keys(addon)) exported.Addon[name] ??= addon[name].length;
  const declared = declaredSignatures(readFileSync(join(root, "lib", "native", "addon.ts"), "utf8"));
  const faults = compareSignatures(declared, exported);
  for (const fault of faults) console.error(fault);
  console.log(
    `${Object.values(declared).reduce((sum, members) => sum + Object.keys(members).length, 0)} members`,
  );
  process.exitCode = faults.length > 0 ? 1 : 0;
}
