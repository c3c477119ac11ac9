import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { cachedLibtorch, findLibtorch, requireLibtorch } from "../../lib/native/libtorch.ts";
import { fakeTorch, temporaryDirectory, versionPy, write } from "../support/files-and-servers.ts";

function places() {
  const root = temporaryDirectory();
  const env = { XDG_CACHE_HOME: join(root, "cache"), HOME: root, PATH: "" };
  return { root, env, cwd: root, pythonSites: () => [join(root, "python")] };
}

describe("the order of the search", () => {
  const at = {
    NLAC_LIBTORCH: (root: string) => join(root, "named"),
    LIBTORCH: (root: string) => join(root, "generic"),
    config: (root: string) => join(root, "configured"),
    VIRTUAL_ENV: (root: string) => join(root, "venv"),
    CONDA_PREFIX: (root: string) => join(root, "conda"),
    python3: (root: string) => join(root, "python"),
    cache: (root: string) => join(root, "cache"),
  };
  const order = Object.keys(at) as (keyof typeof at)[];

  it.each(order)("takes %s before all that follow it", (first) => {
    const { root, env: base, ...options } = places();
    const env: Record<string, string> = { ...base };
    for (const place of order.slice(order.indexOf(first))) {
      const path = at[place](root);
      if (place === "VIRTUAL_ENV" || place === "CONDA_PREFIX") {
        fakeTorch(join(path, "lib/python3.12/site-packages"));
        env[place] = path;
      } else if (place === "cache") {
        fakeTorch(cachedLibtorch(env));
      } else {
        fakeTorch(path);
        if (place === "config")
          write(join(root, "nlac.config.json"), JSON.stringify({ libtorch: "configured" }));
        else if (place !== "python3") env[place] = path;
      }
    }
    const { found } = findLibtorch({ ...options, env });
    expect(found?.site.startsWith(at[first](root))).toBe(true);
    expect(found?.preload.map((file) => file.slice(found.site.length + 1))).toEqual([
      "nvidia/cu13/lib/libcudart.so.13",
      "nvidia/cu13/lib/libcupti.so.13",
      "torch/lib/libc10.so",
      "torch/lib/libtorch_cpu.so",
    ]);
  });

  it("takes the torch/ directory itself as well as the one above it", () => {
    const { root, env, ...options } = places();
    fakeTorch(join(root, "site"));
    const { found } = findLibtorch({ ...options, env: { ...env, NLAC_LIBTORCH: join(root, "site/torch") } });
    expect(found?.site).toBe(join(root, "site"));
  });

  it("takes an unpacked libtorch archive, whose libraries carry a hash", () => {
    const { root, env, ...options } = places();
    const archive = join(root, "libtorch");
    for (const file of ["libtorch_cpu.so", "libc10.so", "libcudart-1b5a9e2f.so.13", "libcupti-77ab.so.13"])
      write(join(archive, "lib", file));
    write(join(archive, "include/torch/csrc/api/include/torch/torch.h"));
    write(join(archive, "build-version"), "2.11.0+cu130\n");
    const { found } = findLibtorch({ ...options, env: { ...env, NLAC_LIBTORCH: archive } });
    expect(found).toMatchObject({ torch: archive, cuda: "13.0", version: "2.11.0+cu130" });
    expect(found?.preload[0]).toBe(join(archive, "lib/libcudart-1b5a9e2f.so.13"));
  });
});

describe("rejected installations", () => {
  it("lists every place with its reason, and the command that fixes it", () => {
    const { root, env: base, ...options } = places();
    const env = { ...base, LIBTORCH: join(root, "old"), VIRTUAL_ENV: join(root, "venv") };
    fakeTorch(env.LIBTORCH, { version: "2.9.1+cu128", cuda: "12.8" });
    fakeTorch(join(env.VIRTUAL_ENV, "lib/python3.11/site-packages"), { runtime: false });
    write(join(root, "python/numpy/__init__.py"));
    let message = "";
    try {
      requireLibtorch({ ...options, env });
    } catch (error) {
      expect(error).toMatchObject({ code: "ERR_LIBTORCH_NOT_FOUND" });
      message = (error as Error).message;
    }
    expect(message.split("\n")[0]).toBe("libtorch 2.11.0 was not found. Run `npx nlac setup`. Tried:");
    for (const line of [
      "NLAC_LIBTORCH: not set",
      `LIBTORCH (${root}/old): is torch 2.9.1+cu128, not 2.11.0`,
      `VIRTUAL_ENV (${root}/venv/lib/python3.11/site-packages): lacks libcudart.so.13`,
      "CONDA_PREFIX: not set",
      `python3 (${root}/python): has no torch/lib/libtorch_cpu.so`,
      `the cache (${root}/cache/nlac/libtorch/2.11.0): does not exist`,
    ])
      expect(message).toContain(`  ${line}`);
  });

  it("rejects another version in a place that the user named", () => {
    const { root, env, ...options } = places();
    fakeTorch(cachedLibtorch(env));
    const named = fakeTorch(join(root, "old"), { version: "2.10.0" });
    const search = () => findLibtorch({ ...options, env: { ...env, NLAC_LIBTORCH: named } });
    expect(search).toThrow(expect.objectContaining({ code: "ERR_LIBTORCH_VERSION" }));
    const nowhere = () => findLibtorch({ ...options, env: { ...env, NLAC_LIBTORCH: join(root, "none") } });
    expect(nowhere).toThrow(expect.objectContaining({ code: "ERR_LIBTORCH_NOT_FOUND" }));
  });

  it("looks for the names that macOS gives libraries", () => {
    const { root, env, ...options } = places();
    const platform = { os: "darwin", arch: "arm64" };
    const site = join(root, "python");
    fakeTorch(site, { version: "2.11.0", cuda: null, runtime: false });
    const { rejected } = findLibtorch({ ...options, env, platform });
    expect(rejected.find(({ path }) => path === site)?.reason).toBe("has no torch/lib/libtorch_cpu.dylib");
    for (const name of ["libc10.dylib", "libtorch_cpu.dylib"]) write(join(site, "torch/lib", name));
    const { found } = findLibtorch({ ...options, env, platform });
    expect(found?.preload).toEqual([
      join(site, "torch/lib/libc10.dylib"),
      join(site, "torch/lib/libtorch_cpu.dylib"),
    ]);
  });

  it("needs no CUDA runtime beside a CPU build", () => {
    const { root, env, ...options } = places();
    fakeTorch(join(root, "python"), { version: "2.11.0+cpu", cuda: null, runtime: false });
    const { found } = findLibtorch({ ...options, env });
    expect(found).toMatchObject({ source: "python3", cuda: undefined });
    expect(found?.preload).toHaveLength(2);
  });

  it("skips a CPU build, and one without cuBLAS, if CUDA is requested", () => {
    const { root, env, ...options } = places();
    fakeTorch(join(root, "python"), { version: "2.11.0+cpu", cuda: null, runtime: false });
    fakeTorch(cachedLibtorch(env));
    const { found, rejected } = findLibtorch({ ...options, env, variant: "cuda" });
    expect(found).toBeUndefined();
    expect(rejected.at(-1)?.reason).toBe("lacks libcublas.so.13");
    fakeTorch(cachedLibtorch(env), { gpu: true });
    const whole = findLibtorch({ ...options, env, variant: "cuda" }).found;
    expect(whole?.preload.map((file) => file.split("/").at(-1))).toEqual([
      ...[
        "libcudart.so.13",
        "libcupti.so.13",
        "libc10.so",
        "libtorch_cpu.so",
        "libc10_cuda.so",
        "libtorch_cuda.so",
      ],
    ]);
  });

  it("reports the problem of a broken configuration", () => {
    const { root, env, ...options } = places();
    write(join(root, "nlac.config.json"), "{");
    expect(() => findLibtorch({ ...options, env })).toThrow(expect.objectContaining({ code: "ERR_CONFIG" }));
    write(join(root, "nlac.config.json"), '{"libtorch": 7}');
    expect(() => findLibtorch({ ...options, env })).toThrow(/"libtorch" must be a path/);
  });

  it("never runs a version.py", () => {
    const { root, env, ...options } = places();
    const site = fakeTorch(join(root, "python"));
    write(join(site, "torch/version.py"), `${versionPy("2.11.0", null)}\nraise SystemExit("imported")\n`);
    expect(findLibtorch({ ...options, env }).found?.version).toBe("2.11.0");
  });
});
