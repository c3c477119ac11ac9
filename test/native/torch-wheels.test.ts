import { readFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { packageRoot } from "../../lib/native/paths.ts";
import { pinnedWheels, platformTags } from "../../lib/native/torch-wheels.ts";
import { CUDA_RUN_WHEELS, SMOLLM2_WHEELS } from "../../lib/native/wheels.ts";

const linux = { os: "linux", arch: "x64" };
const arm = { os: "linux", arch: "arm64" };
const mac = { os: "darwin", arch: "arm64" };

describe("the pinned wheels", () => {
  it.each([
    [linux, /x86_64\.whl$/, "torch/lib/libtorch_cpu.so", 123e6],
    [arm, /aarch64\.whl$/, "torch/lib/libtorch_cpu.so", 76e6],
    [mac, /macosx_11_0_arm64\.whl$/, "torch/lib/libtorch_cpu.dylib", 49e6],
  ])("of %j are of its platform, and run needs a part of them", (platform, file, library, bytes) => {
    const { torch } = pinnedWheels(platform)!;
    for (const wheel of torch) {
      expect(wheel.file).toMatch(file);
      expect(wheel.sha256).toMatch(/^[0-9a-f]{64}$/);
      expect(wheel.parts!.record).toMatch(/^[0-9a-f]{64}$/);
      expect(wheel.parts!.bytes.run + wheel.parts!.bytes.compile).toBeLessThan(wheel.bytes);
    }
    expect(torch[0]!.parts!.run).toContain(library);
    const run = torch.reduce((sum, wheel) => sum + wheel.parts!.bytes.run, 0);
    expect(Math.abs(run / bytes - 1)).toBeLessThan(0.02);
  });

  it("are with CUDA on x86-64 only", () => {
    expect([linux, arm, mac].map((platform) => pinnedWheels(platform)!.cuda !== undefined)).toEqual([
      ...[true, false, false],
    ]);
    expect(pinnedWheels({ os: "darwin", arch: "x64" })).toBeUndefined();
    expect(pinnedWheels({ os: "win32", arch: "x64" })).toBeUndefined();
  });

  it("are of the systems on which npm installs the package", () => {
    const { os, cpu, libc } = JSON.parse(readFileSync(join(packageRoot(), "package.json"), "utf8"));
    expect(os).toEqual(["linux", "darwin"]);
    expect(cpu).toEqual(["x64", "arm64"]);
    // npm refuses a package with any "libc" where the system is not Linux.
    expect(libc).toBeUndefined();
  });

  it("have the tags that pip and uv know", () => {
    const tags = (platform: typeof linux) => platformTags(pinnedWheels(platform)!.torch, platform);
    expect(tags(linux).uv).toBe("x86_64-manylinux_2_28");
    expect(tags(arm).uv).toBe("aarch64-manylinux_2_28");
    expect(tags(mac)).toEqual({ pip: ["macosx_11_0_arm64"], uv: "aarch64-apple-darwin" });
    // By the files, not by this machine.
    expect(platformTags(CUDA_RUN_WHEELS, arm).uv).toBe("x86_64-manylinux_2_28");
    expect(tags(linux).pip).toEqual(
      expect.arrayContaining(["manylinux_2_28_x86_64", "manylinux_2_5_x86_64", "manylinux2014_x86_64"]),
    );
    // A wheel for every platform.
    expect(platformTags(SMOLLM2_WHEELS, mac).pip).toEqual(["macosx_11_0_arm64"]);
    expect(platformTags(SMOLLM2_WHEELS, arm).uv).toBe("aarch64-manylinux_2_28");
  });
});
