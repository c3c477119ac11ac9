import { spawnSync } from "node:child_process";
import { readdirSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { expect, test } from "vitest";
import { temporaryDirectory } from "../support/files-and-servers.ts";

test("an export that does not fit on the disk leaves nothing behind", () => {
  const directory = join(temporaryDirectory(), "model");
  const main = fileURLToPath(new URL("../../lib/cli/main.ts", import.meta.url));
  // No file may be larger than 512 kB, as on a disk that is nearly full.
  const command =
    'trap "" XFSZ; ulimit -f 512; exec "$0" --import jiti/register "$1" export errands-base "$2"';
  const ran = spawnSync("bash", ["-c", command, process.execPath, main, directory], { encoding: "utf8" });
  expect(ran.status).toBe(1);
  expect(ran.stderr).toMatch(/^nlac: ERR_IO: .+model\.safetensors.+cannot be written/m);
  expect(readdirSync(directory)).toEqual([]);
});
