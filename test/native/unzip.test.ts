import { existsSync, readdirSync, readFileSync, statSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { memberPath, unzip } from "../../lib/native/unzip.ts";
import { expectFailure, type Member, temporaryDirectory, write, zip } from "../support/files-and-servers.ts";

async function unpack(members: Member[], cut = 0) {
  const root = temporaryDirectory();
  const bytes = zip(members);
  const archive = write(join(root, "a.whl"), bytes.subarray(0, bytes.length - cut));
  const directory = join(root, "out/into");
  return { root, directory, written: await unzip(archive, directory) };
}

describe("unzip", () => {
  it("writes files, folders and the executable bit", async () => {
    const { directory, written } = await unpack([
      { name: "pkg/", data: "", mode: 0o040755 },
      { name: "pkg/bin/tool", data: "#!", mode: 0o100755 },
      { name: "pkg/data.txt", data: "wörter" },
    ]);
    expect(written).toEqual(["pkg/bin/tool", "pkg/data.txt"]);
    expect(readFileSync(join(directory, "pkg/data.txt"), "utf8")).toBe("wörter");
    expect(statSync(join(directory, "pkg/bin/tool")).mode & 0o111).not.toBe(0);
    expect(statSync(join(directory, "pkg/data.txt")).mode & 0o111).toBe(0);
  });

  it.each(["../slip", "a/../../slip", "/slip", "..", "a\\..\\..\\slip", "C:/slip"])(
    "refuses %s",
    async (name) => {
      const root = temporaryDirectory();
      const archive = write(join(root, "a.whl"), zip([{ name, data: "x" }]));
      const attempt = unzip(archive, join(root, "deep/er"));
      await expectFailure(attempt, "ERR_DOWNLOAD");
      expect(existsSync(join(root, "slip"))).toBe(false);
      expect(existsSync("/slip")).toBe(false);
      expect(readdirSync(root)).toEqual(["a.whl"]);
    },
  );

  it("rejects links", async () => {
    const members = [{ name: "link", data: "/etc", mode: 0o120777 }];
    await expectFailure(unpack(members), "ERR_DOWNLOAD", /"link" is refused/);
  });

  it("rejects an archive that is truncated or has a wrong size", async () => {
    const members = [{ name: "a", data: "abc" }];
    await expectFailure(unpack(members, 10), "ERR_DOWNLOAD");
    await expectFailure(unpack([{ ...members[0]!, claimedSize: 99 }]), "ERR_DOWNLOAD");
  });

  it("checks names without an archive", () => {
    const path = (fileName: string) => memberPath({ fileName, externalFileAttributes: 0 });
    expect(path("a/./b")).toBe("a/b");
    expect(path("a..b/c")).toBe("a..b/c");
    expect(path("a/../b")).toBeUndefined();
    expect(path("a\0b")).toBeUndefined();
  });
});
