/** What commands say to the user on stderr, because stdout is for results. */

import { isAbsolute, relative, resolve } from "node:path";

export function say(line: string): void {
  process.stderr.write(`${line}\n`);
}

/** Says where a page was written. */
export function sayReport(path: string): void {
  say(`Report: ${resolve(path)}`);
}

/** A path as the user would type it here: relative to the working directory if it is below it. */
export function asTyped(path: string): string {
  const here = relative(process.cwd(), path);
  const isBelow = here !== "" && !here.startsWith("..") && !isAbsolute(here);
  return inShell(isBelow ? here : path);
}

/** Text as one word of a shell. */
export function inShell(typed: string): string {
  return /^[\w@%+=:,./-]+$/.test(typed) ? typed : `'${typed.replaceAll("'", "'\\''")}'`;
}
