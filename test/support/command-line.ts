/** Runs one `nlac` command line inside the test's process. */

import { vi } from "vitest";
import { main } from "../../lib/cli/main.ts";

export interface Ran {
  code: number;
  output: string;
  errors: string;
}

export async function nlac(...argv: string[]): Promise<Ran> {
  let output = "";
  let errors = "";
  const spies = [
    vi.spyOn(console, "log").mockImplementation((text) => {
      output += `${text}\n`;
    }),
    vi.spyOn(process.stdout, "write").mockImplementation((text) => {
      output += String(text);
      return true;
    }),
    vi.spyOn(process.stderr, "write").mockImplementation((text) => {
      errors += String(text);
      return true;
    }),
  ];
  try {
    return { code: await main(argv), output, errors };
  } finally {
    for (const spy of spies) spy.mockRestore();
  }
}
