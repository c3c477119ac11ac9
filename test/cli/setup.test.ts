import { chmodSync, existsSync, lstatSync, readdirSync, readFileSync, readlinkSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { describe, expect, it } from "vitest";
import { type SetupOptions, setup } from "../../lib/native/setup.ts";
import {
  expectFailure,
  fakeRecord,
  fakeTorch,
  fakeTorchFiles,
  fakeWheel,
  index,
  recorder,
  serve,
  sha256,
  temporaryDirectory,
  versionPy,
  write,
} from "../support/files-and-servers.ts";

function wheels(version = "2.11.0+cu130") {
  const member = (name: string) => ({ name, data: "elf" });
  const torch = [
    fakeWheel("torch", "2.11.0", [
      ...fakeTorchFiles(false, false).map(member),
      { name: "torch/version.py", data: versionPy(version, "13.0") },
    ]),
    fakeWheel("nvidia-cuda-runtime", "13.0.96", [member("nvidia/cu13/lib/libcudart.so.13")]),
    fakeWheel("nvidia-cuda-cupti", "13.0.85", [member("nvidia/cu13/lib/libcupti.so.13")]),
  ];
  const compiler = [fakeWheel("nvidia-cuda-nvcc", "13.0.88", [member("nvidia/cu13/bin/nvcc")])];
  const gpu = fakeTorchFiles(false, true).filter((file) => !fakeTorchFiles(false, false).includes(file));
  const ofNccl = [member("nvidia/nccl/lib/libnccl.so.2"), member("nvidia/nccl/include/nccl.h")];
  const nccl = {
    ...fakeWheel("nvidia-nccl-cu13", "2.28.9", ofNccl),
    parts: {
      record: sha256(Buffer.from(fakeRecord(ofNccl))),
      run: [],
      compile: ["nvidia/nccl/include/nccl.h"],
      bytes: { run: 0, compile: 3 },
    },
  };
  const run = [fakeWheel("nvidia-cublas", "13.1.0.3", gpu.map(member)), nccl];
  return { torch, cuda: { compiler, run, headers: [nccl] } };
}

async function place(offered = wheels()) {
  const root = temporaryDirectory();
  const server = await serve(index([...offered.torch, ...offered.cuda.compiler, ...offered.cuda.run]));
  const report = recorder();
  const cache = join(root, "cache/nlac/libtorch/2.11.0");
  const options = {
    env: { XDG_CACHE_HOME: join(root, "cache"), HOME: root, PATH: "", PIP_INDEX_URL: `${server.url}/simple` },
    cwd: root,
    // A package whose addon is there, so that nothing is compiled here.
    root: join(root, "package"),
    wheels: offered,
    pythonSites: () => [],
    installers: ["https"],
    probe: () => ({ loads: true, torch: "2.11.0", cuda: false, instructionSet: "avx2", openmp: [] }),
    report,
  } satisfies SetupOptions;
  for (const variant of ["cpu", "cuda"])
    for (const name of ["nlac.node", "nlac_loader.node"])
      write(join(root, "package/prebuilds", `${process.platform}-${process.arch}`, variant, name));
  return { root, server, report, cache, options };
}

describe("setup", () => {
  it("installs the CPU wheels into the cache, once", async () => {
    const { server, cache, options } = await place();
    const first = await setup(options);
    expect(first).toMatchObject({
      variant: "cpu",
      libtorch: join(cache, "torch"),
      built: false,
      dryRun: false,
    });
    expect(first.installed).toEqual([
      ...["torch 2.11.0", "nvidia-cuda-runtime 13.0.96", "nvidia-cuda-cupti 13.0.85"],
    ]);
    const before = server.requests.length;
    const second = await setup(options);
    expect(second).toMatchObject({ installed: [], bytes: 0 });
    expect(server.requests).toHaveLength(before);
  });

  it("adds the CUDA wheels to it, or only the compiler and NCCL's header", async () => {
    const { root, cache, options } = await place();
    await setup(options);
    const compile = { ...options, root: join(root, "checkout"), build: false };
    const only = {
      ...compile,
      variant: "cuda",
      toolchainOnly: true,
      installers: ["ranges", "https"],
    } as const;
    const toolchain = await setup(only);
    expect(toolchain.installed).toEqual(["nvidia-cuda-nvcc 13.0.88", "nvidia-nccl-cu13 2.28.9"]);
    expect(existsSync(join(cache, "nvidia/cu13/bin/nvcc"))).toBe(true);
    expect(existsSync(join(cache, "nvidia/nccl/include/nccl.h"))).toBe(true);
    expect(existsSync(join(cache, "nvidia/nccl/lib/libnccl.so.2"))).toBe(false);
    expect((await setup(only)).installed).toEqual([]);
    const whole = await setup({ ...compile, variant: "cuda" });
    expect(whole.installed).toEqual(["nvidia-cublas 13.1.0.3", "nvidia-nccl-cu13 2.28.9"]);
    expect(existsSync(join(cache, "nvidia/nccl/lib/libnccl.so.2"))).toBe(true);
    expect(existsSync(join(cache, "torch/lib/libtorch_cuda.so"))).toBe(true);
  });

  it("installs what is pinned for the platform, and says where nothing is", async () => {
    const { root, report, options } = await place();
    const { wheels: _, ...pinned } = options;
    const dry = { ...pinned, root: join(root, "none"), dryRun: true };
    const mac = await setup({ ...dry, platform: { os: "darwin", arch: "arm64" } });
    expect(mac.installed).toEqual(["torch 2.11.0"]);
    expect(mac.bytes).toBeLessThan(60e6);
    const searched = report.lines.find((line) => line.includes("Searched:"));
    expect(searched).toContain("the cache");
    const arm = await setup({ ...dry, platform: { os: "linux", arch: "arm64" } });
    expect(arm.installed).toHaveLength(3);
    const refused = (platform: { os: string; arch: string }, variant: "cpu" | "cuda") =>
      expectFailure(
        setup({ ...dry, platform, variant }),
        "ERR_LIBTORCH_NOT_FOUND",
        /No wheels.* are pinned for/,
      );
    await refused({ os: "darwin", arch: "x64" }, "cpu");
    await refused({ os: "darwin", arch: "arm64" }, "cuda");
    await refused({ os: "linux", arch: "arm64" }, "cuda");
  });

  it("fetches no CUDA compiler if the CUDA addon is there", async () => {
    const { cache, options } = await place();
    const result = await setup({ ...options, variant: "cuda" });
    expect(result.installed).toHaveLength(5);
    expect(existsSync(join(cache, "nvidia/cu13/bin/nvcc"))).toBe(false);
  });

  it("compiles an addon that does not load, and says why", async () => {
    const { report, options } = await place();
    const probe = () => ({ loads: false, reason: "GLIBC_2.38 not found" }) as const;
    const attempt = setup({ ...options, probe });
    await expectFailure(attempt, "ERR_ADDON_NOT_FOUND", /Building the native addon needs cmake/);
    expect(report.lines).toContainEqual(expect.stringMatching(/cannot be used: GLIBC_2\.38 not found\.$/));
  });

  it("--fetch-only downloads what a setup without a network then uses", async () => {
    const { server, cache, options } = await place();
    const fetched = await setup({ ...options, fetchOnly: true });
    expect(fetched).toMatchObject({ installed: [], built: false });
    expect(existsSync(cache)).toBe(false);
    const before = server.requests.length;
    expect((await setup({ ...options, offline: true })).installed).toHaveLength(3);
    expect(server.requests).toHaveLength(before);
    expect(existsSync(join(cache, "torch/lib/libtorch_cpu.so"))).toBe(true);
  });

  it("--dry-run prints the plan and the download size, and changes nothing", async () => {
    const { root, server, report, options } = await place();
    const result = await setup({ ...options, dryRun: true, root: join(root, "checkout") });
    expect(result).toMatchObject({ dryRun: true, built: false });
    expect(result.bytes).toBe(options.wheels.torch.reduce((sum, wheel) => sum + wheel.bytes, 0));
    expect(report.lines.join("\n")).toMatch(/Would install into .*2\.11\.0:\n {2}torch 2\.11\.0 +\d/);
    expect(report.lines.at(-1)).toMatch(/^Would build the cpu addon/);
    expect(server.requests).toEqual([]);
    expect(existsSync(join(root, "cache"))).toBe(false);
  });

  it("--dry-run keeps an addon that does not load", async () => {
    const { root, options } = await place();
    const built = join(root, "checkout/build/cpu");
    for (const name of ["nlac.node", "nlac_loader.node"]) write(join(built, name));
    await setup(options);
    const probe = () => ({ loads: false, reason: "no" }) as const;
    await setup({ ...options, root: join(root, "checkout"), dryRun: true, probe });
    expect(readdirSync(built).sort()).toEqual(["nlac.node", "nlac_loader.node"]);
  });

  it("does not replace the addon that another process builds meanwhile", async () => {
    const { root, options } = await place();
    await setup(options);
    const [bin, checkout, log] = ["bin", "checkout", "log"].map((name) => join(root, name)) as [
      string,
      string,
      string,
    ];
    // In place of cmake and the compiler: a build that takes a second.
    const script = `#!/bin/sh
[ "$1" = --build ] || exit 0
echo build >> ${log}
sleep 1
touch "$2/nlac.node" "$2/nlac_loader.node"
`;
    for (const name of ["cmake", "ninja", "c++"]) {
      write(join(bin, name), script);
      chmodSync(join(bin, name), 0o755);
    }
    const building = { ...options, root: checkout, env: { ...options.env, PATH: `${bin}:/bin:/usr/bin` } };
    const first = setup(building);
    while (!existsSync(log)) await sleep(10);
    const results = await Promise.all([first, setup(building)]);
    expect(results.map(({ built }) => built)).toEqual([true, false]);
    expect(readFileSync(log, "utf8")).toBe("build\n");
  });

  it("uses a torch it finds instead of installing one", async () => {
    const { root, server, report, options } = await place();
    const site = fakeTorch(join(root, "python"));
    const result = await setup({ ...options, pythonSites: () => [site] });
    expect(result.libtorch).toBe(join(site, "torch"));
    expect(report.lines[0]).toBe(`libtorch 2.11.0+cu130 is at ${site} (python3).`);
    expect(server.requests).toEqual([]);
  });

  it("stays off the network when offline, and says so", async () => {
    const { server, options, cache } = await place();
    await expectFailure(setup({ ...options, offline: true }), "ERR_DOWNLOAD", /offline/);
    expect(server.requests).toEqual([]);
    expect(existsSync(cache)).toBe(false);
  });

  it("rejects wheels that contain another version than they claim", async () => {
    const offered = wheels("2.10.0");
    const { options } = await place(offered);
    await expectFailure(setup(options), "ERR_LIBTORCH_NOT_FOUND", /is torch 2\.10\.0, not 2\.11\.0/);
  });

  it("says which tools are missing before it builds", async () => {
    const { root, options } = await place();
    const attempt = setup({ ...options, root: join(root, "checkout") });
    await expectFailure(attempt, "ERR_ADDON_NOT_FOUND", /cmake, ninja, g\+\+/);
  });
});

describe("setup --from", () => {
  it("links the cache to an installation it has checked", async () => {
    const { root, cache, options } = await place();
    const site = fakeTorch(join(root, "mine"));
    await setup({ ...options, from: "mine" });
    expect(readlinkSync(cache)).toBe(site);
    const again = fakeTorch(join(root, "other"));
    await setup({ ...options, from: again });
    expect(readlinkSync(cache)).toBe(again);
    expect((await setup(options)).libtorch).toBe(join(cache, "torch"));
  });

  it("rejects another version, an empty directory, and writing through its own link", async () => {
    const { root, cache, options } = await place();
    const old = fakeTorch(join(root, "old"), { version: "2.9.0" });
    await expectFailure(setup({ ...options, from: old }), "ERR_LIBTORCH_VERSION");
    await expectFailure(setup({ ...options, from: root }), "ERR_LIBTORCH_NOT_FOUND");
    expect(lstatSync(cache, { throwIfNoEntry: false })).toBeUndefined();

    const site = fakeTorch(join(root, "mine"));
    await setup({ ...options, from: site });
    const before = readdirSync(site, { recursive: true });
    await expectFailure(setup({ ...options, variant: "cuda" }), "ERR_IO");
    expect(readdirSync(site, { recursive: true })).toEqual(before);
  });

  it("never replaces an installation by nlac", async () => {
    const { root, cache, options } = await place();
    await setup(options);
    const site = fakeTorch(join(root, "mine"));
    await expectFailure(setup({ ...options, from: site }), "ERR_IO");
    expect(lstatSync(cache).isSymbolicLink()).toBe(false);
  });
});
