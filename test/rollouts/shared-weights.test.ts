import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test, vi } from "vitest";
import { SharedWeights } from "../../lib/rollouts/shared-weights.ts";
import { inDirectory } from "../support/tiny.ts";

/** A version that cannot be removed: on NFS, a server may still have its files open. */
let busy = "";
vi.mock("node:fs/promises", async (original) => {
  const fs = await original<typeof import("node:fs/promises")>();
  const rm: typeof fs.rm = async (path, options) => {
    if (path === busy) throw Object.assign(new Error("EBUSY: busy"), { code: "EBUSY", errno: -16 });
    await fs.rm(path, options);
  };
  return { ...fs, rm };
});

/** Writes a version with one file. */
async function writeModel(directory: string): Promise<void> {
  mkdirSync(directory);
  writeFileSync(join(directory, "model.safetensors"), "weights");
}

test("versions get their name when they are complete; keepOnly removes the others", async () => {
  await inDirectory(async (directory) => {
    const path = join(directory, "shared");
    const shared = await SharedWeights.open(path);
    const first = await shared.add(1, async (partial) => {
      expect(partial).toBe(join(path, "version-000001.partial"));
      await writeModel(partial);
      expect(existsSync(join(path, "version-000001"))).toBe(false);
    });
    const second = await shared.add(1_234_567, writeModel);
    expect([first, second]).toEqual(["version-000001", "version-1234567"].map((name) => join(path, name)));
    expect(readFileSync(join(second, "model.safetensors"), "utf8")).toBe("weights");
    await shared.keepOnly(second);
    expect(readdirSync(path).sort()).toEqual(["nlac.lock", "version-1234567"]);
    await shared.close();
    expect(readdirSync(path)).toEqual([]);
  });
});

test("a version that cannot be removed is an error, after the others are removed", async () => {
  await inDirectory(async (directory) => {
    const shared = await SharedWeights.open(directory);
    const versions: string[] = [];
    for (const version of [1, 2, 3]) versions.push(await shared.add(version, writeModel));
    busy = versions[0]!;
    await expect(shared.keepOnly(versions[2])).rejects.toMatchObject({ code: "ERR_IO" });
    expect(readdirSync(directory).sort()).toEqual(["nlac.lock", "version-000001", "version-000003"]);
    busy = "";
    await shared.close();
    expect(readdirSync(directory)).toEqual([]);
  });
});

test("a version that cannot be written leaves nothing", async () => {
  await inDirectory(async (directory) => {
    const shared = await SharedWeights.open(directory);
    const full = Object.assign(new Error("no space left"), { code: "ENOSPC", errno: -28 });
    const written = shared.add(1, async (partial) => {
      await writeModel(partial);
      throw full;
    });
    await expect(written).rejects.toMatchObject({ code: "ERR_IO" });
    expect(readdirSync(directory)).toEqual(["nlac.lock"]);
    await shared.close();
  });
});

test("an earlier run's versions are removed, other files are not, and the directory is locked", async () => {
  await inDirectory(async (directory) => {
    await writeModel(join(directory, "version-000006"));
    await writeModel(join(directory, "version-000007.partial"));
    writeFileSync(join(directory, "notes.txt"), "");
    const shared = await SharedWeights.open(directory);
    expect(readdirSync(directory).sort()).toEqual(["nlac.lock", "notes.txt"]);
    await expect(SharedWeights.open(directory)).rejects.toMatchObject({
      ...{ code: "ERR_ROLLOUTS", message: expect.stringContaining("in use") },
    });
    await shared.close();
    await (await SharedWeights.open(directory)).close();
  });
});
