import { spawn } from "node:child_process";
import { once } from "node:events";
import { setTimeout } from "node:timers/promises";
import { expect, test } from "vitest";

test.each([
  ["SIGINT", 130],
  ["SIGTERM", 143],
] as const)(
  "%s twice at once, as through npx, stops cleanly; one more ends with %i",
  async (name, code) => {
    const child = spawn(process.execPath, ["--import", "jiti/register", "test/support/stop-child.ts"]);
    const ended = once(child, "exit");
    let output = "";
    const shows = async (text: string) => {
      while (!output.includes(text)) await once(child.stdout, "data");
    };
    child.stdout.on("data", (chunk) => {
      output += chunk;
    });
    await shows("ready");
    child.kill(name);
    await shows("aborted");
    child.kill(name);
    await setTimeout(1500);
    expect(child.exitCode).toBeNull();
    expect(output.match(/stopping later/g)).toHaveLength(1);
    child.kill(name);
    expect(await ended).toEqual([code, null]);
  },
  60_000,
);
