import { spawnSync } from "node:child_process";
import { existsSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { findAddon, openmpRuntimes, threadCount, variantOf } from "../../lib/native/load.ts";
import { buildRoot, packageRoot } from "../../lib/native/paths.ts";
import { temporaryDirectory, write } from "../support/files-and-servers.ts";

describe("the loader addon", () => {
  const file = join(packageRoot(), "build/cpu/nlac_loader.node");
  const loader = () => createRequire(import.meta.url)(file) as { load(paths: unknown): void };

  it("is built", () => expect(existsSync(file)).toBe(true));

  it("names the library that does not load, and why", () => {
    const broken = write(join(temporaryDirectory(), "libtorch_cpu.so"), "not a library");
    const thrown = expect.objectContaining({
      code: "ERR_LIBTORCH_NOT_FOUND",
      message: expect.stringContaining(`cannot load ${broken}: `),
    });
    expect(() => loader().load([broken])).toThrow(thrown);
    expect(() => loader().load(["/nowhere/libc10.so"])).toThrow(/No such file/);
  });

  it.each([[undefined], ["/a.so"], [["relative.so"]], [[7]], [["/a\0b.so"]], [[""]]])(
    "refuses %j",
    (value) => {
      expect(() => loader().load(value)).toThrow(expect.objectContaining({ code: "ERR_VALUE" }));
    },
  );

  it("loads nothing of an empty list", () => expect(loader().load([])).toBeUndefined());
});

describe("NLAC_INSTRUCTION_SET", () => {
  /** The output of a new process that loads the addon under a limit. */
  const under = (limit: string) => {
    const script = `
      const jiti = require("jiti").createJiti(process.cwd() + "/any.js");
      jiti.import("./lib/native/load.ts").then(({ loadAddon }) => {
        try {
          console.log(JSON.stringify({ set: loadAddon().instructionSet() }));
        } catch ({ code, message }) {
          console.log(JSON.stringify({ code, message }));
        }
      });`;
    const env = { ...process.env, NLAC_INSTRUCTION_SET: limit };
    const { stdout } = spawnSync(process.execPath, ["-e", script], {
      ...{ cwd: packageRoot(), encoding: "utf8", env },
      stdio: ["ignore", "pipe", "inherit"],
    });
    return JSON.parse(stdout) as Record<string, string>;
  };

  it("limits the kernels, and none is larger than the processor's best", () => {
    const sets = ["baseline", "avx2", "avx512", "avx512_bf16", "amx_bf16"];
    const best = sets.indexOf(under("").set!);
    expect(best).toBeGreaterThanOrEqual(0);
    for (const [i, set] of sets.entries()) expect(under(set).set).toBe(sets[Math.min(i, best)]);
  });

  it("is rejected if it names no set", () => {
    expect(under("sse9")).toEqual({
      code: "ERR_CONFIG",
      message: "NLAC_INSTRUCTION_SET must be baseline, avx2, avx512, avx512_bf16 or amx_bf16, not sse9",
    });
  });
});

describe("findAddon", () => {
  it("prefers the checkout's build to a shipped one, and needs both files", () => {
    const root = temporaryDirectory();
    const prebuilt = join(root, "prebuilds", `${process.platform}-${process.arch}`, "cpu");
    expect(findAddon("cpu", root)).toBeUndefined();
    write(join(prebuilt, "nlac.node"));
    expect(findAddon("cpu", root)).toBeUndefined();
    write(join(prebuilt, "nlac_loader.node"));
    expect(findAddon("cpu", root)).toEqual({ variant: "cpu", directory: prebuilt });
    for (const name of ["nlac.node", "nlac_loader.node"]) write(join(root, "build/cpu", name));
    expect(findAddon("cpu", root)?.directory).toBe(join(root, "build/cpu"));
    expect(findAddon("cuda", root)).toBeUndefined();
  });

  it("finds what an installed package compiled in the cache, where npm does not delete it", () => {
    const home = temporaryDirectory();
    const env = { XDG_CACHE_HOME: home };
    const root = join(home, "project/node_modules/nlac");
    const directory = join(buildRoot(root, env), "cpu");
    expect(directory.startsWith(join(home, "nlac/builds"))).toBe(true);
    for (const name of ["nlac.node", "nlac_loader.node"]) write(join(directory, name));
    expect(findAddon("cpu", root, env)).toEqual({ variant: "cpu", directory });
    // The same version with other sources is another build.
    const other = join(home, "other/node_modules/nlac");
    write(join(other, "CMakeLists.txt"), "project(other)");
    expect(findAddon("cpu", other, env)).toBeUndefined();
  });
});

describe("devices and threads", () => {
  it("accepts cpu, cuda and cuda:N", () => {
    expect(["cpu", "cuda", "cuda:3"].map(variantOf)).toEqual(["cpu", "cuda", "cuda"]);
    for (const device of ["gpu", "cuda:", "CPU", "cuda:x"])
      expect(() => variantOf(device)).toThrow(expect.objectContaining({ code: "ERR_DEVICE" }));
  });

  it("takes the thread count from the environment, else from the machine", () => {
    expect(threadCount({ NLAC_THREADS: "3", OMP_NUM_THREADS: "5" })).toBe(3);
    expect(threadCount({ OMP_NUM_THREADS: "5,2" })).toBe(5);
    expect(threadCount({})).toBeGreaterThanOrEqual(1);
    for (const text of ["0", "-1", "many", "1.5"])
      expect(() => threadCount({ NLAC_THREADS: text })).toThrow(
        expect.objectContaining({ code: "ERR_CONFIG" }),
      );
  });

  it("tells OpenMP runtimes apart by their files", () => {
    const torch = "/site/torch/lib/libgomp.so.1";
    expect(openmpRuntimes([torch, torch, "/usr/lib/libgompx.so", "/usr/lib/libc.so.6"])).toEqual([torch]);
    expect(openmpRuntimes([torch, "/opt/lib/libiomp5.so"])).toHaveLength(2);
    for (const file of ["/a/libgomp-a34b3233.so.1", "/site/torch/lib/libomp.dylib", "/opt/my libs/libomp.so"])
      expect(openmpRuntimes([file])).toEqual([file]);
    expect(openmpRuntimes([])).toEqual([]);
  });
});
