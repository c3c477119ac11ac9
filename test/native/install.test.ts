import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { type InstallOptions, indexUrl, installWheels, missingWheels } from "../../lib/native/install.ts";
import { platformTags } from "../../lib/native/torch-wheels.ts";
import {
  expectFailure,
  type FakeWheel,
  fakeWheel,
  index,
  recorder,
  serve,
  temporaryDirectory,
  write,
} from "../support/files-and-servers.ts";

const torch = fakeWheel("torch", "2.11.0", [{ name: "torch/lib/libtorch_cpu.so", data: "elf" }]);
const runtime = fakeWheel("nvidia-cuda-runtime", "13.0.96", [
  { name: "nvidia/cu13/lib/libcudart.so.13", data: "elf", mode: 0o100755 },
]);
const compiler = fakeWheel("nvidia-cuda-nvcc", "13.0.88", [
  { name: "nvidia/cu13/bin/nvcc", data: "elf", mode: 0o100755 },
]);

async function place(wheels: FakeWheel[], html = false) {
  const root = temporaryDirectory();
  const server = await serve(index(wheels, html));
  const env = {
    XDG_CACHE_HOME: join(root, "cache"),
    HOME: root,
    PATH: "",
    PIP_INDEX_URL: `${server.url}/simple/`,
  };
  const directory = join(root, "cache/nlac/libtorch/2.11.0");
  const options = { directory, env, installers: ["https"] } satisfies Partial<InstallOptions>;
  return { root, server, env, directory, options };
}

describe("installWheels over HTTPS", () => {
  it.each([false, true])(
    "installs what an index offers (HTML pages: %s) and leaves no archive",
    async (html) => {
      const { root, directory, options } = await place([torch, runtime], html);
      const installed = await installWheels({ ...options, wheels: [torch, runtime] });
      expect(installed.map((wheel) => wheel.name)).toEqual(["torch", "nvidia-cuda-runtime"]);
      expect(readFileSync(join(directory, "torch/lib/libtorch_cpu.so"), "utf8")).toBe("elf");
      expect(missingWheels(directory, [torch, runtime])).toEqual([]);
      expect(readdirSync(join(root, "cache/nlac/downloads"))).toEqual([]);
      expect(readdirSync(join(root, "cache/nlac/libtorch"))).toEqual(["2.11.0"]);
    },
  );

  it("adds only missing parts to a finished directory", async () => {
    const { server, directory, options } = await place([torch, runtime, compiler]);
    await installWheels({ ...options, wheels: [torch, runtime] });
    const before = server.requests.length;
    expect(await installWheels({ ...options, wheels: [torch, runtime, compiler] })).toEqual([compiler]);
    expect(server.requests.slice(before)).toEqual([
      "GET /simple/nvidia-cuda-nvcc/",
      `GET /files/${compiler.file}`,
    ]);
    expect(readdirSync(join(directory, "nvidia/cu13")).sort()).toEqual(["bin", "lib"]);
    expect(await installWheels({ ...options, wheels: [torch, runtime, compiler] })).toEqual([]);
  });

  it("rejects a wheel whose bytes are not the pinned ones, and leaves no directory", async () => {
    const forged = { ...torch, data: Buffer.from(torch.data) };
    forged.data[40]! ^= 1;
    const { root, directory, options } = await place([forged]);
    await expectFailure(installWheels({ ...options, wheels: [torch] }), "ERR_DOWNLOAD", /SHA-256 is/);
    expect(existsSync(directory)).toBe(false);
    expect(readdirSync(join(root, "cache/nlac/downloads"))).toEqual([]);
    expect(readdirSync(join(root, "cache/nlac/libtorch"))).toEqual([]);
  });

  it("rejects a pinned wheel that would write outside of the directory", async () => {
    const hostile = fakeWheel("torch", "2.11.0", [{ name: "../../../escaped", data: "x" }]);
    const { root, directory, options } = await place([hostile]);
    await expectFailure(installWheels({ ...options, wheels: [hostile] }), "ERR_DOWNLOAD");
    expect(existsSync(join(root, "cache/nlac/escaped"))).toBe(false);
    expect(existsSync(directory)).toBe(false);
  });

  it("installs once when two start together", async () => {
    const { server, options } = await place([torch]);
    const report = recorder();
    const both = [1, 2].map(() => installWheels({ ...options, wheels: [torch], report }));
    const counts = (await Promise.all(both)).map((installed) => installed.length);
    expect(counts.sort()).toEqual([0, 1]);
    expect(server.requests.filter((request) => request.includes("/files/"))).toHaveLength(1);
    expect(report.lines.some((line) => line.startsWith("Waiting for another installation (process "))).toBe(
      true,
    );
  });

  it("clears away what an interrupted installation left", async () => {
    const { directory, options } = await place([torch]);
    write(join(`${directory}.incomplete`, "torch/half"), "x");
    await installWheels({ ...options, wheels: [torch] });
    expect(existsSync(join(directory, "torch/half"))).toBe(false);
  });

  it("says what an index lacks, without its password", async () => {
    const { server, options, env } = await place([torch]);
    const secret = server.url.replace("//", "//user:secret@");
    const report = recorder();
    const attempt = installWheels({
      ...options,
      wheels: [runtime],
      env: { ...env, PIP_INDEX_URL: `${secret}/simple` },
      report,
    });
    await expectFailure(attempt, "ERR_DOWNLOAD", /HTTP 404/);
    await expectFailure(attempt, "ERR_DOWNLOAD", /^(?!.*secret)/);
    expect(report.lines.join()).not.toContain("secret");
  });
});

describe("offline", () => {
  it("never connects, and names what is missing", async () => {
    const { server, options } = await place([torch]);
    const attempt = installWheels({ ...options, wheels: [torch], offline: true });
    await expectFailure(attempt, "ERR_DOWNLOAD", /offline, and torch-2.11.0/);
    expect(server.requests).toEqual([]);
  });

  it("installs archives that were put into the cache by hand, and keeps them", async () => {
    const { root, server, directory, options } = await place([torch]);
    const archive = write(join(root, "cache/nlac/downloads", torch.file), torch.data);
    await installWheels({ ...options, wheels: [torch], offline: true });
    expect(existsSync(join(directory, "torch/lib/libtorch_cpu.so"))).toBe(true);
    expect(existsSync(archive)).toBe(true);
    expect(server.requests).toEqual([]);
  });
});

describe("the ways to install", () => {
  it("tries pip, uv, then HTTPS, and skips missing tools", async () => {
    const { options, env } = await place([torch]);
    const installed = await installWheels({ directory: options.directory, env, wheels: [torch] });
    expect(installed).toEqual([torch]);
  });

  it("hands pip the pinned hashes, the platform and the target", async () => {
    const { root, options, env } = await place([torch]);
    // A python3 that notes how it was called and installs as pip would.
    write(
      join(root, "bin/python3"),
      `#!/bin/sh
[ "$3" = --version ] && exit 0
printf '%s\\n' "$@" > ${root}/arguments
while [ "$1" != --target ]; do shift; done
mkdir -p "$2/torch-2.11.0.dist-info" && : > "$2/torch-2.11.0.dist-info/RECORD"
while [ "$1" != -r ]; do shift; done
cat "$2" > ${root}/requirements
`,
    );
    const { chmodSync } = await import("node:fs");
    chmodSync(join(root, "bin/python3"), 0o755);
    const path = `${join(root, "bin")}:/usr/bin:/bin`;
    await installWheels({ ...options, installers: ["pip"], env: { ...env, PATH: path }, wheels: [torch] });
    const given = readFileSync(join(root, "arguments"), "utf8").split("\n");
    for (const argument of ["--no-deps", "--require-hashes", ...platformTags([torch]).pip, "cp311"])
      expect(given).toContain(argument);
    expect(readFileSync(join(root, "requirements"), "utf8")).toBe(
      `torch==2.11.0 --hash=sha256:${torch.sha256}\n`,
    );
    expect(missingWheels(options.directory, [torch])).toEqual([]);
  });

  it("reads the index from the environment, then from pip's configuration", () => {
    const home = temporaryDirectory();
    const conf = write(
      join(home, ".config/pip/pip.conf"),
      "[global]\nindex-url = http://mirror.test/simple\n",
    );
    expect(indexUrl({ HOME: home })).toBe("http://mirror.test/simple");
    expect(indexUrl({ HOME: "/", PIP_CONFIG_FILE: conf })).toBe("http://mirror.test/simple");
    expect(indexUrl({ HOME: home, PIP_INDEX_URL: "http://other.test/" })).toBe("http://other.test/");
    expect(indexUrl({ HOME: home, UV_INDEX_URL: "http://uv.test/" })).toBe("http://uv.test/");
  });
});
