import { spawn } from "node:child_process";
import { once } from "node:events";
import { describe, expect, it } from "vitest";
import {
  cpuFeatures,
  libraryFile,
  physicalCores,
  platformName,
  type Run,
  residentMemory,
  runProgram,
} from "../../lib/base/platform.ts";
import { darwinProcesses, linuxProcesses, processTable } from "../../lib/base/process-table.ts";

const linux = { os: "linux", arch: "x64" };
const mac = { os: "darwin", arch: "arm64" };

/** Answers commands, and counts how often each was run. */
function scripted(answers: Record<string, string | undefined>): { run: Run; calls: string[] } {
  const calls: string[] = [];
  const run: Run = (program, args) => {
    const call = [program, ...args].join(" ");
    calls.push(call);
    if (!(call in answers)) throw new Error(`unexpected: ${call}`);
    return answers[call];
  };
  return { run, calls };
}

it("reads CPU features as the kernel lists them", () => {
  const features = cpuFeatures("processor\t: 0\nflags\t\t: fpu avx512f avx512_bf16\n\nprocessor\t: 1\n");
  expect([...features]).toEqual(["fpu", "avx512f", "avx512_bf16"]);
  expect(cpuFeatures("").size).toBe(0);
});

describe("names", () => {
  it("are those of each system", () => {
    expect([linux, mac].map((platform) => libraryFile("torch_cpu", platform))).toEqual([
      "libtorch_cpu.so",
      "libtorch_cpu.dylib",
    ]);
    expect([linux, mac].map(platformName)).toEqual(["linux-x64", "darwin-arm64"]);
  });
});

describe("runProgram", () => {
  it("tells a failure from a program that cannot be run", () => {
    expect(runProgram(process.execPath, ["-p", "1 + 1"])).toBe("2");
    expect(runProgram(process.execPath, ["-e", "process.exit(1)"])).toBeUndefined();
    expect(() => runProgram("/nowhere/ps", [])).toThrow(/ENOENT/);
  });
});

describe("physicalCores", () => {
  it("counts pairs of socket and core on Linux", () => {
    const processor = (socket: number, core: number) =>
      `processor: 0\nphysical id\t: ${socket}\ncore id\t\t: ${core}`;
    const cpuinfo = [processor(0, 0), processor(0, 1), processor(0, 0), processor(1, 0)].join("\n\n");
    expect(physicalCores(linux, { cpuinfo })).toBe(3);
    // As on ARM, where the kernel does not list them.
    expect(physicalCores(linux, { cpuinfo: "processor: 0\nFeatures: asimd\n" })).toBe(
      Number.POSITIVE_INFINITY,
    );
  });

  it("counts the fast cores of an Apple processor, else all", () => {
    const fast = "sysctl -n hw.perflevel0.physicalcpu";
    const all = "sysctl -n hw.physicalcpu";
    expect(physicalCores(mac, scripted({ [fast]: "6", [all]: "8" }))).toBe(6);
    expect(physicalCores(mac, scripted({ [fast]: undefined, [all]: "8" }))).toBe(8);
    expect(physicalCores(mac, scripted({}))).toBe(Number.POSITIVE_INFINITY);
  });
});

describe("residentMemory", () => {
  it("is the peak on Linux, and ps's figure on macOS", () => {
    expect(residentMemory(process.pid)).toBeGreaterThan(10 << 20);
    const { run } = scripted({ "ps -o rss= -p 12": "2048", "ps -o rss= -p 13": undefined });
    expect(residentMemory(12, mac, run)).toBe(2 << 20);
    expect(residentMemory(13, mac, run)).toBeNull();
    expect(residentMemory(14, mac, run)).toBeNull();
    expect(residentMemory(2 ** 30, linux)).toBeNull();
  });

  it("reads what this system's ps prints", () => {
    expect(residentMemory(process.pid, mac)).toBeGreaterThan(10 << 20);
  });
});

describe("the process table of macOS", () => {
  const boot = "sysctl -n kern.bootsessionuuid";
  const ps = (pid: number) => `ps -o stat=,lstart= -p ${pid}`;

  it("asks for the boot and its own start once", () => {
    const { run, calls } = scripted({
      [boot]: "5B1C-77",
      [ps(process.pid)]: "S+   Mon Nov 23 20:00:00 2026",
    });
    const table = darwinProcesses(run);
    for (let i = 0; i < 3; i++) {
      expect(table.bootId()).toBe("5B1C-77");
      expect(table.startOf(process.pid)).toBe("Mon Nov 23 20:00:00 2026");
    }
    expect(table.namespace()).toBe("");
    expect(calls).toHaveLength(2);
  });

  it("does not count zombies and ended processes as running", () => {
    const { run } = scripted({ [ps(7)]: "Z    Mon Nov 23 20:00:00 2026", [ps(8)]: undefined, [ps(9)]: "" });
    const table = darwinProcesses(run);
    expect([7, 8, 9].map(table.startOf)).toEqual([undefined, undefined, undefined]);
  });

  it("throws if a program cannot be run, so that no lock is taken from a running process", () => {
    const table = darwinProcesses(scripted({ [boot]: undefined }).run);
    expect(() => table.bootId()).toThrow(/kern.bootsessionuuid/);
    expect(() => table.startOf(7)).toThrow(/unexpected/);
  });

  it("agrees with /proc about processes, with this system's ps", async () => {
    const table = darwinProcesses();
    const child = spawn(process.execPath, ["-e", "setInterval(() => {}, 1000)"]);
    await once(child, "spawn");
    for (const { startOf } of [table, linuxProcesses]) {
      const started = startOf(child.pid!);
      expect(started).toBeTruthy();
      expect(startOf(child.pid!)).toBe(started);
    }
    child.kill("SIGKILL");
    await once(child, "exit");
    for (const { startOf } of [table, linuxProcesses]) expect(startOf(child.pid!)).toBeUndefined();
  });

  it("is chosen by the system", () => {
    expect(processTable(linux)).toBe(linuxProcesses);
    expect(processTable(mac).namespace()).toBe("");
  });
});
