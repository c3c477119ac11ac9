import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { type InstallOptions, installWheels, missingBytes, missingWheels } from "../../lib/native/install.ts";
import {
  expectFailure,
  fakeRecord,
  fakeWheel,
  type Handler,
  index,
  type Member,
  recorder,
  serve,
  sha256,
  temporaryDirectory,
  zip,
} from "../support/files-and-servers.ts";

// Larger than one request, so that reading it takes several.
const large = Buffer.alloc(20 << 20, "libtorch_cpu ");
const files: Member[] = [
  { name: "torch/bin/ptxas", data: Buffer.alloc(12 << 20, "p") },
  { name: "torch/lib/libtorch_cpu.so", data: large, mode: 0o100755 },
  { name: "torch/include/a.h", data: "a" },
  { name: "torch/include/deep/b.h", data: "b" },
  { name: "torch/version.py", data: "2.11.0" },
];

function wheelOf(members: readonly Member[], record = fakeRecord(members)) {
  return {
    ...fakeWheel("torch", "2.11.0", members),
    parts: {
      record: sha256(Buffer.from(record)),
      run: ["torch/lib/libtorch_cpu.so", "torch/version.py"],
      compile: ["torch/include/"],
      bytes: { run: large.length + 6, compile: 2 },
    },
  };
}

async function place(wheel = wheelOf(files), handler: Handler = index([wheel])) {
  const root = temporaryDirectory();
  const server = await serve(handler);
  const directory = join(root, "cache/nlac/libtorch/2.11.0");
  const report = recorder();
  const options = {
    ...{ directory, report, wheels: [wheel] },
    env: { XDG_CACHE_HOME: join(root, "cache"), HOME: root, PATH: "", PIP_INDEX_URL: `${server.url}/simple` },
  } satisfies InstallOptions;
  const received = () =>
    server.requests
      .map((request) => /bytes=(\d+)-(\d+)$/.exec(request))
      .reduce((sum, range) => sum + (range ? Number(range[2]) - Number(range[1]) + 1 : 0), 0);
  return { root, server, report, directory, options, wheel, received };
}

describe("installing parts of a wheel", () => {
  it("fetches the members to run, and later only those to compile", async () => {
    const { directory, options, wheel, server, received } = await place();
    await installWheels({ ...options, need: "run" });
    expect(readFileSync(join(directory, "torch/lib/libtorch_cpu.so")).equals(large)).toBe(true);
    expect(readFileSync(join(directory, "torch/version.py"), "utf8")).toBe("2.11.0");
    expect(readdirSync(join(directory, "torch")).sort()).toEqual(["lib", "version.py"]);
    expect(missingWheels(directory, [wheel], "run")).toEqual([]);
    expect(missingBytes(directory, [wheel], "compile")).toBe(2);

    const before = received();
    await installWheels({ ...options, need: "compile" });
    expect(received() - before).toBeLessThan(large.length);
    expect(readFileSync(join(directory, "torch/include/deep/b.h"), "utf8")).toBe("b");
    const requests = server.requests.length;
    for (const need of ["run", "compile"] as const)
      expect(await installWheels({ ...options, need })).toEqual([]);
    expect(server.requests).toHaveLength(requests);
  });

  it("adds the rest when all of the wheel is needed", async () => {
    const { directory, options, wheel } = await place();
    await installWheels({ ...options, need: "run" });
    expect(missingBytes(directory, [wheel])).toBe(wheel.bytes);
    await installWheels(options);
    expect(existsSync(join(directory, "torch/bin/ptxas"))).toBe(true);
    expect(missingWheels(directory, [wheel])).toEqual([]);
  });

  it("refuses a member that differs from the record, and a record that was not pinned", async () => {
    const forged = files.map((file) =>
      file.name.endsWith("version.py") ? { ...file, data: "2.11.1" } : file,
    );
    const record = fakeRecord(files);
    const member = { name: "torch-2.11.0.dist-info/RECORD", data: record };
    const data = zip([...forged, member]);
    const changed = { ...wheelOf(files), data, bytes: data.length };
    const other = wheelOf(forged, record); // its RECORD agrees with its members
    for (const [wheel, reason] of [
      [changed, /torch\/version\.py differs from its record/],
      [other, /SHA-256 of RECORD is/],
    ] as const) {
      const { directory, options } = await place(wheel);
      const attempt = installWheels({ ...options, need: "run", installers: ["ranges"] });
      await expectFailure(attempt, "ERR_DOWNLOAD", reason);
      expect(existsSync(directory)).toBe(false);
    }
  });

  it("repeats a request whose connection broke", async () => {
    const wheel = wheelOf(files);
    const whole = index([wheel]);
    let broken = 0;
    const { directory, options } = await place(wheel, (request, response) => {
      const [, from, to] = /^bytes=(\d+)-(\d+)$/.exec(request.headers.range ?? "") ?? [];
      if (from === undefined || Number(to) - Number(from) < 1000 || broken++ > 0)
        return whole(request, response);
      response.writeHead(206, {
        "content-length": Number(to) - Number(from) + 1,
        "content-range": `bytes ${from}-${to}/${wheel.bytes}`,
      });
      response.write("x".repeat(100), () => response.destroy());
    });
    await installWheels({ ...options, need: "run", installers: ["ranges"] });
    expect(broken).toBeGreaterThan(1);
    expect(readFileSync(join(directory, "torch/lib/libtorch_cpu.so")).equals(large)).toBe(true);
  });

  it("installs the whole wheel from a server without ranges", async () => {
    const wheel = wheelOf(files);
    const whole = index([wheel]);
    const { directory, options, report } = await place(wheel, (request, response) => {
      delete request.headers.range;
      whole(request, response);
    });
    await installWheels({ ...options, need: "run" });
    expect(report.lines.join("\n")).toMatch(/Installation with ranges failed: .*does not support ranges/);
    expect(existsSync(join(directory, "torch/bin/ptxas"))).toBe(true);
  });
});
