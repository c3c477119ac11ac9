import { join } from "node:path";
import { afterEach, describe, expect, it, vi } from "vitest";
import { checkSystem, type Diagnosis, diagnose, format } from "../../lib/cli/doctor.ts";
import { main } from "../../lib/cli/main.ts";
import { installCommand } from "../../lib/native/build.ts";
import { fakeTorch, temporaryDirectory, write } from "../support/files-and-servers.ts";

afterEach(() => {
  vi.restoreAllMocks();
  vi.unstubAllEnvs();
  process.exitCode = undefined;
});

function bare() {
  const root = temporaryDirectory();
  const env = { HOME: root, XDG_CACHE_HOME: join(root, "cache"), PATH: "" };
  return { root, options: { env, cwd: root, root: join(root, "package"), pythonSites: () => [] } };
}

const byName = (diagnosis: Diagnosis) =>
  Object.fromEntries(diagnosis.checks.map((check) => [check.name, check]));

describe("diagnose", () => {
  it("names the command that fixes each problem", () => {
    const { options } = bare();
    const diagnosis = diagnose(options);
    expect(diagnosis.ok).toBe(false);
    const checks = byName(diagnosis);
    expect(checks.libtorch).toMatchObject({ status: "fault", fix: "npx nlac setup" });
    expect(checks.addon).toMatchObject({ status: "fault", fix: "npx nlac setup" });
    expect(checks.cmake?.status).toBe("fault");
    expect(checks.model?.status).toBe("note");
    for (const check of diagnosis.checks) if (check.status === "fault") expect(check.fix).toBeTruthy();
    expect(format(diagnosis)).toMatch(/FAULT addon .*\n +→ npx nlac setup\n/);
  });

  it("finds that an addon does not load, without loading it itself", () => {
    const { root, options } = bare();
    fakeTorch(join(root, "python"));
    for (const name of ["nlac.node", "nlac_loader.node"])
      write(join(root, "package/build/cpu", name), "not one");
    const checks = byName(diagnose({ ...options, pythonSites: () => [join(root, "python")] }));
    expect(checks.libtorch).toMatchObject({ status: "ok", detail: expect.stringContaining("by python3") });
    expect(checks.addon).toMatchObject({
      status: "fault",
      detail: expect.stringMatching(/does not load: .+/),
    });
  });

  it("reports a place the user named that cannot be used", () => {
    const { root, options } = bare();
    const named = fakeTorch(join(root, "old"), { version: "2.8.0" });
    const checks = byName(diagnose({ ...options, env: { ...options.env, NLAC_LIBTORCH: named } }));
    expect(checks.libtorch).toMatchObject({
      status: "fault",
      detail: expect.stringContaining("ERR_LIBTORCH_VERSION"),
      fix: "unset NLAC_LIBTORCH && npx nlac setup",
    });
  });

  it("reports a missing GPU only if CUDA is requested", () => {
    const { options } = bare();
    vi.stubEnv("PATH", "");
    const cpu = byName(diagnose(options)).gpu;
    const cuda = byName(diagnose({ ...options, variant: "cuda" })).gpu;
    if (cpu?.detail === "no NVIDIA driver") expect([cpu.status, cuda?.status]).toEqual(["note", "fault"]);
    else expect(cpu?.detail).toMatch(/driver/);
  });

  it("names packages as the distribution does", () => {
    const missing = ["cmake", "ninja", "g++"];
    expect(installCommand(missing, "ID=debian\n")).toBe("apt-get install -y cmake ninja-build g++");
    expect(installCommand(missing, "ID=rocky\nID_LIKE=rhel centos fedora\n")).toBe(
      "dnf install -y cmake ninja-build gcc-c++",
    );
    expect(installCommand(missing, "ID=arch\n")).toBe("pacman -S --noconfirm cmake ninja gcc");
    const mac = { os: "darwin", arch: "arm64" };
    expect(installCommand(missing, "", mac)).toBe("xcode-select --install && brew install cmake ninja");
    expect(installCommand(["ninja"], "", mac)).toBe("brew install ninja");
    expect(installCommand(["g++"], "", mac)).toBe("xcode-select --install");
  });

  it.each([
    [{}, "ok", "linux-x64, glibc 2.28"],
    [{ release: "6.6.87-microsoft-standard-WSL2" }, "ok", "linux-x64, glibc 2.28, WSL"],
    [{ glibc: "2.27" }, "fault", "linux-x64, glibc 2.27; libtorch needs Linux with glibc 2.28 or later"],
    [{ glibc: undefined }, "fault", "linux-x64, no glibc; libtorch needs Linux with glibc 2.28 or later"],
    [
      { os: "darwin", arch: "arm64", release: "23.1.0" },
      "note",
      "darwin-arm64, Darwin 23.1.0; nlac has not been",
    ],
    [{ os: "darwin", arch: "arm64", release: "19.6.0" }, "fault", "libtorch needs macOS 11 or later"],
    [{ os: "darwin", release: "23.1.0" }, "fault", "libtorch needs an Apple processor"],
    [{ os: "win32" }, "fault", "libtorch needs Linux, macOS or Windows with WSL2"],
  ])("says of %j that libtorch loads or not", (machine, status, detail) => {
    const usual = { os: "linux", arch: "x64", nodeApi: 9, glibc: "2.28", release: "6.1.0" };
    expect(checkSystem({ ...usual, ...machine })).toMatchObject({
      status,
      detail: expect.stringContaining(detail),
    });
  });
});

describe("the command line", () => {
  function capture() {
    let out = "";
    let err = "";
    vi.spyOn(console, "log").mockImplementation((text) => {
      out += `${text}\n`;
    });
    vi.spyOn(process.stdout, "write").mockImplementation((text) => {
      out += text;
      return true;
    });
    vi.spyOn(process.stderr, "write").mockImplementation((text) => {
      err += text;
      return true;
    });
    return { out: () => out, err: () => err };
  }

  it("prints doctor's checks as JSON and exits by them", async () => {
    const { root } = bare();
    vi.stubEnv("XDG_CACHE_HOME", root);
    vi.stubEnv("NLAC_LIBTORCH", join(root, "none"));
    const said = capture();
    expect(await main(["doctor", "--json"])).toBe(1);
    const diagnosis = JSON.parse(said.out()) as Diagnosis;
    expect(diagnosis.ok).toBe(false);
    for (const name of [
      "node",
      "system",
      "cpu",
      "libtorch",
      "addon",
      "cmake",
      "ninja",
      "compiler",
      "gpu",
      "model",
    ])
      expect(byName(diagnosis)[name]).toMatchObject({ status: expect.stringMatching(/^(ok|note|fault)$/) });
  });

  it.each([
    [["setup", "--cpu", "--cuda"], "nlac: ERR_VALUE: --cpu and --cuda exclude each other.\n"],
    [["setup", "--toolchain-only"], "nlac: ERR_VALUE: --toolchain-only requires --cuda.\n"],
    [["doctor", "--nonsense"], "nlac: ERR_VALUE: unknown option '--nonsense'; see nlac doctor --help\n"],
  ])("answers %j with one clear line", async (argv, line) => {
    const said = capture();
    expect(await main(argv)).toBe(1);
    expect(said.err()).toBe(line);
    expect(said.out()).toBe("");
  });

  it("passes an error's code on", async () => {
    const { root } = bare();
    vi.stubEnv("NLAC_LIBTORCH", join(root, "none"));
    const said = capture();
    expect(await main(["setup", "--dry-run"])).toBe(1);
    expect(said.err()).toMatch(/^nlac: ERR_LIBTORCH_NOT_FOUND: NLAC_LIBTORCH names .*\n$/);
  });

  it.each(["setup", "doctor"])("%s --help has an example", async (command) => {
    const said = capture();
    expect(await main([command, "--help"])).toBe(0);
    expect(said.out()).toContain(`nlac ${command}`);
    expect(said.out()).toMatch(/Examples?:\n/);
  });
});
